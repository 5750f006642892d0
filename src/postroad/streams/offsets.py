"""Offsets in the protocol's text form. The number is the sequence of the last message before the position."""

import re
from dataclasses import dataclass

from postroad.kernel.errors import InvalidParameter

_OFFSET = re.compile(r"[0-9]{1,20}_([0-9]{1,20})")
_OFFSET_MAX = 9_999_999_999_999_999


@dataclass(frozen=True, slots=True)
class Now:
    """The end of the stream at the time of the request."""


@dataclass(frozen=True, slots=True)
class Start:
    """The first data that the stream still has."""


NOW = Now()
START = Start()
Position = int | Now | Start


def offset_text(sequence: int) -> str:
    return f"0000000000000000_{sequence:016d}"


def parse_offset(text: str) -> int:
    """Sequence of an offset. Raises InvalidParameter."""
    match = _OFFSET.fullmatch(text)
    if match is None:
        raise InvalidParameter(f"not an offset: {text[:64]!r}")
    return min(int(match[1]), _OFFSET_MAX)


def parse_position(text: str | None) -> Position:
    """Position of a read: `now`, an offset, or the start if None or `-1`. Raises InvalidParameter."""
    if text is None or text == "-1":
        return START
    return NOW if text == "now" else parse_offset(text)
