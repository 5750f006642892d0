"""Durations (`90s 15m 12h 30d 2w`) and times (`2027-01-31`, `2027-01-31T12:00:00Z`) of command line options."""

import re
from datetime import datetime, timedelta
from typing import Annotated

import typer

Since = Annotated[str | None, typer.Option("--from", help="Earliest time: a span such as `12h` ago, or `2027-01-31T12:00:00Z`.")]
Until = Annotated[str | None, typer.Option("--to", help="Latest time, exclusive.")]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def duration(text: str) -> int:
    """Seconds of a duration such as `15m`."""
    found = re.fullmatch(r"([0-9]{1,9})([smhdw])", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration such as 90s, 15m, 12h or 30d")
    return int(found[1]) * _SECONDS[found[2]]


def seconds(text: str | None) -> int | None:
    """Seconds of a span, None if it was not given."""
    return None if text is None else duration(text)


def from_now(text: str) -> datetime:
    """A time, or a duration after now."""
    return _time(text, 1)


def ago(text: str) -> datetime:
    """A time, or a duration before now."""
    return _time(text, -1)


def _time(text: str, direction: int) -> datetime:
    """A time without a zone is local time."""
    try:
        if text[-1:] in _SECONDS and text[:-1].isdecimal():
            return datetime.now().astimezone() + direction * timedelta(seconds=duration(text))
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is neither a duration such as 12h or 30d nor a time such as 2027-01-31") from None
