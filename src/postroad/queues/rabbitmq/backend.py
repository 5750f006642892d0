"""Queues in RabbitMQ: a quorum queue has the messages that are ready or leased.

The stream of the queue in JetStream is its outbox: delayed messages, those with an idempotency key, and retries are stored there,
with their markers in the same batch, and are published to RabbitMQ when they are due (`outbox.py`).
"""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence

import msgspec
import structlog
from msgspec.structs import replace

from postroad.api.queues import BackendCannot, LeaseExpired, Priority, QueueNotFound
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PublishAck
from postroad.jetstream.connection import Connection
from postroad.jetstream.deliveries import Delivery, DeliveryRef
from postroad.jetstream.management import purge_stream
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import Clock
from postroad.kernel.errors import EngineUnavailable, PostroadError, Unavailable
from postroad.kernel.names import escape
from postroad.queues import job_events
from postroad.queues.backend import BackendStats, DeliveryGroup, Fetched, QueueBackend, Settlement, StoreOutcome
from postroad.queues.engine_backend import EngineBackend
from postroad.queues.lease_log import LeaseLog
from postroad.queues.message_writes import PendingPublish
from postroad.queues.rabbitmq import metrics
from postroad.queues.rabbitmq.connection import QueueMissing, RabbitConnection
from postroad.queues.rabbitmq.lease_owner import LeaseOwner
from postroad.queues.rabbitmq.leases import (
    NO_OWNER,
    HeldLease,
    LeaseItem,
    LeaseRequest,
    LeaseRouting,
    Token,
    error_of,
    gone,
)
from postroad.queues.rabbitmq.markers import PURGE_MARK, AckMarkers, is_purged
from postroad.queues.rabbitmq.messages import ReceivedMessage, body_of, properties_of, read, sequence_of
from postroad.queues.rabbitmq.names import check_name, dead_queue, main_queue
from postroad.queues.rabbitmq.receiving import QueueReceiver, RawDelivery
from postroad.queues.records import QueueRecord, Receipt, StoredMessage, TokenRef, encode_message
from postroad.telemetry.outbox import Outbox

_DELIVERY_LIMIT = 2_000_000_000  # we count attempts: that of RabbitMQ 4 would end messages after 20
_OWN_TIMEOUT_SINCE, _LONG_LEASE_MS, _TIMEOUT_MARGIN_MS = (3, 12), 7 * 86_400_000, 300_000
_ACKNOWLEDGED = (PublishAck(sequence=0),)

log = structlog.get_logger("postroad.rabbitmq")


class RabbitBackend(QueueBackend):
    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        rabbit: RabbitConnection,
        engine: EngineBackend,
        table: ReplicatedTable[QueueRecord],
        lease_log: LeaseLog,
        outbox: Outbox,
        clock: Clock,
        *,
        prefix: str,
        owner: bytes,
        held_max: int,
        marker_ttl_ms: int,
    ) -> None:
        self._connection, self.rabbit, self._engine, self._table = connection, rabbit, engine, table
        self._lease_log, self._outbox, self._clock = lease_log, outbox, clock
        self._prefix, self._owner = prefix, owner
        self.markers = AckMarkers(connection, committers, marker_ttl_ms)
        self.owned = LeaseOwner(rabbit, self.publish, self.markers, table, lease_log, clock, prefix=prefix, held_max=held_max)
        self.routing = LeaseRouting(connection, owner, self.owned.execute)

    # The queue

    async def long_lease_ms(self) -> int:
        """Later versions let a queue have its own time after which a consumer with an old delivery is ended."""
        return _LONG_LEASE_MS if await self.rabbit.version() >= _OWN_TIMEOUT_SINCE else 0

    async def prepare(self, record: QueueRecord) -> None:
        """A queue of that name may exist, which another program has declared in another way: it must be left as it is."""
        check_name(record.name)
        await self._declare(record)

    async def create(self, record: QueueRecord) -> None:
        await self._engine.create(record)
        await self._declare(record)

    async def _declare(self, record: QueueRecord) -> None:
        dead = dead_queue(self._prefix, record)
        quorum: dict[str, object] = {"x-queue-type": "quorum", "x-delivery-limit": _DELIVERY_LIMIT}
        timeout = {"x-consumer-timeout": record.long_lease_ms + _TIMEOUT_MARGIN_MS} if record.long_lease_ms else {}
        await self.rabbit.declare(
            main_queue(self._prefix, record),
            {
                **quorum,
                **timeout,
                "x-overflow": "reject-publish",  # the next one needs it
                "x-dead-letter-strategy": "at-least-once",
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": dead,
            },
        )
        await self.rabbit.declare(dead, quorum)

    async def restore(self, record: QueueRecord) -> None:
        """Declare a queue again that RabbitMQ does not have any more, because it was deleted there or a node has lost its data.
        Its messages are gone. Raises QueueNotFound if the queue is being deleted, BackendUnavailable, BackendCannot."""
        found = await self._table.refresh(f"{record.tenant}.{escape(record.name)}")  # another process may be deleting it
        if found is None or found.incarnation != record.incarnation or found.state is RecordState.DELETING:
            raise QueueNotFound(f"there is no queue {record.name!r}")
        log.error("queue_missing_in_rabbitmq", queue=record.name, tenant=record.tenant)
        await self._declare(found)
        metrics.restored.inc()

    async def delete(self, record: QueueRecord) -> None:
        for queue in (main_queue(self._prefix, record), dead_queue(self._prefix, record)):
            await self.rabbit.delete(queue)

    async def pause(self, record: QueueRecord, priorities: Sequence[Priority], *, is_paused: bool) -> None:
        """Receivers follow the record. The outbox is not paused: its messages become ready."""

    # Storing

    async def store(self, record: QueueRecord, pending: Sequence[PendingPublish]) -> list[StoreOutcome]:
        """A message without a delay and markers is published directly."""
        outcomes: list[StoreOutcome] = [_ACKNOWLEDGED] * len(pending)
        direct = [index for index, one in enumerate(pending) if len(one.writes) == 1 and not one.delay_ms]
        others = [index for index in range(len(pending)) if index not in set(direct)]

        async def publish(index: int) -> None:
            try:
                await self.publish(record, pending[index].message)
            except (Unavailable, BackendCannot, QueueNotFound) as problem:
                outcomes[index] = problem

        async def store_others() -> None:
            stored = await self._engine.store(record, [pending[index] for index in others])
            for index, outcome in zip(others, stored, strict=True):
                outcomes[index] = outcome

        await asyncio.gather(*map(publish, direct), store_others() if others else asyncio.sleep(0))
        return outcomes

    async def publish(self, record: QueueRecord, message: StoredMessage, copy: str = "") -> None:
        """Return once the queue in RabbitMQ has the message. Raises BackendUnavailable, and like `restore`."""
        limits = (record.settings.retention_ms, message.expires - self._clock() if message.expires else 0)
        expiration_ms = min((limit for limit in limits if limit > 0), default=0)
        properties = properties_of(message, copy=copy, expiration_ms=expiration_ms)
        queue, body = main_queue(self._prefix, record), body_of(message)
        try:
            await self.rabbit.publish(queue, body, properties)
        except QueueMissing:
            await self.restore(record)
            await self.rabbit.publish(queue, body, properties)
        metrics.published.inc()

    # Receiving

    async def receive(self, record: QueueRecord, count: int, wait_seconds: float) -> Sequence[DeliveryGroup]:
        loop = asyncio.get_running_loop()
        until, receiver = loop.time() + wait_seconds, self.owned.receiver(record)
        is_restored = False
        while True:
            try:
                raw = await receiver.receive(count, max(0.0, until - loop.time()))
            except QueueMissing:
                if is_restored:
                    raise
                await self.restore(record)
                is_restored = True
                continue
            kept = await self._unsettled(record, receiver, raw)
            if kept or not raw:
                return [("normal", kept)]

    async def _unsettled(self, record: QueueRecord, receiver: QueueReceiver, raw: Sequence[RawDelivery]) -> list[Delivery]:
        """The deliveries of messages that were not acknowledged before and not purged. This process holds them."""
        now = self._clock()
        messages = [read(one.body, one.properties, is_redelivered=one.is_redelivered, now_ms=now) for one in raw]
        doubtful = [one for one in messages if one.may_be_settled]
        settled: set[tuple[str, str]] = set()
        try:
            if doubtful:
                marked = await self.markers.are_marked(
                    record, [(sequence_of(one.stored.id, one.copy), one.copy) for one in doubtful]
                )
                purge_sequence = await self.markers.purge_sequence(record)
                for one, is_marked in zip(doubtful, marked, strict=True):
                    if is_marked or is_purged(one.copy, purge_sequence):
                        settled.add((one.stored.id, one.copy))
        except BaseException:
            receiver.keep(raw)
            raise
        deliveries, suppressed = [], []
        for delivery, read_message in zip(raw, messages, strict=True):
            message = self._counted(record, read_message)
            if (message.stored.id, message.copy) in settled:
                suppressed.append(message)
                await receiver.ack(*delivery.key)
                continue
            self.owned.leases.hold(HeldLease(record.incarnation, delivery, message))
            deliveries.append(self._delivery(delivery, message))
        metrics.suppressed.inc(len(suppressed))
        self.owned.record_suppressed(record, suppressed)
        natives = [message.stored for message in messages if message.is_native]
        if natives:
            events = [job_events.first_events(record, one, 0, 0)[0] for one in natives]
            self._outbox.record(None, *(msgspec.structs.replace(event, tenant=record.tenant) for event in events))
        return deliveries

    def _counted(self, record: QueueRecord, message: ReceivedMessage) -> ReceivedMessage:
        """A message that was delivered before, with the attempt after the latest lease that this process knows of: which returns
        RabbitMQ counts differs between its versions."""
        leases = self._lease_log.queue(record)
        if leases is None or not message.may_be_settled:
            return message
        attempt = leases.latest_attempt(sequence_of(message.stored.id, message.copy)) + 1
        return dataclasses.replace(message, attempt=max(message.attempt, attempt))

    def _delivery(self, raw: RawDelivery, message: ReceivedMessage) -> Delivery:
        stored = message.stored
        token = Token(self._owner, raw.generation, message.copy).to_bytes()
        ref = TokenRef(sequence_of(stored.id, message.copy), raw.tag, message.attempt, stored.at * 1_000_000, token)
        return Delivery(ref, encode_message(stored))

    async def release(self, record: QueueRecord, groups: Sequence[DeliveryGroup]) -> None:
        for _, deliveries in groups:
            for one in deliveries:
                held = self.owned.leases.pop(record.incarnation, _token(one.ref).generation, one.ref.consumer_sequence)
                if held is not None:
                    await self.owned.return_stray(record.incarnation, held.raw)

    async def lease(self, record: QueueRecord, priority: Priority, leases: Sequence[tuple[Delivery, int]]) -> None:
        for delivery, lease_ms in leases:
            generation = _token(delivery.ref).generation
            held = self.owned.leases.get(record.incarnation, generation, delivery.ref.consumer_sequence)
            if held is not None:
                self.owned.leases.hold(held, lease_ms / 1000)
        metrics.leases.set(len(self.owned.leases))

    # Operations on leases

    async def settle(
        self, record: QueueRecord, priority: Priority, settlements: Sequence[Settlement], *, is_synced: bool = True
    ) -> Mapping[DeliveryRef, PostroadError]:
        delays = {ref: -1 if delay_ms is None else delay_ms for ref, delay_ms in settlements}
        failed = await self._operate(record, "settle", delays)
        lost = [ref for ref, error in failed.items() if delays[ref] < 0 and isinstance(error, LeaseExpired)]
        if lost:  # an ack that is repeated
            marked = await self.markers.are_marked(record, [(ref.stream_sequence, _token(ref).copy) for ref in lost])
            for ref, is_marked in zip(lost, marked, strict=True):
                if is_marked:
                    del failed[ref]
        return failed

    async def discard(self, record: QueueRecord, priority: Priority, ref: DeliveryRef) -> None:
        """A marker is sufficient if the lease is gone: the message is dropped when it is delivered next."""
        if await self.settle(record, priority, [(ref, None)]):
            [problem] = await self.markers.mark(record, [(ref.stream_sequence, _token(ref).copy)])
            if problem is not None:
                raise problem

    async def extend(
        self, record: QueueRecord, priority: Priority, refs: Sequence[DeliveryRef], lease_ms: int
    ) -> Mapping[DeliveryRef, PostroadError]:
        return await self._operate(record, "extend", dict.fromkeys(refs, lease_ms))

    async def _operate(
        self, record: QueueRecord, action: str, values: Mapping[DeliveryRef, int]
    ) -> dict[DeliveryRef, PostroadError]:
        """Let the owners of the leases do it; the errors."""
        by_owner: dict[bytes, list[DeliveryRef]] = {}
        for ref in values:
            by_owner.setdefault(_token(ref).owner, []).append(ref)
        failed: dict[DeliveryRef, PostroadError] = {}
        for owner, refs in by_owner.items():
            if owner == NO_OWNER:
                marked = await self.markers.mark(record, [(ref.stream_sequence, _token(ref).copy) for ref in refs])
                failed |= {ref: error for ref, error in zip(refs, marked, strict=True) if error is not None}
                continue
            items = [LeaseItem(_token(ref).generation, ref.consumer_sequence, values[ref]) for ref in refs]
            reply = await self.routing.call(owner, _request(record, action, items))
            if owner != self._owner:
                metrics.forwarded.inc(len(refs))
            if reply is None:
                failed |= dict(zip(refs, gone(len(refs)), strict=True))
                continue
            failed |= {ref: error_of(*one) for ref, one in zip(refs, reply.results, strict=True) if one[0]}
        for error in failed.values():
            if isinstance(error, Unavailable):
                raise error
        return failed

    async def fetch(self, record: QueueRecord, receipts: Sequence[Receipt]) -> list[Fetched]:
        found: list[Fetched] = []
        for receipt in receipts:  # one owner each in general; a request rarely has more than a few
            token = Token.from_bytes(receipt.token)
            item = LeaseItem(token.generation, receipt.consumer_sequence)
            reply = await self.routing.call(token.owner, _request(record, "fetch", [item]))
            if reply is None or reply.results[0][0]:
                found.append(gone(1)[0] if reply is None else error_of(*reply.results[0]))
            else:
                at_ms = receipt.stored_at_ns // 1_000_000
                found.append(Entry(f"{record.subject}.ready", receipt.stream_sequence, at_ms, reply.messages[0], {}))
        return found

    async def latest_delivery(self, record: QueueRecord, receipt: Receipt, attempt: int) -> Receipt | None:
        """A marker is sufficient: the message is dropped when it is delivered next."""
        token = Token.from_bytes(receipt.token)
        return replace(receipt, token=Token(NO_OWNER, 0, token.copy).to_bytes())

    async def redeliver_now(self, record: QueueRecord, entry: Entry, attempt: int) -> None:
        raise BackendCannot("RabbitMQ cannot deliver a waiting message at once; it is delivered when its turn comes")

    # Counts

    def waiting_pulls(self) -> Mapping[str, int]:
        return self.owned.waiting_pulls()

    async def stats(self, record: QueueRecord) -> BackendStats:
        await self._lease_log.loaded()
        await self._reconnected()
        ready, outbox, delayed, retrying = await asyncio.gather(
            self.rabbit.count(main_queue(self._prefix, record)),
            self._stored(record, f"{record.subject}.ready"),
            self._stored(record, f"{record.subject}.later.*"),
            self._stored(record, f"{record.subject}.retry.*"),
        )
        leases = self._lease_log.queue(record)
        leased = 0 if leases is None else leases.counts(self._clock()).leased
        return BackendStats(ready=(ready or 0) + outbox, leased=leased, retrying=retrying, delayed=delayed)

    async def count(self, record: QueueRecord) -> int:
        found = await self.stats(record)
        return found.ready + found.leased + found.retrying + found.delayed

    async def _reconnected(self) -> None:
        """Reads fail at once while the connection to the engine is lost: wait for it. Raises EngineUnavailable."""
        try:
            async with asyncio.timeout(self._connection.settings.request_timeout):
                await self._connection.wait_up()
        except TimeoutError as exc:
            raise EngineUnavailable("the connection to the engine is lost", retry_after=1) from exc

    async def _stored(self, record: QueueRecord, subject: str) -> int:
        page = await stream_reader.read(self._connection, record.stream, subject, 1, 1)
        return len(page.entries) + page.remaining

    async def purge(self, record: QueueRecord) -> int:
        """Leased messages are marked, and dropped when they return. Only those that are leased before RabbitMQ purges: a later
        message is not dropped, however the clocks of its publisher and of this process differ."""
        leases = self._lease_log.queue(record)
        leased = 0 if leases is None else leases.counts(self._clock()).leased
        await self.markers.mark_purge(record, self._clock())
        held = await self.routing.held(_request(record, "held", []), leased)
        for problem in await self.markers.mark(record, held, PURGE_MARK):
            if problem is not None:
                raise problem
        purged = len(held)
        for subject in ("later.*", "retry.*", "ready"):
            purged += await purge_stream(self._connection, record.stream, f"{record.subject}.{subject}")
        try:
            return purged + await self.rabbit.purge(main_queue(self._prefix, record))
        except QueueMissing:
            return purged

    async def close(self) -> None:
        await self.rabbit.close()


def _token(ref: DeliveryRef) -> Token:
    return Token.from_bytes(ref.token if isinstance(ref, TokenRef) else b"")


def _request(record: QueueRecord, action: str, items: list[LeaseItem]) -> LeaseRequest:
    return LeaseRequest(tenant=record.tenant, queue=record.name, incarnation=record.incarnation, action=action, items=items)
