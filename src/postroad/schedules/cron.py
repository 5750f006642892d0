"""Cron expressions and their ticks in a time zone. Pure.

Days: if day of month and day of week are both restricted, a day that matches either matches; a field that starts with `*` does
not restrict. This is what Vixie cron does.

Daylight saving: if the hour field starts with `*`, the expression stands for an interval: it ticks at every moment whose
local time matches, so skipped local times have no tick and repeated ones two. Any other expression stands for times of day: a
local time that is skipped ticks at the first moment after the gap, a local time that is repeated ticks the first time only.
"""

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, lru_cache
from zoneinfo import ZoneInfo

CHARS_MAX = 256
HORIZON_DAYS = 5 * 366  # an expression without a tick in this time has none

_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = {
    name: number
    for number, name in enumerate(("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1)
}
_DAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_PART = re.compile(r"(\*|[0-9a-z]+)(?:-([0-9a-z]+))?(?:/([0-9]+))?")
_MINUTE_MS = 60_000


class CronInvalid(ValueError):
    """The text is not a cron expression; the message says why."""


@dataclass(frozen=True)
class Cron:
    """A parsed expression. Days of the week are 0 (Sunday) to 6."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    is_interval: bool
    needs_both_days: bool

    def matches_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_month, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_month and by_week if self.needs_both_days else by_month or by_week

    @cached_property
    def day_minutes(self) -> Sequence[int]:
        """The matching minutes of a matching day, ascending."""
        return [hour * 60 + minute for hour in sorted(self.hours) for minute in sorted(self.minutes)]


@lru_cache(maxsize=4096)
def parse(text: str) -> Cron:
    """Raises CronInvalid."""
    if len(text) > CHARS_MAX:
        raise CronInvalid(f"the expression has more than {CHARS_MAX} characters")
    expression = text.strip().lower()
    if expression.startswith("@") and expression not in _ALIASES:
        raise CronInvalid(f"{text.strip()!r} is not one of {', '.join(sorted(_ALIASES))}")
    fields = _ALIASES.get(expression, expression).split()
    if len(fields) != 5:
        raise CronInvalid(f"{len(fields)} fields; five are needed: minute, hour, day of month, month, day of week")
    minute, hour, day, month, weekday = fields
    return Cron(
        minutes=_field(minute, "minute", 0, 59),
        hours=_field(hour, "hour", 0, 23),
        days=_field(day, "day of month", 1, 31),
        months=_field(month, "month", 1, 12, _MONTHS),
        weekdays=frozenset(value % 7 for value in _field(weekday, "day of week", 0, 7, _DAYS)),
        is_interval=hour.startswith("*"),
        needs_both_days=day.startswith("*") or weekday.startswith("*"),
    )


def _field(text: str, field: str, low: int, high: int, names: dict[str, int] | None = None) -> frozenset[int]:
    values: set[int] = set()
    for part in text.split(","):
        found = _PART.fullmatch(part)
        if found is None or (found[1] == "*" and found[2]):
            raise CronInvalid(f"{part!r} is not a value, range or step of the field {field}")
        start = low if found[1] == "*" else _value(found[1], field, low, high, names or {})
        has_end = found[1] == "*" or found[3] is not None  # `5/15` is `5-59/15`
        end = _value(found[2], field, low, high, names or {}) if found[2] else high if has_end else start
        step = int(found[3]) if found[3] else 1
        if end < start:
            raise CronInvalid(f"the range {part!r} of the field {field} ends before it starts")
        if not 1 <= step <= high:
            raise CronInvalid(f"the step of {part!r} in the field {field} is not from 1 to {high}")
        values.update(range(start, end + 1, step))
    return frozenset(values)


def _value(text: str, field: str, low: int, high: int, names: dict[str, int]) -> int:
    value = names.get(text, int(text) if text.isdecimal() and len(text) <= 4 else None)
    if value is None or not low <= value <= high:
        raise CronInvalid(f"{text[:20]!r} is not a value of the field {field}, which is from {low} to {high}")
    return value


def next_tick(cron: Cron, zone: ZoneInfo, after_ms: int) -> int | None:
    """The first tick after this moment; None if there is none within five years."""
    start = datetime.fromtimestamp(after_ms / 1000, zone).date() - timedelta(days=1)
    for day in _matching_days(cron, start):
        found = _next_on_day(cron, zone, day, after_ms)
        if found is not None:
            break
    else:
        return None
    following = day + timedelta(days=1)
    if not cron.matches_day(following) or (_plain_midnight(zone, day) and _plain_midnight(zone, following)):
        return found
    # Where the last hour of a day is repeated after midnight, a tick of the next day may precede one of this day.
    return min(found, _next_on_day(cron, zone, following, after_ms) or found)


def _matching_days(cron: Cron, day: date) -> Iterator[date]:
    last = day + timedelta(days=HORIZON_DAYS)
    while day <= last:
        if day.month not in cron.months:
            day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
            continue
        if cron.matches_day(day):
            yield day
        day += timedelta(days=1)


def _next_on_day(cron: Cron, zone: ZoneInfo, day: date, after_ms: int) -> int | None:
    midnight_ms, minutes = _plain_midnight(zone, day), cron.day_minutes
    if midnight_ms is not None:
        index = bisect.bisect_right(minutes, (after_ms - midnight_ms) / _MINUTE_MS)
        return midnight_ms + minutes[index] * _MINUTE_MS if index < len(minutes) else None
    midnight = datetime(day.year, day.month, day.day)  # local times, which the zone resolves
    moments = (
        moment
        for minute in minutes
        for moment in _moments(midnight + timedelta(minutes=minute), zone, is_interval=cron.is_interval)
    )
    return min((moment for moment in moments if moment > after_ms), default=None)


@lru_cache(maxsize=8192)
def _plain_midnight(zone: ZoneInfo, day: date) -> int | None:
    """The moment at which a day of 24 hours without a change of the offset begins; None for any other day."""
    midnight = datetime(day.year, day.month, day.day)  # a local time, which the zone resolves
    times = [midnight + timedelta(hours=hours) for hours in (0, 12, 24)]
    offsets = {time.replace(tzinfo=zone, fold=fold).utcoffset() for time in times for fold in (0, 1)}
    return _epoch_ms(midnight.replace(tzinfo=zone)) if len(offsets) == 1 else None


def _moments(local: datetime, zone: ZoneInfo, *, is_interval: bool) -> list[int]:
    """The moments at which an expression that matches this local time ticks."""
    first, second = (local.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return [_epoch_ms(first)]
    if first.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == local:  # repeated
        return [_epoch_ms(first), _epoch_ms(second)] if is_interval else [_epoch_ms(first)]
    return [] if is_interval else [_gap_end(zone, _epoch_ms(second), _epoch_ms(first))]


def _gap_end(zone: ZoneInfo, before_ms: int, after_ms: int) -> int:
    """The moment between these two at which the offset changes."""
    offset = datetime.fromtimestamp(before_ms / 1000, zone).utcoffset()
    low, high = before_ms // 1000, after_ms // 1000
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            low = middle
        else:
            high = middle
    return high * 1000


def _epoch_ms(time: datetime) -> int:
    return int(time.timestamp()) * 1000
