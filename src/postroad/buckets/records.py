"""Stored formats of buckets: bucket record and entry. Pure."""

import base64
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from postroad.api.buckets import BucketEntry, BucketInfo, BucketSettings, BucketStats, ChangeStreamStatus
from postroad.api.placement import Placement
from postroad.buckets import rules
from postroad.jetstream.management import StreamState
from postroad.jetstream.stream_lifecycle import StreamOwner
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import rfc3339
from postroad.kernel.names import bucket_store
from postroad.topics.records import json_content

CONTENT_TYPE = "Content-Type"
TRACEPARENT = "traceparent"
# Until the bridge of a change stream removes them. KV clients take a stream without a limit for no bucket.
_ALL_REVISIONS = 1_000_000_000


class ChangeStream(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The mapping of a bucket to a topic. `id` is new for each mapping.

    `position`: a revision up to which all changes were copied, `topic_sequence` the topic's last sequence then; both are stored
    from time to time only. `snapshot_end`: the last revision of the content that the mapping starts with, 0 without.
    """

    id: str
    topic: str
    position: int = 0
    topic_sequence: int = 0
    snapshot_end: int = 0


def feeder_of(bucket: str) -> str:
    """What a topic calls the bucket that feeds it."""
    return f"bucket/{bucket}"


class BucketRecord(StreamOwner, frozen=True, kw_only=True):
    """A bucket in the registry. `replicas` are the copies that the engine keeps."""

    settings: BucketSettings
    replicas: int = 1
    change_stream: ChangeStream | None = None

    @property
    def store(self) -> str:
        """Its name for NATS KV clients."""
        return bucket_store(self.tenant, self.name)

    @property
    def stream(self) -> str:
        return f"KV_{self.store}"

    @property
    def subject(self) -> str:
        """Prefix of the subjects of its keys, with the dot."""
        return f"$KV.{self.store}."

    @property
    def revisions_max(self) -> int:
        """Revisions that the stream keeps of each key."""
        return self.settings.history if self.change_stream is None else _ALL_REVISIONS

    @property
    def marker_seconds(self) -> int:
        """How long the marker of an expired value is kept."""
        return rules.MARKER_SECONDS if self.revisions_max == 1 else rules.HISTORY_MARKER_SECONDS

    @property
    def key_ttl_min(self) -> int:
        """The shortest TTL of a value."""
        return 1 if self.revisions_max == 1 else rules.HISTORY_MARKER_SECONDS


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A change of a key, perhaps of another NATS client."""

    key: str
    revision: int
    at_ms: int
    operation: str
    content_type: str
    data: bytes
    expires_at_ms: int | None = None

    @property
    def is_value(self) -> bool:
        return self.operation == "put"


def read_entry(record: BucketRecord, entry: Entry) -> StoredEntry:
    """Never fails: other clients of the NATS server can write any bytes."""
    operation = rules.operation_of(entry.headers)
    return StoredEntry(
        key=entry.subject.removeprefix(record.subject),
        revision=entry.sequence,
        at_ms=entry.at_ms,
        operation=operation,
        content_type=_content_type(entry),
        data=entry.payload if operation == "put" else b"",
        expires_at_ms=_expiry_ms(entry) if operation == "put" else None,
    )


def _content_type(entry: Entry) -> str:
    """A type that cannot be sent as a header counts as none."""
    found = entry.headers.get(CONTENT_TYPE, "")
    return found if rules.is_content_type(found) else rules.BYTES


def _expiry_ms(entry: Entry) -> int | None:
    ttl = entry.headers.get("Nats-TTL", "").removesuffix("s")
    return entry.at_ms + int(ttl) * 1000 if ttl.isdecimal() and len(ttl) < 12 else None


# Representation in the API


def bucket_of(
    record: BucketRecord,
    stats: BucketStats | None = None,
    change_stream: ChangeStreamStatus | None = None,
    placement: Placement | None = None,
) -> BucketInfo:
    return BucketInfo(
        name=record.name,
        settings=record.settings,
        replicas=record.replicas,
        nats_bucket=record.store,
        incarnation=record.incarnation,
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
        stats=stats,
        change_stream=change_stream,
        placement=placement,
    )


def stats_of(state: StreamState) -> BucketStats:
    return BucketStats(keys=state.num_subjects, revisions=state.messages, bytes=state.bytes, last_revision=state.last_seq)


def entry_of(stored: StoredEntry, *, with_value: bool) -> BucketEntry:
    value: dict[str, Any] = {}
    if stored.is_value:
        value["content_type"] = stored.content_type
        value["expires_at"] = None if stored.expires_at_ms is None else rfc3339(stored.expires_at_ms)
    if stored.is_value and with_value:
        parsed = json_content(stored.content_type, stored.data)
        value["raw_value"] = UNSET if parsed is None else parsed
        value["value_b64"] = base64.b64encode(stored.data).decode() if parsed is None else UNSET
    return BucketEntry(
        key=stored.key,
        revision=stored.revision,
        timestamp=rfc3339(stored.at_ms),
        operation=stored.operation,  # type: ignore[arg-type]
        **value,
    )


encode_entry = msgspec.json.Encoder().encode
