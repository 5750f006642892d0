"""Queues as things: made, found, changed, listed and deleted.

The registry's record is the truth and the lock: whoever creates it makes the stream, whoever marks it deletes the stream, and
everyone else waits for them, for a while. A process that dies half-way leaves a record that is not ready; the next one that
needs the queue, or the control role's sweep, takes the work up.
"""

import asyncio

import msgspec

from postroad.governance.audit import Audit
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import (
    StreamSpec,
    delete_stream,
    ensure_stream,
    pause_consumer,
    stream_info,
)
from postroad.jetstream.pull_consumer import ensure_work_consumer
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, EngineRefused, Forbidden, InvalidParameter, QueueNotFound
from postroad.kernel.identity import Caller
from postroad.kernel.ids import new_id
from postroad.kernel.json import invalid_field
from postroad.kernel.names import QUEUE_CHARS_MAX, escape, queue_name
from postroad.queues import job_events as events
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.events import QueueChanged, QueueDeleted
from postroad.queues.rules import QueueRecord, QueueSettings, QueueState
from postroad.queues.schemas import check_schema
from postroad.telemetry.outbox import Outbox

QUEUES_BUCKET = "postroad_queues"
_INCARNATION = "postroad.incarnation"
_TAKE_UP_SECONDS = 10.0
_STUCK_MS = 60_000


class QueuePage(msgspec.Struct, frozen=True):
    records: list[QueueRecord]
    next_cursor: str | None


class QueueLifecycle:
    def __init__(
        self,
        connection: Connection,
        table: ReplicatedTable[QueueRecord],
        outbox: Outbox,
        clock: Clock,
        *,
        tenant_settings: TenantSettingsStore,
        audit: Audit,
        dead: DeadLetters,
        replicas: int,
    ) -> None:
        self._connection, self._table, self._outbox, self._clock = connection, table, outbox, clock
        self._tenant_settings, self._audit, self._dead, self._replicas = tenant_settings, audit, dead, replicas
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

    async def find_or_create(self, context: RequestContext, name: str) -> QueueRecord:
        """As `find`, but where the tenant's setting `autoCreateQueues` is on, a missing queue is made with the defaults."""
        try:
            return await self.find(context.tenant, name)
        except QueueNotFound:
            if name.startswith("_") or not self._tenant_settings.of(context.tenant).auto_create_queues:
                raise
        record, _ = await self.put(context, name, None)
        return record

    async def put(self, context: RequestContext, name: str, settings: QueueSettings | None) -> tuple[QueueRecord, bool]:
        """Create the queue, or give it these settings; the second value says whether it is new.

        Without settings a queue that is there is left as it is.
        """
        if settings is not None and settings.schema is not None:
            check_schema(settings.schema)
        if queue_name(name).startswith("_"):
            raise InvalidParameter("names that start with '_' belong to Postroad")
        key = _key(context.tenant, name)
        try:
            async with self._locks.setdefault(key, asyncio.Lock()):
                record, before = await self._create_or_change(key, context, name, settings)
        except EngineRefused as refusal:
            if settings is not None and settings.geo is not None:
                raise invalid_field("$.geo", f"the engine cannot place the queue there: {refusal.detail}") from refusal
            if settings is not None and settings.replicas not in (None, 1):
                raise invalid_field("$.replicas", f"the engine does not keep so many copies: {refusal.detail}") from refusal
            raise
        finally:
            self._locks.pop(key, None)
        if record is not before:
            self._outbox.record(context, _changed_event(record, is_new=before is None))
        return record, before is None

    async def _create_or_change(
        self, key: str, context: RequestContext, name: str, settings: QueueSettings | None
    ) -> tuple[QueueRecord, QueueRecord | None]:
        """The queue as it is now, and as it was before: the same if nothing was to be changed, None if it is new."""
        while True:
            known = await self._settled(key)
            try:
                if known is None:
                    return await self._create(key, context, name, self._completed(context.tenant, settings)), None
                if settings is None or self._completed(context.tenant, settings) == known.settings:
                    return known, known
                wanted = self._completed(context.tenant, settings)
                changed = msgspec.structs.replace(known, settings=wanted, updated_at_ms=self._clock())
                revision = self._table.revision(key)
                async with self._audit.change(context, "queue.change", name, before=known.settings, after=wanted):
                    await self._ensure_streams(changed)
                    await self._table.update(key, changed, revision)
                return changed, known
            except Conflict:  # somebody else was at it: look again
                self._table.forget(key)
                await asyncio.sleep(0.01)

    def _completed(self, tenant: str, settings: QueueSettings | None) -> QueueSettings:
        """With the tenant's default where the caller chose none."""
        settings = settings or QueueSettings()
        if settings.visibility_timeout_ms is not None:
            return settings
        return msgspec.structs.replace(settings, visibility_timeout_ms=self._tenant_settings.of(tenant).visibility_timeout_ms)

    async def _create(self, key: str, context: RequestContext, name: str, settings: QueueSettings) -> QueueRecord:
        """Raises Conflict if somebody else creates it at the same time; then this one has touched nothing."""
        self._check_count(context.tenant)
        now = self._clock()
        record = QueueRecord(
            state=QueueState.MAKING,
            tenant=context.tenant,
            name=name,
            incarnation=new_id(),
            settings=settings,
            created_at_ms=now,
            updated_at_ms=now,
        )
        async with self._audit.change(context, "queue.create", name, after=settings):
            await self._table.create(key, record)
        try:
            return await self._make(key, record)
        except EngineRefused:  # for good: it would stay half-made, in everyone's way
            await self._destroy(key, record)
            raise

    async def _make(self, key: str, record: QueueRecord) -> QueueRecord:
        """The stream of a record that is being made. What an earlier queue of this name may have left must not appear in it."""
        revision = self._table.revision(key)
        left_over = await stream_info(self._connection, record.stream)
        if left_over is not None and left_over.metadata.get(_INCARNATION) != record.incarnation:
            await delete_stream(self._connection, record.stream)
        await self._ensure_streams(record)
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
                await self._destroy(key, record)
        except Conflict:
            self._table.forget(key)

    async def _destroy(self, key: str, record: QueueRecord) -> None:
        revision = self._table.revision(key)
        info = await stream_info(self._connection, record.stream)
        if info is not None and info.metadata.get(_INCARNATION) == record.incarnation:
            await self._dead.drop_all(record)
            await delete_stream(self._connection, record.stream)
        await self._table.delete(key, revision)

    def _check_count(self, tenant: str) -> None:
        count = self._table.count_under(f"{tenant}.")
        most = self._tenant_settings.of(tenant).max_queues
        if count >= most:
            raise Forbidden(f"the tenant has {count} queues; {most} is the limit")

    async def _ensure_streams(self, record: QueueRecord) -> None:
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
        if record.settings.geo is not None:
            options["placement"] = {"tags": [record.settings.geo]}
        await self._dead.ensure(record.tenant)
        await ensure_stream(self._connection, StreamSpec(record.stream, (f"{subject}.>",), options))
        await ensure_work_consumer(self._connection, record.stream, record.consumer, f"{subject}.ready")

    async def delete(self, context: RequestContext, name: str) -> None:
        """Raises QueueNotFound."""
        key = _key(context.tenant, name)
        record = await self.find(context.tenant, name)
        revision = self._table.revision(key)  # of this record: others may be at it while the audit log is written
        async with self._audit.change(context, "queue.delete", name, before=record.settings):
            await self._delete(key, record, revision)
        self._outbox.record(context, events.purged(name, 0, is_deleted=True))
        self._outbox.record(context, QueueDeleted(queue=name))

    async def _delete(self, key: str, record: QueueRecord, revision: int) -> None:
        deleting = msgspec.structs.replace(record, state=QueueState.DELETING, updated_at_ms=self._clock())
        try:
            await self._table.update(key, deleting, revision)
            await self._destroy(key, deleting)
        except Conflict as exc:
            self._table.forget(key)
            raise Conflict(f"the queue {record.name!r} was changed at the same time") from exc

    async def delete_all(self, tenant: str) -> None:
        """Of a tenant that is being deleted. May be called again, whatever the first call left."""
        for key in list(self._table.keys_under(f"{tenant}.")):
            record = await self._settled(key)
            if record is not None:
                await self._delete(key, record, self._table.revision(key))

    def page(self, caller: Caller, limit: int, after: str | None) -> QueuePage:
        """The queues that the caller may use, in the order of their names' tokens, after the one that the cursor names."""
        prefix = f"{caller.tenant}."
        start = prefix + escape(after) if after is not None else ""
        found = [record for key in self._table.keys_under(prefix) if key > start and (record := self._table.get(key)) is not None]
        records = [one for one in found if one.state is not QueueState.DELETING and caller.may_use("queue", one.name)]
        return QueuePage(records[:limit], records[limit - 1].name if len(records) > limit else None)

    async def pause(self, context: RequestContext, name: str, *, is_paused: bool) -> QueueRecord:
        """While it is paused nothing is delivered, on any worker; publishing and settling go on. Raises QueueNotFound."""
        record = await self.find(context.tenant, name)
        if record.is_paused == is_paused:
            return record
        action = "queue.pause" if is_paused else "queue.resume"
        async with self._audit.change(context, action, name):
            await pause_consumer(self._connection, record.stream, record.consumer, is_paused=is_paused)
            changed = await self._table.change(
                _key(context.tenant, name),
                lambda now: msgspec.structs.replace(now, is_paused=is_paused, updated_at_ms=self._clock()),
            )
        if changed is None:
            raise QueueNotFound(f"there is no queue {name!r}")
        self._outbox.record(context, _changed_event(changed[1], is_new=False))
        return changed[1]

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


def _changed_event(record: QueueRecord, *, is_new: bool) -> QueueChanged:
    return QueueChanged(timestamp=rfc3339(record.updated_at_ms), queue=record.name, is_new=is_new)


def _key(tenant: str, name: str) -> str:
    return f"{tenant}.{escape(name)}"
