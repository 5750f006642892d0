"""Stored format of schedules, under `<tenant>.<name>`, and its representation in the API. Pure."""

import msgspec

from postroad.api.schedules import Schedule, ScheduleError, ScheduleSettings, ScheduleState
from postroad.kernel.clock import rfc3339
from postroad.kernel.names import escape
from postroad.schedules.rules import Timing, timing_of


class ScheduleRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A schedule. Ticks up to `position_ms` are decided: published, skipped, or `claimed_ms`, which is being published.

    `incarnation` names the sequence of its messages in the queue. It is new whenever queue or times change, and from
    `anchor_ms` on, the moment of that change, its ticks count. `fired_count` and `last_run_ms` include the claimed tick; until
    that is published, `error` says why not, and `previous_run_ms` is the run before it.
    """

    v: int = 1
    tenant: str
    name: str
    incarnation: str
    settings: ScheduleSettings
    is_paused: bool = False
    anchor_ms: int
    position_ms: int
    claimed_ms: int | None = None
    fired_count: int = 0
    missed_count: int = 0
    last_run_ms: int | None = None
    previous_run_ms: int | None = None
    error: ScheduleError | None = None
    created_at_ms: int
    updated_at_ms: int

    @property
    def key(self) -> str:
        return record_key(self.tenant, self.name)

    @property
    def timing(self) -> Timing:
        return timing_of(self.settings, self.anchor_ms)

    @property
    def next_tick_ms(self) -> int | None:
        """The first tick that is not decided; None if the schedule is paused or has ended."""
        return None if self.is_paused else self.timing.next_tick(self.position_ms)


def without_claim(record: ScheduleRecord) -> ScheduleRecord:
    """The record without the claimed tick, which could not be published and counts as missed."""
    return msgspec.structs.replace(
        record,
        claimed_ms=None,
        error=None,
        fired_count=record.fired_count - 1,
        missed_count=record.missed_count + 1,
        last_run_ms=record.previous_run_ms,
    )


def record_key(tenant: str, schedule: str) -> str:
    return f"{tenant}.{escape(schedule)}"


def schedule_of(record: ScheduleRecord) -> Schedule:
    settings, following = record.settings, record.next_tick_ms
    last_run_ms = record.last_run_ms if record.error is None else record.previous_run_ms
    return Schedule(
        name=record.name,
        queue=settings.queue,
        state=_state(record, following),
        time_zone=settings.time_zone,
        payload=settings.payload,
        headers=settings.headers,
        catch_up=settings.catch_up,
        fired_count=record.fired_count - (record.error is not None),
        missed_count=record.missed_count,
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
        cron=settings.cron,
        every_ms=settings.every_ms,
        priority=settings.priority,
        start_at=None if settings.start_at is None else rfc3339(int(settings.start_at.timestamp() * 1000)),
        end_at=None if settings.end_at is None else rfc3339(int(settings.end_at.timestamp() * 1000)),
        last_run_at=None if last_run_ms is None else rfc3339(last_run_ms),
        next_run_at=None if following is None else rfc3339(following),
        error=record.error,
    )


def _state(record: ScheduleRecord, following: int | None) -> ScheduleState:
    if record.is_paused:
        return ScheduleState.PAUSED
    if record.error is not None:
        return ScheduleState.FAILING
    return ScheduleState.ENDED if following is None else ScheduleState.ACTIVE
