"""Schedules: create, look up, list, pause, resume, run now, delete."""

import contextlib
import itertools
from typing import Any

import msgspec

from postroad.api.pages import Page
from postroad.api.queues import Published
from postroad.api.schedules import ScheduleNotFound, ScheduleSettings
from postroad.governance.audit import Audit
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, Forbidden, InvalidParameter, PostroadError, TooLarge
from postroad.kernel.identity import Caller
from postroad.kernel.ids import new_id
from postroad.kernel.names import QUEUE, escape
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.publishing import Publisher
from postroad.schedules.events import (
    ScheduleCreated,
    ScheduleDeleted,
    SchedulePaused,
    ScheduleResumed,
    ScheduleUpdated,
)
from postroad.schedules.records import ScheduleRecord, record_key, without_claim
from postroad.schedules.rules import checked_timing, message_of
from postroad.schedules.settings import SchedulesSettings
from postroad.telemetry.outbox import Outbox

SCHEDULES_BUCKET = "postroad_schedules"
_TIMING_FIELDS = ("queue", "cron", "every_ms", "time_zone", "start_at", "end_at")


class Schedules:
    def __init__(
        self,
        table: ReplicatedTable[ScheduleRecord],
        lifecycle: QueueLifecycle,
        publisher: Publisher,
        outbox: Outbox,
        audit: Audit,
        clock: Clock,
        limits: SchedulesSettings,
    ) -> None:
        self._table, self._lifecycle, self._publisher = table, lifecycle, publisher
        self._outbox, self._audit, self._clock, self._limits = outbox, audit, clock, limits

    async def put(self, context: RequestContext, name: str, settings: ScheduleSettings) -> tuple[ScheduleRecord, bool]:
        """Create the schedule or replace its settings; return it and whether it is new. Equal settings change nothing.

        Raises InvalidParameter, BodyInvalid, TooLarge, Forbidden, QueueNotFound, EngineUnavailable.
        """
        key = _key(context.tenant, name)
        if not context.caller.may_use("queue", settings.queue):
            raise Forbidden(f"the key may not use the queue {settings.queue!r}")
        self._check(context.tenant, name, settings)
        while True:
            known = await self._table.fetch(key)
            revision = self._table.revision(key)
            if known is not None:
                if not context.caller.may_use("queue", known.settings.queue):
                    raise Forbidden(f"the key may not use the schedule {name!r}")
                if known.settings == settings:
                    return known, False
            await self._lifecycle.find_or_create(context, settings.queue)
            with contextlib.suppress(Conflict):
                if known is None:
                    return await self._create(context, key, name, settings), True
                return await self._replace(context, key, known, revision, settings), False
            self._table.forget(key)  # another process changed the record: read it again

    def _check(self, tenant: str, name: str, settings: ScheduleSettings) -> None:
        now = self._clock()
        checked_timing(settings, now, interval_ms_min=self._limits.schedule_interval_ms_min)
        size = len(bytes(settings.payload))
        if size > self._limits.schedule_payload_bytes_max:
            limit = self._limits.schedule_payload_bytes_max
            raise TooLarge(f"the payload at $.payload has {size} bytes; at most {limit} are allowed")
        self._publisher.check(tenant, message_of(settings, name, now))

    async def _create(self, context: RequestContext, key: str, name: str, settings: ScheduleSettings) -> ScheduleRecord:
        count = self._table.count_under(f"{context.tenant}.")
        if count >= self._limits.schedules_max:
            raise Forbidden(f"the tenant has {count} schedules; {self._limits.schedules_max} is the limit")
        now = self._clock()
        record = ScheduleRecord(
            tenant=context.tenant,
            name=name,
            incarnation=new_id(),
            settings=settings,
            anchor_ms=now,
            position_ms=now,
            created_at_ms=now,
            updated_at_ms=now,
        )
        async with self._audit.change(context, "schedule.create", name, after=_audited(settings)):
            await self._table.create(key, record)
        self._outbox.record(context, ScheduleCreated(schedule=name, queue=settings.queue))
        return record

    async def _replace(
        self, context: RequestContext, key: str, known: ScheduleRecord, revision: int, settings: ScheduleSettings
    ) -> ScheduleRecord:
        """A change of the queue or of the times starts a new sequence from now on; other changes apply to the next message."""
        now = self._clock()
        record = msgspec.structs.replace(known, settings=settings, updated_at_ms=now)
        has_new_times = any(getattr(known.settings, field) != getattr(settings, field) for field in _TIMING_FIELDS)
        if has_new_times:
            record = msgspec.structs.replace(
                record if record.error is None else without_claim(record),
                incarnation=new_id(),
                anchor_ms=now,
                position_ms=now,
                claimed_ms=None,
            )
        async with self._audit.change(
            context, "schedule.update", known.name, before=_audited(known.settings), after=_audited(settings)
        ):
            await self._table.update(key, record, revision)
        self._outbox.record(context, ScheduleUpdated(schedule=known.name, queue=settings.queue))
        if has_new_times:
            await self._end_sequence(known)
        return record

    async def find(self, caller: Caller, name: str) -> ScheduleRecord:
        """Raises ScheduleNotFound, InvalidParameter."""
        record = await self._table.fetch(_key(caller.tenant, name))
        if record is None or not caller.may_use("queue", record.settings.queue):
            raise ScheduleNotFound(f"there is no schedule {name!r}")
        return record

    def page(self, caller: Caller, queue: str | None, limit: int, after: str | None) -> Page[ScheduleRecord]:
        """The schedules whose queues the caller may use, ordered by the tokens of their names, after the schedule `after`."""
        prefix = f"{caller.tenant}."
        keys = self._table.keys_under(prefix, prefix + escape(after) if after is not None else "")
        found = (record for key in keys if (record := self._table.get(key)) is not None and _is_shown(record, caller, queue))
        records = list(itertools.islice(found, limit + 1))
        return Page(items=records[:limit], next_cursor=records[limit - 1].name if len(records) > limit else None)

    async def set_paused(self, context: RequestContext, name: str, *, is_paused: bool) -> ScheduleRecord:
        """Pause or resume. Ticks between the two are skipped, whatever the catch-up policy is. Raises ScheduleNotFound."""
        known = await self.find(context.caller, name)
        if known.is_paused == is_paused:
            return known

        def change(record: ScheduleRecord) -> ScheduleRecord:
            if record.is_paused == is_paused:
                return record
            now = self._clock()
            position = record.position_ms if is_paused else max(now, record.position_ms)
            return msgspec.structs.replace(
                record if record.error is None else without_claim(record),
                is_paused=is_paused,
                position_ms=position,
                updated_at_ms=now,
            )

        async with self._audit.change(context, "schedule.pause" if is_paused else "schedule.resume", name):
            changed = await self._table.change(known.key, change)
        if changed is None:
            raise ScheduleNotFound(f"there is no schedule {name!r}")
        event = SchedulePaused if is_paused else ScheduleResumed
        self._outbox.record(context, event(schedule=name, queue=known.settings.queue))
        return changed[1]

    async def run_now(self, context: RequestContext, name: str) -> Published:
        """Publish one message besides those of the ticks. Raises ScheduleNotFound, and like `Publisher.publish`."""
        record = await self.find(context.caller, name)
        message = message_of(record.settings, record.name, self._clock())
        return await self._publisher.publish(context, record.settings.queue, message)

    async def delete(self, context: RequestContext, name: str) -> None:
        """Raises ScheduleNotFound."""
        record = await self.find(context.caller, name)
        async with self._audit.change(context, "schedule.delete", name, before=_audited(record.settings)):
            await self._table.delete(record.key)
        self._outbox.record(context, ScheduleDeleted(schedule=name, queue=record.settings.queue))
        await self._end_sequence(record)

    async def delete_all(self, tenant: str) -> None:
        """Delete all schedules of a tenant. May be repeated after an interruption."""
        for key in list(self._table.keys_under(f"{tenant}.")):
            await self._table.delete(key)

    async def _end_sequence(self, record: ScheduleRecord) -> None:
        """A failure leaves a marker of some hundred bytes in the queue."""
        with contextlib.suppress(PostroadError):
            await self._publisher.end_sequence(record.tenant, record.settings.queue, record.incarnation)


def _key(tenant: str, name: str) -> str:
    if not QUEUE.fullmatch(name):
        raise InvalidParameter(f"a name of a schedule has 1 to 80 letters, digits and '_ . : -': {name[:100]!r}")
    return record_key(tenant, name)


def _audited(settings: ScheduleSettings) -> dict[str, Any]:
    """The settings without the content of the messages."""
    shown = msgspec.structs.asdict(settings)
    return {name: msgspec.to_builtins(value) for name, value in shown.items() if name not in ("payload", "headers")}


def _is_shown(record: ScheduleRecord, caller: Caller, queue: str | None) -> bool:
    return queue in (None, record.settings.queue) and caller.may_use("queue", record.settings.queue)
