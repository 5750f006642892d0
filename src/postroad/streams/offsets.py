"""Offsets as the protocol writes them. The number is the sequence of the last message before the place."""

import re
from dataclasses import dataclass

from postroad.kernel.errors import InvalidParameter

_OFFSET = re.compile(r"[0-9]{1,20}_([0-9]{1,20})")
_LAST = 9_999_999_999_999_999

START = 0


@dataclass(frozen=True, slots=True)
class Now:
    """Where the stream ends at this moment."""


NOW = Now()
Place = int | Now


def offset_text(sequence: int) -> str:
    return f"0000000000000000_{sequence:016d}"


def parse_offset(text: str) -> int:
    """The number in an offset that was handed out here. Raises InvalidParameter."""
    found = _OFFSET.fullmatch(text)
    if found is None:
        raise InvalidParameter(f"not an offset: {text[:64]!r}")
    return min(int(found[1]), _LAST)


def parse_place(text: str | None) -> Place:
    """Where a reader wants to begin: the start if it does not say, `now`, or after an offset."""
    if text is None or text == "-1":
        return START
    return NOW if text == "now" else parse_offset(text)
