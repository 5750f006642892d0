"""Topics: settings, publishing, replay, purge."""

import base64
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.api.pages import Limit, Page, page_of
from postroad.api.placement import Geo, Placement
from postroad.api.problems import Problem
from postroad.api.queues import TAGS_MAX, DryRun, HeaderName, IdempotencyKey, TagName, TagValue
from postroad.api.selectors import PATTERNS_MAX, SubjectPattern
from postroad.kernel.clock import AwareDatetime, Timestamp
from postroad.kernel.errors import ConflictError, NotFound
from postroad.kernel.matching import SUBJECT_CHARS_MAX
from postroad.kernel.media_types import CONTENT_TYPE_CHARS_MAX, MEDIA_TYPE
from postroad.kernel.names import TOPIC_CHARS_MAX

SUBJECT_TOKENS_MAX = 16
HOPS_MAX = 16
DEDUPE_MS_MIN = 60_000  # Postroad's own retries rely on it
DEDUPE_MS_MAX = 86_400_000
RETENTION_MS_MAX = 10 * 366 * 86_400 * 1000
_WORD = r"[^\s.*>$\x00-\x20\x7f\x85]+"  # U+0085 is white space in Python, not in ECMAScript
SUBJECT = rf"^{_WORD}(\.{_WORD}){{0,{SUBJECT_TOKENS_MAX - 1}}}$"  # for the OpenAPI document, as is PATTERN
_TOKEN = rf"(\*|{_WORD})"
PATTERN = rf"^(>|{_TOKEN}(\.{_TOKEN}){{0,{SUBJECT_TOKENS_MAX - 2}}}(\.({_TOKEN}|>))?)$"


class TopicNotFound(NotFound, code="topic-not-found", status=404, title="Topic not found"):
    """The tenant has no topic with this name, and `autoCreateTopics` is off."""


class TopicInUse(ConflictError, code="topic-in-use", status=409, title="Topic in use"):
    """Other resources belong to the topic, see `detail`. Delete them first, or delete the topic with `?cascade=true`."""


class TopicFed(ConflictError, code="topic-fed", status=409, title="Topic fed by another resource"):
    """Only the resource that `detail` names publishes to this topic."""


class LoopDetected(ConflictError, code="loop-detected", status=409, title="Loop detected"):
    """The write responds to 16 deliveries in a row, by its header `X-MQ-Hops`: a receiver writes to what it receives from."""


# Topics


class TopicSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Settings of a topic."""

    retention_ms: Annotated[
        int,
        Meta(ge=0, le=RETENTION_MS_MAX, description="How long a message is kept, at least a second; 0: without limit."),
    ] = 7 * 86_400_000
    max_messages: Annotated[int, Meta(ge=0, le=10**12, description="Messages that the topic keeps; 0: no limit.")] = 0
    max_bytes: Annotated[
        int, Meta(ge=0, le=2**53 - 1, description="Bytes that the topic keeps, which are reserved for it; 0: no limit.")
    ] = 0
    on_full: Annotated[
        Literal["drop", "refuse"],
        Meta(description="At a limit: `drop` the oldest messages, or `refuse` new ones with status 507."),
    ] = "drop"
    dedupe_window_ms: Annotated[
        int,
        Meta(
            ge=DEDUPE_MS_MIN,
            le=DEDUPE_MS_MAX,
            description="How long an idempotency key is remembered, but not longer than messages are kept.",
        ),
    ] = 600_000
    dedupe_by_content: Annotated[bool, Meta(description="A hash of the content is the `dedupeId`, if there is none.")] = False
    dedupe_scope: Annotated[Literal["topic", "group"], Meta(description="Where a `dedupeId` is remembered.")] = "topic"
    replicas: Annotated[
        Literal[1, 3, 5] | None,
        Meta(description="Copies of the topic. The installation's default if left out. A single server keeps one."),
    ] = None
    geo: Geo | None = None
    schema: Annotated[dict[str, Any] | None, Meta(description="JSON Schema that payloads must match.")] = None
    tags: Annotated[dict[TagName, TagValue], Meta(max_length=TAGS_MAX, description="Names and values for people and tools.")] = {}
    sns_attributes: Annotated[
        dict[TagName, str],
        Meta(max_length=32, description="Attributes of the SNS API that topics have no setting for. See docs/aws.md."),
    ] = {}


class StrictTopicSettings(TopicSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings in requests and in stored topics, where an unknown setting is an error. Clients ignore those of newer servers."""


class TopicSettingsChange(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Settings to change. Omitted fields keep their value; null restores the default."""

    retention_ms: (
        Annotated[
            int,
            Meta(ge=0, le=RETENTION_MS_MAX, description="How long a message is kept, at least a second; 0: without limit."),
        ]
        | UnsetType
        | None
    ) = UNSET
    max_messages: (
        Annotated[int, Meta(ge=0, le=10**12, description="Messages that the topic keeps; 0: no limit.")] | UnsetType | None
    ) = UNSET
    max_bytes: (
        Annotated[int, Meta(ge=0, le=2**53 - 1, description="Bytes that the topic keeps; 0: no limit.")] | UnsetType | None
    ) = UNSET
    on_full: Annotated[
        Literal["drop", "refuse"] | UnsetType | None, Meta(description="`drop` the oldest or `refuse` new messages.")
    ] = UNSET
    dedupe_window_ms: (
        Annotated[int, Meta(ge=DEDUPE_MS_MIN, le=DEDUPE_MS_MAX, description="How long an idempotency key is remembered.")]
        | UnsetType
        | None
    ) = UNSET
    dedupe_by_content: Annotated[bool | UnsetType | None, Meta(description="A hash of the content is the `dedupeId`.")] = UNSET
    dedupe_scope: Annotated[
        Literal["topic", "group"] | UnsetType | None, Meta(description="Where a `dedupeId` is remembered.")
    ] = UNSET
    replicas: Annotated[Literal[1, 3, 5] | UnsetType | None, Meta(description="Copies of the topic.")] = UNSET
    geo: Geo | UnsetType | None = UNSET
    schema: Annotated[dict[str, Any] | UnsetType | None, Meta(description="JSON Schema that payloads must match.")] = UNSET
    tags: (
        Annotated[dict[TagName, TagValue], Meta(max_length=TAGS_MAX, description="Names and values for people and tools.")]
        | UnsetType
        | None
    ) = UNSET
    sns_attributes: (
        Annotated[dict[TagName, str], Meta(max_length=32, description="Attributes of the SNS API.")] | UnsetType | None
    ) = UNSET


class EffectiveTopicSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Values in effect where the engine allows less than was requested."""

    replicas: Annotated[int, Meta(description="Copies that are kept: 1 on a single server.")]
    dedupe_window_ms: Annotated[int, Meta(description="Not longer than messages are kept.")]


class TopicStats(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Stored messages of a topic."""

    messages: int
    bytes: int
    subjects: Annotated[int, Meta(description="Distinct subjects of the stored messages.")]
    first_sequence: Annotated[int, Meta(description="Sequence of the oldest stored message, or of the next one if it is empty.")]
    last_sequence: Annotated[int, Meta(description="Sequence of the latest message, 0 if there never was one.")]
    first_at: Timestamp | None
    last_at: Timestamp | None
    connections: Annotated[int, Meta(description="Live readers in all workers, some seconds old.")] = 0


class Topic(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A topic with its settings. `incarnation` changes if the topic is deleted and created again: its sequences restart then.

    `stats` is present when one topic, or a list with stats, was requested. `fed_by`: the only resource that publishes to it.
    """

    name: str
    settings: TopicSettings
    effective: EffectiveTopicSettings
    incarnation: str
    created_at: Timestamp
    updated_at: Timestamp
    fed_by: str | None = None
    stats: TopicStats | None = None
    placement: Annotated[Placement, Meta(description="When one topic was requested.")] | None = None


class TopicQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: (
        Annotated[
            str, Meta(min_length=1, max_length=128, description="Only topics whose names match; `*` is any run of characters.")
        ]
        | None
    ) = None
    stats: Annotated[bool, Meta(description="Add the stats of each topic.")] = False
    limit: Limit = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=TOPIC_CHARS_MAX)] | None = None


class DeleteTopicQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cascade: Annotated[bool, Meta(description="Delete the subscriptions of the topic, too.")] = False


TopicPage = page_of(Topic, "topics")

# Publishing

Subject = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=SUBJECT_CHARS_MAX,
        description="Tokens separated by `.`, such as `orders.eu.created`.",
        extra_json_schema={"pattern": SUBJECT},
    ),
]
TopicGroupId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=128,
        pattern=r"^(?!.*\n)[!-~]+$",
        description="Up to 128 printable ASCII characters without spaces.",
    ),
]
ContentType = Annotated[str, Meta(min_length=3, max_length=CONTENT_TYPE_CHARS_MAX, pattern=MEDIA_TYPE)]


class NewTopicMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """A message to publish: `payload` is any JSON, `body_b64` any bytes in base64. One of the two is required."""

    subject: Subject
    payload: Annotated[msgspec.Raw | UnsetType, Meta(description="Any JSON.")] = UNSET
    body_b64: Annotated[str, Meta(description="Any bytes, in base64.")] | UnsetType = msgspec.field(
        name="body_b64", default=UNSET
    )
    content_type: (
        Annotated[
            ContentType,
            Meta(description="Of `body_b64`; `application/octet-stream` if left out. Of `payload`, a JSON type."),
        ]
        | None
    ) = None
    headers: dict[HeaderName, str] = {}
    idempotency_key: IdempotencyKey | None = None
    group_id: Annotated[
        TopicGroupId | None,
        Meta(description="Printable ASCII without spaces. Subscriptions with `orderingKey: group` deliver a group in order."),
    ] = None
    dedupe_id: Annotated[
        TopicGroupId | None,
        Meta(
            description="Within `dedupeWindowMs` another message with this id, of any publisher, stores nothing and returns the "
            "position of the first, with `duplicate`. Excludes `idempotencyKey`."
        ),
    ] = None


class NewTopicBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages to publish."""

    messages: Annotated[list[NewTopicMessage], Meta(min_length=1, max_length=1000)]


class PublishedTopicMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Position of a stored message. `nats_subject` is its subject for NATS clients. `duplicate`: it is that of an earlier message
    with the same `dedupeId`."""

    sequence: int
    timestamp: Timestamp
    subject: str
    nats_subject: str
    duplicate: bool = False


class TopicBatchItem(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Position of a stored message, or the problem if it was not stored."""

    sequence: int | None = None
    timestamp: Timestamp | None = None
    subject: str | None = None
    nats_subject: str | None = None
    duplicate: bool = False
    problem: Problem | None = None


class TopicBatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a batch: a result for each message, in order."""

    published: int
    failed: int
    results: list[TopicBatchItem]


# Replay

SequenceNumber = Annotated[int, Meta(ge=1, le=2**62)]


class TopicMessagesQuery(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    subject: Annotated[
        tuple[SubjectPattern, ...],
        Meta(max_length=PATTERNS_MAX, description="Only messages whose subject matches this pattern, or one of several."),
    ] = ()
    from_sequence: Annotated[SequenceNumber, Meta(description="From this sequence.")] | None = None
    to_sequence: Annotated[SequenceNumber, Meta(description="Up to and including this sequence.")] | None = None
    from_time: Annotated[AwareDatetime, Meta(description="Stored at or after this time.")] | None = None
    to_time: Annotated[AwareDatetime, Meta(description="Stored before this time.")] | None = None
    count: Annotated[bool, Meta(description="Add the number of matching messages in the whole range.")] = False
    limit: Limit = 100
    cursor: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=64,
                pattern="^[0-9a-f]{12}\\.[0-9]{1,19}$",
                description="The `nextCursor` of the previous page.",
            ),
        ]
        | None
    ) = None


class TopicMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True, dict=True):
    """A stored message. It has a `payload` if its content type is JSON, else `body_b64`.

    `payload` is decoded on first access; `body` are its bytes, whatever its type.
    """

    sequence: int
    timestamp: Timestamp
    subject: str
    nats_subject: str
    headers: dict[str, str]
    raw_payload: msgspec.Raw | UnsetType = msgspec.field(name="payload", default=UNSET)
    body_b64: str | UnsetType = msgspec.field(name="body_b64", default=UNSET)
    content_type: str | None = None
    traceparent: str | None = None
    hops: int = 0
    group_id: str | None = None

    @cached_property
    def payload(self) -> Any:
        """The decoded JSON; None if the message is not JSON."""
        return None if self.raw_payload is UNSET else msgspec.json.decode(self.raw_payload)

    @cached_property
    def body(self) -> bytes:
        if self.raw_payload is not UNSET:
            return bytes(self.raw_payload)
        return base64.b64decode(self.body_b64) if self.body_b64 is not UNSET else b""


class TopicMessagePage(Page[TopicMessage], frozen=True, kw_only=True, omit_defaults=True):
    """Messages of a topic, oldest first. With a `next_cursor` there may be more, even if no message matched so far.

    `count` is the number of matching messages in the whole range, if it was requested.
    """

    items: list[TopicMessage] = msgspec.field(name="messages")
    next_cursor: str | None
    count: int | None = None


# Live reading

FromSequence = Annotated[SequenceNumber, Meta(description="From this sequence; `Last-Event-ID` precedes it.")]
FromTime = Annotated[AwareDatetime, Meta(description="From the first message stored at or after this time.")]
LiveEventId = Annotated[
    str, Meta(pattern="^[0-9]{1,19}(-[0-9a-f]{12})?$", description="Continue after the event with this id, or after a sequence.")
]


LatestOnly = Annotated[
    int, Meta(ge=50, le=60_000, description="Of each subject, only the newest message in so many milliseconds.")
]


class TopicStreamQuery(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    filter: Annotated[
        tuple[SubjectPattern, ...],
        Meta(max_length=PATTERNS_MAX, description="Only messages whose subject matches this pattern, or one of several."),
    ] = ()
    from_sequence: FromSequence | None = None
    from_time: FromTime | None = None
    latest_only: LatestOnly | None = None


class LivePositionQuery(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    from_sequence: FromSequence | None = None
    from_time: FromTime | None = None


class LiveTopicMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """The data of an event `message`. It has a `payload` if its content type is JSON."""

    subject: str
    nats_subject: str
    topic: str
    sequence: int
    timestamp: Timestamp
    headers: dict[str, str]
    body_b64: str = msgspec.field(name="body_b64")
    payload: msgspec.Raw | UnsetType = UNSET
    content_type: str | None = None
    traceparent: str | None = None
    hops: int = 0
    group_id: str | None = None


class TopicReady(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The data of an event `ready`: the reader has all messages up to this sequence."""

    topic: str
    sequence: int


class TopicGap(msgspec.Struct, frozen=True, kw_only=True):
    """The data of an event `gap`: the messages of this range were removed before they were read."""

    topic: str
    from_sequence: int = msgspec.field(name="from")
    to_sequence: int = msgspec.field(name="to")


class TopicReset(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The data of an event `reset`: the reader's position is not one of this topic, which is read from `sequence` on."""

    topic: str
    incarnation: str
    sequence: int


# Purging


class PurgeTopicRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    subject: Annotated[SubjectPattern, Meta(description="Only messages whose subject matches.")] | None = None
    to_sequence: Annotated[SequenceNumber, Meta(description="Only messages up to and including this sequence.")] | None = None
    dry_run: DryRun = False
