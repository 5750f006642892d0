"""Which results answer a question, and in which order their rows come. Pure: no I/O, no clock.

The results of a day are messages of their own: one with its row for the day, one by the hour, and one by the minute for each of
its hours. So the time that is asked about names the messages to read. Rows come oldest first, those of the same time by name;
those of `health`, which have no time, the worst first.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple

import msgspec

from postroad.kernel.clock import rfc3339
from postroad.kernel.errors import InvalidParameter

_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
LAST_DAY_MS = _DAY
_LATEST_MS = 253_402_214_400_000  # the last day of the year 9999 begins: the day after it cannot be written
_NAME_CHARS_MAX = 120


class Grain(StrEnum):
    """What one row is about."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"


_LENGTH = {Grain.MINUTE: _MINUTE, Grain.HOUR: _HOUR, Grain.DAY: _DAY}
_DAYS_MAX = {Grain.MINUTE: 2, Grain.HOUR: 92, Grain.DAY: 400}
_FINEST_FOR = ((Grain.MINUTE, 2 * _HOUR), (Grain.HOUR, 3 * _DAY))  # how long a range may be to have it if nobody says which

Key = tuple[int | str, ...]  # a row's place in the order: its time, its name, and what else tells it from others


class Span(NamedTuple):
    """Whole minutes, hours or days: from the one that `since` is the start of, to the one that ends with `until`."""

    grain: Grain
    since: int
    until: int


class Part(NamedTuple):
    """One message's share of the results: of which day, by which of its names, and the time that its rows are of."""

    day: str
    name: str
    since: int
    until: int


def span(since: int | None, until: int | None, grain: Grain | None, now: int) -> Span:
    """What is asked about: the last 24 hours if nothing is said. Raises InvalidParameter."""
    until = min(now if until is None else until, _LATEST_MS)
    since = max(0, until - LAST_DAY_MS) if since is None else since
    if since >= until:
        raise InvalidParameter(f"`from` must be before `to`: {rfc3339(since)} is not before {rfc3339(until)}")
    length = until - since
    if grain is None:
        grain = next((one for one, longest in _FINEST_FOR if length <= longest), Grain.DAY)
    if length > _DAYS_MAX[grain] * _DAY:
        coarser = next((one for one in Grain if length <= _DAYS_MAX[one] * _DAY), None)
        hint = f"ask for grain={coarser}" if coarser else "ask for less at a time"
        raise InvalidParameter(f"a range by the {grain} covers at most {_DAYS_MAX[grain]} days, and this one is longer: {hint}")
    unit = _LENGTH[grain]
    return Span(grain, since // unit * unit, -(-until // unit) * unit)


def parts(asked: Span, after: Key | None = None) -> Iterator[Part]:
    """The messages that have the span's rows, oldest first; after a row, those that can have rows that follow it."""
    begin = asked.since if after is None else max(asked.since, int(after[0]))
    step = _HOUR if asked.grain is Grain.MINUTE else _DAY
    for since in range(begin // step * step, asked.until, step):
        when = rfc3339(since)
        name = f"minute-{when[11:13]}" if asked.grain is Grain.MINUTE else asked.grain.value
        yield Part(day_of(since), name, since, since + step)


def is_in(key: Key, asked: Span, part: Part) -> bool:
    """Whether a row of that part is asked for. One whose time is not its message's has no place in the order."""
    return max(asked.since, part.since) <= int(key[0]) < min(asked.until, part.until)


def is_begun(part: Part, after: Key | None) -> bool:
    """Whether rows of the part were given before. A key of a time alone is that of a part that comes next."""
    return after is not None and len(after) > 1 and part.since <= int(after[0]) < part.until


def day_of(at: int) -> str:
    """As subjects have it: `20261116`."""
    return rfc3339(at)[:10].replace("-", "")


def row_key(at: int, *names: str) -> Key:
    return (at, *map(_short, names))


def _short(name: str) -> str:
    """A name of any length as part of a cursor; different ones stay different."""
    return name if len(name) <= _NAME_CHARS_MAX else f"{name[:_NAME_CHARS_MAX]}{sha256(name.encode()).hexdigest()[:16]}"


_HEALTH_ORDER = {"unhealthy": 0, "unknown": 1, "healthy": 2}


def health_key(status: str, queue: str) -> Key:
    """The worst first; what is new to this version is not good news either."""
    return (_HEALTH_ORDER.get(status, 0), queue)


class Place(NamedTuple):
    """Where a list goes on: after the row with this key, of the span that it began with; None for what has no time."""

    asked: Span | None
    after: Key


class _Written(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    grain: Grain | None
    since: int
    until: int
    after: tuple[int | str, ...]


_written = msgspec.json.Decoder(_Written)


def cursor_text(place: Place) -> str:
    grain, since, until = place.asked or (None, 0, 0)
    return urlsafe_b64encode(msgspec.json.encode(_Written(grain, since, until, place.after))).decode().rstrip("=")


def cursor_place(text: str, *, has_time: bool) -> Place:
    """What `cursor_text` made of it. Raises InvalidParameter for anything else, a cursor of another kind of report included."""
    try:
        found = _written.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, msgspec.DecodeError) as problem:
        raise InvalidParameter("not a cursor that this report gave out") from problem
    is_key = bool(found.after) and isinstance(found.after[0], int) and all(isinstance(name, str) for name in found.after[1:])
    if not is_key or has_time != (found.grain is not None):
        raise InvalidParameter("not a cursor that this report gave out")
    if found.grain is None:
        return Place(None, found.after)
    asked = Span(found.grain, found.since, found.until)
    if not _is_made_here(asked):
        raise InvalidParameter("not a cursor that this report gave out")
    return Place(asked, found.after)


def _is_made_here(asked: Span) -> bool:
    """Whether `span` could have made it: it adds up to one minute, hour or day at each end."""
    unit = _LENGTH[asked.grain]
    is_whole = asked.since % unit == asked.until % unit == 0
    is_bounded = 0 < asked.until - asked.since <= _DAYS_MAX[asked.grain] * _DAY + 2 * unit
    return is_whole and is_bounded and asked.since >= 0 and asked.until <= _LATEST_MS
