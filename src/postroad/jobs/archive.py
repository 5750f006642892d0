"""Reads the job archive: chunks of jobs that ended before the retention period of the index, published by the pipeline.

A job's id contains its time of creation, which gives the day of its chunks. A list is read day by day, backwards. Once a chunk
was read, the times of its jobs show whether it matters for a page. The days and chunks that one query may read are limited; the
result says how far it came.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

import msgspec
import structlog

from postroad.api.jobs import Job
from postroad.contracts.archived_jobs import ARCHIVED_JOBS, ArchivedJobs
from postroad.contracts.contract import VERSION
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec, purge_stream, stream_info, subjects_of
from postroad.jobs import metrics
from postroad.jobs.event_decoder import millis
from postroad.jobs.page_merge import LOWEST, Key, KeyedJob, KeyRange, latest_of_each
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import EngineUnavailable

STREAM = ARCHIVED_JOBS.stream
_DAY = 86_400_000
_SECOND_NS = 1_000_000_000
_CLOCK_SKEW_MS = 60_000  # between the time in a job's id and that of its first event
_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

log = structlog.get_logger("postroad.jobs")


def history_stream(replicas: int, bytes_max: int = -1) -> StreamSpec:
    return StreamSpec(
        STREAM,
        (ARCHIVED_JOBS.subjects,),
        {
            "num_replicas": replicas,
            "max_msgs_per_subject": 1,
            "max_age": 400 * _DAY * 1_000_000,
            "max_bytes": bytes_max,
            "duplicate_window": 120 * _SECOND_NS,
        },
    )


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one query: days, chunks that are not cached, concurrent reads, seconds. `days_back_max` is the age of the oldest
    possible job."""

    days: int = 60
    chunks_max: int = 64
    concurrency: int = 16
    seconds: float = 2.0
    days_back_max: int = 430
    cache_seconds: float = 120.0
    cache_entries_max: int = 20_000


class ArchivedPage(NamedTuple):
    """Jobs of a key range. `reached`: the range was read down to this key; None: completely."""

    jobs: list[KeyedJob]
    reached: Key | None


class _ChunkRange(NamedTuple):
    """Keys of the newest and the oldest job of a chunk."""

    newest: Key
    oldest: Key


_EMPTY = _ChunkRange((0, ""), (0, ""))
_chunk = msgspec.json.Decoder(ArchivedJobs)
_job = msgspec.json.Decoder(Job)
V = TypeVar("V")


class _Cache(Generic[V]):
    """Values that expire soon: chunks of past days rarely change, but they do."""

    def __init__(self, seconds: float, count_max: int) -> None:
        self._seconds, self._count_max = seconds, count_max
        self._items: OrderedDict[str, tuple[float, V]] = OrderedDict()

    def get(self, name: str) -> V | None:
        found = self._items.get(name)
        if found is None or asyncio.get_running_loop().time() - found[0] > self._seconds:
            return None
        return found[1]

    def put(self, name: str, value: V) -> None:
        self._items.pop(name, None)
        self._items[name] = (asyncio.get_running_loop().time(), value)
        while len(self._items) > self._count_max:
            self._items.popitem(last=False)


class JobArchive:
    """Content that cannot be decoded is left out and logged."""

    def __init__(self, connection: Connection, clock: Clock, budget: Budget | None = None) -> None:
        self._connection, self._clock, self._budget = connection, clock, budget or Budget()
        self._days: _Cache[list[str]] = _Cache(self._budget.cache_seconds, self._budget.cache_entries_max)
        self._ranges: _Cache[_ChunkRange] = _Cache(self._budget.cache_seconds, self._budget.cache_entries_max)

    async def find(self, tenant: str, job_id: str) -> KeyedJob | None:
        """None if the archive does not have the job, or there is no archive. Raises EngineUnavailable."""
        if not _UUID7.fullmatch(job_id):
            return None
        at = int(job_id[:8] + job_id[9:13], 16)
        if at > self._clock() + _DAY:
            return None
        window = KeyRange((at + _CLOCK_SKEW_MS, LOWEST), (max(0, at - _CLOCK_SKEW_MS), LOWEST))
        async with _deadline(self._budget.seconds):
            if not await self._has_any(tenant):
                return None
            found: list[KeyedJob] = []
            for day in _days(window):
                chunks = [one for one in await self._chunks(tenant, day) if self._may_have(one, window)]
                async for _, jobs in self._read_all(chunks):
                    found += [one for one in jobs if one.job.job_id == job_id]
            return latest_of_each(found).get(job_id)

    async def page(self, tenant: str, window: KeyRange, limit: int, is_wanted: Callable[[Job], bool]) -> ArchivedPage:
        """The newest jobs of the range that match, at least `limit` if there are enough within the budget. Raises
        EngineUnavailable."""
        async with _deadline(self._budget.seconds):
            if not await self._has_any(tenant):
                return ArchivedPage([], None)
            earliest = self._clock() - self._budget.days_back_max * _DAY
            window = KeyRange(window.below, max(window.above, (max(0, earliest), LOWEST)))
            return await self._page(tenant, window, limit, is_wanted)

    async def _page(self, tenant: str, window: KeyRange, limit: int, is_wanted: Callable[[Job], bool]) -> ArchivedPage:
        found: list[KeyedJob] = []
        days, left = _days(window), self._budget.chunks_max
        for some in _grouped(islice(days, self._budget.days), self._budget.concurrency):
            for day, chunks in zip(some, await asyncio.gather(*(self._chunks(tenant, day) for day in some)), strict=True):
                unread = [one for one in chunks if self._ranges.get(one) is None]
                if len(unread) > left:  # after a few queries the ranges of all chunks are cached, and few of them matter
                    async for _ in self._read_all(unread[:left]):
                        pass
                    return ArchivedPage(found, min(window.below, ((day + 1) * _DAY, LOWEST)))
                left -= len(unread)
                found += await self._of_day(chunks, window, limit - len(found), is_wanted)
                if len(found) >= limit:
                    return ArchivedPage(found, found[-1].key)
        following = next(days, None)
        return ArchivedPage(found, None if following is None else ((following + 1) * _DAY, LOWEST))

    async def _of_day(
        self, chunks: Sequence[str], window: KeyRange, limit: int, is_wanted: Callable[[Job], bool]
    ) -> list[KeyedJob]:
        """The newest matching jobs of a day: chunks with the newest jobs first, until no other can have a newer one."""
        cached = {one: self._ranges.get(one) for one in chunks}
        fresh = {name: jobs async for name, jobs in self._read_all([one for one in chunks if cached[one] is None])}
        known = [(range_ or _range_of(fresh[name]), name) for name, range_ in cached.items()]
        waiting = sorted((pair for pair in known if _overlaps(pair[0], window)), reverse=True)
        seen: list[KeyedJob] = []
        matching: list[KeyedJob] = []
        for some in _grouped(waiting, self._budget.concurrency):
            if sum(one.key >= some[0][0].newest for one in matching) >= limit:
                break
            seen += [one for _, name in some for one in fresh.get(name, ()) if window.has(one.key)]
            async for _, jobs in self._read_all([name for _, name in some if name not in fresh]):
                seen += [one for one in jobs if window.has(one.key)]
            matching = [one for one in latest_of_each(seen).values() if is_wanted(one.job)]
        return sorted(matching, key=lambda one: one.key, reverse=True)[:limit]

    async def _read_all(self, chunks: Sequence[str]) -> AsyncIterator[tuple[str, list[KeyedJob]]]:
        for some in _grouped(chunks, self._budget.concurrency):
            for name, jobs in zip(some, await asyncio.gather(*map(self._read, some)), strict=True):
                yield name, jobs

    async def _read(self, subject: str) -> list[KeyedJob]:
        entry = await stream_reader.last(self._connection, STREAM, subject)
        jobs, problems = _jobs_of(entry.payload) if entry else ([], [])
        if problems and entry:
            metrics.history_unreadable.inc()
            log.error("history_unreadable", subject=subject, sequence=entry.sequence, problems=problems[:3])
        self._ranges.put(subject, _range_of(jobs))
        return jobs

    def _may_have(self, subject: str, window: KeyRange) -> bool:
        known = self._ranges.get(subject)
        return known is None or _overlaps(known, window)

    async def _chunks(self, tenant: str, day: int) -> list[str]:
        pattern = ARCHIVED_JOBS.subjects_of(tenant, _day_text(day))
        found = self._days.get(pattern)
        if found is None:
            found = sorted(await subjects_of(self._connection, STREAM, pattern))
            self._days.put(pattern, found)
        return found

    async def _has_any(self, tenant: str) -> bool:
        info = await stream_info(self._connection, STREAM)
        if info is None or not info.state.messages:
            return False
        return bool((await stream_reader.read(self._connection, STREAM, ARCHIVED_JOBS.subjects_of(tenant), limit=1)).entries)

    async def delete_all(self, tenant: str) -> None:
        """Delete the jobs of a deleted tenant."""
        await purge_stream(self._connection, STREAM, ARCHIVED_JOBS.subjects_of(tenant))


@asynccontextmanager
async def _deadline(seconds: float) -> AsyncIterator[None]:
    """Raises EngineUnavailable after that time, so that a list can be returned without the archive."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as exc:
        raise EngineUnavailable("the archive did not answer in time", retry_after=1) from exc


def _jobs_of(payload: bytes) -> tuple[list[KeyedJob], list[str]]:
    """The jobs that can be decoded, and the problems of the others."""
    try:
        chunk = _chunk.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        return [], [str(problem)]
    if chunk.v != VERSION:
        return [], [f"version {chunk.v}"]
    jobs, problems = [], []
    for raw in chunk.jobs:
        try:
            job = msgspec.structs.replace(_job.decode(raw), archived=True)
            jobs.append(KeyedJob((millis(job.created_at), job.job_id), job))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as problem:
            problems.append(str(problem))
    return jobs, problems


def _range_of(jobs: Sequence[KeyedJob]) -> _ChunkRange:
    keys = [one.key for one in jobs]
    return _ChunkRange(max(keys), min(keys)) if keys else _EMPTY


def _overlaps(range_: _ChunkRange, window: KeyRange) -> bool:
    return range_ != _EMPTY and range_.newest > window.above and range_.oldest < window.below


def _days(window: KeyRange) -> Iterator[int]:
    """The days of the range, counted from 1970, the latest first."""
    last = window.below[0] if window.below[1] != LOWEST else window.below[0] - 1
    return iter(range(last // _DAY, window.above[0] // _DAY - 1, -1))


def _day_text(day: int) -> str:
    return rfc3339(day * _DAY)[:10].replace("-", "")


def _grouped(items: Iterable[V], count: int) -> Iterator[list[V]]:
    rest = iter(items)
    while some := list(islice(rest, count)):
        yield some
