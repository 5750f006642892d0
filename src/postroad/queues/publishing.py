"""What a publisher does: publish one message or many, once for each idempotency key."""

import asyncio
from collections.abc import Sequence

import msgspec

from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage, PublishAck
from postroad.jetstream.connection import Connection
from postroad.jetstream.protocol import header_lines
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, EngineFull, EngineUnavailable, IdempotencyMismatch, PostroadError, QueueNotFound
from postroad.kernel.ids import new_id
from postroad.queues import job_events as events
from postroad.queues import metrics
from postroad.queues.capacity import QueueCapacity
from postroad.queues.events import JobQueued
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.rules import (
    Marker,
    MessageLimits,
    NewMessage,
    Published,
    QueueRecord,
    QueueState,
    StoredMessage,
    body_hash,
    check_message,
    decode_marker,
    encode_message,
    marker_token,
)
from postroad.queues.schemas import Schemas
from postroad.queues.stats import QueueStatsReader
from postroad.queues.throughput import Throughput
from postroad.telemetry.outbox import Outbox


class _Prepared(msgspec.Struct, frozen=True):
    """A message that is ready to be stored: its own draft last, before it the marker of its idempotency key."""

    message: StoredMessage
    drafts: tuple[PendingMessage, ...]
    new: NewMessage
    body: str


class Publisher:
    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        definitions: QueueLifecycle,
        table: ReplicatedTable[QueueRecord],
        meter: QueueStatsReader,
        outbox: Outbox,
        rates: Throughput,
        clock: Clock,
        *,
        tenant_settings: TenantSettingsStore,
        limits: MessageLimits,
    ) -> None:
        self._connection, self._committers, self._definitions = connection, committers, definitions
        self._meter, self._outbox, self._rates, self._clock = meter, outbox, rates, clock
        self._tenant_settings, self._limits = tenant_settings, limits
        self._schemas = Schemas()
        self._rooms: dict[str, QueueCapacity] = {}
        table.on_change(self._queue_changed)

    # Publishing

    async def publish(self, context: RequestContext, queue: str, new: NewMessage) -> Published:
        """Return once the message, and its job's first event, would survive a crash.

        Raises QueueNotFound, TooLarge, BodyInvalid, SchemaMismatch, IdempotencyMismatch, EngineFull, Overloaded,
        EngineUnavailable.
        """
        chosen = self._tenant_settings.of(context.tenant)
        check_message(new, self._limits, chosen.max_message_bytes)
        record = self._definitions.known(context.tenant, queue)
        if record is None:
            record = await self._definitions.find_or_create(context, queue)
        self._schemas.check(record, new)
        prepared = self._prepare(record, context, new)
        if len(prepared.drafts) == 1 and not record.settings.max_messages:  # nearly always, and the shorter way
            await self._committers.of(record.stream).append(prepared.drafts[0])
        else:
            [outcome] = await self._store(record, [prepared])
            if isinstance(outcome, PostroadError):
                return await self._outcome_of_failed(record, context, prepared, outcome)
        await self._outbox.commit(context, _queued_event(record, prepared))
        metrics.published.add(context.tenant)
        self._rates.published(record.stream, 1)
        return _published(prepared.message)

    async def publish_batch(
        self, context: RequestContext, queue: str, batch: Sequence[NewMessage]
    ) -> list[Published | PostroadError]:
        """As `publish` for each of many, with an outcome for each: one that fails does not keep the others from being stored."""
        chosen = self._tenant_settings.of(context.tenant)
        record = await self._definitions.find_or_create(context, queue)
        outcomes: list[Published | PostroadError | None] = [
            self._fault(record, new, index, chosen.max_message_bytes) for index, new in enumerate(batch)
        ]
        good = [index for index, fault in enumerate(outcomes) if fault is None]
        prepared = [self._prepare(record, context, batch[index]) for index in good]
        fresh: list[_Prepared] = []
        for index, one, outcome in zip(good, prepared, await self._store(record, prepared), strict=True):
            if isinstance(outcome, PostroadError):
                try:
                    outcomes[index] = await self._outcome_of_failed(record, context, one, outcome)
                except PostroadError as problem:
                    outcomes[index] = problem
            else:
                fresh.append(one)
                outcomes[index] = _published(one.message)
        await self._outbox.commit(context, *(_queued_event(record, one) for one in fresh))
        metrics.published.add(context.tenant, len(fresh))
        self._rates.published(record.stream, len(fresh))
        return [outcome for outcome in outcomes if outcome is not None]

    async def _store(self, record: QueueRecord, prepared: Sequence[_Prepared]) -> list[Sequence[PublishAck] | PostroadError]:
        """Store them, as many as the queue has room for; an outcome for each, in order."""
        committer = self._committers.of(record.stream)
        limit = record.settings.max_messages
        if not limit:
            return await committer.append_each([one.drafts for one in prepared])
        room = self._room(record)
        taken = await room.take(len(prepared), limit)
        stored = 0
        try:
            outcomes = await committer.append_each([one.drafts for one in prepared[:taken]])
            stored = sum(1 for one in outcomes if not isinstance(one, PostroadError) or isinstance(one, EngineUnavailable))
        finally:
            room.settle(taken, stored)
        full = EngineFull(f"the queue {record.name!r} has reached its limit of {limit} messages", retry_after=5)
        return outcomes + [full] * (len(prepared) - taken)

    def _room(self, record: QueueRecord) -> QueueCapacity:
        found = self._rooms.get(record.stream)
        if found is None:

            async def count() -> int:
                return await self._meter.count(record)

            found = self._rooms[record.stream] = QueueCapacity(count)
        return found

    def _fault(self, record: QueueRecord, new: NewMessage, index: int, bytes_max: int) -> PostroadError | None:
        try:
            check_message(new, self._limits, bytes_max, f"$.messages[{index}]")
            self._schemas.check(record, new, f"$.messages[{index}]")
        except PostroadError as fault:
            return fault
        return None

    def _prepare(self, record: QueueRecord, context: RequestContext, new: NewMessage) -> _Prepared:
        message_id, now = new_id(), self._clock()
        message = StoredMessage(
            v=1,
            id=message_id,
            job=new_id(),
            at=now,
            headers=new.headers,
            corr=new.correlation_id,
            trace=context.traceparent,
            payload=new.payload,
        )
        draft = _draft(record, message, new.delay_ms)
        if new.idempotency_key is None:
            return _Prepared(message, (draft,), new, "")
        body = body_hash(new)
        marker = Marker(v=1, body=body, message=message_id, job=message.job, at=now)
        ttl_ms = record.settings.dedupe_window_ms or self._tenant_settings.of(context.tenant).idempotency_ttl_ms
        headers = header_lines([("Nats-Expected-Last-Subject-Sequence", "0"), ("Nats-TTL", _ttl(ttl_ms))])
        subject = f"{record.subject}.idem.{marker_token(context.caller.key_id, new.idempotency_key)}"
        return _Prepared(
            message,
            (PendingMessage(subject, encode_message(marker), f"{message_id}/idem", headers, is_conditional=True), draft),
            new,
            body,
        )

    async def _outcome_of_failed(
        self, record: QueueRecord, context: RequestContext, prepared: _Prepared, problem: PostroadError
    ) -> Published:
        """The first message's ids if the idempotency key was used before with this body, even now that the queue is full."""
        if not prepared.body or not isinstance(problem, Conflict | EngineFull):
            raise problem
        entry = await self._marker(record, prepared.drafts[0].subject, tries=5 if isinstance(problem, Conflict) else 1)
        if entry is None and isinstance(problem, Conflict):  # it expired just now: this is a first use after all
            return await self.publish(context, record.name, prepared.new)
        if entry is None:
            raise problem
        marker = decode_marker(entry.payload)
        if marker.body != prepared.body:
            raise IdempotencyMismatch("the idempotency key was used with another body")
        first = msgspec.structs.replace(prepared.message, id=marker.message, job=marker.job, at=marker.at)
        # Whoever stored it may have died before the job's event was: the same event again is harmless, a missing one is not.
        await self._outbox.commit(context, _queued_event(record, prepared, first))
        return _published(first)

    async def _marker(self, record: QueueRecord, subject: str, tries: int) -> Entry | None:
        """What the idempotency key remembers. A replica may not have yet what made its leader refuse: then it is asked again."""
        for left in range(tries, 0, -1):
            entry = await stream_reader.last(self._connection, record.stream, subject)
            if entry is not None or left == 1:
                return entry
            await asyncio.sleep(0.05)
        return None

    async def put_back(self, record: QueueRecord, messages: Sequence[tuple[StoredMessage, str]]) -> list[PostroadError | None]:
        """Store messages again that were in a queue before, each under an id that makes repeating it harmless for a while."""
        ready = f"{record.subject}.ready"
        retention = _retention(record)
        drafts = [[PendingMessage(ready, encode_message(message), unique, retention)] for message, unique in messages]
        outcomes = await self._committers.of(record.stream).append_each(drafts)
        self._rates.published(record.stream, len(messages))
        return [outcome if isinstance(outcome, PostroadError) else None for outcome in outcomes]

    def _queue_changed(self, _key: str, record: QueueRecord | None) -> None:
        """Whatever this worker keeps for queues that are gone is dropped."""
        if record is not None and record.state is not QueueState.DELETING:
            return
        tenant, _, token = _key.partition(".")
        stream = f"Q_{tenant}__{token}"
        self._rooms.pop(stream, None)
        self._committers.forget(stream, QueueNotFound("the queue was deleted"))


def _queued_event(record: QueueRecord, prepared: _Prepared, first: StoredMessage | None = None) -> JobQueued:
    return events.queued(record, first or prepared.message, prepared.new, len(prepared.drafts[-1].payload))


def _draft(record: QueueRecord, message: StoredMessage, delay_ms: int) -> PendingMessage:
    ready = f"{record.subject}.ready"
    if not delay_ms:
        return PendingMessage(ready, encode_message(message), message.id, _retention(record))
    headers = [("Nats-Schedule", f"@at {rfc3339(message.at + delay_ms)}"), ("Nats-Schedule-Target", ready)]
    if record.settings.retention_ms:
        headers.append(("Nats-Schedule-TTL", _ttl(record.settings.retention_ms)))
    return PendingMessage(f"{record.subject}.later.{message.id}", encode_message(message), message.id, header_lines(headers))


def _retention(record: QueueRecord) -> str:
    return header_lines([("Nats-TTL", _ttl(record.settings.retention_ms))]) if record.settings.retention_ms else ""


def _ttl(ms: int) -> str:
    """The engine counts in whole seconds: never less than was promised."""
    return f"{-(-ms // 1000)}s"


def _published(message: StoredMessage) -> Published:
    return Published(message_id=message.id, job_id=message.job, enqueued_at=rfc3339(message.at))
