"""Search of a stream within a budget of messages, bytes and time, so that it never blocks other requests.

A search reads from a position until it has enough items, reaches the end, or exceeds its budget, and returns the next position.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.stream_reader import Entry

T = TypeVar("T")

_PAGE_SIZE = 500
_PAGE_BYTES = 256 * 1024  # a page is filtered without interruption
_FOUND_BYTES_MAX = 8 * 1024 * 1024
_SCANNED_MAX = 20_000
_SECONDS_MAX = 0.5


@dataclass(frozen=True, slots=True)
class ScanRange:
    """The messages to search: subjects of a stream, from a sequence to before another, stored in an interval of time."""

    stream: str
    subjects: tuple[str, ...]
    from_sequence: int = 1
    since_ms: int | None = None
    until_ms: int | None = None
    end_sequence: int | None = None


@dataclass(slots=True)
class ScanResult(Generic[T]):
    """The items found, in order; the number of messages scanned; the sequence to continue from, None at the end."""

    items: list[T] = field(default_factory=list)
    scanned: int = 0
    next_sequence: int | None = None

    @property
    def next_cursor(self) -> str | None:
        return None if self.next_sequence is None else str(self.next_sequence)


async def scan(
    connection: Connection,
    scan_range: ScanRange,
    convert: Callable[[Entry], T | None],
    limit: int,
    *,
    scanned_max: int = _SCANNED_MAX,
    bytes_max: int | None = _FOUND_BYTES_MAX,
) -> ScanResult[T]:
    """Convert up to `limit` entries; `convert` returns None for those to leave out. Raises EngineUnavailable.

    The entries of the items have at most `bytes_max` together, unless it is one item. None if the items do not hold them.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _SECONDS_MAX
    result: ScanResult[T] = ScanResult()
    position, found_bytes = scan_range.from_sequence, 0
    while True:
        count = min(_PAGE_SIZE, scanned_max - result.scanned)
        async with connection.scans:
            page = await stream_reader.read_all(connection, scan_range.stream, scan_range.subjects, position, count, _PAGE_BYTES)
        for entry in page.entries:
            if scan_range.end_sequence is not None and entry.sequence >= scan_range.end_sequence:
                return result
            result.scanned += 1
            position = entry.sequence + 1
            if scan_range.until_ms is not None and entry.at_ms >= scan_range.until_ms:
                return result
            if scan_range.since_ms is not None and entry.at_ms < scan_range.since_ms:
                continue
            item = convert(entry)
            if item is not None:
                found_bytes += len(entry.payload)
                if bytes_max is not None and found_bytes > bytes_max and result.items:
                    result.next_sequence = entry.sequence
                    return result
                result.items.append(item)
                if len(result.items) >= limit:
                    is_last = page.is_end and entry is page.entries[-1]
                    result.next_sequence = None if is_last else position
                    return result
        if page.is_end:
            return result
        position = page.next_sequence
        if result.scanned >= scanned_max or loop.time() >= deadline:
            result.next_sequence = position
            return result
