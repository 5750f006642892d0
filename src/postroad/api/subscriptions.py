"""Subscriptions: messages of a topic, delivered to an HTTP endpoint or a queue, or read live."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.api.pages import Limit, Page, page_of
from postroad.api.queues import DryRun
from postroad.api.selectors import PATTERNS_MAX
from postroad.api.tasks import Task
from postroad.api.topics import LatestOnly
from postroad.kernel.clock import AwareDatetime, Timestamp
from postroad.kernel.errors import InvalidRequest
from postroad.kernel.matching import PATTERN
from postroad.kernel.names import QUEUE

ACK_WAIT_MS_MIN, ACK_WAIT_MS_MAX = 1_000, 300_000
RETRY_DELAYS_MS = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000)
BODY_EXCERPT_BYTES = 2_000


class FilterInvalid(InvalidRequest, code="filter-invalid", status=422, title="Invalid content filter"):
    """The content filter is invalid. The detail names the path of the error."""


class DeliveryType(StrEnum):
    """`sse` and `websocket`: a stored selection without progress, which clients read live."""

    HTTP_PUSH = "http_push"
    QUEUE = "queue"
    SSE = "sse"
    WEBSOCKET = "websocket"


class StartFrom(StrEnum):
    """The first message that is delivered: published from now on, the oldest, or the first of a sequence or time."""

    NEW = "new"
    ALL = "all"
    SEQUENCE = "sequence"
    TIME = "time"


class Ordering(StrEnum):
    """`key`: messages with the same key are delivered one after the other, in the order of the topic."""

    NONE = "none"
    KEY = "key"


class PushFormat(StrEnum):
    """`raw`: the body as it was published. `cloudevents`: a CloudEvents 1.0 event in binary mode. `sns`: as Amazon SNS
    delivers, which subscriptions of the SNS API have."""

    RAW = "raw"
    CLOUDEVENTS = "cloudevents"
    SNS = "sns"


class SubscriptionState(StrEnum):
    """`pending`: the endpoint has not confirmed a subscription of the SNS API. `disabled`: the endpoint answered 410."""

    PENDING = "pending"
    ACTIVE = "active"
    PAUSED = "paused"
    DISABLED = "disabled"


Pattern = Annotated[str, Meta(min_length=1, max_length=256, extra_json_schema={"pattern": PATTERN})]
Patterns = Annotated[
    tuple[Pattern, ...],
    Meta(min_length=1, max_length=PATTERNS_MAX, description="Subject patterns: `*` is one token, a final `>` one or more."),
]
SubscriptionName = Annotated[str, Meta(min_length=1, max_length=80, pattern=f"^{QUEUE.pattern}$")]
Url = Annotated[str, Meta(min_length=1, max_length=2048, description="Endpoint of `http_push`.")]
EndpointSecret = Annotated[
    str, Meta(min_length=8, max_length=256, description="Signs the deliveries. Generated and shown once if left out.")
]
EndpointHeaders = Annotated[
    dict[str, str], Meta(max_length=32, description="Headers of each request, such as an authorization. Not shown again.")
]
TargetQueue = Annotated[str, Meta(min_length=1, max_length=80, description="Queue of `queue` deliveries.")]
ContentFilterDefinition = Annotated[
    dict[str, Any], Meta(description="Conditions on payload and headers, at most 32; see the guide.")
]
DeadLetterQueue = Annotated[
    str,
    Meta(
        max_length=80,
        pattern=f"^{QUEUE.pattern}$",
        description="Queue that dead letters are published to, instead of the subscription's own. It must exist.",
    ),
]
MaxDeliver = Annotated[int, Meta(ge=1, le=1000, description="Attempts before a message becomes a dead letter.")]
RetryDelays = Annotated[
    tuple[Annotated[int, Meta(ge=100, le=86_400_000)], ...],
    Meta(min_length=1, max_length=32, description="Delay after each failed attempt; the last one is used for all further."),
]
AckWaitMs = Annotated[
    int, Meta(ge=ACK_WAIT_MS_MIN, le=ACK_WAIT_MS_MAX, description="Time for a response before an attempt has failed.")
]
MaxPerSecond = Annotated[int, Meta(ge=1, le=100_000, description="Attempts per second. No limit if left out.")]
MaxInFlight = Annotated[int, Meta(ge=1, le=256, description="Attempts at the same time.")]
OrderingKey = Annotated[
    str,
    Meta(
        max_length=128,
        pattern="^(subject|group|header:[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64})$",
        description="Key of `ordering: key`: `subject`, `group` (the message's `groupId`), or `header:<name>`.",
    ),
]


_ORDERING = "`key`: messages of one key are delivered one after the other."
_FORMAT = "`raw`, or `cloudevents` with the attributes of CloudEvents 1.0 in headers."


class NewSubscription(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """A subscription to create."""

    delivery_type: Annotated[
        DeliveryType,
        Meta(description="Where messages go: an HTTP endpoint (`url`), a `queue`, or clients that read it (`sse`, `websocket`)."),
    ] = msgspec.field(name="delivery_type")
    name: Annotated[SubscriptionName, Meta(description="Unique in the topic: a repeated request creates nothing.")] | None = None
    filter: Patterns | Pattern = (">",)
    content_filter: ContentFilterDefinition | None = None
    url: Url | None = None
    secret: EndpointSecret | None = None
    headers: EndpointHeaders = {}
    queue: TargetQueue | None = None
    start_from: Annotated[StartFrom, Meta(description="First message: `new` ones, `all`, or from a `sequence` or `time`.")] = (
        StartFrom.NEW
    )
    start_sequence: Annotated[int, Meta(ge=1, description="With `startFrom: sequence`.")] | None = None
    start_time: Annotated[AwareDatetime, Meta(description="With `startFrom: time`.")] | None = None
    max_deliver: MaxDeliver = 20
    retry_delays_ms: RetryDelays = RETRY_DELAYS_MS
    ack_wait_ms: AckWaitMs = 25_000
    max_per_second: MaxPerSecond | None = None
    max_in_flight: MaxInFlight = 8
    ordering: Annotated[Ordering, Meta(description=_ORDERING)] = Ordering.NONE
    ordering_key: OrderingKey = "subject"
    format: Annotated[PushFormat, Meta(description=_FORMAT)] = PushFormat.RAW
    latest_only: LatestOnly | None = None
    dead_letter_queue: DeadLetterQueue | None = None


class SubscriptionPatch(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Changes of a subscription; what is left out stays. Null removes a limit or a filter."""

    INSTEAD: ClassVar[Mapping[str, str]] = {
        "delivery_type": "it is fixed at creation; create another subscription, and delete this one",
        "name": "it is fixed at creation; create another subscription, and delete this one",
        "secret": "replace it with POST /v1/subscriptions/{id}/secret, which keeps the previous one valid for a grace time",
        "startFrom": "start again elsewhere with POST /v1/subscriptions/{id}/rewind, or deliver a range with …/replay",
        "startSequence": "start again elsewhere with POST /v1/subscriptions/{id}/rewind (`fromSequence`)",
        "startTime": "start again elsewhere with POST /v1/subscriptions/{id}/rewind (`fromTime`)",
        "state": "use POST /v1/subscriptions/{id}/pause and …/resume",
    }

    filter: Patterns | Pattern | UnsetType = UNSET
    content_filter: ContentFilterDefinition | UnsetType | None = UNSET
    url: Url | UnsetType = UNSET
    headers: EndpointHeaders | UnsetType = UNSET
    queue: TargetQueue | UnsetType = UNSET
    max_deliver: MaxDeliver | UnsetType = UNSET
    retry_delays_ms: RetryDelays | UnsetType = UNSET
    ack_wait_ms: AckWaitMs | UnsetType = UNSET
    max_per_second: MaxPerSecond | UnsetType | None = UNSET
    max_in_flight: MaxInFlight | UnsetType = UNSET
    ordering: Annotated[Ordering, Meta(description=_ORDERING)] | UnsetType = UNSET
    ordering_key: OrderingKey | UnsetType = UNSET
    format: Annotated[PushFormat, Meta(description=_FORMAT)] | UnsetType = UNSET
    latest_only: LatestOnly | UnsetType | None = UNSET
    dead_letter_queue: DeadLetterQueue | UnsetType | None = UNSET


class SnsSubscription(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """What a subscription of the SNS API has in addition. `attributes` are those of SNS, as they were set."""

    protocol: Literal["sqs", "http", "https"]
    endpoint: str
    region: Annotated[str, Meta(description="Region of the subscription's ARN.")]
    account: str
    base_url: Annotated[str, Meta(description="Start of the URLs in its messages.")]
    attributes: dict[str, str] = {}
    is_authenticated: Annotated[bool, Meta(description="Confirmed by a signed request.")] = False
    needs_signed_unsubscribe: bool = False


class Rewind(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Delivery starts again at an earlier message. Those up to `to_sequence`, the newest one then, are marked as replayed."""

    from_sequence: int
    to_sequence: int
    until: Annotated[Timestamp | None, Meta(description="Messages of this time or later are not delivered.")] = None


class SubscriptionStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """How the delivery is going, at most some seconds old."""

    summary: Annotated[str, Meta(description="One sentence: what is delivered, or why nothing is.")]
    lag: Annotated[int, Meta(description="Messages that match the patterns and are not settled.")]
    oldest_undelivered_at: Timestamp | None
    open: Annotated[int, Meta(description="Messages read from the topic and not settled: waiting, in flight or in retry.")]
    in_flight: int
    retrying: int
    dead: Annotated[int, Meta(description="Dead letters.")]
    delivered_count: Annotated[int, Meta(description="Deliveries since the creation.")]
    failed_count: Annotated[int, Meta(description="Failed attempts since the creation.")]
    success_rate: Annotated[float | None, Meta(description="Share of successful attempts of the last minutes; null without any.")]
    breaker: Annotated[Literal["closed", "open", "half-open"], Meta(description="State of the circuit breaker.")]
    next_attempt_at: Annotated[Timestamp | None, Meta(description="When delivery continues, if it waits.")]
    last_error: str | None
    owner: Annotated[str | None, Meta(description="The process that delivers.")]
    connections: Annotated[int, Meta(description="Live readers in all workers, some seconds old.")] = 0


class EndpointSecretVersion(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A valid secret of a subscription, without its value."""

    created_at: Annotated[Timestamp | None, Meta(description="Left out for secrets that an earlier version stored.")] = None
    valid_until: Annotated[Timestamp | None, Meta(description="Its end, if it is being replaced.")] = None


class Subscription(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A subscription. `secret` is present once, when it was generated; `status` when one subscription was requested."""

    id: str
    topic: str
    name: str | None
    delivery_type: DeliveryType = msgspec.field(name="delivery_type")
    state: SubscriptionState
    filter: tuple[str, ...]
    max_deliver: int
    retry_delays_ms: tuple[int, ...]
    ack_wait_ms: int
    max_in_flight: int
    ordering: Ordering
    ordering_key: str
    format: PushFormat
    created_at: Timestamp
    updated_at: Timestamp
    content_filter: dict[str, Any] | None = None
    url: str | None = None
    queue: str | None = None
    header_names: Annotated[tuple[str, ...], Meta(description="Names of the custom headers.")] = ()
    max_per_second: int | None = None
    disabled_reason: str | None = None
    secret: str | None = None
    secrets: Annotated[int, Meta(description="Number of valid secrets: two during a rotation.")] = 0
    secret_versions: Annotated[tuple[EndpointSecretVersion, ...], Meta(description="The valid secrets, the oldest first.")] = ()
    latest_only: Annotated[int | None, Meta(description="With `sse` and `websocket`: only the newest message per subject.")] = (
        None
    )
    dead_letter_queue: str | None = None
    sns: Annotated[SnsSubscription | None, Meta(description="Of a subscription that was created through the SNS API.")] = None
    rewind: Rewind | None = None
    status: SubscriptionStatus | None = None


class SubscriptionQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    topic: Annotated[str, Meta(min_length=1, max_length=256, description="Only subscriptions of this topic.")] | None = None
    state: Annotated[SubscriptionState | None, Meta(description="Only subscriptions in this state.")] = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=80)] | None = None


SubscriptionPage = page_of(Subscription, "subscriptions")


class SecretRotation(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """A new secret. The previous one stays valid for `graceSeconds`."""

    secret: EndpointSecret | None = None
    grace_seconds: Annotated[int, Meta(ge=0, le=30 * 86_400, description="How long the previous secret stays valid.")] = 86_400


class RotatedSecret(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The new secret, shown once, and the end of the previous one."""

    secret: str
    previous_valid_until: Timestamp | None


class Attempt(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One attempt to deliver a message. Of successful attempts at most one per second is kept."""

    at: Timestamp
    sequence: int
    subject: str
    attempt: int
    outcome: Literal["delivered", "transient", "refused", "gone"]
    duration_ms: int
    status: Annotated[int | None, Meta(description="Status of the response; null without one.")] = None
    error: Annotated[str | None, Meta(description="Why there was no response: dns, connect, tls, timeout, broken, busy.")] = None
    response: Annotated[str | None, Meta(description="Start of the response's body.")] = None
    next_attempt_at: Timestamp | None = None


class AttemptQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    outcome: Annotated[Literal["delivered", "failed"] | None, Meta(description="Only such attempts.")] = None
    limit: Annotated[int, Meta(ge=1, le=100, description="Maximum number of attempts.")] = 100


class Attempts(msgspec.Struct, frozen=True):
    """The last attempts, newest first."""

    attempts: list[Attempt]


class ReplayRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Deliver a range of the topic again, beside the live delivery."""

    from_sequence: Annotated[int, Meta(ge=1, description="First sequence.")] | None = None
    to_sequence: Annotated[int, Meta(ge=1, description="Last sequence. The newest message if left out.")] | None = None
    from_time: Annotated[AwareDatetime, Meta(description="Messages from this time on.")] | None = None
    to_time: Annotated[AwareDatetime, Meta(description="Messages before this time.")] | None = None
    rate_per_second: Annotated[int, Meta(ge=1, le=10_000, description="Attempts per second.")] = 100
    dry_run: DryRun = False


class RewindRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Where the delivery starts again. Give `fromSequence` or `fromTime`."""

    from_sequence: Annotated[int, Meta(ge=1, description="First sequence.")] | None = None
    from_time: Annotated[AwareDatetime, Meta(description="Messages from this time on.")] | None = None
    to_time: Annotated[AwareDatetime, Meta(description="Stop before this time; if left out, go on.")] | None = None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Number of messages in the range that match the patterns, and the task; no task after a dry run."""

    count: int
    task: Task | None


class SubscriptionDeadLetter(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A message that could not be delivered."""

    sequence: int
    subject: str
    reason: str
    attempt_count: int = msgspec.field(name="attempt_count")
    dead_at: Timestamp
    published_at: Timestamp
    headers: dict[str, str]
    payload: Any = None
    body_b64: str | None = msgspec.field(name="body_b64", default=None)


class SubscriptionDeadLetterFilter(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Conditions on a dead letter. All that are given must hold."""

    reason: Annotated[str, Meta(min_length=1, max_length=1000, description="Exactly this reason.")] | None = None
    subject: Annotated[Pattern, Meta(description="Subjects that match this pattern.")] | None = None
    search: Annotated[str, Meta(min_length=1, max_length=256, description="Text in the body.")] | None = None
    sequences: Annotated[tuple[int, ...], Meta(min_length=1, max_length=1000)] | None = None

    @property
    def is_empty(self) -> bool:
        return self == SubscriptionDeadLetterFilter()


class SubscriptionDeadLetterQuery(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(min_length=1, max_length=1000, description="Exactly this reason.")] | None = None
    subject: Annotated[Pattern, Meta(description="Subjects that match this pattern.")] | None = None
    search: Annotated[str, Meta(min_length=1, max_length=256, description="Text in the body.")] | None = None
    limit: Limit = 100
    cursor: Annotated[int, Meta(ge=1)] | None = None


class SubscriptionDeadLetters(Page[SubscriptionDeadLetter], frozen=True, kw_only=True):
    """One page of a subscription's dead letters, of which there are `total`."""

    items: list[SubscriptionDeadLetter] = msgspec.field(name="messages")
    next_cursor: str | None
    scanned: int
    total: int


class SubscriptionDeadGroup(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    reason: str
    count: int
    first_at: Timestamp
    last_at: Timestamp


class SubscriptionDeadGroups(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Dead letters by reason, largest group first."""

    groups: list[SubscriptionDeadGroup]
    scanned: int
    total: int


class SubscriptionRedriveRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Deliver the dead letters that match the filter again; without a filter, all."""

    filter: Annotated[
        SubscriptionDeadLetterFilter, Meta(description="Conditions on the dead letters, all of which must hold.")
    ] = SubscriptionDeadLetterFilter()
    rate_per_second: Annotated[int, Meta(ge=1, le=10_000, description="Attempts per second.")] = 100
    limit: Annotated[int, Meta(ge=1, le=10**9, description="Maximum number of dead letters.")] | None = None
    dry_run: DryRun = False


class SubscriptionPurgeRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    filter: Annotated[
        SubscriptionDeadLetterFilter, Meta(description="Conditions on the dead letters, all of which must hold.")
    ] = SubscriptionDeadLetterFilter()
    dry_run: DryRun = False
