"""Times as people type them: `90s 15m 12h 30d 2w`, or a moment such as `2027-01-31` or `2027-01-31T12:00:00Z`."""

import re
from datetime import datetime, timedelta

import typer

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def duration(text: str) -> int:
    """Seconds."""
    found = re.fullmatch(r"([0-9]{1,9})([smhdw])", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a time such as 90s, 15m, 12h or 30d")
    return int(found[1]) * _SECONDS[found[2]]


def seconds(text: str | None) -> int | None:
    """Seconds of a span, None if it was not given."""
    return None if text is None else duration(text)


def from_now(text: str) -> datetime:
    return _moment(text, 1)


def ago(text: str) -> datetime:
    return _moment(text, -1)


def _moment(text: str, direction: int) -> datetime:
    """A time without a zone is the local one."""
    try:
        if text[-1:] in _SECONDS and text[:-1].isdigit():
            return datetime.now().astimezone() + direction * timedelta(seconds=duration(text))
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is neither a time such as 12h or 30d nor a moment such as 2027-01-31") from None
