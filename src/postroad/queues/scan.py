"""Search of a stream within a budget of messages, bytes and time, so that it never blocks other requests.

A search reads from a position until it has enough items, reaches the end, or exceeds its budget, and returns the next position.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.stream_reader import Entry, read_since

T = TypeVar("T")

_PAGE_SIZE = 500
_PAGE_BYTES = 256 * 1024  # a page is filtered without interruption
_FOUND_BYTES_MAX = 8 * 1024 * 1024
SCANNED_MAX = 20_000
_SECONDS_MAX = 0.5
_WINDOW_MAX = 4_194_304
_WINDOW_ENTRIES_MAX = 2_000


@dataclass(frozen=True, slots=True)
class ScanRange:
    """The messages to search: subjects of a stream, from a sequence to before another, stored in an interval of time.

    `is_newest_first`: backwards from before `end_sequence`, or from the end.
    """

    stream: str
    subjects: tuple[str, ...]
    from_sequence: int = 1
    since_ms: int | None = None
    until_ms: int | None = None
    end_sequence: int | None = None
    is_newest_first: bool = False


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
    scanned_max: int = SCANNED_MAX,
    bytes_max: int | None = _FOUND_BYTES_MAX,
) -> ScanResult[T]:
    """Convert up to `limit` entries; `convert` returns None for those to leave out. Raises EngineUnavailable.

    The entries of the items have at most `bytes_max` together, unless it is one item. None if the items do not hold them.
    """
    if scan_range.is_newest_first:
        return await _scan_backwards(connection, scan_range, convert, limit, scanned_max=scanned_max, bytes_max=bytes_max)
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


async def _scan_backwards(
    connection: Connection,
    scan_range: ScanRange,
    convert: Callable[[Entry], T | None],
    limit: int,
    *,
    scanned_max: int,
    bytes_max: int | None,
) -> ScanResult[T]:
    """Read windows of sequences from the end. They grow where the subjects have few messages, so that gaps cost little.

    The search continues before `next_sequence`.
    """
    loop = asyncio.get_running_loop()
    deadline, backwards = loop.time() + _SECONDS_MAX, _Backwards(scan_range, convert, limit, bytes_max)
    result = backwards.result
    if scan_range.end_sequence is None and scan_range.since_ms is not None:  # one read has all that is recent
        async with connection.scans:
            recent = await stream_reader.read_all_since(
                connection, scan_range.stream, scan_range.subjects, scan_range.since_ms, _PAGE_SIZE, _PAGE_BYTES
            )
        if recent.is_end:
            backwards.take(recent.entries, is_bottom=True)
            return result
    elif scan_range.end_sequence is None:  # most queues are small: one read has all of it
        async with connection.scans:
            page = await stream_reader.read_all(
                connection, scan_range.stream, scan_range.subjects, scan_range.from_sequence, _PAGE_SIZE, _PAGE_BYTES
            )
        if page.is_end:
            backwards.take(page.entries, is_bottom=True)
            return result
    info = await stream_info(connection, scan_range.stream)
    if info is None:
        return result
    first = max(1, info.state.first_seq, scan_range.from_sequence)
    top, width = await _top(connection, scan_range, info.state.last_seq + 1), _PAGE_SIZE
    while top > first:
        bottom = max(first, top - width)
        entries = await _window(connection, scan_range, bottom, top)
        if entries is None:
            width //= 4
            continue
        if backwards.take(entries, is_bottom=bottom <= first):
            return result
        top = bottom
        width = min(width * 4, _WINDOW_MAX) if len(entries) < _PAGE_SIZE // 2 else width
        if top > first and (result.scanned >= scanned_max or loop.time() >= deadline):
            result.next_sequence = top
            return result
    return result


class _Backwards(Generic[T]):
    """Converts entries from the newest to the oldest."""

    def __init__(self, scan_range: ScanRange, convert: Callable[[Entry], T | None], limit: int, bytes_max: int | None) -> None:
        self._range, self._convert, self._limit, self._bytes_max = scan_range, convert, limit, bytes_max
        self._found_bytes = 0
        self.result: ScanResult[T] = ScanResult()

    def take(self, entries: Sequence[Entry], *, is_bottom: bool) -> bool:
        """Search a window; `is_bottom`: there is nothing before it. True if the search ends here."""
        result, since_ms, until_ms = self.result, self._range.since_ms, self._range.until_ms
        for entry in reversed(entries):
            if since_ms is not None and entry.at_ms < since_ms:
                return True
            if until_ms is not None and entry.at_ms >= until_ms:
                continue
            result.scanned += 1
            item = self._convert(entry)
            if item is None:
                continue
            self._found_bytes += len(entry.payload)
            if self._bytes_max is not None and self._found_bytes > self._bytes_max and result.items:
                result.next_sequence = entry.sequence + 1
                return True
            result.items.append(item)
            if len(result.items) >= self._limit:
                result.next_sequence = None if is_bottom and entry is entries[0] else entry.sequence
                return True
        return False


async def _top(connection: Connection, scan_range: ScanRange, end: int) -> int:
    """The sequence that the search goes down from; with `until_ms`, that of the first message stored then."""
    top = end if scan_range.end_sequence is None else min(end, scan_range.end_sequence)
    if scan_range.until_ms is None or scan_range.end_sequence is not None:
        return top
    pages = [await read_since(connection, scan_range.stream, one, scan_range.until_ms, 1) for one in scan_range.subjects]
    later = [page.entries[0].sequence for page in pages if page.entries]
    return min(top, max(later)) if len(later) == len(pages) else top


async def _window(connection: Connection, scan_range: ScanRange, bottom: int, top: int) -> list[Entry] | None:
    """The entries from `bottom` to before `top`; None if they are too many for one window."""
    found: list[Entry] = []
    position = bottom
    while True:
        async with connection.scans:
            page = await stream_reader.read_all(
                connection, scan_range.stream, scan_range.subjects, position, _PAGE_SIZE, _PAGE_BYTES
            )
        inside = [entry for entry in page.entries if entry.sequence < top]
        found += inside
        if page.is_end or len(inside) < len(page.entries) or not page.entries:
            return found
        if len(found) > _WINDOW_ENTRIES_MAX and top - bottom > _PAGE_SIZE:
            return None
        position = page.next_sequence
