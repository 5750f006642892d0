"""Messages as they are written to the stream of their queue: subject, headers, conditions. Pure."""

from datetime import datetime
from typing import NamedTuple

import msgspec

from postroad.api.queues import NewMessage
from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.protocol import header_lines
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.ids import new_id
from postroad.queues.records import Marker, QueueRecord, SequenceMarker, StoredMessage, encode_message, ready_subject
from postroad.queues.rules import (
    DEDUPE_WINDOW_MS,
    body_hash,
    dedupe_token,
    delivery_token,
    epoch_ms,
    group_token,
    marker_token,
)

_ENDED_NUMBER = 2**63 - 1
_ENDED_TTL_MS = 86_400_000  # far longer than a write can be on its way


class PendingPublish(msgspec.Struct, frozen=True):
    """A message to store. `writes` ends with the message itself; the markers of its idempotency key and of its `dedupeId`, in
    this order, precede it."""

    new: NewMessage
    message: StoredMessage
    delay_ms: int
    writes: tuple[PendingMessage, ...]
    body_hash: str = ""
    dedupe_subject: str = ""
    is_deferred: bool = False


class SinglePublish(NamedTuple):
    """A message that one write stores, and whatever is needed then."""

    context: RequestContext
    record: QueueRecord
    pending: PendingPublish


class DeliveryMarker(msgspec.Struct, frozen=True, kw_only=True):
    """Makes a delivery happen once in `ttl_ms`: it is stored in one batch with the message, on condition that there is none.

    `owner` names the capability and whose keys these are, `key` the delivery. `body` is a hash of what must be equal when the key
    is used again, and `note` a text that a repeated delivery gets back.
    """

    owner: str
    key: str
    ttl_ms: int
    body: str = ""
    note: str = ""


class Delivered(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of a delivered message. `is_duplicate`: these are those of an earlier delivery with the same marker, with its note.

    `owner` is that of the marker then. `written`: where a message is stored that its caller has to sync.
    """

    message_id: str
    job_id: str
    written: tuple[str, int] | None = None
    is_duplicate: bool = False
    note: str = ""
    owner: str = ""


def marker_write(
    record: QueueRecord, token: str, message: StoredMessage, write_id: str, *, ttl_ms: int, body: str, note: str = ""
) -> PendingMessage:
    """The write of a marker, which precedes that of its message: on condition that there is none."""
    return _marker_write(f"{record.subject}.idem.{token}", message, write_id, ttl_ms=ttl_ms, body=body, note=note)


def _marker_write(
    subject: str, message: StoredMessage, write_id: str, *, ttl_ms: int, body: str = "", note: str = ""
) -> PendingMessage:
    marker = Marker(v=1, body=body, message=message.id, job=message.job, at=message.at, note=note)
    headers = header_lines([("Nats-Expected-Last-Subject-Sequence", "0"), ("Nats-TTL", ttl_header(ttl_ms))])
    return PendingMessage(subject, encode_message(marker), write_id, headers, is_conditional=True)


def pending_publish(
    record: QueueRecord,
    new: NewMessage,
    message: StoredMessage,
    delay_ms: int,
    key_id: str,
    key_ttl_ms: int,
    *,
    is_deferred: bool = False,
) -> PendingPublish:
    """The message with its markers: of its idempotency key, which belongs to `key_id`, and of its `dedupeId`."""
    writes, hashed, dedupe_subject = [message_write(record, message, delay_ms, is_deferred=is_deferred)], "", ""
    if message.dedupe and record.is_ordered:
        ttl_ms = record.settings.dedupe_window_ms or DEDUPE_WINDOW_MS
        dedupe_subject = f"{record.subject}.dedupe.{dedupe_token(message.dedupe, message.group, record.settings)}"
        writes.insert(0, _marker_write(dedupe_subject, message, f"{message.id}/dedupe", ttl_ms=ttl_ms))
    if new.idempotency_key is not None:
        hashed, token = body_hash(new), marker_token(key_id, new.idempotency_key)
        ttl_ms = record.settings.dedupe_window_ms or key_ttl_ms
        writes.insert(0, marker_write(record, token, message, f"{message.id}/idem", ttl_ms=ttl_ms, body=hashed))
    return PendingPublish(new, message, delay_ms, tuple(writes), hashed, dedupe_subject, is_deferred)


def delivery_marker_write(record: QueueRecord, message: StoredMessage, marker: DeliveryMarker) -> PendingMessage:
    """Its id is new, so that the condition decides, not whether the engine knows the id."""
    token = delivery_token(marker.owner, marker.key)
    return marker_write(record, token, message, new_id(), ttl_ms=marker.ttl_ms, body=marker.body, note=marker.note)


def number_write(subject: str, message: StoredMessage, number: int, last_sequence: int) -> PendingMessage:
    """The write of a sequence's marker: on condition that the last one has this sequence in the stream."""
    marker = SequenceMarker(number=number, message=message.id, job=message.job, at=message.at)
    headers = header_lines([("Nats-Expected-Last-Subject-Sequence", str(last_sequence))])
    return PendingMessage(subject, encode_message(marker), f"{message.id}/last", headers, is_conditional=True)


def end_write(subject: str) -> PendingMessage:
    """The write of a sequence's last marker, which no number exceeds; it is removed after a day."""
    marker = encode_message(SequenceMarker(number=_ENDED_NUMBER))
    return PendingMessage(subject, marker, new_id(), header_lines([("Nats-TTL", ttl_header(_ENDED_TTL_MS))]))


def message_write(
    record: QueueRecord, message: StoredMessage, delay_ms: int, unique_id: str = "", *, is_deferred: bool = False
) -> PendingMessage:
    """The write of a message that is ready after `delay_ms`; `unique_id` is the id of the write, if not that of the message.

    `is_deferred`: it is held back then, until messages of other groups are taken.

    A message with a unique key is stored on condition that there is none with the same key, ready or delayed. In an ordered queue
    a message stays where it is stored, and its delay is that of the queue.
    """
    if record.is_ordered:
        return _ordered_write(record, message, unique_id)
    if not delay_ms and not message.unique and not message.expires and message.priority == "normal" and not is_deferred:
        return PendingMessage(
            f"{record.subject}.ready", encode_message(message), unique_id or message.id, _retention_header(record)
        )
    place = f"{record.subject}.unique.{message.unique}" if message.unique else record.subject
    ready, ttl_ms = ready_subject(place, message.priority), _ttl_ms(record, message, delay_ms)
    if is_deferred:
        ready = record.wait_subject(group_token(message.group))
    headers, subject = [], ready
    if message.unique:
        headers += [("Nats-Expected-Last-Subject-Sequence", "0"), ("Nats-Expected-Last-Subject-Sequence-Subject", f"{place}.*")]
    if delay_ms:
        subject = f"{place}.later" if message.unique else f"{place}.later.{message.id}"
        headers += [("Nats-Schedule", f"@at {rfc3339(message.at + delay_ms)}"), ("Nats-Schedule-Target", ready)]
    if ttl_ms:
        headers.append(("Nats-Schedule-TTL" if delay_ms else "Nats-TTL", ttl_header(ttl_ms)))
    return PendingMessage(
        subject,
        encode_message(message),
        unique_id or message.id,
        header_lines(headers),
        is_conditional=bool(message.unique),
        precondition_subject=place if message.unique else "",
    )


def _ordered_write(record: QueueRecord, message: StoredMessage, unique_id: str) -> PendingMessage:
    delay_ms = record.settings.delay_ms
    ttl_ms = _ttl_ms(record, message, delay_ms)
    headers = header_lines([("Nats-TTL", ttl_header(ttl_ms + delay_ms))]) if ttl_ms else ""
    subject = record.group_subject(group_token(message.group))
    return PendingMessage(subject, encode_message(message), unique_id or message.id, headers)


def _ttl_ms(record: QueueRecord, message: StoredMessage, delay_ms: int) -> int:
    """How long the message is kept once it is ready; 0: without limit."""
    limits = [record.settings.retention_ms, message.expires - message.at - delay_ms if message.expires else 0]
    return min((limit for limit in limits if limit > 0), default=0)


def _retention_header(record: QueueRecord) -> str:
    return header_lines([("Nats-TTL", ttl_header(record.settings.retention_ms))]) if record.settings.retention_ms else ""


def ttl_header(ms: int) -> str:
    """JetStream takes whole seconds; round up."""
    return f"{-(-ms // 1000)}s"


def delay_ms_of_entry(entry: Entry, message: StoredMessage) -> int:
    """The delay of a message that is not ready yet, else 0."""
    schedule = entry.headers.get("Nats-Schedule", "")
    return max(0, epoch_ms(datetime.fromisoformat(schedule.removeprefix("@at "))) - message.at) if schedule else 0
