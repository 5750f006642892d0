"""Queues: settings, publishing, leases, browsing."""

from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.api.pages import Limit, Page
from postroad.api.problems import Problem
from postroad.kernel.clock import AwareDatetime, Timestamp
from postroad.kernel.errors import ConflictError, InvalidRequest, NotFound
from postroad.kernel.names import QUEUE

VISIBILITY_TIMEOUT_MS_MAX = 12 * 3600 * 1000
DELAY_MS_MAX = 15 * 86_400 * 1000
DEDUPE_MS_MAX = 30 * 86_400 * 1000
RETENTION_MS_MAX = 10 * 366 * 86_400 * 1000
BODY_MAX = 8 * 1024 * 1024


class QueueNotFound(NotFound, code="queue-not-found", status=404, title="Queue not found"):
    """The tenant has no queue with this name, and `autoCreateQueues` is off."""


class MessageNotFound(NotFound, code="message-not-found", status=404, title="Message not found"):
    """No message has this id in the queue or its dead letters."""


class IdempotencyMismatch(InvalidRequest, code="idempotency-mismatch", status=422, title="Idempotency key reused"):
    """The idempotency key was used before with a different body."""


class SchemaMismatch(InvalidRequest, code="schema-mismatch", status=422, title="Payload does not match the schema"):
    """The payload does not match the JSON Schema of the queue or topic; `errors` lists the violations with their paths."""


class SchemaTooSlow(InvalidRequest, code="schema-too-slow", status=422, title="Validation takes too long"):
    """The JSON Schema of the queue or topic exceeds its budget of processor time or memory for this payload. Simplify it."""


class ReceiptInvalid(ConflictError, code="receipt-invalid", status=400, title="Invalid receipt"):
    """The receipt was not issued by this installation for this queue, or it was altered."""


class LeaseExpired(ConflictError, code="lease-expired", status=409, title="Lease expired"):
    """The visibility timeout of the receipt has passed. The message is or will be delivered again."""


class AlreadySettled(ConflictError, code="already-settled", status=409, title="Lease already ended"):
    """The lease was ended before by another operation: an ack, or a nack with another action. The same one may be repeated."""


class JobWasCancelled(ConflictError, code="job-cancelled", status=409, title="Job cancelled"):
    """The job was cancelled while its message was leased. Stop the work: the message is not delivered again."""


# Queues

RetryDelayMs = Annotated[int, Meta(ge=0, le=VISIBILITY_TIMEOUT_MS_MAX)]
VisibilityTimeoutMs = Annotated[
    int,
    Meta(ge=0, le=VISIBILITY_TIMEOUT_MS_MAX, description="How long a pulled message is hidden from other consumers."),
]
ANYWHERE = "auto"  # placement on any server
PlacementTag = Annotated[str, Meta(min_length=1, max_length=64, pattern="^[A-Za-z0-9:_-]+$")]


TagName = Annotated[str, Meta(min_length=1, max_length=128)]
TagValue = Annotated[str, Meta(max_length=256)]
TAGS_MAX = 50


class QueueSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Settings of a queue."""

    visibility_timeout_ms: VisibilityTimeoutMs | None = None  # always set in a stored queue: the tenant's default if left out
    retention_ms: Annotated[
        int, Meta(ge=0, le=RETENTION_MS_MAX, description="How long a message is kept once it is ready; 0: without limit.")
    ] = 0
    dedupe_window_ms: (
        Annotated[int, Meta(ge=1000, le=DEDUPE_MS_MAX, description="How long an idempotency key is remembered.")] | None
    ) = None
    max_attempts: Annotated[
        int, Meta(ge=0, le=1000, description="Deliveries before a message becomes a dead letter; 0: no limit.")
    ] = 10
    retry_delays_ms: Annotated[
        tuple[RetryDelayMs, ...],
        Meta(min_length=1, max_length=32, description="Delay after each failed attempt; the last one is used for all further."),
    ] = (1_000, 5_000, 30_000, 120_000, 600_000)
    dead_letter_queue: (
        Annotated[
            str,
            Meta(
                pattern=f"^{QUEUE.pattern}$",
                description="Queue that dead letters are published to, instead of the tenant's dead letters. It must exist.",
            ),
        ]
        | None
    ) = None
    delay_ms: Annotated[
        int, Meta(ge=0, le=DELAY_MS_MAX, description="Time before the first delivery of messages that are published without one.")
    ] = 0
    max_messages: Annotated[
        int, Meta(ge=0, le=10**12, description="Publishing fails with status 507 above this number; 0: no limit.")
    ] = 0
    max_in_flight: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="At most this many messages are leased, or wait for a retry, at the same time; 0: no limit.",
        ),
    ] = 0
    replicas: Annotated[
        Literal[1, 3, 5] | None,
        Meta(description="Copies of the queue. The installation's default if left out. A single server keeps one copy."),
    ] = None
    geo: (
        Annotated[
            PlacementTag,
            Meta(description="Placement tag of JetStream servers; `auto`: any. A tag that no server has is refused."),
        ]
        | None
    ) = None
    schema: Annotated[dict[str, Any] | None, Meta(description="JSON Schema that payloads must match.")] = None
    expected_drain_seconds: (
        Annotated[int, Meta(ge=1, le=86_400 * 30, description="The queue is unhealthy if its oldest message is older than this.")]
        | None
    ) = None
    tags: Annotated[dict[TagName, TagValue], Meta(max_length=TAGS_MAX, description="Names and values for people and tools.")] = {}
    sqs_attributes: Annotated[
        dict[TagName, str],
        Meta(max_length=32, description="Attributes of the SQS API that queues have no setting for. See docs/aws.md."),
    ] = {}
    archive: Annotated[bool, Meta(description="Not implemented yet: true is refused.")] = False


class StrictQueueSettings(QueueSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings in requests and in stored queues, where an unknown setting is an error. Clients ignore those of newer servers."""


def _change_of(settings: type[QueueSettings]) -> type[msgspec.Struct]:
    """A struct with the settings as optional fields, of which each may be null."""
    hints = get_type_hints(settings, include_extras=True)
    fields: list[Any] = [(one.name, hints[one.name] | UnsetType | None, UNSET) for one in msgspec.structs.fields(settings)]
    return msgspec.defstruct(
        "QueueSettingsChange",
        fields,
        namespace={"__doc__": "Settings to change. Those that are left out keep their value; null restores the default."},
        frozen=True,
        rename="camel",
        kw_only=True,
        forbid_unknown_fields=True,
        module=__name__,
    )


QueueSettingsChange = _change_of(QueueSettings)


class QueueStats(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Messages of a queue by state."""

    ready: Annotated[int, Meta(description="Can be pulled now: new, requeued, due for a retry, or overdue.")]
    leased: Annotated[int, Meta(description="Leased to a consumer.")]
    overdue: Annotated[int, Meta(description="Those of the ready ones whose lease ended without an ack or nack.")] = 0
    retrying: Annotated[int, Meta(description="Returned with a nack, and not due yet.")] = 0
    delayed: Annotated[int, Meta(description="Published with a delay, and not due yet.")]
    dead: Annotated[int, Meta(description="Dead letters.")]
    waiting: Annotated[int, Meta(description="Pulls that wait for a message.")] = 0
    oldest_age_ms: Annotated[
        int | None, Meta(description="Age of the oldest ready, leased or retrying message; null if there is none.")
    ]
    in_per_second: Annotated[float, Meta(description="Messages published, over the last seconds.")]
    out_per_second: Annotated[float, Meta(description="Messages acknowledged or dead-lettered, over the last seconds.")]


class Queue(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A queue with its settings. `stats` is present when one queue, or a list with stats, was requested.

    `replicas` is the number of copies that the engine keeps; that in `settings` is the one that was asked for.
    """

    name: str
    settings: QueueSettings
    paused: bool
    replicas: int | None = None
    created_at: Timestamp
    updated_at: Timestamp
    stats: QueueStats | None = None


# Publishing

HeaderName = Annotated[str, Meta(min_length=1, max_length=256)]
HeaderType = Annotated[str, Meta(min_length=1, max_length=256)]
IDEMPOTENCY_KEY_CHARS_MAX = 256
IdempotencyKey = Annotated[str, Meta(min_length=1, max_length=IDEMPOTENCY_KEY_CHARS_MAX)]


Priority = Literal["high", "normal", "low"]


class NewMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """A message to publish."""

    payload: Annotated[msgspec.Raw, Meta(description="Any JSON.")]
    headers: dict[HeaderName, str] = {}
    header_types: Annotated[
        dict[HeaderName, HeaderType],
        Meta(description="Types of headers that are not `String` for SQS clients. The value of a `Binary` header is base64."),
    ] = {}
    delay_ms: Annotated[
        Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)] | None,
        Meta(description="Time before the first delivery. The queue's `delayMs` if left out."),
    ] = None
    run_at: Annotated[
        AwareDatetime | None,
        Meta(description="Time of the first delivery, up to 15 days ahead; at once if it has passed. Excludes `delayMs`."),
    ] = None
    expires_at: Annotated[
        AwareDatetime | None,
        Meta(description="No delivery begins at this time or later. Up to 10 years ahead, and after the first delivery is due."),
    ] = None
    unique_key: Annotated[
        IdempotencyKey | None,
        Meta(
            description="While the queue has a message with this key, in any state, a publish stores nothing and returns its ids "
            "with `duplicate`."
        ),
    ] = None
    priority: Annotated[
        Priority,
        Meta(description="Pulls get messages with `high` first and with `low` last. Not for queues with `maxInFlight`."),
    ] = "normal"
    idempotency_key: IdempotencyKey | None = None
    correlation_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class NewBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages to publish."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=1000)]


Duplicate = Annotated[bool, Meta(description="The message is an earlier one with the same `uniqueKey`.")]


class Published(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Ids of a stored message."""

    message_id: str
    job_id: str
    enqueued_at: Timestamp
    duplicate: Duplicate = False


class BatchItem(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Ids of a stored message, or the problem if it was not stored."""

    message_id: str | None = None
    job_id: str | None = None
    enqueued_at: Timestamp | None = None
    duplicate: Duplicate = False
    problem: Problem | None = None


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a batch: a result for each message, in order."""

    published: int
    failed: int
    results: list[BatchItem]


# Consuming


class PullRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    max_messages: Annotated[int, Meta(ge=1, le=1000, description="The tenant's limit (`pullMax`) may be lower.")] = 1
    visibility_timeout_ms: VisibilityTimeoutMs | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=60_000, description="Long poll: how long to wait if no message is ready.")] = 0


class DeadLetterOrigin(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Why a message is in a dead-letter queue: the queue that it comes from, the reason, its attempts there, and the time."""

    queue: str
    reason: str
    attempts: int
    dead_at: Timestamp
    last_error: str | None = None


class Message(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True, dict=True):
    """A leased message. `receipt_id` identifies the lease. `payload` is decoded on first access; `raw_payload` is its JSON.

    `priority` is left out in JSON if it is `normal`.
    """

    receipt_id: str
    message_id: str
    job_id: str
    raw_payload: msgspec.Raw = msgspec.field(name="payload")
    headers: dict[str, str]
    attempt: int
    enqueued_at: Timestamp
    priority: Priority = "normal"
    correlation_id: str | None = None
    traceparent: str | None = None
    header_types: dict[str, str] = {}
    first_leased_at: Annotated[Timestamp | None, Meta(description="Of a message that was delivered before: the first lease.")] = (
        None
    )
    dead_letter: DeadLetterOrigin | None = None

    @cached_property
    def payload(self) -> Any:
        return msgspec.json.decode(self.raw_payload)

    def __repr__(self) -> str:
        return f"Message(message_id={self.message_id!r}, attempt={self.attempt}, payload={self.payload!r})"


class Pulled(msgspec.Struct, frozen=True):
    """Leased messages."""

    messages: list[Message]


# Browsing

FilterText = Annotated[str, Meta(min_length=1, max_length=256)]
FilterField = Annotated[
    str,
    Meta(
        min_length=2,
        max_length=256,
        pattern="^[^=]+=",
        description="`path.to.field=value` in the payload; the value is JSON or text.",
    ),
]
AwareTime = Annotated[datetime, Meta(tz=True)]


class MessageFilter(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Conditions on a message. All that are given must hold."""

    search: Annotated[FilterText, Meta(description="Text that the payload contains.")] | None = None
    header: Annotated[FilterText, Meta(description="`name`, or `name=value`.")] | None = None
    field: FilterField | None = None
    message_id: FilterText | None = None
    job_id: FilterText | None = None
    correlation_id: FilterText | None = None
    priority: Annotated[Priority, Meta(description="Only messages with this priority.")] | None = None


class PeekQuery(MessageFilter, frozen=True, kw_only=True):
    state: Annotated[
        str, Meta(pattern="^(ready|delayed)$", description="`ready` (leased and retrying ones included) or `delayed`.")
    ] = "ready"
    since: Annotated[AwareTime, Meta(description="Stored at or after this time.")] | None = msgspec.field(
        name="from", default=None
    )
    until: Annotated[AwareTime, Meta(description="Stored before this time.")] | None = msgspec.field(name="to", default=None)
    body_max: Annotated[
        int, Meta(ge=0, le=BODY_MAX, description="Payloads with more bytes are cut and returned as `payloadStart`.")
    ] = 512
    limit: Limit = 50
    cursor: Annotated[int, Meta(ge=1, le=2**62)] | None = None


class PeekedMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A message, read without leasing it. A payload over `bodyMax` bytes is left out; `payload_start` is its beginning, as text.

    `state` is `ready`, `leased` until `lease_until`, `retrying` until `next_at`, `delayed`, or `dead`. `priority` is left out in
    JSON if it is `normal`.
    """

    message_id: str
    job_id: str
    state: str
    headers: dict[str, str]
    enqueued_at: Timestamp
    payload_bytes: int
    payload: Any = None
    payload_start: str | None = None
    lease_until: Timestamp | None = None
    next_at: Timestamp | None = None
    priority: Priority = "normal"
    correlation_id: str | None = None
    traceparent: str | None = None


class PeekPage(Page[PeekedMessage], frozen=True, kw_only=True):
    """One page of a search: `scanned` messages were compared, `matched` of them match.

    With a `next_cursor` the search is not complete, even if nothing matched so far.
    """

    items: list[PeekedMessage] = msgspec.field(name="messages")
    next_cursor: str | None
    scanned: int
    matched: int


# Purging

DryRun = Annotated[bool, Meta(description="Only count the messages.")]


class PurgeRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    dry_run: DryRun = False


class Purged(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Number of deleted messages; of a dry run, the number that would be deleted."""

    count: int
    dry_run: bool
