"""Time ranges, the stored results that cover them, the order of rows, and cursors. Pure: no I/O, no clock.

The requested range determines the messages to read (`postroad.contracts.reports`). Rows are ordered by time, then by name; the
rows of a snapshot by severity.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from postroad.api.insights import Grain, Report, Row
from postroad.contracts.reports import SNAPSHOT_DAY, SNAPSHOT_PART, part_of
from postroad.kernel.clock import rfc3339
from postroad.kernel.errors import InvalidParameter

_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
_LATEST_MS = 253_402_214_400_000  # start of the last day of the year 9999; a later end cannot be written as text
_NAME_CHARS_MAX = 120


_LENGTH = {Grain.MINUTE: _MINUTE, Grain.HOUR: _HOUR, Grain.DAY: _DAY}
_DAYS_MAX = {Grain.MINUTE: 2, Grain.HOUR: 92, Grain.DAY: 400}
_FINEST_FOR = ((Grain.MINUTE, 2 * _HOUR), (Grain.HOUR, 3 * _DAY))  # default grain by the length of the range

Key = tuple[int | str, ...]  # position of a row: its time or severity, then its names


class Span(NamedTuple):
    """A range of whole minutes, hours or days; `until` is the end of the last one."""

    grain: Grain
    since: int
    until: int


class Part(NamedTuple):
    """One message of results: its day and part, as in the subject, and the range of its rows' keys."""

    day: str
    name: str
    since: int
    until: int


SNAPSHOT = Part(SNAPSHOT_DAY, SNAPSHOT_PART, 0, _DAY)  # keys of its rows begin with a small number, the severity


def span(since: int | None, until: int | None, grain: Grain | None, now: int) -> Span:
    """The requested range; by default the last 24 hours. Raises InvalidParameter."""
    until = min(now if until is None else until, _LATEST_MS)
    since = max(0, until - _DAY) if since is None else since
    if since >= until:
        raise InvalidParameter(f"`from` must be before `to`: {rfc3339(since)} is not before {rfc3339(until)}")
    length = until - since
    if grain is None:
        grain = next((one for one, longest in _FINEST_FOR if length <= longest), Grain.DAY)
    if length > _DAYS_MAX[grain] * _DAY:
        coarser = next((one for one in Grain if length <= _DAYS_MAX[one] * _DAY), None)
        hint = f"use grain={coarser}" if coarser else "use a shorter range"
        raise InvalidParameter(f"a range by the {grain} has at most {_DAYS_MAX[grain]} days: {hint}")
    unit = _LENGTH[grain]
    return Span(grain, since // unit * unit, -(-until // unit) * unit)


def parts(asked: Span, after: Key | None = None) -> Iterator[Part]:
    """The messages with the rows of the span, oldest first; with `after`, those that can have rows beyond this key."""
    begin = asked.since if after is None else max(asked.since, int(after[0]))
    step = _HOUR if asked.grain is Grain.MINUTE else _DAY
    for since in range(begin // step * step, asked.until, step):
        text = rfc3339(since)
        yield Part(text[:10].replace("-", ""), part_of(asked.grain, text[11:13]), since, since + step)


def is_in(key: Key, asked: Span, part: Part) -> bool:
    """True if a row of the part is in the span. Rows outside the range of their message are left out."""
    return max(asked.since, part.since) <= int(key[0]) < min(asked.until, part.until)


def is_begun(part: Part, after: Key | None) -> bool:
    """True if earlier pages had rows of the part. A key that consists of a time only is the start of the next part."""
    return after is not None and len(after) > 1 and part.since <= int(after[0]) < part.until


def row_key(report: Report[Any], row: Row, at_ms: int | None) -> Key:
    """`at_ms` is the time of the row; None for snapshots."""
    names = [getattr(row, name) for name in report.names] or [""]
    return make_key(_severity(report, row) if at_ms is None else at_ms, *names)


def make_key(first: int, *names: str) -> Key:
    return (first, *map(_short, names))


def _severity(report: Report[Any], row: Any) -> int:
    """A status that this version does not know comes first."""
    if not report.severity or row.status not in report.severity:
        return 0
    return report.severity.index(row.status)


def _short(name: str) -> str:
    """Shorten a name for cursors; different names stay different."""
    return name if len(name) <= _NAME_CHARS_MAX else f"{name[:_NAME_CHARS_MAX]}{sha256(name.encode()).hexdigest()[:16]}"


class Position(NamedTuple):
    """The key of the last row of a page, and the span of the list; None for snapshots."""

    asked: Span | None
    after: Key


class _Cursor(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    grain: Grain | None
    since: int
    until: int
    after: tuple[int | str, ...]


_cursor = msgspec.json.Decoder(_Cursor)


def encode_cursor(position: Position) -> str:
    grain, since, until = position.asked or (None, 0, 0)
    return urlsafe_b64encode(msgspec.json.encode(_Cursor(grain, since, until, position.after))).decode().rstrip("=")


def decode_cursor(text: str, *, has_time: bool) -> Position:
    """Raises InvalidParameter unless `encode_cursor` made the text, for a report of the same kind."""
    try:
        found = _cursor.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, msgspec.DecodeError) as problem:
        raise InvalidParameter("not a cursor of this report") from problem
    is_key = bool(found.after) and isinstance(found.after[0], int) and all(isinstance(name, str) for name in found.after[1:])
    if not is_key or has_time != (found.grain is not None):
        raise InvalidParameter("not a cursor of this report")
    if found.grain is None:
        return Position(None, found.after)
    asked = Span(found.grain, found.since, found.until)
    if not _is_valid(asked):
        raise InvalidParameter("not a cursor of this report")
    return Position(asked, found.after)


def _is_valid(asked: Span) -> bool:
    """True if `span` could have made it: rounding adds up to one minute, hour or day at each end."""
    unit = _LENGTH[asked.grain]
    is_whole = asked.since % unit == asked.until % unit == 0
    is_bounded = 0 < asked.until - asked.since <= _DAYS_MAX[asked.grain] * _DAY + 2 * unit
    return is_whole and is_bounded and asked.since >= 0 and asked.until <= _LATEST_MS
