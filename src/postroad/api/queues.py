"""Queues: settings, publishing, leases, browsing."""

from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, Final, Literal, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.api.pages import Limit, Page
from postroad.api.placement import Geo, Placement
from postroad.api.problems import Problem
from postroad.api.purging import DryRun as DryRun
from postroad.api.purging import Purged as Purged
from postroad.api.purging import PurgeRequest as PurgeRequest
from postroad.api.queue_errors import (
    AlreadySettled as AlreadySettled,
)
from postroad.api.queue_errors import (
    BackendCannot as BackendCannot,
)
from postroad.api.queue_errors import (
    BackendUnavailable as BackendUnavailable,
)
from postroad.api.queue_errors import (
    IdempotencyMismatch as IdempotencyMismatch,
)
from postroad.api.queue_errors import (
    JobWasCancelled as JobWasCancelled,
)
from postroad.api.queue_errors import (
    LeaseExpired as LeaseExpired,
)
from postroad.api.queue_errors import (
    MessageNotFound as MessageNotFound,
)
from postroad.api.queue_errors import (
    QueueNotFound as QueueNotFound,
)
from postroad.api.queue_errors import (
    ReceiptInvalid as ReceiptInvalid,
)
from postroad.api.queue_errors import (
    SchemaMismatch as SchemaMismatch,
)
from postroad.api.queue_errors import (
    SchemaTooSlow as SchemaTooSlow,
)
from postroad.api.queue_stats import QueueStats as QueueStats
from postroad.kernel.clock import AwareDatetime, Timestamp
from postroad.kernel.names import QUEUE

VISIBILITY_TIMEOUT_MS_MAX = 12 * 3600 * 1000
DELAY_MS_MAX = 15 * 86_400 * 1000
DEDUPE_MS_MAX = 30 * 86_400 * 1000
RETENTION_MS_MAX = 10 * 366 * 86_400 * 1000
BODY_MAX = 8 * 1024 * 1024
DEFAULT_DRAIN_SECONDS = 300  # of queues without `expectedDrainSeconds`


# Queues

RetryDelayMs = Annotated[int, Meta(ge=0, le=VISIBILITY_TIMEOUT_MS_MAX)]
VisibilityTimeoutMs = Annotated[
    int,
    Meta(ge=0, le=VISIBILITY_TIMEOUT_MS_MAX, description="How long a pulled message is hidden from other consumers."),
]

TagName = Annotated[str, Meta(min_length=1, max_length=128)]
TagValue = Annotated[str, Meta(max_length=256)]
TAGS_MAX = 50
Backend = Literal["engine", "rabbitmq"]
ENGINE: Final = "engine"
RABBITMQ: Final = "rabbitmq"


class QueueSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Settings of a queue."""

    visibility_timeout_ms: VisibilityTimeoutMs | None = None  # always set in a stored queue: the tenant's default if left out
    retention_ms: Annotated[
        int, Meta(ge=0, le=RETENTION_MS_MAX, description="How long a message is kept once it is ready; 0: without limit.")
    ] = 0
    dedupe_window_ms: (
        Annotated[
            int,
            Meta(
                ge=1000,
                le=DEDUPE_MS_MAX,
                description="How long an idempotency key, or a `dedupeId` (5 minutes by default), is remembered.",
            ),
        ]
        | None
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
    geo: Geo | None = None
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
    archive: Annotated[bool, Meta(description="Also store the payloads of messages in the lake of the pipeline.")] = False
    ordered: Annotated[
        bool, Meta(description="Messages of a group are delivered in order, to one consumer at a time. Cannot be changed.")
    ] = False
    dedupe_by_content: Annotated[bool, Meta(description="In an ordered queue, a hash of the payload is the `dedupeId`.")] = False
    dedupe_scope: Annotated[Literal["queue", "group"], Meta(description="Where a `dedupeId` is remembered.")] = "queue"
    backend: Annotated[
        Backend | UnsetType,
        Meta(description="Where the messages are; fixed at creation. The default is the installation's, if that can."),
    ] = UNSET  # in stored settings always: earlier versions refuse records with settings that they do not know


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


class Queue(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A queue with its settings. `stats` is present when one queue, or a list with stats, was requested.

    `replicas` is the number of copies that the engine keeps; that in `settings` is the one that was asked for. `placement` and
    `features`, what its backend supports beyond the basic operations, are present when one queue was requested.
    """

    name: str
    settings: QueueSettings
    paused: bool
    pause_reason: str | None = None
    replicas: int | None = None
    created_at: Timestamp
    updated_at: Timestamp
    stats: QueueStats | None = None
    placement: Placement | None = None
    features: tuple[str, ...] = ()


class PauseRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(min_length=1, max_length=500, description="Shown to everyone who sees the queue.")] | None = None


# Publishing

HeaderName = Annotated[str, Meta(min_length=1, max_length=256)]
HeaderType = Annotated[str, Meta(min_length=1, max_length=256)]
IDEMPOTENCY_KEY_CHARS_MAX = 256
IdempotencyKey = Annotated[str, Meta(min_length=1, max_length=IDEMPOTENCY_KEY_CHARS_MAX)]


Priority = Literal["high", "normal", "low"]
GROUP_CHARS_MAX = 128
_PRINTABLE = r"^(?!.*\n)[ -~]+$"  # `$` alone also matches before a line break at the end
GroupId = Annotated[str, Meta(min_length=1, max_length=GROUP_CHARS_MAX, pattern=_PRINTABLE)]
DedupeId = Annotated[str, Meta(min_length=1, max_length=128, pattern=_PRINTABLE)]
ReceiveId = Annotated[str, Meta(min_length=1, max_length=128, pattern=_PRINTABLE)]


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
    group_id: Annotated[
        GroupId | None,
        Meta(
            description="Printable ASCII. An ordered queue delivers the messages of a group in order. In other queues, those of "
            "a group with many messages do not delay those of other groups."
        ),
    ] = None
    dedupe_id: Annotated[
        DedupeId | None,
        Meta(
            description="For ordered queues: within `dedupeWindowMs` another message with this id stores nothing and returns the "
            "ids of the first, with `duplicate`."
        ),
    ] = None


class NewBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages to publish."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=1000)]


Duplicate = Annotated[bool, Meta(description="The message is an earlier one with the same `uniqueKey` or `dedupeId`.")]
Sequence = Annotated[
    int | None, Meta(description="Position in an ordered queue: messages of a group are delivered in this order.")
]


class Published(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Ids of a stored message."""

    message_id: str
    job_id: str
    enqueued_at: Timestamp
    duplicate: Duplicate = False
    sequence: Sequence = None


class BatchItem(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Ids of a stored message, or the problem if it was not stored."""

    message_id: str | None = None
    job_id: str | None = None
    enqueued_at: Timestamp | None = None
    duplicate: Duplicate = False
    sequence: Sequence = None
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
    max_per_group: Annotated[int, Meta(ge=1, le=1000, description="Messages of each group of an ordered queue.")] | None = None
    receive_id: Annotated[
        ReceiveId | None,
        Meta(
            description="For ordered queues: a pull that repeats the id of an earlier one within 5 minutes gets the same "
            "messages, with new leases, as long as none of them was settled."
        ),
    ] = None


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
    group_id: str | None = None
    dedupe_id: str | None = None
    sequence: Sequence = None

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
    message_id: Annotated[FilterText, Meta(description="Id of the message.")] | None = None
    job_id: Annotated[FilterText, Meta(description="Id of the job.")] | None = None
    correlation_id: Annotated[FilterText, Meta(description="Correlation id of the message.")] | None = None
    priority: Annotated[Priority, Meta(description="Only messages with this priority.")] | None = None
    group_id: Annotated[GroupId, Meta(description="Only messages of this group.")] | None = None


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
    order: Annotated[Literal["oldest", "newest"], Meta(description="Which messages come first.")] = "oldest"
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
    sequence: Annotated[int, Meta(description="Position in the queue, or in the dead letters; for cursors.")] = 0
    published_by: Annotated[str | None, Meta(description="Id of the key that published it.")] = None
    payload: Any = None
    payload_start: str | None = None
    lease_until: Timestamp | None = None
    next_at: Timestamp | None = None
    priority: Priority = "normal"
    correlation_id: str | None = None
    traceparent: str | None = None
    group_id: str | None = None


class PeekPage(Page[PeekedMessage], frozen=True, kw_only=True):
    """One page of a search: `scanned` messages were compared, `matched` of them match.

    With a `next_cursor` the search is not complete, even if nothing matched so far.
    """

    items: list[PeekedMessage] = msgspec.field(name="messages")
    next_cursor: str | None
    scanned: int
    matched: int
