"""Publishing: one message or a batch, deduplicated by idempotency key."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from postroad.api.queues import IdempotencyMismatch, NewMessage, Published
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import purge_stream
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.submitted_write import Outcome
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import BodyInvalid, Conflict, EngineFull, EngineUnavailable, PostroadError
from postroad.kernel.futures import resolve
from postroad.kernel.ids import new_id
from postroad.kernel.json import invalid_field
from postroad.queues import job_events, metrics
from postroad.queues.backend import QueueBackend
from postroad.queues.events import QueueEvent
from postroad.queues.group_shares import GroupShares
from postroad.queues.job_events import first_events
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.message_delivery import MessageDelivery
from postroad.queues.message_store import MARKER_READ_SECONDS, MARKER_READS, MessageStore
from postroad.queues.message_writes import (
    PendingPublish,
    SinglePublish,
    delay_ms_of_entry,
    end_write,
    message_write,
    number_write,
    pending_publish,
)
from postroad.queues.records import (
    PRIORITY,
    UNIQUE,
    QueueRecord,
    SequenceMarker,
    StoredMessage,
    decode_marker,
    decode_sequence_marker,
    read_message,
)
from postroad.queues.responses import published_of
from postroad.queues.rules import (
    MessageLimits,
    check_for_queue,
    check_message,
    dedupe_id_of,
    delay_ms_of,
    expires_at_ms,
    sequence_token,
    unique_token,
)
from postroad.queues.schemas import Schemas
from postroad.queues.stats import QueueStatsReader
from postroad.queues.throughput import Throughput
from postroad.telemetry.outbox import Outbox
from postroad.tracing.messaging import describe, ending, publishing, record_batch

OnPublished = Callable[[Published | Exception], None]


class Publisher(MessageDelivery):
    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        backend: QueueBackend,
        lifecycle: QueueLifecycle,
        table: ReplicatedTable[QueueRecord],
        stats: QueueStatsReader,
        outbox: Outbox,
        throughput: Throughput,
        clock: Clock,
        *,
        tenant_settings: TenantSettingsStore,
        schemas: Schemas,
        shares: GroupShares,
        limits: MessageLimits,
    ) -> None:
        self._connection, self._committers, self._lifecycle = connection, committers, lifecycle
        self._outbox, self._throughput, self._clock = outbox, throughput, clock
        self._tenant_settings, self._schemas, self._limits = tenant_settings, schemas, limits
        self._messages = MessageStore(connection, committers, backend, lifecycle, stats, table, shares)

    async def publish(self, context: RequestContext, queue: str, new: NewMessage) -> Published:
        """Return once the message and the first event of its job are durable. Raises QueueNotFound, TooLarge, BodyInvalid,
        SchemaMismatch, SchemaTooSlow, IdempotencyMismatch, EngineFull, Overloaded, EngineUnavailable."""
        single = self.prepare_single(context, queue, new)
        if single is not None:
            future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
            self.store_single(single, partial(resolve, future))
            return await future
        if context.span is None:
            return await self._publish(context, queue, new)
        context, span = publishing(context, context.span, queue)
        with span:
            published = await self._publish(context, queue, new)
            describe(span, published.message_id, published.job_id, len(bytes(new.payload)))
            return published

    async def _publish(self, context: RequestContext, queue: str, new: NewMessage) -> Published:
        """Publish a message that needs more than one write, or a condition."""
        record = self._lifecycle.cached(context.tenant, queue) or await self._lifecycle.find_or_create(context, queue)
        await self._check_schema(record, new)
        check_for_queue(new, record.settings, is_in_engine=record.is_readable)
        if new.unique_key is not None or new.priority != "normal":
            record = await self._with_features(record, new)
        record, message, is_deferred = await self._messages.placed(record, self._message(record, context, new))
        pending = self._prepare(record, context, new, message, is_deferred=is_deferred)
        [outcome] = await self._messages.store(record, [pending])
        if isinstance(outcome, PostroadError):
            return await self._first_published(record, context, pending, outcome)
        sequence = outcome[-1].sequence
        await self._outbox.commit(context, *first_events(record, pending.message, pending.delay_ms, sequence))
        metrics.published.add(context.tenant)
        self._throughput.add_published(record, 1, context.caller.key_id)
        return published_of(pending.message, sequence=record.shown_sequence(sequence))

    def prepare_single(self, context: RequestContext, queue: str, new: NewMessage) -> SinglePublish | None:
        """A message that one write stores, without a condition; None for others. Raises TooLarge, BodyInvalid. No effect."""
        check_message(new, self._limits, self._tenant_settings.of(context.tenant).max_message_bytes, self._clock())
        if new.idempotency_key is not None or new.unique_key is not None or new.priority != "normal":
            return None
        record = self._lifecycle.cached(context.tenant, queue)
        if record is None or record.settings.schema is not None or record.settings.max_messages or not record.is_readable:
            return None
        if record.is_ordered or new.dedupe_id is not None:
            check_for_queue(new, record.settings, is_in_engine=record.is_readable)
            if new.dedupe_id is not None or record.settings.dedupe_by_content:
                return None
        if context.span is not None:
            context, span = publishing(context, context.span, queue)
            message = self._message(record, context, new)
            describe(span, message.id, message.job, len(bytes(message.payload)))
        else:
            message = self._message(record, context, new)
        is_deferred = False
        if message.group and not record.is_ordered:
            decided = self._messages.shares.decide(record, message)
            if decided is None or (decided and not record.has_deferred):
                return None
            is_deferred = decided
        return SinglePublish(context, record, self._prepare(record, context, new, message, is_deferred=is_deferred))

    def store_single(self, single: SinglePublish, on_published: OnPublished) -> None:
        """Call `on_published` once the message and the first event of its job are durable, or with the error.

        Raises TooLarge, StorageQuotaExceeded, EngineFull, Overloaded: then nothing is stored.
        """
        write, message, span = single.pending.writes, single.pending.message, single.context.span
        if span is not None:
            on_published = ending(span, on_published)
        if message.group:
            self._messages.shares.begin(single.record, message, is_deferred=single.pending.is_deferred)
        try:
            on_stored = partial(self._on_stored, single, on_published)
            self._committers.of(single.record.stream).submit_callback(write, on_stored, is_synced=False)
        except PostroadError as error:
            if message.group:
                self._messages.count(single.record, single.pending, error)
            if span is not None:
                span.end(error)
            raise

    def _on_stored(self, single: SinglePublish, on_published: OnPublished, outcome: Outcome) -> None:
        if single.pending.message.group:
            self._messages.count(single.record, single.pending, outcome)
        if isinstance(outcome, Exception):
            on_published(outcome)
            return
        try:
            sequence = outcome[-1].sequence
            events = first_events(single.record, single.pending.message, single.pending.delay_ms, sequence)
            on_recorded = partial(self._on_recorded, single, sequence, on_published)
            self._outbox.commit_callback(single.context, events, on_recorded, (single.record.stream, sequence))
        except Exception as error:  # a bug: the caller must not wait for ever
            on_published(error)

    def _on_recorded(
        self, single: SinglePublish, sequence: int, on_published: OnPublished, problem: EngineUnavailable | None
    ) -> None:
        try:
            if problem is None:
                metrics.published.add(single.context.tenant)
                self._throughput.add_published(single.record, 1, single.context.caller.key_id)
            stored = published_of(single.pending.message, sequence=single.record.shown_sequence(sequence))
            outcome: Published | Exception = problem or stored
        except Exception as error:
            outcome = error
        on_published(outcome)

    async def publish_batch(
        self, context: RequestContext, queue: str, batch: Sequence[NewMessage]
    ) -> list[Published | PostroadError]:
        """Like `publish` for each message, with an outcome for each. A failed message does not affect the others."""
        if context.span is None:
            return await self._publish_batch(context, queue, batch)
        context, span = publishing(context, context.span, queue)
        with span:
            outcomes = await self._publish_batch(context, queue, batch)
            record_batch(span, outcomes)
            return outcomes

    async def _publish_batch(
        self, context: RequestContext, queue: str, batch: Sequence[NewMessage]
    ) -> list[Published | PostroadError]:
        bytes_max = self._tenant_settings.of(context.tenant).max_message_bytes
        record = await self._lifecycle.find_or_create(context, queue)
        outcomes: list[Published | PostroadError | None] = [
            await self._check(record, new, index, bytes_max) for index, new in enumerate(batch)
        ]
        valid = [index for index, error in enumerate(outcomes) if error is None]
        for index in valid:
            if batch[index].unique_key is not None or batch[index].priority != "normal":
                try:
                    record = await self._with_features(record, batch[index], f"$.messages[{index}]")
                except BodyInvalid as problem:
                    outcomes[index] = problem
        valid = [index for index in valid if outcomes[index] is None]
        placed = []
        for index in valid:
            record, message, is_deferred = await self._messages.placed(record, self._message(record, context, batch[index]))
            placed.append((batch[index], message, is_deferred))
        pending = [self._prepare(record, context, new, message, is_deferred=is_held) for new, message, is_held in placed]
        count, events = 0, list[QueueEvent]()
        store = self._messages.store_in_order if record.is_ordered else self._messages.store
        for index, one, outcome in zip(valid, pending, await store(record, pending), strict=True):
            if isinstance(outcome, PostroadError):
                try:
                    outcomes[index] = await self._first_published(record, context, one, outcome)
                except PostroadError as problem:
                    outcomes[index] = problem
            else:
                count += 1
                events += first_events(record, one.message, one.delay_ms, outcome[-1].sequence)
                outcomes[index] = published_of(one.message, sequence=record.shown_sequence(outcome[-1].sequence))
        await self._outbox.commit(context, *events)
        metrics.published.add(context.tenant, count)
        self._throughput.add_published(record, count, context.caller.key_id)
        return [outcome for outcome in outcomes if outcome is not None]

    async def _with_features(self, record: QueueRecord, new: NewMessage, path: str = "$") -> QueueRecord:
        """The queue, prepared for this message. Raises BodyInvalid, QueueNotFound, EngineUnavailable."""
        if new.unique_key is not None:
            record = await self._lifecycle.with_feature(record, UNIQUE)
        if new.priority != "normal":
            if record.settings.max_in_flight:
                raise invalid_field(f"{path}.priority", f"the queue {record.name!r} has `maxInFlight`, which excludes priorities")
            record = await self._lifecycle.with_feature(record, PRIORITY)
        return record

    def check(self, tenant: str, new: NewMessage) -> None:
        """Check a message against the limits. Raises TooLarge, BodyInvalid."""
        check_message(new, self._limits, self._tenant_settings.of(tenant).max_message_bytes, self._clock())

    async def publish_numbered(self, context: RequestContext, queue: str, new: NewMessage, sequence: str, number: int) -> bool:
        """Publish the message with this number of a sequence: once, whenever and by however many processes it is published.

        Numbers ascend: false if this one or a later one was published before. The marker of the sequence has the last number and
        is replaced in the same batch, on condition that it is still the one that was read. The queue is not created.
        Raises like `publish`.
        """
        self.check(context.tenant, new)
        record = self._lifecycle.cached(context.tenant, queue) or await self._lifecycle.find(context.tenant, queue)
        check_for_queue(new, record.settings, is_in_engine=record.is_readable)
        await self._check_schema(record, new)
        record = await self._with_features(record, new)
        subject = f"{record.subject}.last.{sequence_token(sequence)}"
        while True:
            entry = await stream_reader.last(self._connection, record.stream, subject)
            last = SequenceMarker(number=-1) if entry is None else decode_sequence_marker(entry.payload)
            if last.number >= number:
                if last.number == number:
                    known = self._prepare(record, context, new, self._message(record, context, new))
                    await self._commit_first(record, context, known, last)
                return False
            record, message, is_deferred = await self._messages.placed(record, self._message(record, context, new))
            pending = self._prepare(record, context, new, message, is_deferred=is_deferred)
            write = number_write(subject, pending.message, number, 0 if entry is None else entry.sequence)
            pending = msgspec.structs.replace(pending, writes=(write, *pending.writes))
            [outcome] = await self._messages.store(record, [pending])
            if isinstance(outcome, Conflict):  # another process was faster
                await asyncio.sleep(MARKER_READ_SECONDS)
                continue
            if isinstance(outcome, PostroadError):
                raise outcome
            await self._outbox.commit(context, *first_events(record, pending.message, pending.delay_ms, outcome[-1].sequence))
            metrics.published.add(context.tenant)
            self._throughput.add_published(record, 1)
            if entry is not None:
                await purge_stream(self._connection, record.stream, subject, before=outcome[0].sequence)
            return True

    async def end_sequence(self, tenant: str, queue: str, sequence: str) -> None:
        """Publish no further message of the sequence, and remove its marker after a day."""
        record = self._lifecycle.cached(tenant, queue)
        if record is None:
            return
        subject = f"{record.subject}.last.{sequence_token(sequence)}"
        ack = await self._committers.of(record.stream).append(end_write(subject), uses_reserve=True)
        await purge_stream(self._connection, record.stream, subject, before=ack.sequence)

    async def _check(self, record: QueueRecord, new: NewMessage, index: int, bytes_max: int) -> PostroadError | None:
        try:
            check_message(new, self._limits, bytes_max, self._clock(), f"$.messages[{index}]")
            check_for_queue(new, record.settings, f"$.messages[{index}]", is_in_engine=record.is_readable)
            await self._check_schema(record, new, f"$.messages[{index}]")
        except PostroadError as error:
            return error
        return None

    async def _check_schema(self, record: QueueRecord, new: NewMessage, path: str = "$") -> None:
        schema = record.settings.schema
        if schema is not None:
            await self._schemas.check(record.tenant, record.stream, schema, bytes(new.payload), f"{path}.payload")

    def _message(self, record: QueueRecord, context: RequestContext, new: NewMessage) -> StoredMessage:
        return StoredMessage(
            v=1,
            id=new_id(),
            job=new_id(),
            at=self._clock(),
            expires=expires_at_ms(new),
            unique="" if new.unique_key is None else unique_token(new.unique_key),
            priority=new.priority,
            headers=new.headers,
            types=new.header_types,
            corr=new.correlation_id,
            trace=context.traceparent,
            by=context.caller.key_id,
            group=new.group_id or "",
            dedupe=(dedupe_id_of(new, record.settings) or "") if record.is_ordered else "",
            payload=new.payload,
        )

    def _prepare(
        self,
        record: QueueRecord,
        context: RequestContext,
        new: NewMessage,
        message: StoredMessage,
        *,
        is_deferred: bool = False,
    ) -> PendingPublish:
        delay_ms = delay_ms_of(new, message.at, record.settings.delay_ms)
        if new.idempotency_key is None and not record.is_ordered:
            write = message_write(record, message, delay_ms, is_deferred=is_deferred)
            return PendingPublish(new, message, delay_ms, (write,), is_deferred=is_deferred)
        ttl_ms = self._tenant_settings.of(context.tenant).idempotency_ttl_ms
        key_id = context.caller.key_id
        return pending_publish(record, new, message, delay_ms, key_id, ttl_ms, is_deferred=is_deferred)

    async def _first_published(
        self, record: QueueRecord, context: RequestContext, pending: PendingPublish, problem: PostroadError
    ) -> Published:
        """The ids of the first message with the same key, even if the queue is full now.

        Raises IdempotencyMismatch, or the problem if there is no such message."""
        has_key = pending.body_hash or pending.message.unique or pending.dedupe_subject
        if not has_key or not isinstance(problem, Conflict | EngineFull):
            raise problem
        if pending.message.unique:
            found = await self._with_unique_key(record, context, pending)
            if found is not None:
                return found
        reads = MARKER_READS if isinstance(problem, Conflict) else 1
        known = await self._messages.first_of(record, pending, reads)
        if known is None:
            if isinstance(problem, Conflict):  # the marker has just expired, or the job with the key has ended
                return await self.publish(context, record.name, pending.new)
            raise problem
        entry, is_duplicate = known
        marker = decode_marker(entry.payload)
        if not is_duplicate and marker.body != pending.body_hash:
            raise IdempotencyMismatch("the idempotency key was used with another body")
        # The marker of a `dedupeId` is stored directly before its message, that of an idempotency key before all others.
        sequence = record.shown_sequence(entry.sequence + (1 if is_duplicate else len(pending.writes) - 1))
        return await self._commit_first(record, context, pending, marker, is_duplicate=is_duplicate, sequence=sequence)

    async def _with_unique_key(self, record: QueueRecord, context: RequestContext, pending: PendingPublish) -> Published | None:
        """The message that has the unique key now, once its event is durable; None if there is none any more."""
        entry = await self._messages.unique_entry(record, pending)
        if entry is None:
            return None
        first = read_message(entry.payload)
        size, delay_ms = len(entry.payload), delay_ms_of_entry(entry, first)
        await self._outbox.commit(context, job_events.queued(record, first, delay_ms, size, 0))
        return published_of(first, is_duplicate=True)

    async def republish(self, record: QueueRecord, messages: Sequence[tuple[StoredMessage, str]]) -> list[int | PostroadError]:
        """Store messages that were in a queue before, each with an id that makes a repetition idempotent for a minute. The
        expiry of a message is dropped, and its priority with `maxInFlight`. Returns the sequence of each, or its error."""
        if any(message.unique for message, _ in messages) and not record.is_ordered and record.is_readable:
            record = await self._lifecycle.with_feature(record, UNIQUE)
        changes: dict[str, Any] = {"expires": 0, "dead": None, "attempts": 0}
        if record.is_ordered or not record.is_readable:
            changes |= {"priority": "normal", "unique": ""}
        elif record.settings.max_in_flight:
            changes["priority"] = "normal"
        elif any(message.priority != "normal" for message, _ in messages):
            record = await self._lifecycle.with_feature(record, PRIORITY)
        self._throughput.add_published(record, len(messages))
        changed = [(msgspec.structs.replace(message, **changes), unique_id) for message, unique_id in messages]
        return await self._messages.store_again(record, changed)
