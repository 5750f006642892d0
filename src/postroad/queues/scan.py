"""Looking through a stream's messages with a budget, so that a search of a million never blocks anybody.

A search reads from a position until it has enough, the end is reached, or its budget is spent, and says where to go on.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.stream_reader import Entry

T = TypeVar("T")

_PAGE = 500
_SCANNED_MAX = 20_000
_SECONDS_MAX = 0.5


@dataclass(frozen=True, slots=True)
class Span:
    """Where to look: a subject of a stream, from a sequence, within times of storing."""

    stream: str
    subject: str
    from_sequence: int = 1
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(slots=True)
class Found(Generic[T]):
    """What was found, in order; how many were looked at; where to go on, None at the end."""

    items: list[T] = field(default_factory=list)
    scanned: int = 0
    next_sequence: int | None = None


async def scan(
    connection: Connection, span: Span, pick: Callable[[Entry], T | None], limit: int, *, scanned_max: int = _SCANNED_MAX
) -> Found[T]:
    """What `pick` makes of the entries; None means that it does not want one. Raises EngineUnavailable."""
    loop = asyncio.get_running_loop()
    spent_at = loop.time() + _SECONDS_MAX
    found: Found[T] = Found()
    position = span.from_sequence
    while True:
        page = await stream_reader.read(connection, span.stream, span.subject, position, min(_PAGE, scanned_max - found.scanned))
        for entry in page.entries:
            found.scanned += 1
            position = entry.sequence + 1
            if span.until_ms is not None and entry.at_ms >= span.until_ms:
                return found
            if span.since_ms is not None and entry.at_ms < span.since_ms:
                continue
            picked = pick(entry)
            if picked is not None:
                found.items.append(picked)
                if len(found.items) >= limit:
                    is_last = page.is_end and entry is page.entries[-1]
                    found.next_sequence = None if is_last else position
                    return found
        if page.is_end:
            return found
        position = page.next_sequence
        if found.scanned >= scanned_max or loop.time() >= spent_at:
            found.next_sequence = position
            return found
