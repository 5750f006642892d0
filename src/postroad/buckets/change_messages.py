"""Messages of change streams: a change of a bucket as a message of its topic. Pure."""

from collections.abc import Sequence

from postroad.buckets import rules
from postroad.buckets.records import CONTENT_TYPE, TRACEPARENT, BucketRecord, ChangeStream, read_entry
from postroad.jetstream.batching import PendingMessage
from postroad.jetstream.protocol import header_lines
from postroad.jetstream.stream_reader import Entry
from postroad.topics import rules as topic_rules
from postroad.topics.records import TopicRecord

BATCH_CHANGES_MAX = 256
BATCH_BYTES_MAX = 2 * 1024 * 1024
OMITTED = "Postroad-Value-Omitted"  # bytes of a value that is too large for a message with these headers
_ID = "Nats-Msg-Id"


def change_message(
    record: BucketRecord, mapping: ChangeStream, topic: TopicRecord, entry: Entry, payload_max: int
) -> PendingMessage | None:
    """The message of a change; None if its key is not valid, so that the change is not part of the bucket."""
    stored = read_entry(record, entry)
    if not rules.is_key(stored.key):
        return None
    headers = [
        (topic_rules.BUCKET, record.name),
        (topic_rules.OPERATION, stored.operation),
        (topic_rules.REVISION, str(stored.revision)),
        (topic_rules.CHANGED_AT, str(stored.at_ms)),
    ]
    if stored.is_value:
        headers.append((CONTENT_TYPE, stored.content_type))
    if TRACEPARENT in entry.headers:
        headers.append((TRACEPARENT, entry.headers[TRACEPARENT]))
    if hops := topic_rules.hops_of(entry.headers):
        headers.append((topic_rules.HOPS, str(hops)))
    message = PendingMessage(
        f"{topic.subject}.{stored.key}", stored.data, message_id(mapping, stored.revision), header_lines(headers)
    )
    if message.size <= payload_max:
        return message
    headers.append((OMITTED, str(len(stored.data))))
    return PendingMessage(message.subject, b"", message.id, header_lines(headers))


def message_id(mapping: ChangeStream, revision: int) -> str:
    return f"{mapping.id}.{revision}"


def copied_revision(mapping: ChangeStream, entry: Entry) -> int | None:
    """The revision that a message of the topic is the copy of; None if it is not of this mapping."""
    mapping_id, _, revision = entry.headers.get(_ID, "").rpartition(".")
    return int(revision) if mapping_id == mapping.id and revision.isdecimal() and len(revision) < 20 else None


def newest_copied(mapping: ChangeStream, entries: Sequence[Entry]) -> int | None:
    """Like `copied_revision`, of the last entry that is of this mapping."""
    found = (copied_revision(mapping, entry) for entry in reversed(entries))
    return next((revision for revision in found if revision is not None), None)
