"""Queues as things: made, found, changed, listed and deleted.

The registry's record is the truth. A stream without one is left over from a delete that was interrupted; it is replaced when
the name is used again, and swept away by the control role.
"""

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
    stream_names,
)
from postroad.engine.link import Link
from postroad.engine.table import Table
from postroad.engine.work import ensure_work_consumer
from postroad.kernel.caller import Caller
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import Conflict, Forbidden, InvalidParameter, QueueNotFound
from postroad.kernel.ids import new_id
from postroad.kernel.json import invalid_field
from postroad.kernel.names import escape, queue_name
from postroad.queues.rules import QueueRecord, QueueSettings
from postroad.telemetry.catalogue import QueueChanged, QueueDeleted
from postroad.telemetry.outbox import Outbox

QUEUES_BUCKET = "postroad_queues"
WORK_CONSUMER = "work"
LATER_CONSUMER = "later"  # never pulled from: its backlog is the number of delayed messages
_INCARNATION = "postroad.incarnation"


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

    async def find(self, tenant: str, name: str) -> QueueRecord:
        """Raises QueueNotFound, InvalidParameter."""
        record = await self._table.fetch(_key(tenant, queue_name(name)))
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
        record, _ = await self.put(caller, name, QueueSettings(), request_id)
        return record

    async def put(self, caller: Caller, name: str, settings: QueueSettings, request_id: str) -> tuple[QueueRecord, bool]:
        """Create the queue, or give it these settings; the second value says whether it is new."""
        _check(settings)
        if queue_name(name).startswith("_"):
            raise InvalidParameter("names that start with '_' belong to Postroad")
        key, now = _key(caller.tenant, name), self._clock()
        while True:
            known = await self._table.fetch(key)
            if known is None:
                self._check_count(caller.tenant)
            record = QueueRecord(
                tenant=caller.tenant,
                name=name,
                incarnation=known.incarnation if known else new_id(),
                settings=settings,
                created_at_ms=known.created_at_ms if known else now,
                updated_at_ms=now,
            )
            await self._lay_out(record, is_new=known is None)
            try:
                if known is None:
                    await self._table.create(key, record)
                else:
                    await self._table.update(key, record, self._table.revision(key))
                break
            except Conflict:  # somebody else was at it: look again
                self._table.forget(key)
        event = QueueChanged(
            event_id=new_id(),
            timestamp=rfc3339(now),
            tenant=caller.tenant,
            queue=name,
            is_new=known is None,
            key_id=caller.key_id,
            request_id=request_id,
        )
        self._outbox.emit([event])
        return record, known is None

    def _check_count(self, tenant: str) -> None:
        count = sum(1 for _ in self._table.keys(f"{tenant}."))
        if count >= self._per_tenant_max:
            raise Forbidden(f"the tenant has {count} queues; {self._per_tenant_max} is the limit")

    async def _lay_out(self, record: QueueRecord, *, is_new: bool) -> None:
        """The stream and its consumers. What an earlier queue of this name left behind must not appear in the new one."""
        if is_new:
            left_over = await stream_info(self._link, record.stream)
            if left_over is not None and await self._table.fetch(_key(record.tenant, record.name)) is None:
                await delete_stream(self._link, record.stream)
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
        await ensure_work_consumer(self._link, record.stream, WORK_CONSUMER, f"{subject}.ready")
        await ensure_consumer(self._link, record.stream, LATER_CONSUMER, {"filter_subject": f"{subject}.later.>"})

    async def delete(self, caller: Caller, name: str, request_id: str) -> None:
        record = await self.find(caller.tenant, name)
        await self._table.delete(_key(caller.tenant, name))
        await delete_stream(self._link, record.stream)
        event = QueueDeleted(
            event_id=new_id(),
            timestamp=rfc3339(self._clock()),
            tenant=caller.tenant,
            queue=name,
            key_id=caller.key_id,
            request_id=request_id,
        )
        self._outbox.emit([event])

    def page(self, tenant: str, limit: int, after: str | None) -> QueuePage:
        """Queues in the order of their names' tokens, after the one that the cursor names."""
        prefix = f"{tenant}."
        start = prefix + escape(after) if after is not None else ""
        keys = [key for key in self._table.keys(prefix) if key > start]
        records = [record for key in keys[:limit] if (record := self._table.get(key)) is not None]
        return QueuePage(records, records[-1].name if len(keys) > limit else None)

    async def stats(self, record: QueueRecord) -> QueueStats:
        work = await consumer_state(self._link, record.stream, WORK_CONSUMER)
        later = await consumer_state(self._link, record.stream, LATER_CONSUMER)
        if work is None or later is None:
            raise QueueNotFound(f"the queue {record.name!r} is being deleted")
        return QueueStats(ready=work.num_pending, leased=work.num_ack_pending, delayed=later.num_pending)

    async def sweep(self) -> int:
        """Delete the streams of queues that have no record, as an interrupted delete leaves them. For the control role."""
        swept = 0
        for stream in await stream_names(self._link, "q.>"):
            if await self._is_left_over(stream):
                swept += await delete_stream(self._link, stream)
        return swept

    async def _is_left_over(self, stream: str) -> bool:
        tenant, _, token = stream.removeprefix("Q_").partition("__")
        info = await stream_info(self._link, stream)
        if info is None or _INCARNATION not in info.metadata or info.age_seconds < 60:
            return False  # gone already, not ours, or being made just now
        return await self._table.fetch(f"{tenant}.{token}") is None


def _key(tenant: str, name: str) -> str:
    return f"{tenant}.{escape(name)}"


def _check(settings: QueueSettings) -> None:
    if settings.replicas not in (None, 1, 3, 5):
        raise invalid_field("$.replicas", "must be 1, 3 or 5")
