"""Publishing: one message or a batch, deduplicated by idempotency key."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from postroad.api.queues import IdempotencyMismatch, NewMessage, Published, QueueNotFound
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage, PublishAck
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import purge_stream
from postroad.jetstream.protocol import header_lines
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.submitted_write import Outcome
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import BodyInvalid, Conflict, EngineFull, EngineUnavailable, PostroadError, PreconditionFailed
from postroad.kernel.futures import resolve
from postroad.kernel.ids import new_id
from postroad.kernel.json import invalid_field
from postroad.queues import job_events, metrics
from postroad.queues.capacity import QueueCapacity
from postroad.queues.events import JobQueued
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.message_writes import PendingPublish, SinglePublish, delay_ms_of_entry, message_write, ttl_header
from postroad.queues.records import (
    PRIORITY,
    UNIQUE,
    Marker,
    QueueRecord,
    SequenceMarker,
    StoredMessage,
    decode_marker,
    decode_sequence_marker,
    encode_message,
    published_of,
    read_message,
)
from postroad.queues.rules import (
    MessageLimits,
    body_hash,
    check_message,
    delay_ms_of,
    expires_at_ms,
    marker_token,
    sequence_token,
    unique_token,
)
from postroad.queues.schemas import Schemas
from postroad.queues.stats import QueueStatsReader
from postroad.queues.throughput import Throughput
from postroad.telemetry.outbox import Outbox

_MARKER_READS = 5
_MARKER_READ_SECONDS = 0.05
_ENDED_NUMBER = 2**63 - 1
_ENDED_TTL_MS = 86_400_000  # far longer than a write can be on its way

OnPublished = Callable[[Published | Exception], None]


class Publisher:
    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        lifecycle: QueueLifecycle,
        table: ReplicatedTable[QueueRecord],
        stats: QueueStatsReader,
        outbox: Outbox,
        throughput: Throughput,
        clock: Clock,
        *,
        tenant_settings: TenantSettingsStore,
        schemas: Schemas,
        limits: MessageLimits,
    ) -> None:
        self._connection, self._committers, self._lifecycle = connection, committers, lifecycle
        self._stats, self._outbox, self._throughput, self._clock = stats, outbox, throughput, clock
        self._tenant_settings, self._schemas, self._limits = tenant_settings, schemas, limits
        self._capacities: dict[str, QueueCapacity] = {}
        table.on_change(self._queue_changed)

    async def publish(self, context: RequestContext, queue: str, new: NewMessage) -> Published:
        """Return once the message and the first event of its job are durable.

        Raises QueueNotFound, TooLarge, BodyInvalid, SchemaMismatch, SchemaTooSlow, IdempotencyMismatch, EngineFull,
        Overloaded, EngineUnavailable.
        """
        single = self.prepare_single(context, queue, new)
        if single is not None:
            future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
            self.store_single(single, partial(resolve, future))
            return await future
        record = self._lifecycle.cached(context.tenant, queue)
        if record is None:
            record = await self._lifecycle.find_or_create(context, queue)
        if record.settings.schema is not None:
            await self._check_schema(record, new)
        if new.unique_key is not None or new.priority != "normal":
            record = await self._with_features(record, new)
        pending = self._prepare(record, context, new)
        [outcome] = await self._store(record, [pending])
        if isinstance(outcome, PostroadError):
            return await self._first_published(record, context, pending, outcome)
        await self._outbox.commit(context, _queued_event(record, pending, pending.message, outcome[-1].sequence))
        metrics.published.add(context.tenant)
        self._throughput.add_published(record.stream, 1)
        return published_of(pending.message)

    def prepare_single(self, context: RequestContext, queue: str, new: NewMessage) -> SinglePublish | None:
        """A message that one write stores, without a condition; None for others. Raises TooLarge, BodyInvalid. No effect."""
        check_message(new, self._limits, self._tenant_settings.of(context.tenant).max_message_bytes, self._clock())
        if new.idempotency_key is not None or new.unique_key is not None or new.priority != "normal":
            return None
        record = self._lifecycle.cached(context.tenant, queue)
        if record is None or record.settings.schema is not None or record.settings.max_messages:
            return None
        return SinglePublish(context, record, self._prepare(record, context, new))

    def store_single(self, single: SinglePublish, on_published: OnPublished) -> None:
        """Call `on_published` once the message and the first event of its job are durable, or with the error.

        Raises TooLarge, StorageQuotaExceeded, EngineFull, Overloaded: then nothing is stored.
        """
        write = single.pending.writes
        self._committers.of(single.record.stream).submit_callback(write, partial(self._on_stored, single, on_published))

    def _on_stored(self, single: SinglePublish, on_published: OnPublished, outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            on_published(outcome)
            return
        try:
            event = _queued_event(single.record, single.pending, single.pending.message, outcome[-1].sequence)
            self._outbox.commit_callback(single.context, (event,), partial(self._on_recorded, single, on_published))
        except Exception as error:  # a bug: the caller must not wait for ever
            on_published(error)

    def _on_recorded(self, single: SinglePublish, on_published: OnPublished, problem: EngineUnavailable | None) -> None:
        try:
            if problem is None:
                metrics.published.add(single.context.tenant)
                self._throughput.add_published(single.record.stream, 1)
            outcome: Published | Exception = problem or published_of(single.pending.message)
        except Exception as error:
            outcome = error
        on_published(outcome)

    async def publish_batch(
        self, context: RequestContext, queue: str, batch: Sequence[NewMessage]
    ) -> list[Published | PostroadError]:
        """Like `publish` for each message, with an outcome for each. A failed message does not affect the others."""
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
        pending = [self._prepare(record, context, batch[index]) for index in valid]
        events: list[JobQueued] = []
        for index, one, outcome in zip(valid, pending, await self._store(record, pending), strict=True):
            if isinstance(outcome, PostroadError):
                try:
                    outcomes[index] = await self._first_published(record, context, one, outcome)
                except PostroadError as problem:
                    outcomes[index] = problem
            else:
                events.append(_queued_event(record, one, one.message, outcome[-1].sequence))
                outcomes[index] = published_of(one.message)
        await self._outbox.commit(context, *events)
        metrics.published.add(context.tenant, len(events))
        self._throughput.add_published(record.stream, len(events))
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

    async def deliver(self, context: RequestContext, queue: str, message: StoredMessage, *, awaits_event: bool = True) -> None:
        """Publish a message that another capability has made, with the ids that it chose.

        Repeated with the same ids it is stored once for a minute, and its event has the same id. The queue is not created.
        Without `awaits_event` the event of its job is stored soon, for callers that promise another event. Raises like `publish`.
        """
        new = NewMessage(payload=message.payload, headers=message.headers)
        self.check(context.tenant, new)
        record = self._lifecycle.cached(context.tenant, queue) or await self._lifecycle.find(context.tenant, queue)
        if record.settings.schema is not None:
            await self._check_schema(record, new)
        pending = PendingPublish(new, message, 0, (message_write(record, message, 0),), "")
        if record.settings.max_messages:
            [outcome] = await self._store(record, [pending])
            if isinstance(outcome, PostroadError):
                raise outcome
            sequence = outcome[-1].sequence
        else:  # the common case, with less overhead
            sequence = (await self._committers.of(record.stream).append(pending.writes[0])).sequence
        event = _queued_event(record, pending, message, sequence)
        if awaits_event:
            await self._outbox.commit(context, event)
        else:
            self._outbox.record(context, event)
        metrics.published.add(context.tenant)
        self._throughput.add_published(record.stream, 1)

    async def publish_numbered(self, context: RequestContext, queue: str, new: NewMessage, sequence: str, number: int) -> bool:
        """Publish the message with this number of a sequence: once, whenever and by however many processes it is published.

        Numbers ascend: false if this one or a later one was published before. The marker of the sequence has the last number and
        is replaced in the same batch, on condition that it is still the one that was read. The queue is not created.
        Raises like `publish`.
        """
        self.check(context.tenant, new)
        record = self._lifecycle.cached(context.tenant, queue) or await self._lifecycle.find(context.tenant, queue)
        if record.settings.schema is not None:
            await self._check_schema(record, new)
        record = await self._with_features(record, new)
        subject = f"{record.subject}.last.{sequence_token(sequence)}"
        while True:
            entry = await stream_reader.last(self._connection, record.stream, subject)
            last = SequenceMarker(number=-1) if entry is None else decode_sequence_marker(entry.payload)
            if last.number >= number:
                if last.number == number:
                    await self._commit_first(record, context, self._prepare(record, context, new), last)
                return False
            pending = self._prepare_numbered(record, context, new, subject, number, 0 if entry is None else entry.sequence)
            [outcome] = await self._store(record, [pending])
            if isinstance(outcome, Conflict):  # another process was faster
                await asyncio.sleep(_MARKER_READ_SECONDS)
                continue
            if isinstance(outcome, PostroadError):
                raise outcome
            await self._outbox.commit(context, _queued_event(record, pending, pending.message, outcome[-1].sequence))
            metrics.published.add(context.tenant)
            self._throughput.add_published(record.stream, 1)
            if entry is not None:
                await purge_stream(self._connection, record.stream, subject, before=outcome[0].sequence)
            return True

    def _prepare_numbered(
        self, record: QueueRecord, context: RequestContext, new: NewMessage, subject: str, number: int, last_sequence: int
    ) -> PendingPublish:
        pending = self._prepare(record, context, new)
        message = pending.message
        marker = SequenceMarker(number=number, message=message.id, job=message.job, at=message.at)
        headers = header_lines([("Nats-Expected-Last-Subject-Sequence", str(last_sequence))])
        write = PendingMessage(subject, encode_message(marker), f"{message.id}/last", headers, is_conditional=True)
        return msgspec.structs.replace(pending, writes=(write, *pending.writes))

    async def end_sequence(self, tenant: str, queue: str, sequence: str) -> None:
        """Publish no further message of the sequence, and remove its marker after a day."""
        record = self._lifecycle.cached(tenant, queue)
        if record is None:
            return
        subject = f"{record.subject}.last.{sequence_token(sequence)}"
        marker = encode_message(SequenceMarker(number=_ENDED_NUMBER))
        write = PendingMessage(subject, marker, new_id(), header_lines([("Nats-TTL", ttl_header(_ENDED_TTL_MS))]))
        ack = await self._committers.of(record.stream).append(write, uses_reserve=True)
        await purge_stream(self._connection, record.stream, subject, before=ack.sequence)

    async def _check(self, record: QueueRecord, new: NewMessage, index: int, bytes_max: int) -> PostroadError | None:
        try:
            check_message(new, self._limits, bytes_max, self._clock(), f"$.messages[{index}]")
            await self._check_schema(record, new, f"$.messages[{index}]")
        except PostroadError as error:
            return error
        return None

    async def _check_schema(self, record: QueueRecord, new: NewMessage, path: str = "$") -> None:
        schema = record.settings.schema
        if schema is not None:
            await self._schemas.check(record.tenant, record.stream, schema, bytes(new.payload), f"{path}.payload")

    async def _store(self, record: QueueRecord, pending: Sequence[PendingPublish]) -> list[Sequence[PublishAck] | PostroadError]:
        """Store the messages, up to the limit of the queue; an outcome for each, in order."""
        committer = self._committers.of(record.stream)
        limit = record.settings.max_messages
        if not limit:
            return await committer.append_each([one.writes for one in pending])
        capacity = self._capacity(record)
        reserved = await capacity.reserve(len(pending), limit)
        stored = 0
        try:
            outcomes = await committer.append_each([one.writes for one in pending[:reserved]])
            stored = sum(1 for one in outcomes if not isinstance(one, PostroadError) or isinstance(one, EngineUnavailable))
        finally:
            capacity.release(reserved, stored)
        full = EngineFull(f"the queue {record.name!r} has reached its limit of {limit} messages", retry_after=5)
        return outcomes + [full] * (len(pending) - reserved)

    def _capacity(self, record: QueueRecord) -> QueueCapacity:
        found = self._capacities.get(record.stream)
        if found is None:

            async def count() -> int:
                return await self._stats.count(record)

            found = self._capacities[record.stream] = QueueCapacity(count)
        return found

    def _prepare(self, record: QueueRecord, context: RequestContext, new: NewMessage) -> PendingPublish:
        message_id, now = new_id(), self._clock()
        message = StoredMessage(
            v=1,
            id=message_id,
            job=new_id(),
            at=now,
            expires=expires_at_ms(new),
            unique="" if new.unique_key is None else unique_token(new.unique_key),
            priority=new.priority,
            headers=new.headers,
            types=new.header_types,
            corr=new.correlation_id,
            trace=context.traceparent,
            by=context.caller.key_id,
            payload=new.payload,
        )
        delay_ms = delay_ms_of(new, now, record.settings.delay_ms)
        write = message_write(record, message, delay_ms)
        if new.idempotency_key is None:
            return PendingPublish(new, message, delay_ms, (write,), "")
        hashed = body_hash(new)
        marker = Marker(v=1, body=hashed, message=message_id, job=message.job, at=now)
        ttl_ms = record.settings.dedupe_window_ms or self._tenant_settings.of(context.tenant).idempotency_ttl_ms
        headers = header_lines([("Nats-Expected-Last-Subject-Sequence", "0"), ("Nats-TTL", ttl_header(ttl_ms))])
        subject = f"{record.subject}.idem.{marker_token(context.caller.key_id, new.idempotency_key)}"
        marker_write = PendingMessage(subject, encode_message(marker), f"{message_id}/idem", headers, is_conditional=True)
        return PendingPublish(new, message, delay_ms, (marker_write, write), hashed)

    async def _first_published(
        self, record: QueueRecord, context: RequestContext, pending: PendingPublish, problem: PostroadError
    ) -> Published:
        """The ids of the first message with the same idempotency key and body, even if the queue is full now.

        Raises IdempotencyMismatch, or the problem if there is no such message.
        """
        if not (pending.body_hash or pending.message.unique) or not isinstance(problem, Conflict | EngineFull):
            raise problem
        if pending.message.unique:
            found = await self._with_unique_key(record, context, pending)
            if found is not None:
                return found
        reads = _MARKER_READS if isinstance(problem, Conflict) else 1
        entry = await self._read_marker(record, pending.writes[0].subject, reads) if pending.body_hash else None
        if entry is None and isinstance(problem, Conflict):  # the marker has just expired, or the job with the key has ended
            return await self.publish(context, record.name, pending.new)
        if entry is None:
            raise problem
        marker = decode_marker(entry.payload)
        if marker.body != pending.body_hash:
            raise IdempotencyMismatch("the idempotency key was used with another body")
        return await self._commit_first(record, context, pending, marker)

    async def _with_unique_key(self, record: QueueRecord, context: RequestContext, pending: PendingPublish) -> Published | None:
        """The message that has the unique key now, once its event is durable; None if there is none any more."""
        subjects = f"{record.subject}.unique.{pending.message.unique}.*"
        entry = await self._read_marker(record, subjects, _MARKER_READS)
        if entry is None:
            return None
        if pending.body_hash:
            marker = await self._read_marker(record, pending.writes[0].subject, 1)
            if marker is not None:  # the idempotency key decides, as it does once the job has ended
                return None
        first = read_message(entry.payload)
        event = job_events.queued(record, first, delay_ms_of_entry(entry, first), len(entry.payload), 0)
        await self._outbox.commit(context, event)
        return published_of(first, is_duplicate=True)

    async def _commit_first(
        self, record: QueueRecord, context: RequestContext, pending: PendingPublish, marker: Marker | SequenceMarker
    ) -> Published:
        """The ids in the marker, once the event of that message is durable: the process that stored the message may have died
        before it stored the event, which can safely be repeated."""
        first = msgspec.structs.replace(pending.message, id=marker.message, job=marker.job, at=marker.at)
        await self._outbox.commit(context, _queued_event(record, pending, first, 0))
        return published_of(first)

    async def _read_marker(self, record: QueueRecord, subject: str, reads: int) -> Entry | None:
        """Read a marker. A replica may not have it yet when the leader reports the conflict: then read again."""
        for left in range(reads, 0, -1):
            entry = await stream_reader.last(self._connection, record.stream, subject)
            if entry is not None or left == 1:
                return entry
            await asyncio.sleep(_MARKER_READ_SECONDS)
        return None

    async def republish(self, record: QueueRecord, messages: Sequence[tuple[StoredMessage, str]]) -> list[int | PostroadError]:
        """Store messages that were in a queue before, each with an id that makes a repetition idempotent for a minute.

        The expiry of a message is dropped, and its priority in a queue with `maxInFlight`. Returns the sequence of each message,
        or its error.
        """
        if any(message.unique for message, _ in messages):
            record = await self._lifecycle.with_feature(record, UNIQUE)
        changes: dict[str, Any] = {"expires": 0, "dead": None}
        if record.settings.max_in_flight:
            changes["priority"] = "normal"
        elif any(message.priority != "normal" for message, _ in messages):
            record = await self._lifecycle.with_feature(record, PRIORITY)
        writes = [
            [message_write(record, msgspec.structs.replace(message, **changes), 0, unique_id)] for message, unique_id in messages
        ]
        outcomes = await self._committers.of(record.stream).append_each(writes)
        self._throughput.add_published(record.stream, len(messages))
        taken = PreconditionFailed("the queue has another message with the same `uniqueKey`")
        return [
            taken if isinstance(one, Conflict) else one if isinstance(one, PostroadError) else one[-1].sequence
            for one in outcomes
        ]

    def _queue_changed(self, key: str, record: QueueRecord | None) -> None:
        """Drop the state of deleted queues, and fail their waiting writes."""
        if record is not None and record.state is not RecordState.DELETING:
            return
        tenant, _, token = key.partition(".")
        stream = f"Q_{tenant}__{token}"
        self._capacities.pop(stream, None)
        self._committers.forget(stream, QueueNotFound("the queue was deleted"))


def _queued_event(record: QueueRecord, pending: PendingPublish, message: StoredMessage, sequence: int) -> JobQueued:
    return job_events.queued(record, message, pending.delay_ms, len(bytes(message.payload)), sequence)
