"""Deliveries to ordered queues that happen once: messages of a numbered sequence, such as those of one group of a topic.

The last number that was stored is a marker of the queue, `….last.<hash of the sequence>`. It is replaced together with the
message, on condition that it is still the one that is known here. So a number is stored once, whenever and by however many
processes it is delivered, and never after a later one. There is one marker per sequence, which expires a week after
its last message.
"""

from collections import OrderedDict
from typing import NamedTuple

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.protocol import header_lines
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict
from postroad.kernel.ids import new_id
from postroad.queues import metrics
from postroad.queues.job_events import first_events
from postroad.queues.message_writes import message_write, ttl_header
from postroad.queues.publishing import Publisher
from postroad.queues.records import QueueRecord, SequenceMarker, StoredMessage, decode_sequence_marker, encode_message
from postroad.queues.rules import sequence_token
from postroad.queues.throughput import Throughput
from postroad.telemetry.outbox import Outbox

_MARKER_TTL_MS = 7 * 86_400_000
_KNOWN_MAX = 50_000


class _LastNumber(NamedTuple):
    """The last number of a sequence, and the sequence of its marker in the stream; 0 if there is none."""

    number: int
    marker: int


class NumberedDeliveries:
    def __init__(
        self, connection: Connection, committers: Committers, publisher: Publisher, outbox: Outbox, throughput: Throughput
    ) -> None:
        self._connection, self._committers, self._publisher = connection, committers, publisher
        self._outbox, self._throughput = outbox, throughput
        self._known: OrderedDict[str, _LastNumber] = OrderedDict()  # by stream and subject of the marker

    async def deliver(
        self, context: RequestContext, record: QueueRecord, message: StoredMessage, sequence: str, number: int
    ) -> bool:
        """Store the message unless this number, or a later one, was stored before: then return false. Numbers start at 1.

        Raises TooLarge, BodyInvalid, SchemaMismatch, EngineFull, Overloaded, EngineUnavailable.
        """
        await self._publisher.check_delivery(context, record, message)
        subject = f"{record.subject}.last.{sequence_token(sequence)}"
        key = f"{record.incarnation}/{subject}"
        while True:
            last = self._known.get(key) or await self._read(record, subject)
            if last.number >= number:
                self._remember(key, last)
                if last.number == number:  # the process that stored it may have died before it stored the event
                    await self._outbox.commit(context, *first_events(record, message, 0, last.marker + 1))
                return False
            writes = (_marker(subject, message, number, last.marker), message_write(record, message, 0, new_id()))
            self._known.pop(key, None)  # unless it is stored, the outcome is not known
            try:
                acks = await self._committers.of(record.stream).append_together(writes)
            except Conflict:
                continue  # another process was faster, or the marker has expired
            self._remember(key, _LastNumber(number, acks[0].sequence))
            await self._outbox.commit(context, *first_events(record, message, 0, acks[-1].sequence))
            metrics.published.add(context.tenant)
            self._throughput.add_published(record, 1)
            return True

    async def _read(self, record: QueueRecord, subject: str) -> _LastNumber:
        entry = await stream_reader.last(self._connection, record.stream, subject)
        return _LastNumber(0, 0) if entry is None else _LastNumber(decode_sequence_marker(entry.payload).number, entry.sequence)

    def _remember(self, key: str, last: _LastNumber) -> None:
        self._known[key] = last
        self._known.move_to_end(key)
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)


def _marker(subject: str, message: StoredMessage, number: int, last_marker: int) -> PendingMessage:
    marker = SequenceMarker(number=number, message=message.id, job=message.job, at=message.at)
    headers = header_lines(
        [
            ("Nats-Rollup", "sub"),
            ("Nats-Expected-Last-Subject-Sequence", str(last_marker)),
            ("Nats-TTL", ttl_header(_MARKER_TTL_MS)),
        ]
    )
    return PendingMessage(subject, encode_message(marker), new_id(), headers, is_conditional=True)
