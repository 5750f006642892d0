"""Queues as things: made, found, changed, listed and deleted.

The registry's record is the truth and the lock: whoever creates it makes the stream, whoever marks it deletes the stream, and
everyone else waits for them, for a while. A process that dies half-way leaves a record that is not ready; the next one that
needs the queue, or the control role's sweep, takes the work up.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from postroad.engine.layout import (
    StreamSpec,
    consumer_state,
    delete_stream,
    ensure_consumer,
    ensure_stream,
    stream_info,
)
from postroad.engine.link import Link
from postroad.engine.table import Table
from postroad.engine.work import ensure_work_consumer
from postroad.kernel.caller import Caller
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import Conflict, Forbidden, InvalidParameter, QueueNotFound
from postroad.kernel.ids import new_id
from postroad.kernel.json import invalid_field
from postroad.kernel.names import QUEUE_CHARS_MAX, escape, queue_name
from postroad.queues.rules import QueueRecord, QueueSettings, QueueState
from postroad.telemetry.catalogue import QueueChanged, QueueDeleted
from postroad.telemetry.outbox import Outbox

QUEUES_BUCKET = "postroad_queues"
LATER_CONSUMER = "later"  # never pulled from: its backlog is the number of delayed messages
_INCARNATION = "postroad.incarnation"
_TAKE_UP_SECONDS = 10.0
_STUCK_MS = 60_000


@dataclass(frozen=True, slots=True)
class QueueStats:
    """`ready` can be pulled now, `leased` is with consumers or waits for its next try, `delayed` is not due yet."""

    ready: int
    leased: int
    delayed: int


class QueuePage(msgspec.Struct, frozen=True):
    records: list[QueueRecord]
    next_cursor: str | None


class Definitions:
    def __init__(
        self,
        link: Link,
        table: Table[QueueRecord],
        outbox: Outbox,
        clock: Clock,
        *,
        replicas: int,
        per_tenant_max: int,
        may_auto_create: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._link, self._table, self._outbox, self._clock = link, table, outbox, clock
        self._replicas, self._per_tenant_max, self._may_auto_create = replicas, per_tenant_max, may_auto_create
        self._locks: dict[str, asyncio.Lock] = {}

    def known(self, tenant: str, name: str) -> QueueRecord | None:
        """The queue, if this process has heard of it: the short way for the busy paths, where it nearly always has."""
        record = self._table.get(_key(tenant, name)) if len(name) <= QUEUE_CHARS_MAX else None
        return record if record is not None and record.state is QueueState.READY else None

    async def find(self, tenant: str, name: str) -> QueueRecord:
        """Raises QueueNotFound, InvalidParameter."""
        key = _key(tenant, queue_name(name))
        record = await self._settled(key)
        if record is None:
            raise QueueNotFound(f"there is no queue {name!r}")
        return record

    async def find_or_create(self, caller: Caller, name: str, request_id: str) -> QueueRecord:
        """As `find`, but where the tenant's setting `autoCreateQueues` is on, a missing queue is made with the defaults."""
        try:
            return await self.find(caller.tenant, name)
        except QueueNotFound:
            if name.startswith("_") or not await self._may_auto_create(caller.tenant):
                raise
        record, _ = await self.put(caller, name, None, request_id)
        return record

    async def put(self, caller: Caller, name: str, settings: QueueSettings | None, request_id: str) -> tuple[QueueRecord, bool]:
        """Create the queue, or give it these settings; the second value says whether it is new.

        Without settings a queue that is there is left as it is.
        """
        if settings is not None:
            _check(settings)
        if queue_name(name).startswith("_"):
            raise InvalidParameter("names that start with '_' belong to Postroad")
        key = _key(caller.tenant, name)
        try:
            async with self._locks.setdefault(key, asyncio.Lock()):
                record, before = await self._create_or_change(key, caller.tenant, name, settings)
        finally:
            self._locks.pop(key, None)
        if record is not before:
            self._outbox.emit([self._changed_event(record, caller, request_id, is_new=before is None)])
        return record, before is None

    async def _create_or_change(
        self, key: str, tenant: str, name: str, settings: QueueSettings | None
    ) -> tuple[QueueRecord, QueueRecord | None]:
        """The queue as it is now, and as it was before: the same if nothing was to be changed, None if it is new."""
        while True:
            known = await self._settled(key)
            try:
                if known is None:
                    return await self._create(key, tenant, name, settings or QueueSettings()), None
                if settings is None or settings == known.settings:
                    return known, known
                changed = msgspec.structs.replace(known, settings=settings, updated_at_ms=self._clock())
                revision = self._table.revision(key)
                await self._lay_out(changed)
                await self._table.update(key, changed, revision)
                return changed, known
            except Conflict:  # somebody else was at it: look again
                self._table.forget(key)
                await asyncio.sleep(0.01)

    async def _create(self, key: str, tenant: str, name: str, settings: QueueSettings) -> QueueRecord:
        """Raises Conflict if somebody else creates it at the same time; then this one has touched nothing."""
        self._check_count(tenant)
        now = self._clock()
        record = QueueRecord(
            state=QueueState.MAKING,
            tenant=tenant,
            name=name,
            incarnation=new_id(),
            settings=settings,
            created_at_ms=now,
            updated_at_ms=now,
        )
        await self._table.create(key, record)
        return await self._make(key, record)

    async def _make(self, key: str, record: QueueRecord) -> QueueRecord:
        """The stream of a record that is being made. What an earlier queue of this name may have left must not appear in it."""
        revision = self._table.revision(key)
        left_over = await stream_info(self._link, record.stream)
        if left_over is not None and left_over.metadata.get(_INCARNATION) != record.incarnation:
            await delete_stream(self._link, record.stream)
        await self._lay_out(record)
        ready = msgspec.structs.replace(record, state=QueueState.READY)
        await self._table.update(key, ready, revision)
        return ready

    async def _settled(self, key: str) -> QueueRecord | None:
        """The record once nobody works on its stream, None if there is none (any more)."""
        loop = asyncio.get_running_loop()
        take_up_at = loop.time() + _TAKE_UP_SECONDS
        while True:
            record = await self._table.fetch(key)
            if record is None or record.state is QueueState.READY:
                return record
            if loop.time() > take_up_at:
                await self._take_up(key, record)
            else:
                await asyncio.sleep(0.02)

    async def _take_up(self, key: str, record: QueueRecord) -> None:
        """Finish what a process that is gone has begun."""
        try:
            if record.state is QueueState.MAKING:
                await self._make(key, record)
            else:
                await self._unmake(key, record)
        except Conflict:
            self._table.forget(key)

    async def _unmake(self, key: str, record: QueueRecord) -> None:
        revision = self._table.revision(key)
        info = await stream_info(self._link, record.stream)
        if info is not None and info.metadata.get(_INCARNATION) == record.incarnation:
            await delete_stream(self._link, record.stream)
        await self._table.delete(key, revision)

    def _check_count(self, tenant: str) -> None:
        count = self._table.count_under(f"{tenant}.")
        if count >= self._per_tenant_max:
            raise Forbidden(f"the tenant has {count} queues; {self._per_tenant_max} is the limit")

    async def _lay_out(self, record: QueueRecord) -> None:
        """The stream and its consumers, as the record says. Doing it again changes nothing."""
        subject = record.subject
        options = {
            "retention": "workqueue",
            "allow_atomic": True,
            "allow_msg_ttl": True,
            "allow_msg_schedules": True,
            "num_replicas": record.settings.replicas or self._replicas,
            "duplicate_window": 60_000_000_000,  # only our own retries use it, and they end after seconds
            "metadata": {_INCARNATION: record.incarnation},
        }
        await ensure_stream(self._link, StreamSpec(record.stream, (f"{subject}.>",), options))
        await ensure_work_consumer(self._link, record.stream, record.consumer, f"{subject}.ready")
        await ensure_consumer(self._link, record.stream, LATER_CONSUMER, {"filter_subject": f"{subject}.later.>"})

    async def delete(self, caller: Caller, name: str, request_id: str) -> None:
        """Raises QueueNotFound."""
        record = await self.find(caller.tenant, name)
        key = _key(caller.tenant, name)
        deleting = msgspec.structs.replace(record, state=QueueState.DELETING, updated_at_ms=self._clock())
        try:
            await self._table.update(key, deleting, self._table.revision(key))
            await self._unmake(key, deleting)
        except Conflict as exc:
            self._table.forget(key)
            raise Conflict(f"the queue {name!r} was changed at the same time") from exc
        event = QueueDeleted(
            event_id=new_id(),
            timestamp=rfc3339(self._clock()),
            tenant=caller.tenant,
            queue=name,
            key_id=caller.key_id,
            request_id=request_id,
        )
        self._outbox.emit([event])

    def _changed_event(self, record: QueueRecord, caller: Caller, request_id: str, *, is_new: bool) -> QueueChanged:
        return QueueChanged(
            event_id=new_id(),
            timestamp=rfc3339(record.updated_at_ms),
            tenant=record.tenant,
            queue=record.name,
            is_new=is_new,
            key_id=caller.key_id,
            request_id=request_id,
        )

    def page(self, tenant: str, limit: int, after: str | None) -> QueuePage:
        """Queues in the order of their names' tokens, after the one that the cursor names."""
        prefix = f"{tenant}."
        start = prefix + escape(after) if after is not None else ""
        keys = [key for key in self._table.keys_under(prefix) if key > start]
        shown = [record for key in keys[:limit] if (record := self._table.get(key)) is not None]
        records = [record for record in shown if record.state is not QueueState.DELETING]
        return QueuePage(records, shown[-1].name if len(keys) > limit else None)

    async def stats(self, record: QueueRecord) -> QueueStats:
        work = await consumer_state(self._link, record.stream, record.consumer)
        later = await consumer_state(self._link, record.stream, LATER_CONSUMER)
        if work is None or later is None:
            raise QueueNotFound(f"the queue {record.name!r} is being deleted")
        return QueueStats(ready=work.num_pending, leased=work.num_ack_pending, delayed=later.num_pending)

    async def sweep(self) -> int:
        """Finish what processes that are gone have begun. For the control role; returns how many queues that were."""
        unfinished = [key for key in self._table.keys_under() if (found := self._table.get(key)) and self._is_stuck(found)]
        for key in unfinished:
            record = await self._table.fetch(key)
            if record is not None and self._is_stuck(record):
                await self._take_up(key, record)
        return len(unfinished)

    def _is_stuck(self, record: QueueRecord) -> bool:
        return record.state is not QueueState.READY and self._clock() - record.updated_at_ms > _STUCK_MS


def _key(tenant: str, name: str) -> str:
    return f"{tenant}.{escape(name)}"


def _check(settings: QueueSettings) -> None:
    if settings.replicas not in (None, 1, 3, 5):
        raise invalid_field("$.replicas", "must be 1, 3 or 5")
