"""The backends of a process. Each call goes to the backend of the queue."""

from collections.abc import Mapping, Sequence

from postroad.api.queues import ENGINE, Backend, BackendUnavailable, Priority
from postroad.jetstream.deliveries import Delivery, DeliveryRef
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.errors import PostroadError
from postroad.queues.backend import BackendStats, CallbackBackend, DeliveryGroup, Fetched, QueueBackend, Settlement, StoreOutcome
from postroad.queues.engine_backend import EngineBackend
from postroad.queues.message_writes import PendingPublish
from postroad.queues.records import QueueRecord, Receipt


class Backends(QueueBackend):
    def __init__(self, engine: EngineBackend) -> None:
        self.engine = engine
        self.others: dict[str, QueueBackend] = {}

    def of(self, record: QueueRecord) -> QueueBackend:
        """Raises BackendUnavailable if this process is not configured for the queue's backend."""
        if record.backend == ENGINE:
            return self.engine
        found = self.others.get(record.backend)
        if found is None:
            raise BackendUnavailable(f"this installation has no {record.backend}", retry_after=60)
        return found

    def callbacks_of(self, record: QueueRecord) -> CallbackBackend | None:
        return self.engine if record.backend == ENGINE else None

    async def long_lease_ms_of(self, backend: Backend) -> int:
        """That of new queues with this backend. Raises BackendUnavailable."""
        return 0 if backend == ENGINE or backend not in self.others else await self.others[backend].long_lease_ms()

    async def long_lease_ms(self) -> int:
        return 0

    async def prepare(self, record: QueueRecord) -> None:
        await self.of(record).prepare(record)

    async def create(self, record: QueueRecord) -> None:
        await self.of(record).create(record)

    async def delete(self, record: QueueRecord) -> None:
        await self.of(record).delete(record)

    async def pause(self, record: QueueRecord, priorities: Sequence[Priority], *, is_paused: bool) -> None:
        await self.of(record).pause(record, priorities, is_paused=is_paused)

    async def store(self, record: QueueRecord, pending: Sequence[PendingPublish]) -> list[StoreOutcome]:
        return await self.of(record).store(record, pending)

    async def receive(self, record: QueueRecord, count: int, wait_seconds: float) -> Sequence[DeliveryGroup]:
        return await self.of(record).receive(record, count, wait_seconds)

    async def release(self, record: QueueRecord, groups: Sequence[DeliveryGroup]) -> None:
        await self.of(record).release(record, groups)

    async def lease(self, record: QueueRecord, priority: Priority, leases: Sequence[tuple[Delivery, int]]) -> None:
        await self.of(record).lease(record, priority, leases)

    async def settle(
        self, record: QueueRecord, priority: Priority, settlements: Sequence[Settlement], *, is_synced: bool = True
    ) -> Mapping[DeliveryRef, PostroadError]:
        return await self.of(record).settle(record, priority, settlements, is_synced=is_synced)

    async def discard(self, record: QueueRecord, priority: Priority, ref: DeliveryRef) -> None:
        await self.of(record).discard(record, priority, ref)

    async def extend(
        self, record: QueueRecord, priority: Priority, refs: Sequence[DeliveryRef], lease_ms: int
    ) -> Mapping[DeliveryRef, PostroadError]:
        return await self.of(record).extend(record, priority, refs, lease_ms)

    async def fetch(self, record: QueueRecord, receipts: Sequence[Receipt]) -> Sequence[Fetched]:
        return await self.of(record).fetch(record, receipts)

    async def latest_delivery(self, record: QueueRecord, receipt: Receipt, attempt: int) -> Receipt | None:
        return await self.of(record).latest_delivery(record, receipt, attempt)

    async def redeliver_now(self, record: QueueRecord, entry: Entry, attempt: int) -> None:
        await self.of(record).redeliver_now(record, entry, attempt)

    def waiting_pulls(self) -> Mapping[str, int]:
        waiting = dict(self.engine.waiting_pulls())
        for one in self.others.values():
            waiting |= one.waiting_pulls()
        return waiting

    async def stats(self, record: QueueRecord) -> BackendStats:
        return await self.of(record).stats(record)

    async def count(self, record: QueueRecord) -> int:
        return await self.of(record).count(record)

    async def purge(self, record: QueueRecord) -> int:
        return await self.of(record).purge(record)
