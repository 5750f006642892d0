"""Messages that other capabilities publish, with ids that they chose: each is stored once for its marker."""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from postroad.api.queues import IdempotencyMismatch, NewMessage, Published
from postroad.jetstream.commit import Committers
from postroad.jetstream.submitted_write import Outcome
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, EngineFull, PostroadError
from postroad.kernel.ids import new_id
from postroad.queues import metrics
from postroad.queues.events import QueueEvent
from postroad.queues.job_events import first_events
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.message_store import MARKER_READS, MessageStore
from postroad.queues.message_writes import (
    Delivered,
    DeliveryMarker,
    PendingPublish,
    SinglePublish,
    delivery_marker_write,
    message_write,
)
from postroad.queues.records import Marker, QueueRecord, SequenceMarker, StoredMessage
from postroad.queues.responses import published_of
from postroad.queues.throughput import Throughput
from postroad.telemetry.outbox import Outbox

OnDelivered = Callable[[Delivered | Exception], None]


class MessageDelivery:
    _committers: Committers
    _lifecycle: QueueLifecycle
    _messages: MessageStore
    _outbox: Outbox
    _throughput: Throughput

    def check(self, tenant: str, new: NewMessage) -> None:
        raise NotImplementedError

    async def _check_schema(self, record: QueueRecord, new: NewMessage, path: str = "$") -> None:
        raise NotImplementedError

    async def deliver(
        self,
        context: RequestContext,
        queue: str,
        message: StoredMessage,
        *,
        delay_ms: int = 0,
        first: DeliveryMarker | None = None,
        marker: DeliveryMarker | None = None,
        awaits_event: bool = True,
    ) -> Delivered:
        """Publish a message that another capability has made, with the ids that it chose; `delay_ms` counts from `message.at`.

        Repeated with the same ids it is stored once for a minute, and its event has the same id; with a marker it is stored once
        as long as that lives, whatever its ids; `first` decides if two exist. The queue is not created. Without `awaits_event`
        the event of its job is stored soon, for callers that promise another event. Raises like `publish`; IdempotencyMismatch
        for another body of the marker.
        """
        record = self._lifecycle.cached(context.tenant, queue) or await self._lifecycle.find(context.tenant, queue)
        new = await self.check_delivery(context, record, message)
        markers = tuple(one for one in (first, marker) if one is not None)
        if markers:
            return await self._deliver_marked(context, record, new, message, delay_ms, markers, awaits_event=awaits_event)
        record, _, is_deferred = await self._messages.placed(record, message)
        write = message_write(record, message, delay_ms, is_deferred=is_deferred)
        pending = PendingPublish(new, message, delay_ms, (write,), is_deferred=is_deferred)
        if record.settings.max_messages or message.group:
            [outcome] = await self._messages.store(record, [pending])
            if isinstance(outcome, PostroadError):
                raise outcome
            sequence = outcome[-1].sequence
        else:  # the common case, with less overhead
            sequence = (await self._committers.of(record.stream).append(pending.writes[0])).sequence
        return await self._delivered(context, record, pending, sequence, awaits_event=awaits_event)

    def prepare_delivery(self, context: RequestContext, queue: str, message: StoredMessage) -> SinglePublish | None:
        """A message as for `deliver` that one write stores, without a condition; None for others. Raises TooLarge, BodyInvalid.

        No effect.
        """
        record = self._lifecycle.cached(context.tenant, queue)
        if record is None or record.is_ordered or record.settings.schema is not None or record.settings.max_messages:
            return None
        if message.group:
            return None
        new = NewMessage(payload=message.payload, headers=message.headers)
        self.check(context.tenant, new)
        return SinglePublish(context, record, PendingPublish(new, message, 0, (message_write(record, message, 0),)))

    def store_delivery(self, single: SinglePublish, on_delivered: OnDelivered, *, is_synced: bool = True) -> None:
        """Call `on_delivered` once the message is stored, or with the error. The event of its job is stored soon.

        With `is_synced` false the message is durable once the caller has synced it: `Delivered.written`, for the outbox.
        Raises TooLarge, StorageQuotaExceeded, EngineFull, Overloaded, Maintenance: then nothing is stored.
        """
        on_stored = partial(self._on_delivery_stored, single, on_delivered, is_synced)
        self._committers.of(single.record.stream).submit_callback(single.pending.writes, on_stored, is_synced=is_synced)

    def _on_delivery_stored(self, single: SinglePublish, on_delivered: OnDelivered, is_synced: bool, outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            on_delivered(outcome)
            return
        context, record, pending = single
        try:
            sequence = outcome[-1].sequence
            self._outbox.record(context, *first_events(record, pending.message, pending.delay_ms, sequence))
            written = None if is_synced else (record.stream, sequence)
            delivered: Delivered | Exception = self._counted(context, record, pending, written)
        except Exception as error:  # a bug: the caller must not wait for ever
            delivered = error
        on_delivered(delivered)

    async def check_delivery(self, context: RequestContext, record: QueueRecord, message: StoredMessage) -> NewMessage:
        """Check a message that another capability has made. Raises TooLarge, BodyInvalid, SchemaMismatch, SchemaTooSlow."""
        new = NewMessage(payload=message.payload, headers=message.headers)
        self.check(context.tenant, new)
        if record.settings.schema is not None:
            await self._check_schema(record, new)
        return new

    async def _deliver_marked(
        self,
        context: RequestContext,
        record: QueueRecord,
        new: NewMessage,
        message: StoredMessage,
        delay_ms: int,
        markers: Sequence[DeliveryMarker],
        *,
        awaits_event: bool,
    ) -> Delivered:
        while True:
            record, _, is_deferred = await self._messages.placed(record, message)
            marks = tuple(delivery_marker_write(record, message, one) for one in markers)
            writes = (*marks, message_write(record, message, delay_ms, new_id(), is_deferred=is_deferred))
            pending = PendingPublish(new, message, delay_ms, writes, markers[0].body, is_deferred=is_deferred)
            [outcome] = await self._messages.store(record, [pending])
            if not isinstance(outcome, PostroadError):
                return await self._delivered(context, record, pending, outcome[-1].sequence, awaits_event=awaits_event)
            if not isinstance(outcome, Conflict | EngineFull):
                raise outcome
            found = await self._messages.existing_marker(
                record, markers, marks, MARKER_READS if isinstance(outcome, Conflict) else 1
            )
            if found is not None:
                break
            if isinstance(outcome, EngineFull):
                raise outcome  # else the marker has just expired
        marker, first = found
        if first.body != marker.body:
            raise IdempotencyMismatch("the key of the delivery was used with another body")
        await self._commit_first(record, context, pending, first, awaits_event=awaits_event)
        return Delivered(message_id=first.message, job_id=first.job, is_duplicate=True, note=first.note, owner=marker.owner)

    async def _delivered(
        self, context: RequestContext, record: QueueRecord, pending: PendingPublish, sequence: int, *, awaits_event: bool
    ) -> Delivered:
        await self._record_events(context, first_events(record, pending.message, pending.delay_ms, sequence), awaits_event)
        return self._counted(context, record, pending)

    def _counted(
        self, context: RequestContext, record: QueueRecord, pending: PendingPublish, written: tuple[str, int] | None = None
    ) -> Delivered:
        metrics.published.add(context.tenant)
        self._throughput.add_published(record, 1)
        return Delivered(message_id=pending.message.id, job_id=pending.message.job, written=written)

    async def _record_events(self, context: RequestContext, events: Sequence[QueueEvent], awaits: bool) -> None:
        if awaits:
            await self._outbox.commit(context, *events)
        else:
            self._outbox.record(context, *events)

    async def _commit_first(
        self,
        record: QueueRecord,
        context: RequestContext,
        pending: PendingPublish,
        marker: Marker | SequenceMarker,
        *,
        awaits_event: bool = True,
        is_duplicate: bool = False,
        sequence: int | None = None,
    ) -> Published:
        """The ids in the marker, once the event of that message is durable: the process that stored the message may have died
        before it stored the event, which can safely be repeated."""
        first = msgspec.structs.replace(pending.message, id=marker.message, job=marker.job, at=marker.at)
        await self._record_events(context, first_events(record, first, pending.delay_ms, sequence or 0), awaits_event)
        return published_of(first, is_duplicate=is_duplicate, sequence=sequence)
