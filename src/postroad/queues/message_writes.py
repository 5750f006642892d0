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
from postroad.queues.records import QueueRecord, StoredMessage, encode_message, ready_subject
from postroad.queues.rules import epoch_ms


class PendingPublish(msgspec.Struct, frozen=True):
    """A message to store. `writes` ends with the message itself; the marker of its idempotency key precedes it."""

    new: NewMessage
    message: StoredMessage
    delay_ms: int
    writes: tuple[PendingMessage, ...]
    body_hash: str


class SinglePublish(NamedTuple):
    """A message that one write stores, and whatever is needed then."""

    context: RequestContext
    record: QueueRecord
    pending: PendingPublish


def message_write(record: QueueRecord, message: StoredMessage, delay_ms: int, unique_id: str = "") -> PendingMessage:
    """The write of a message that is ready after `delay_ms`; `unique_id` is the id of the write, if not that of the message.

    A message with a unique key is stored on condition that there is none with the same key, ready or delayed.
    """
    if not delay_ms and not message.unique and not message.expires and message.priority == "normal":
        return PendingMessage(
            f"{record.subject}.ready", encode_message(message), unique_id or message.id, _retention_header(record)
        )
    place = f"{record.subject}.unique.{message.unique}" if message.unique else record.subject
    ready, ttl_ms = ready_subject(place, message.priority), _ttl_ms(record, message, delay_ms)
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
