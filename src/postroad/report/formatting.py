"""Ticks of axes, and formats of numbers, sizes, durations and times. Pure."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from postroad.api.insights import ReportColumn, Unit

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000

_TIME_STEPS = tuple(minutes * MINUTE for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440))

_DURATION_STEPS = (500, 1000, 2000, 5000, 10_000, 15_000, 30_000, *_TIME_STEPS)

NumberFormat = Callable[[float], str]


def ticks(top: float, count: int = 4) -> list[float]:
    """About `count` ticks from 0 to the first at or above `top`, in steps of 1, 2, 2.5 or 5 times a power of ten."""
    return _stepped(top, _step(top / count, (1, 2, 2.5, 5, 10))) if top > 0 else [0.0, 1.0]


def whole_ticks(top: float, count: int = 4) -> list[float]:
    """Like `ticks`, but whole numbers."""
    return _stepped(top, max(1.0, _step(top / count, (1, 2, 5, 10)))) if top > 0 else [0.0, 1.0]


def duration_ticks(top: float, count: int = 4) -> list[float]:
    """Like `ticks`, for milliseconds: above a second in steps of whole seconds, minutes or hours."""
    rough = top / count
    if rough <= _DURATION_STEPS[0] / 2:
        return ticks(top, count)
    return _stepped(top, next((float(one) for one in _DURATION_STEPS if rough <= one), _step(rough, (1, 2, 5, 10))))


def _step(rough: float, sizes: tuple[float, ...]) -> float:
    unit = 10.0 ** math.floor(math.log10(rough))
    return next(unit * size for size in sizes if unit * size >= rough * 0.999)


def _stepped(top: float, step: float) -> list[float]:
    return [step * number for number in range(math.ceil(top / step * 0.999) + 1)]


def time_ticks(start: int, end: int, count: int = 8) -> list[int]:
    """At most `count` round times."""
    step = next((one for one in _TIME_STEPS if (end - start) / one <= count), DAY)
    return list(range(-(-start // step) * step, end + 1, step))


def clock(at: float) -> str:
    """`13:45`, in UTC."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%H:%M")


def millis(text: str) -> int:
    """Milliseconds since 1970 of an RFC 3339 time."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def number(value: float) -> str:
    """`1,234`; below 100 with one decimal, unless it is whole."""
    return f"{value:,.1f}".removesuffix(".0") if abs(value) < 100 else f"{value:,.0f}"


def short(value: float) -> str:
    """Label of an axis: `950`, `1.2k`, `3M`."""
    return _with_unit(value, 1000, ("", "k", "M", "G", "T"))


def size(value: float) -> str:
    """`512 B`, `1.2 kB`, in powers of 1000."""
    return _with_unit(value, 1000, (" B", " kB", " MB", " GB", " TB", " PB"))


def duration(value: float) -> str:
    """Format milliseconds: `12 ms`, `1.5 s`, `3 min`, `2.5 h`, `4 d`."""
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1000, "s")):
        if value >= unit:
            return f"{_three(value / unit)} {name}"
    return f"{_three(value)} ms"


UNIT_FORMATS: dict[Unit, NumberFormat] = {
    Unit.PLAIN: number,
    Unit.BYTES: size,
    Unit.MILLISECONDS: duration,
    Unit.SECONDS: lambda seconds: duration(seconds * 1000),
}


def column_text(row: Any, column: ReportColumn) -> str:
    """The value of a report's column, in its unit."""
    value = getattr(row, column.field)
    if value is None or isinstance(value, str):
        return value or ""
    return ", ".join(value) if isinstance(value, list) else UNIT_FORMATS[column.unit](value)


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "none"


def _with_unit(value: float, thousand: int, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if abs(value) < thousand * 0.9995:
            return f"{_three(value)}{unit}"
        value /= thousand
    return f"{_three(value)}{units[-1]}"


def _three(value: float) -> str:
    """About three digits."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}".removesuffix(".0") if abs(value) >= 1 else f"{value:.2g}"
