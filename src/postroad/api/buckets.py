"""Buckets: settings, values by key, batches, lists, history, watch."""

import base64
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.api.pages import Limit, Page, page_of
from postroad.api.placement import Geo, Placement
from postroad.api.selectors import KEY, KEY_CHARS_MAX, PREFIX
from postroad.api.topics import ContentType, SequenceNumber
from postroad.kernel.clock import Timestamp
from postroad.kernel.errors import ConflictError, NotFound
from postroad.kernel.names import BUCKET, TOPIC, TOPIC_CHARS_MAX

HISTORY_MAX = 64
BATCH_WRITES_MAX = 100
TTL_SECONDS_MAX = 10 * 366 * 86_400
CURSOR = r"^[0-9a-f]{12}\.[0-9]{1,19}$"


class BucketNotFound(NotFound, code="bucket-not-found", status=404, title="Bucket not found"):
    """The tenant has no bucket with this name."""


class BucketKeyNotFound(NotFound, code="bucket-key-not-found", status=404, title="Key of a bucket not found"):
    """The bucket has no value for this key, or not at this revision."""


class RevisionMismatch(ConflictError, code="revision-mismatch", status=412, title="Revision mismatch"):
    """A precondition (`If-Match`, `If-None-Match`, or of a batch) does not hold: the key has another revision."""


# Buckets

History = Annotated[int, Meta(ge=1, le=HISTORY_MAX, description="Revisions that are kept of each key.")]
TtlSeconds = Annotated[
    int, Meta(ge=0, le=TTL_SECONDS_MAX, description="How long a value is kept after it was written; 0: without limit.")
]
MaxBytes = Annotated[
    int, Meta(ge=0, le=2**53 - 1, description="Bytes that the bucket holds, which are reserved for it; 0: no limit.")
]
MaxValueBytes = Annotated[int, Meta(ge=0, le=2**31 - 1, description="Size of a value; 0: the tenant's limit of a message.")]
Replicas = Annotated[
    Literal[1, 3, 5] | None,
    Meta(description="Copies of the bucket. The installation's default if left out. A single server keeps one."),
]
ChangeStreamTopic = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=TOPIC_CHARS_MAX,
        pattern=f"^{TOPIC.pattern}$",
        description="Topic that gets each change as a message, with the key as its subject. It is created.",
    ),
]
ChangeStreamFrom = Annotated[
    Literal["new", "all"],
    Meta(description="What a change stream starts with: changes from then on, or `all` current values."),
]


class BucketSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Settings of a bucket."""

    history: History = 1
    ttl_seconds: TtlSeconds = 0
    max_bytes: MaxBytes = 0
    max_value_bytes: MaxValueBytes = 0
    replicas: Replicas = None
    geo: Geo | None = None
    change_stream_topic: ChangeStreamTopic | None = msgspec.field(name="change_stream_topic", default=None)
    change_stream_from: ChangeStreamFrom = msgspec.field(name="change_stream_from", default="new")


class BucketSettingsChange(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Settings to change. Omitted fields keep their value; null restores the default."""

    history: History | UnsetType | None = UNSET
    ttl_seconds: TtlSeconds | UnsetType | None = UNSET
    max_bytes: MaxBytes | UnsetType | None = UNSET
    max_value_bytes: MaxValueBytes | UnsetType | None = UNSET
    replicas: Annotated[Literal[1, 3, 5] | UnsetType | None, Meta(description="Copies of the bucket.")] = UNSET
    geo: Geo | UnsetType | None = UNSET
    change_stream_topic: ChangeStreamTopic | UnsetType | None = msgspec.field(name="change_stream_topic", default=UNSET)
    change_stream_from: ChangeStreamFrom | UnsetType | None = msgspec.field(name="change_stream_from", default=UNSET)


class NewBucket(BucketSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bucket to create."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=80,
            pattern=f"^{BUCKET.pattern}$",
            description="Name of the bucket: letters, digits and `_ . : -`.",
        ),
    ]


class BucketStats(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What a bucket stores. Deleted keys count as long as their deletion is kept."""

    keys: int
    revisions: int
    bytes: int
    last_revision: Annotated[int, Meta(description="Revision of the latest change, 0 if there never was one.")]


class ChangeStreamStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """How far the changes of a bucket were copied to its topic."""

    topic: str
    revision: Annotated[int, Meta(description="Up to this revision all changes are on the topic.")]
    lag_revisions: Annotated[int, Meta(description="Revisions after it.")]
    lag_seconds: Annotated[float, Meta(description="Age of the oldest change that was not copied yet.")]


class BucketInfo(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A bucket with its settings. `incarnation` changes if it is deleted and created again: its revisions restart then.

    `replicas` are the copies that are kept, `nats_bucket` is its name for NATS KV clients. `stats`,
    `change_stream` and `placement` are present when one bucket was requested.
    """

    name: str
    settings: BucketSettings
    replicas: int
    nats_bucket: str
    incarnation: str
    created_at: Timestamp
    updated_at: Timestamp
    stats: BucketStats | None = None
    change_stream: ChangeStreamStatus | None = None
    placement: Placement | None = None


class BucketQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: (
        Annotated[
            str, Meta(min_length=1, max_length=128, description="Only buckets whose names match; `*` is any run of characters.")
        ]
        | None
    ) = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=80)] | None = None


BucketInfoPage = page_of(BucketInfo, "buckets")

# Values

BucketKey = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=KEY_CHARS_MAX,
        description="Tokens of letters, digits and `- / _ =`, separated by `.`.",
        extra_json_schema={"pattern": KEY},
    ),
]
KeyTtl = Annotated[int, Meta(ge=1, le=TTL_SECONDS_MAX, description="Seconds after which the value expires.")]
Revision = SequenceNumber
IfMatch = Annotated[str, Meta(description='Only if the key has this revision, such as `"7"`.', max_length=64)]
IfNoneMatch = Annotated[str, Meta(description="`*`: only if the key does not exist.", max_length=64)]


class PutValueQuery(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    ttl_seconds: KeyTtl | None = None


class GetValueQuery(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    revision: Annotated[Revision, Meta(description="The value at this revision, if it is still kept.")] | None = None


class WrittenValue(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A stored change of a key."""

    key: str
    revision: int


class BucketWrite(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """One write of a batch. A `put` has a `value` (any JSON) or `valueB64` (any bytes, in base64); a `delete` has neither."""

    key: BucketKey
    operation: Literal["put", "delete"] = "put"
    value: Annotated[msgspec.Raw | UnsetType, Meta(description="Any JSON.")] = UNSET
    value_b64: Annotated[str, Meta(description="Any bytes, in base64.")] | UnsetType = UNSET
    content_type: (
        Annotated[ContentType, Meta(description="`application/octet-stream` if left out; of `value`, a JSON type.")] | None
    ) = None
    ttl_seconds: KeyTtl | None = None
    if_revision: Annotated[Revision, Meta(description="Only if the key has this revision.")] | None = None
    if_absent: Annotated[bool, Meta(description="Only if the key does not exist.")] = False


class BucketBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Writes that are all made, or none. Each key at most once."""

    writes: Annotated[list[BucketWrite], Meta(min_length=1, max_length=BATCH_WRITES_MAX)]


class BucketBatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The revision of each write, in order."""

    results: list[WrittenValue]


class BucketEntry(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True, dict=True):
    """A change of a key. With its value, it has `value` if its content type is JSON, else `valueB64`."""

    key: str
    revision: int
    timestamp: Timestamp
    operation: Annotated[Literal["put", "delete", "expire"], Meta(description="`put` if left out.")] = "put"
    content_type: str | None = None
    expires_at: Timestamp | None = None
    raw_value: msgspec.Raw | UnsetType = msgspec.field(name="value", default=UNSET)
    value_b64: str | UnsetType = UNSET

    @cached_property
    def value(self) -> Any:
        """The decoded JSON; None if the value is not JSON."""
        return None if self.raw_value is UNSET else msgspec.json.decode(self.raw_value)

    @cached_property
    def body(self) -> bytes:
        if self.raw_value is not UNSET:
            return bytes(self.raw_value)
        return base64.b64decode(self.value_b64) if self.value_b64 is not UNSET else b""


Prefix = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=KEY_CHARS_MAX,
        description="Only keys that start with this text.",
        extra_json_schema={"pattern": PREFIX},
    ),
]
Cursor = Annotated[str, Meta(min_length=1, max_length=64, pattern=CURSOR, description="The `nextCursor` of the previous page.")]


class BucketKeysQuery(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    prefix: Prefix | None = None
    values: Annotated[bool, Meta(description="Add the values.")] = False
    limit: Limit = 100
    cursor: Cursor | None = None


class BucketHistoryQuery(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    limit: Limit = 100
    cursor: Cursor | None = None


class BucketWatchQuery(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    prefix: Prefix | None = None
    last_event_id: Annotated[str, Meta(min_length=1, max_length=64, description="Like the header `Last-Event-ID`.")] | None = None


class BucketEntryPage(Page[BucketEntry], frozen=True, kw_only=True, omit_defaults=True):
    """Entries of a bucket in the order of their revisions. With a `next_cursor` there may be more."""

    items: list[BucketEntry] = msgspec.field(name="entries")
    next_cursor: str | None = None


class BucketValue(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a key, as the SDK returns it."""

    data: bytes
    content_type: str
    revision: int


class BucketChange(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a watch, as the SDK returns it. `kind` is `put`, `delete`, `expire`, `ready` (the current values are complete)
    or `reset` (the watch could not be resumed: all current values follow). `id` resumes the watch after this event."""

    kind: str
    id: str
    entry: BucketEntry | None = None
