"""Rules of schedules: their ticks, which of them are due, and the message of a tick. Pure."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from postroad.api.queues import NewMessage
from postroad.api.schedules import CatchUp, ScheduleSettings
from postroad.kernel.clock import LATEST_MS, rfc3339
from postroad.kernel.json import invalid_field
from postroad.schedules.cron import Cron, CronInvalid, next_tick, parse

SCHEDULE_HEADER = "postroad-schedule"
TICK_HEADER = "postroad-scheduled-at"
_COUNTED_MAX = 1000
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Timing:
    """The ticks of a schedule: those of a cron expression in a time zone, or an interval from `anchor_ms` on.

    There is none before `start_ms` or after `end_ms`.
    """

    expression: Cron | None
    zone: ZoneInfo
    every_ms: int
    anchor_ms: int
    start_ms: int
    end_ms: int

    def next_tick(self, after_ms: int) -> int | None:
        after_ms = max(after_ms, self.start_ms - 1)
        if self.expression is not None:
            tick = next_tick(self.expression, self.zone, after_ms)
        else:
            tick = self.anchor_ms + max(0, (after_ms - self.anchor_ms) // self.every_ms + 1) * self.every_ms
        return tick if tick is not None and tick <= self.end_ms else None

    def ticks(self, after_ms: int) -> Iterator[int]:
        tick = self.next_tick(after_ms)
        while tick is not None:
            yield tick
            tick = self.next_tick(tick)

    def last_tick(self, after_ms: int, until_ms: int) -> int | None:
        """The last tick after one moment and not after another. Its cost does not depend on the time between them."""
        window = _HOUR_MS
        while True:
            start = max(after_ms, until_ms - window)
            last = None
            for tick in itertools.takewhile(lambda tick: tick <= until_ms, self.ticks(start)):
                last = tick
            if last is not None or start == after_ms:
                return last
            window *= 4

    def count(self, after_ms: int, before_ms: int) -> int:
        """The number of ticks between two moments, at most 1000."""
        between = itertools.takewhile(lambda tick: tick < before_ms, self.ticks(after_ms))
        return sum(1 for _ in itertools.islice(between, _COUNTED_MAX))


def timing_of(settings: ScheduleSettings, anchor_ms: int) -> Timing:
    """The timing of valid settings. An interval starts at `startAt`, without one at `anchor_ms`."""
    start_ms = 0 if settings.start_at is None else int(settings.start_at.timestamp() * 1000)
    end_ms = LATEST_MS if settings.end_at is None else int(settings.end_at.timestamp() * 1000)
    expression = None if settings.cron is None else parse(settings.cron)
    anchor_ms = start_ms if settings.start_at is not None else anchor_ms
    return Timing(expression, ZoneInfo(settings.time_zone), settings.every_ms or 0, anchor_ms, start_ms, end_ms)


def checked_timing(settings: ScheduleSettings, now_ms: int, *, interval_ms_min: int) -> Timing:
    """The timing of the settings of a request. Raises BodyInvalid with the field."""
    if (settings.cron is None) == (settings.every_ms is None):
        raise invalid_field("$", "send either `cron` or `everyMs`")
    if settings.every_ms is not None and settings.every_ms < interval_ms_min:
        raise invalid_field("$.everyMs", f"the shortest interval is {interval_ms_min} ms")
    if settings.time_zone not in _time_zones():
        raise invalid_field("$.timeZone", f"{settings.time_zone!r} is not a time zone of the IANA database")
    if settings.cron is not None:
        try:
            parse(settings.cron)
        except CronInvalid as problem:
            raise invalid_field("$.cron", str(problem)) from problem
    timing = timing_of(settings, now_ms)
    if timing.next_tick(now_ms) is None:
        path = "$.endAt" if settings.end_at is not None else "$.cron"
        raise invalid_field(path, "the schedule has no run within five years")
    return timing


@lru_cache(maxsize=1)
def _time_zones() -> frozenset[str]:
    return frozenset(available_timezones())


@dataclass(frozen=True, slots=True)
class CatchUpLimits:
    """A tick that is later than `grace_ms` is missed; with `all`, ticks of the last `window_ms` are caught up."""

    grace_ms: int
    window_ms: int


@dataclass(frozen=True, slots=True)
class Due:
    """The next tick to fire, the position after it, and the number of ticks before it that are skipped."""

    tick_ms: int | None
    position_ms: int
    missed: int = 0


def due_tick(timing: Timing, position_ms: int, now_ms: int, policy: CatchUp, limits: CatchUpLimits) -> Due:
    """The tick to fire now, of those after the position.

    Ticks that are on time fire, each of them. Missed ones are skipped with `none`. With `last` the newest fires, unless a later
    tick is on time. With `all` those of the window fire, oldest first; if it has none, the newest before it.
    """
    first = timing.next_tick(position_ms)
    if first is None or first > now_ms:
        return Due(None, position_ms)
    limit_ms = now_ms - (limits.window_ms if policy is CatchUp.ALL else limits.grace_ms)
    if first >= limit_ms:
        return Due(first, first)
    tick = timing.next_tick(limit_ms - 1)
    if tick is not None and tick <= now_ms:
        return Due(tick, tick, timing.count(position_ms, tick))
    newest = timing.last_tick(position_ms, now_ms) or first
    missed = timing.count(position_ms, newest)
    return Due(None, newest, missed + 1) if policy is CatchUp.NONE else Due(newest, newest, missed)


def is_superseded(timing: Timing, tick_ms: int, now_ms: int, policy: CatchUp, limits: CatchUpLimits) -> bool:
    """True if a tick that could not be published is not worth publishing any more."""
    if tick_ms >= now_ms - (limits.window_ms if policy is CatchUp.ALL else limits.grace_ms):
        return False
    following = timing.next_tick(tick_ms)
    return policy is CatchUp.NONE or (following is not None and following <= now_ms)


def message_of(settings: ScheduleSettings, name: str, tick_ms: int) -> NewMessage:
    """The message of a tick. Its headers name the schedule and the time of the tick."""
    own: Mapping[str, str] = {SCHEDULE_HEADER: name, TICK_HEADER: rfc3339(tick_ms)}
    payload = msgspec.Raw(bytes(settings.payload))
    return NewMessage(payload=payload, headers={**settings.headers, **own}, priority=settings.priority)
