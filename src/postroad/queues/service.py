"""What a user can do with a queue's messages: publish, lease, acknowledge."""

import asyncio
import uuid
from collections.abc import Sequence

import msgspec
import structlog

from postroad.access.preferences import AuditMode, PreferenceStore
from postroad.access.seal import SealBroken, Sealer
from postroad.engine import log as stored_log
from postroad.engine.commit import Committers, Draft, Stored
from postroad.engine.link import Link
from postroad.engine.log import Entry
from postroad.engine.table import Table
from postroad.engine.wire import header_lines
from postroad.engine.work import ACK, Delivered, Delivery, WorkQueue, nak
from postroad.kernel.caller import Actor, Caller
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import (
    Conflict,
    EngineFull,
    EngineUnavailable,
    IdempotencyMismatch,
    LeaseExpired,
    PostroadError,
    QueueNotFound,
    ReceiptInvalid,
)
from postroad.kernel.ids import new_id
from postroad.queues import metrics
from postroad.queues.definitions import Definitions
from postroad.queues.room import Room
from postroad.queues.rules import (
    LeasedMessage,
    Marker,
    MessageLimits,
    NewMessage,
    Published,
    QueueRecord,
    QueueState,
    Receipt,
    StoredMessage,
    as_leased,
    body_hash,
    check_message,
    decode_marker,
    decode_message,
    encode_message,
    marker_token,
)
from postroad.telemetry.catalogue import JobDone, JobLeased, JobQueued
from postroad.telemetry.outbox import Outbox

_UNREADABLE_AGAIN_MS = 3_600_000

log = structlog.get_logger("postroad.queues")


class Origin(msgspec.Struct, frozen=True):
    """Where a call came from, for its events: the request's id, the trace it belongs to, and the caller's address."""

    request_id: str = ""
    traceparent: str | None = None
    address: str = ""


class _Prepared(msgspec.Struct, frozen=True):
    """A message that is ready to be stored: its own draft last, before it the marker of its idempotency key."""

    message: StoredMessage
    drafts: tuple[Draft, ...]
    new: NewMessage
    body: str


class Queues:
    def __init__(
        self,
        link: Link,
        committers: Committers,
        definitions: Definitions,
        table: Table[QueueRecord],
        outbox: Outbox,
        sealer: Sealer,
        clock: Clock,
        *,
        preferences: PreferenceStore,
        limits: MessageLimits,
    ) -> None:
        self._link, self._committers, self._definitions = link, committers, definitions
        self._outbox, self._sealer, self._clock = outbox, sealer, clock
        self._preferences, self._limits = preferences, limits
        self._work: dict[str, WorkQueue] = {}
        self._rooms: dict[str, Room] = {}
        table.on_change(self._queue_changed)

    # Publishing

    async def publish(self, caller: Caller, queue: str, new: NewMessage, origin: Origin) -> Published:
        """Return once the message, and its job's first event, would survive a crash.

        Raises QueueNotFound, TooLarge, BodyInvalid, IdempotencyMismatch, EngineFull, Overloaded, EngineUnavailable.
        """
        chosen = self._preferences.of(caller.tenant)
        check_message(new, self._limits, chosen.max_message_bytes)
        record = self._definitions.known(caller.tenant, queue)
        if record is None:
            record = await self._definitions.find_or_create(_actor(caller, origin), queue)
        prepared = self._prepare(record, caller, new, origin)
        if len(prepared.drafts) == 1 and not record.settings.max_messages:  # nearly always, and the shorter way
            await self._committers.of(record.stream).append(prepared.drafts[0])
        else:
            [outcome] = await self._store(record, [prepared])
            if isinstance(outcome, PostroadError):
                return await self._outcome_of_failed(record, caller, prepared, origin, outcome)
        if chosen.audit_mode is not AuditMode.OFF:
            await self._outbox.commit([self._queued_event(record, caller, prepared, origin)])
        metrics.published.add(caller.tenant)
        return _published(prepared.message)

    async def publish_batch(
        self, caller: Caller, queue: str, batch: Sequence[NewMessage], origin: Origin
    ) -> list[Published | PostroadError]:
        """As `publish` for each of many, with an outcome for each: one that fails does not keep the others from being stored."""
        chosen = self._preferences.of(caller.tenant)
        record = await self._definitions.find_or_create(_actor(caller, origin), queue)
        outcomes: list[Published | PostroadError | None] = [
            self._fault(new, index, chosen.max_message_bytes) for index, new in enumerate(batch)
        ]
        good = [index for index, fault in enumerate(outcomes) if fault is None]
        prepared = [self._prepare(record, caller, batch[index], origin) for index in good]
        fresh: list[_Prepared] = []
        for index, one, outcome in zip(good, prepared, await self._store(record, prepared), strict=True):
            if isinstance(outcome, PostroadError):
                try:
                    outcomes[index] = await self._outcome_of_failed(record, caller, one, origin, outcome)
                except PostroadError as problem:
                    outcomes[index] = problem
            else:
                fresh.append(one)
                outcomes[index] = _published(one.message)
        if chosen.audit_mode is not AuditMode.OFF:
            await self._outbox.commit([self._queued_event(record, caller, one, origin) for one in fresh])
        metrics.published.add(caller.tenant, len(fresh))
        return [outcome for outcome in outcomes if outcome is not None]

    async def _store(self, record: QueueRecord, prepared: Sequence[_Prepared]) -> list[Sequence[Stored] | PostroadError]:
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

    def _room(self, record: QueueRecord) -> Room:
        found = self._rooms.get(record.stream)
        if found is None:

            async def count() -> int:
                stats = await self._definitions.stats(record)
                return stats.ready + stats.leased + stats.delayed

            found = self._rooms[record.stream] = Room(count)
        return found

    def _fault(self, new: NewMessage, index: int, bytes_max: int) -> PostroadError | None:
        try:
            check_message(new, self._limits, bytes_max, f"$.messages[{index}]")
        except PostroadError as fault:
            return fault
        return None

    def _prepare(self, record: QueueRecord, caller: Caller, new: NewMessage, origin: Origin) -> _Prepared:
        message_id, now = new_id(), self._clock()
        message = StoredMessage(
            v=1,
            id=message_id,
            job=new_id(),
            at=now,
            headers=new.headers,
            corr=new.correlation_id,
            trace=origin.traceparent,
            payload=new.payload,
        )
        draft = _draft(record, message, new.delay_ms)
        if new.idempotency_key is None:
            return _Prepared(message, (draft,), new, "")
        body = body_hash(new)
        marker = Marker(v=1, body=body, message=message_id, job=message.job, at=now)
        ttl_ms = record.settings.dedupe_window_ms or self._preferences.of(caller.tenant).idempotency_ttl_ms
        headers = header_lines([("Nats-Expected-Last-Subject-Sequence", "0"), ("Nats-TTL", _ttl(ttl_ms))])
        subject = f"{record.subject}.idem.{marker_token(caller.key_id, new.idempotency_key)}"
        return _Prepared(
            message,
            (Draft(subject, encode_message(marker), f"{message_id}/idem", headers, is_conditional=True), draft),
            new,
            body,
        )

    async def _outcome_of_failed(
        self, record: QueueRecord, caller: Caller, prepared: _Prepared, origin: Origin, problem: PostroadError
    ) -> Published:
        """The first message's ids if the idempotency key was used before with this body, even now that the queue is full."""
        if not prepared.body or not isinstance(problem, Conflict | EngineFull):
            raise problem
        entry = await self._marker(record, prepared.drafts[0].subject, tries=5 if isinstance(problem, Conflict) else 1)
        if entry is None and isinstance(problem, Conflict):  # it expired just now: this is a first use after all
            return await self.publish(caller, record.name, prepared.new, origin)
        if entry is None:
            raise problem
        marker = decode_marker(entry.payload)
        if marker.body != prepared.body:
            raise IdempotencyMismatch("the idempotency key was used with another body")
        first = msgspec.structs.replace(prepared.message, id=marker.message, job=marker.job, at=marker.at)
        # Whoever stored it may have died before the job's event was: the same event again is harmless, a missing one is not.
        if self._preferences.of(caller.tenant).audit_mode is not AuditMode.OFF:
            await self._outbox.commit([self._queued_event(record, caller, prepared, origin, first)])
        return _published(first)

    async def _marker(self, record: QueueRecord, subject: str, tries: int) -> Entry | None:
        """What the idempotency key remembers. A replica may not have yet what made its leader refuse: then it is asked again."""
        for left in range(tries, 0, -1):
            entry = await stored_log.last(self._link, record.stream, subject)
            if entry is not None or left == 1:
                return entry
            await asyncio.sleep(0.05)
        return None

    def _queued_event(
        self, record: QueueRecord, caller: Caller, prepared: _Prepared, origin: Origin, first: StoredMessage | None = None
    ) -> JobQueued:
        """Its id is the message's own: repeated, it is the same event."""
        message = first or prepared.message
        return JobQueued(
            event_id=message.id,
            timestamp=rfc3339(message.at),
            tenant=record.tenant,
            job_id=message.job,
            message_id=message.id,
            queue=record.name,
            payload_bytes=len(prepared.drafts[-1].payload),
            delay_ms=prepared.new.delay_ms,
            correlation_id=message.corr,
            key_id=caller.key_id,
            request_id=origin.request_id,
        )

    # Leasing

    async def lease(
        self, caller: Caller, queue: str, origin: Origin, *, count: int, lease_ms: int | None, wait_ms: int
    ) -> list[LeasedMessage]:
        """Up to `count` messages, each kept from others for `lease_ms`. Raises QueueNotFound, EngineUnavailable."""
        record = await self._definitions.find(caller.tenant, queue)
        work = self._work_queue(record)
        delivered = await work.pull(count, wait_ms / 1000)
        if not delivered:
            return []
        if lease_ms is None:
            lease_ms = record.settings.visibility_timeout_ms or 0
        now = self._clock()
        messages: list[LeasedMessage] = []
        events: list[JobLeased] = []
        verdicts: list[tuple[Delivery, bytes]] = []
        for one in delivered:
            stored = _readable(one, record)
            verdicts.append((one.delivery, nak(lease_ms if stored else _UNREADABLE_AGAIN_MS)))
            if stored is not None:
                receipt = _receipt(one.delivery, stored, now, now + lease_ms)
                messages.append(as_leased(stored, one.delivery.attempt, self._sealer.seal(record.owner, receipt.to_bytes())))
                events.append(_leased_event(record, caller, origin, receipt, stored.at))
        await work.settle_without_answer(verdicts)
        if self._preferences.of(caller.tenant).audit_mode is not AuditMode.OFF:
            self._outbox.emit(events)
        metrics.leased.add(caller.tenant, len(messages))
        return messages

    def _work_queue(self, record: QueueRecord) -> WorkQueue:
        found = self._work.get(record.stream)
        if found is None or found.consumer != record.consumer:
            found = self._work[record.stream] = WorkQueue(self._link, record.stream, record.consumer)
        return found

    # Settling

    async def acknowledge(
        self, caller: Caller, queue: str, receipt_ids: Sequence[str], origin: Origin
    ) -> list[PostroadError | None]:
        """Return once none of them can come back; for each receipt what is wrong with it, or None.

        Raises QueueNotFound, EngineUnavailable. Acknowledging twice is the same as once.
        """
        record = await self._definitions.find(caller.tenant, queue)
        opened = [self._open(record, text) for text in receipt_ids]
        good = [receipt for receipt in opened if isinstance(receipt, Receipt)]
        await self._work_queue(record).settle([(_delivery(receipt), ACK) for receipt in good])
        now = self._clock()
        if self._preferences.of(caller.tenant).audit_mode is not AuditMode.OFF:
            await self._outbox.commit([_done_event(record, caller, origin, receipt, now) for receipt in good])
        metrics.acked.add(caller.tenant, len(good))
        return [None if isinstance(receipt, Receipt) else receipt for receipt in opened]

    def _open(self, record: QueueRecord, text: str) -> Receipt | PostroadError:
        try:
            receipt = Receipt.from_bytes(self._sealer.open(record.owner, text))
        except (SealBroken, ValueError):
            return ReceiptInvalid("this is not a receipt of this queue")
        if self._clock() > receipt.deadline_ms:
            return LeaseExpired(f"the lease ended at {rfc3339(receipt.deadline_ms)}")
        return receipt

    def _queue_changed(self, _key: str, record: QueueRecord | None) -> None:
        """A deleted queue's waiting consumers are told; whatever this worker keeps for queues that are gone is dropped."""
        if record is not None and record.state is not QueueState.DELETING:
            return
        tenant, _, token = _key.partition(".")
        stream = f"Q_{tenant}__{token}"
        self._rooms.pop(stream, None)
        problem = QueueNotFound("the queue was deleted")
        self._committers.forget(stream, problem)
        work = self._work.pop(stream, None)
        if work is not None:
            work.close(problem)


def _actor(caller: Caller, origin: Origin) -> Actor:
    return Actor(caller, origin.request_id, origin.address)


def _draft(record: QueueRecord, message: StoredMessage, delay_ms: int) -> Draft:
    ready = f"{record.subject}.ready"
    retention = _ttl(record.settings.retention_ms) if record.settings.retention_ms else None
    if not delay_ms:
        return Draft(ready, encode_message(message), message.id, header_lines([("Nats-TTL", retention)]) if retention else "")
    headers = [("Nats-Schedule", f"@at {rfc3339(message.at + delay_ms)}"), ("Nats-Schedule-Target", ready)]
    if retention:
        headers.append(("Nats-Schedule-TTL", retention))
    return Draft(f"{record.subject}.later.{message.id}", encode_message(message), message.id, header_lines(headers))


def _ttl(ms: int) -> str:
    """The engine counts in whole seconds: never less than was promised."""
    return f"{-(-ms // 1000)}s"


def _published(message: StoredMessage) -> Published:
    return Published(message_id=message.id, job_id=message.job, enqueued_at=rfc3339(message.at))


def _readable(delivered: Delivered, record: QueueRecord) -> StoredMessage | None:
    """Somebody with access to the engine may have put anything into the stream; it must not stop the queue."""
    try:
        if not delivered.payload.isascii():
            delivered.payload.decode()
        stored = decode_message(delivered.payload)
        uuid.UUID(stored.id), uuid.UUID(stored.job), rfc3339(stored.at)
        return stored
    except (msgspec.DecodeError, RecursionError, ValueError, OverflowError, OSError):
        log.error("message_unreadable", stream=record.stream, sequence=delivered.delivery.stream_sequence)
        return None


def _receipt(delivery: Delivery, stored: StoredMessage, leased_at_ms: int, deadline_ms: int) -> Receipt:
    return Receipt(
        stream_sequence=delivery.stream_sequence,
        consumer_sequence=delivery.consumer_sequence,
        attempt=delivery.attempt,
        stored_at_ns=delivery.stored_at_ns,
        leased_at_ms=leased_at_ms,
        deadline_ms=deadline_ms,
        message_id=stored.id,
        job_id=stored.job,
    )


def _delivery(receipt: Receipt) -> Delivery:
    return Delivery(receipt.stream_sequence, receipt.consumer_sequence, receipt.attempt, receipt.stored_at_ns)


def _leased_event(record: QueueRecord, caller: Caller, origin: Origin, receipt: Receipt, stored_at_ms: int) -> JobLeased:
    wait_ms = max(0, receipt.leased_at_ms - stored_at_ms)
    if receipt.attempt == 1:
        metrics.queue_wait.observe(wait_ms / 1000)
    return JobLeased(
        event_id=new_id(),
        timestamp=rfc3339(receipt.leased_at_ms),
        tenant=record.tenant,
        job_id=receipt.job_id,
        message_id=receipt.message_id,
        queue=record.name,
        attempt=receipt.attempt,
        lease_until=rfc3339(receipt.deadline_ms),
        wait_ms=wait_ms,
        key_id=caller.key_id,
        request_id=origin.request_id,
    )


def _done_event(record: QueueRecord, caller: Caller, origin: Origin, receipt: Receipt, now_ms: int) -> JobDone:
    return JobDone(
        event_id=new_id(),
        timestamp=rfc3339(now_ms),
        tenant=record.tenant,
        job_id=receipt.job_id,
        message_id=receipt.message_id,
        queue=record.name,
        attempt=receipt.attempt,
        processing_ms=max(0, now_ms - receipt.leased_at_ms),
        key_id=caller.key_id,
        request_id=origin.request_id,
    )
