"""Removes unread frames from telemetry queues in the hour before the engine removes them, and counts their events.

Once a frame has aged out, it is unknown whether it was read. So the leader of the control role pulls the frames that will age
out within the hour through the consumer of the queue: what it gets, no reader has or will get. It stores their number before
it acknowledges them; after a crash the frames of the last batch are acknowledged and not counted again. Once a day is over,
`snavio.telemetry.dropped` reports its number.

When the stream is nearly full, frames leave it earlier: `FrameEvictor` has them counted here before it removes them.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import structlog

from postroad.jetstream import stream_reader
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.connection import Connection
from postroad.jetstream.deliveries import ACK, Delivery, DeliveryRef, nak
from postroad.jetstream.management import consumer_state, stream_info
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.ids import derived_id
from postroad.telemetry.frames import frame_subject, unpack
from postroad.telemetry.outbox import Outbox
from postroad.telemetry_queue import metrics
from postroad.telemetry_queue.events import TelemetryDropped
from postroad.telemetry_queue.frame_consumer import FrameConsumer, FrameConsumers
from postroad.telemetry_queue.records import STREAM, DropRecord, ReadRecord, consumer_name
from postroad.telemetry_queue.rules import (
    MARGIN_MS,
    RETENTION_MS,
    STREAM_FULL,
    UNCONSUMED,
    EventFilter,
    count_dropped,
    day_of,
    day_start_ms,
)

_BATCH = 256
_HELD_MAX = 10_000
_LEASE_MS = 120_000  # a new leader has acknowledged the frames of the last batch by then
_decode = msgspec.json.Decoder(DropRecord).decode

log = structlog.get_logger("postroad.telemetry_queue")


class DropCounter:
    """`tenants` returns the tenants that have the queue, `filter_of` the events that a tenant gets."""

    def __init__(
        self,
        connection: Connection,
        consumers: FrameConsumers,
        bucket: Bucket,
        reads: ReplicatedTable[ReadRecord],
        outbox: Outbox,
        clock: Clock,
        tenants: Callable[[], Sequence[str]],
        filter_of: Callable[[str], EventFilter],
    ) -> None:
        self._connection, self._consumers, self._bucket, self._reads = connection, consumers, bucket, reads
        self._outbox, self._clock, self._tenants, self._filter_of = outbox, clock, tenants, filter_of
        self._turn = asyncio.Lock()

    async def run_once(self) -> int:
        """Return how many events were dropped. Raises EngineUnavailable, and Conflict if another leader has begun."""
        async with self._turn:
            last, dropped = await self._last_expiring(), 0
            for tenant in self._tenants():
                record, revision = await self._load(tenant)
                record, revision = await self._report(tenant, record, revision)
                if last:
                    dropped += await self._drop(tenant, record, revision, last)
            return dropped

    async def drop_to(self, last: int) -> bool:
        """Drop the unread frames up to the sequence `last`, whatever their age, for lack of room. False if readers have leased
        some of them. Raises like `run_once`."""
        async with self._turn:
            tenants, is_complete = self._tenants(), True
            for tenant in tenants:
                record, revision = await self._report(tenant, *await self._load(tenant))
                await self._drop(tenant, record, revision, last, reason=STREAM_FULL)
                is_complete = is_complete and not await self._expiring(tenant, last)
            return is_complete

    async def today(self, tenant: str) -> int:
        """Events of the tenant that were dropped on this day (UTC). Raises EngineUnavailable."""
        stored = await self._bucket.get(tenant)
        record = None if stored is None or stored.value is None else _decode(stored.value)
        return record.dropped if record is not None and record.day == day_of(self._clock()) else 0

    async def _last_expiring(self) -> int:
        """The sequence of the last frame that ages out within the hour; 0 if there is none."""
        info = await stream_info(self._connection, STREAM)
        if info is None or not info.state.messages:
            return 0
        since = self._clock() - RETENTION_MS + MARGIN_MS
        recent = await stream_reader.read_since(self._connection, STREAM, "command.>", since, 1)
        last = recent.entries[0].sequence - 1 if recent.entries else info.state.last_seq
        return last if last >= info.state.first_seq else 0

    async def _load(self, tenant: str) -> tuple[DropRecord, int]:
        """The record and its revision. Frames that were counted before a crash are acknowledged first."""
        stored = await self._bucket.get(tenant)
        if stored is None or stored.value is None:
            return DropRecord(day=day_of(self._clock())), 0
        record = _decode(stored.value)
        if not record.counted:
            return record, stored.revision
        consumer = await self._consumers.of(tenant)
        state = await consumer_state(self._connection, STREAM, consumer_name(tenant))
        delivered = 1 if state is None else state.delivered.consumer_seq
        for sequence in record.counted:
            entry = await stream_reader.at(self._connection, STREAM, sequence)
            is_open = state is None or state.ack_floor.stream_seq < sequence
            if entry is not None and is_open:
                consumer.send_acknowledgements([(DeliveryRef(sequence, delivered, 1, entry.at_ms * 1_000_000), ACK)])
        return await self._store(tenant, msgspec.structs.replace(record, counted=()), stored.revision)

    async def _store(self, tenant: str, record: DropRecord, revision: int) -> tuple[DropRecord, int]:
        value = msgspec.json.encode(record)
        if revision:
            return record, await self._bucket.update(tenant, value, revision)
        return record, await self._bucket.create(tenant, value)

    async def _report(self, tenant: str, record: DropRecord, revision: int) -> tuple[DropRecord, int]:
        """Report the events that were dropped on an earlier day. The event has the same id if it is repeated after a crash."""
        now = self._clock()
        if record.day == day_of(now):
            return record, revision
        if record.dropped:
            read = self._reads.get(tenant)
            event = TelemetryDropped(
                event_id=derived_id(day_start_ms(record.day), "telemetry.dropped", tenant, record.day),
                tenant=tenant,
                dropped_events=record.dropped,
                reason=record.reason,
                queue_age_seconds=round((now - record.oldest_at_ms) / 1000, 3),
                last_received_at=None if read is None else rfc3339(read.at_ms),
            )
            await self._outbox.commit(None, event)
            log.info("telemetry_dropped", tenant=tenant, events=record.dropped, day=record.day)
        elif not revision:
            return record, revision
        return await self._store(tenant, DropRecord(day=day_of(now)), revision)

    async def _drop(self, tenant: str, record: DropRecord, revision: int, last: int, *, reason: str = UNCONSUMED) -> int:
        """Remove the unread frames up to the sequence `last` from the queue of a tenant, and count their events.

        The engine delivers returned frames first, in the order of their return. Those after `last` are held until the others
        have been delivered, or they would be delivered again and again.
        """
        total, held = 0, list[DeliveryRef]()
        consumer = await self._consumers.of(tenant)
        try:
            while len(held) < _HELD_MAX and (expiring := await self._expiring(tenant, last)):
                deliveries = await consumer.pull(expiring, 0)
                later = [one.ref for one in deliveries if one.ref.stream_sequence > last]
                taken = [one for one in deliveries if one.ref.stream_sequence <= last]
                held += later
                if not taken and (not later or any(ref.attempt == 1 for ref in later)):
                    break  # the others were read, or are leased
                record, revision, count = await self._drop_taken(tenant, consumer, taken, record, revision, reason)
                total += count
        finally:
            consumer.release(held)
        return total

    async def _drop_taken(
        self, tenant: str, consumer: FrameConsumer, taken: Sequence[Delivery], record: DropRecord, revision: int, reason: str
    ) -> tuple[DropRecord, int, int]:
        """Count the events of these frames and acknowledge them. The record, its revision and the number of events."""
        if not taken:
            return record, revision, 0
        consumer.send_acknowledgements([(one.ref, nak(_LEASE_MS)) for one in taken])
        chosen = self._filter_of(tenant)
        count = sum(count_dropped(chosen.select(unpack(one.payload))) for one in taken)
        oldest = min(one.ref.stored_at_ns // 1_000_000 for one in taken)
        after = msgspec.structs.replace(
            record,
            dropped=record.dropped + count,
            oldest_at_ms=min(record.oldest_at_ms or oldest, oldest),
            counted=tuple(one.ref.stream_sequence for one in taken),
            reason=reason if count else record.reason,
        )
        record, revision = await self._store(tenant, after, revision)
        await consumer.acknowledge([(one.ref, ACK) for one in taken])
        metrics.dropped.inc(count)
        return record, revision, count

    async def _expiring(self, tenant: str, last: int) -> int:
        """The number of frames up to `last` that may be unread, at most a batch."""
        state = await consumer_state(self._connection, STREAM, consumer_name(tenant))
        floor = 0 if state is None else state.ack_floor.stream_seq
        if floor >= last:
            return 0
        page = await stream_reader.read(self._connection, STREAM, frame_subject(STREAM, tenant), floor + 1, _BATCH)
        return sum(1 for entry in page.entries if entry.sequence <= last)
