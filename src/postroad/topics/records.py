"""Stored formats of topics: topic record and message. Pure."""

import base64
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from postroad.api.placement import Placement
from postroad.api.topics import EffectiveTopicSettings, StrictTopicSettings, Topic, TopicMessage, TopicStats
from postroad.jetstream.batching import PendingMessage
from postroad.jetstream.management import StreamState
from postroad.jetstream.protocol import header_lines
from postroad.jetstream.stream_lifecycle import StreamOwner
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import rfc3339
from postroad.kernel.media_types import is_json
from postroad.kernel.names import topic_stream, topic_subject
from postroad.topics import rules

_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode


class TopicRecord(StreamOwner, frozen=True, kw_only=True):
    """A topic in the registry. `replicas` are the copies that the engine keeps. `fed_by`: the only resource that publishes."""

    settings: StrictTopicSettings
    replicas: int = 1
    fed_by: str | None = None

    @property
    def stream(self) -> str:
        return topic_stream(self.tenant, self.name)

    @property
    def subject(self) -> str:
        """Prefix of the subjects of its messages."""
        return topic_subject(self.tenant, self.name)

    @property
    def dedupe_window_ms(self) -> int:
        """JetStream remembers no id longer than the message."""
        return min(self.settings.dedupe_window_ms, self.retention_ms or self.settings.dedupe_window_ms)

    @property
    def retention_ms(self) -> int:
        return max(self.settings.retention_ms, 1000) if self.settings.retention_ms else 0


@dataclass(frozen=True, slots=True)
class StoredTopicMessage:
    """A message of a topic, also of another NATS client. `headers` are the publisher's own; others have fields of their own.

    `extension` is what another protocol, such as SNS, keeps with the message: JSON in ASCII.
    """

    sequence: int
    at_ms: int
    subject: str
    nats_subject: str
    headers: dict[str, str]
    content_type: str | None
    traceparent: str | None
    hops: int
    body: bytes
    extension: str | None = None
    group: str | None = None


def pending_message(
    record: TopicRecord,
    subject: str,
    body: rules.MessageBody,
    message_id: str,
    *,
    headers: Iterable[tuple[str, str]] = (),
    traceparent: str | None = None,
    hops: int = 0,
    mark: rules.IdempotencyMark | None = None,
    extension: str | None = None,
    group: str | None = None,
    is_deduplicated: bool = False,
) -> PendingMessage:
    """Format 1 of a message: the bytes of the body, and everything else in NATS headers."""
    lines = [(rules.CONTENT_TYPE, body.content_type), *headers]
    if traceparent is not None:
        lines.append((rules.TRACEPARENT, traceparent))
    if hops:
        lines.append((rules.HOPS, str(hops)))
    if mark is not None:
        lines.append((rules.IDEMPOTENCY, str(mark)))
    if group is not None:
        lines.append((rules.GROUP, group))
    if extension is not None:
        lines.append((rules.EXTENSION, extension))
    # A known id makes the engine refuse a whole batch: the committer looks for it among the conditional messages first.
    is_conditional = mark is not None or is_deduplicated
    return PendingMessage(
        f"{record.subject}.{subject}", body.data, message_id, header_lines(lines), is_conditional=is_conditional
    )


def read_message(record: TopicRecord, entry: Entry) -> StoredTopicMessage:
    """The message of an entry of the topic's stream. Never fails: other clients of the NATS server can write any bytes."""
    found = entry.headers
    return StoredTopicMessage(
        sequence=entry.sequence,
        at_ms=entry.at_ms,
        subject=user_subject(record, entry.subject),
        nats_subject=entry.subject,
        headers={name: value for name, value in found.items() if rules.is_shown_header(name)},
        content_type=found.get(rules.CONTENT_TYPE),
        traceparent=found.get(rules.TRACEPARENT),
        hops=rules.hops_of(found),
        body=entry.payload,
        extension=found.get(rules.EXTENSION),
        group=found.get(rules.GROUP),
    )


def user_subject(record: TopicRecord, nats_subject: str) -> str:
    """The subject as it was published."""
    return nats_subject[len(record.subject) + 1 :]


# Representation in the API


def topic_of(record: TopicRecord, stats: TopicStats | None = None, placement: Placement | None = None) -> Topic:
    return Topic(
        name=record.name,
        settings=record.settings,
        effective=EffectiveTopicSettings(replicas=record.replicas, dedupe_window_ms=record.dedupe_window_ms),
        incarnation=record.incarnation,
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
        fed_by=record.fed_by,
        stats=stats,
        placement=placement,
    )


def stats_of(state: StreamState, at_ms: tuple[int | None, int | None]) -> TopicStats:
    first, last = at_ms
    return TopicStats(
        messages=state.messages,
        bytes=state.bytes,
        subjects=state.num_subjects,
        first_sequence=state.first_seq,
        last_sequence=state.last_seq,
        first_at=None if first is None else rfc3339(first),
        last_at=None if last is None else rfc3339(last),
    )


def message_of(stored: StoredTopicMessage) -> TopicMessage:
    payload = json_payload(stored)
    return TopicMessage(
        sequence=stored.sequence,
        timestamp=rfc3339(stored.at_ms),
        subject=stored.subject,
        nats_subject=stored.nats_subject,
        headers=stored.headers,
        raw_payload=UNSET if payload is None else payload,
        body_b64=base64.b64encode(stored.body).decode() if payload is None else UNSET,
        content_type=stored.content_type,
        traceparent=stored.traceparent,
        hops=stored.hops,
        group_id=stored.group,
    )


def json_payload(stored: StoredTopicMessage) -> msgspec.Raw | None:
    """The body as JSON; None if its content type is another, or if it is not JSON."""
    return json_content(stored.content_type, stored.body)


def json_content(content_type: str | None, body: bytes) -> msgspec.Raw | None:
    """Like `json_payload`, of any content."""
    if content_type is None or not is_json(content_type):
        return None
    try:
        if not body.isascii():
            body.decode()  # msgspec.Raw does not check the encoding of strings
        return _decode_raw(body)
    except (ValueError, RecursionError):
        return None
