"""Stored formats of subscriptions: the subscription, its progress, attempts. Pure."""

import sys
from typing import Any

import msgspec

from postroad.api.subscriptions import (
    RETRY_DELAYS_MS,
    DeliveryType,
    EndpointSecretVersion,
    Ordering,
    PushFormat,
    Rewind,
    SnsSubscription,
    Subscription,
    SubscriptionState,
    SubscriptionStatus,
)
from postroad.kernel.circuit_breaker import BreakerCounts
from postroad.kernel.clock import rfc3339
from postroad.subscriptions.delivery_cursor import CursorState

LIVE_CURSOR = "live"


class StoredSecret(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A secret, encrypted and bound to its subscription. `valid_until_ms`: set while it is being replaced."""

    encrypted: str
    created_at_ms: int | None = None
    valid_until_ms: int | None = None

    def is_valid(self, now_ms: int) -> bool:
        return self.valid_until_ms is None or self.valid_until_ms > now_ms


class ReplayRange(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A replay that runs beside the live delivery: the messages from one sequence to another, both included."""

    task: str
    first: int
    last: int
    rate_per_second: int

    @property
    def cursor(self) -> str:
        """The name of its cursor."""
        return f"replay-{self.task}"


class StoredRewind(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Delivery started again at `first`. Messages up to `last`, the newest one then, are marked; `until_ms`: none later."""

    first: int
    last: int
    until_ms: int | None = None


_SHARED_TEXTS = ("tenant", "topic", "topic_incarnation", "start", "ordering_key", "cursor")
LIVE_TYPES = (DeliveryType.SSE, DeliveryType.WEBSOCKET)


class SubscriptionRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A subscription, under `<tenant>.<id>`. `start_after` is the sequence that its delivery starts after, `start` what was
    requested for it.

    The id of a subscription with a name is derived from topic and name, so that two requests at once create it once. Its
    progress, attempts and dead letters are stored under `incarnation`: a later subscription of the same name does not inherit
    them.

    `topic_incarnation` is that of the topic: the subscription ends with it. Secrets are ordered from the oldest to the newest.
    `headers` is the encrypted JSON object of the custom headers, whose names are in `header_names`. `cursor` names the progress
    of its delivery: a rewind begins another one.
    """

    v: int = 1
    id: str
    incarnation: str
    tenant: str
    topic: str
    topic_incarnation: str
    name: str | None = None
    delivery_type: DeliveryType
    state: SubscriptionState = SubscriptionState.ACTIVE
    disabled_reason: str | None = None
    patterns: tuple[str, ...]
    content_filter: dict[str, Any] | None = None
    url: str | None = None
    queue: str | None = None
    secrets: tuple[StoredSecret, ...] = ()
    headers: str | None = None
    header_names: tuple[str, ...] = ()
    start_after: int
    start: str = ""
    max_deliver: int
    retry_delays_ms: tuple[int, ...]
    ack_wait_ms: int
    max_per_second: int | None = None
    max_in_flight: int
    ordering: Ordering = Ordering.NONE
    ordering_key: str = "subject"
    format: PushFormat = PushFormat.RAW
    latest_only: int | None = None
    replays: tuple[ReplayRange, ...] = ()
    dead_letter_queue: str | None = None
    sns: SnsSubscription | None = None
    cursor: str = LIVE_CURSOR
    rewind: StoredRewind | None = None
    created_at_ms: int
    updated_at_ms: int

    def __post_init__(self) -> None:
        """Share what many subscriptions have in common. Every process keeps all records, and each is decoded by itself."""
        for name in _SHARED_TEXTS:
            msgspec.structs.force_setattr(self, name, sys.intern(getattr(self, name)))
        if self.retry_delays_ms == RETRY_DELAYS_MS:
            msgspec.structs.force_setattr(self, "retry_delays_ms", RETRY_DELAYS_MS)

    @property
    def key(self) -> str:
        return record_key(self.tenant, self.id)

    @property
    def secret_owner(self) -> str:
        """The context that its secrets are encrypted for."""
        return f"subscription/{self.tenant}/{self.incarnation}"

    @property
    def is_read_live(self) -> bool:
        """True if clients read it, and nothing is delivered."""
        return self.delivery_type in LIVE_TYPES

    @property
    def is_delivered(self) -> bool:
        """True if a delivery process keeps its progress: not if clients read it, or if its endpoint has yet to confirm it."""
        return not self.is_read_live and self.state is not SubscriptionState.PENDING

    @property
    def has_breaker(self) -> bool:
        """True if attempts pause while the endpoint fails. Not in SNS, where the delivery policy alone says when each is made."""
        return self.sns is None

    @property
    def delivery(self) -> str:
        """Names this delivery of the topic: ids of deliveries to queues are derived from it."""
        return self.incarnation if self.cursor == LIVE_CURSOR else f"{self.incarnation}/{self.cursor}"

    def is_replayed(self, sequence: int) -> bool:
        """True for a message that is delivered again, after a rewind."""
        return self.rewind is not None and sequence <= self.rewind.last

    @property
    def is_active(self) -> bool:
        return self.state is SubscriptionState.ACTIVE


class ProgressRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The stored progress of one cursor, on `progress.<tenant>.<subscription>.<cursor>`, and what its owner last observed.

    `paused_until_ms`, `is_failing` and `breaker_counts` are what its next owner continues with.
    """

    v: int = 1
    owner: str
    at_ms: int
    cursor: CursorState
    delivered_count: int = 0
    failed_count: int = 0
    in_flight: int = 0
    recent_successes: int = 0
    recent_failures: int = 0
    breaker: str = "closed"
    resumes_at_ms: int | None = None
    last_error: str | None = None
    suspected_loop: str | None = None
    paused_until_ms: int = 0
    is_failing: bool = False
    breaker_counts: BreakerCounts | None = None


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt, as a line of a frame on `attempts.<tenant>.<subscription>`."""

    at: int
    seq: int
    subject: str
    n: int
    outcome: str
    ms: int
    status: int | None = None
    error: str | None = None
    body: str | None = None
    next: int | None = None


def record_key(tenant: str, subscription: str) -> str:
    return f"{tenant}.{subscription}"


def progress_subject(record: SubscriptionRecord, cursor: str = LIVE_CURSOR) -> str:
    name = record.cursor if cursor == LIVE_CURSOR else cursor
    return f"progress.{record.tenant}.{record.incarnation}.{name}"


def attempts_subject(record: SubscriptionRecord) -> str:
    return f"attempts.{record.tenant}.{record.incarnation}"


def _rewind_of(stored: StoredRewind) -> Rewind:
    until = None if stored.until_ms is None else rfc3339(stored.until_ms)
    return Rewind(from_sequence=stored.first, to_sequence=stored.last, until=until)


def _version_of(secret: StoredSecret) -> EndpointSecretVersion:
    created, until = (None if time is None else rfc3339(time) for time in (secret.created_at_ms, secret.valid_until_ms))
    return EndpointSecretVersion(created_at=created, valid_until=until)


def subscription_of(
    record: SubscriptionRecord, now_ms: int, *, status: SubscriptionStatus | None = None, secret: str | None = None
) -> Subscription:
    valid = [one for one in record.secrets if one.is_valid(now_ms)]
    return Subscription(
        id=record.id,
        topic=record.topic,
        name=record.name,
        delivery_type=record.delivery_type,
        state=record.state,
        filter=record.patterns,
        max_deliver=record.max_deliver,
        retry_delays_ms=record.retry_delays_ms,
        ack_wait_ms=record.ack_wait_ms,
        max_in_flight=record.max_in_flight,
        ordering=record.ordering,
        ordering_key=record.ordering_key,
        format=record.format,
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
        content_filter=record.content_filter,
        url=record.url,
        queue=record.queue,
        header_names=record.header_names,
        max_per_second=record.max_per_second,
        disabled_reason=record.disabled_reason,
        secret=secret,
        secrets=len(valid),
        secret_versions=tuple(map(_version_of, valid)),
        latest_only=record.latest_only,
        dead_letter_queue=record.dead_letter_queue,
        sns=record.sns,
        rewind=None if record.rewind is None else _rewind_of(record.rewind),
        status=status,
    )
