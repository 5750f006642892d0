"""Jobs that ended so long ago that they are forgotten here: the pipeline keeps them as chunks on `HISTORY`.

Format 1 of decision 0021: subject `history.<tenant>.<created day>.<ended day>.<part>`, body `{"v":1,"batch","jobs":[…]}`, at most
500 jobs as the API shows them. A job's id says when it was created, so its day is known. A list goes back day by day; which
chunks of a day matter is known from the times of their jobs, once they were read. How many days and chunks one question may
cost is bounded: an answer says how far it came.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

import msgspec
import structlog

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec, purge_stream, stream_info, subjects_of
from postroad.jobs import metrics
from postroad.jobs.event_decoder import millis
from postroad.jobs.page_merge import LOWEST, Key, KeyedJob, KeyRange, latest_of_each
from postroad.jobs.views import JobView
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import EngineUnavailable

STREAM = "HISTORY"
_DAY = 86_400_000
_SECOND_NS = 1_000_000_000
_VERSION = 1
_AROUND_MS = 60_000  # between the moment that is in a job's id and the one that its first event has
_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

log = structlog.get_logger("postroad.jobs")


def history_stream(replicas: int) -> StreamSpec:
    return StreamSpec(
        STREAM,
        ("history.>",),
        {
            "num_replicas": replicas,
            "max_msgs_per_subject": 1,
            "max_age": 400 * _DAY * 1_000_000,
            "duplicate_window": 120 * _SECOND_NS,
        },
    )


@dataclass(frozen=True, slots=True)
class Budget:
    """What one question may cost: how many days, how many chunks that were not read lately, how long. `days_back_max` is how far
    back there can be anything."""

    days: int = 60
    chunks_max: int = 64
    at_once: int = 16
    seconds: float = 2.0
    days_back_max: int = 430
    remember_seconds: float = 120.0
    remembered_max: int = 20_000


class Archived(NamedTuple):
    """Jobs of a window. `reached`: all down to this key were looked at; None: all that there are."""

    jobs: list[KeyedJob]
    reached: Key | None


class _Chunk(msgspec.Struct, frozen=True):
    v: int
    jobs: list[msgspec.Raw]


class _Range(NamedTuple):
    """Of the jobs in a chunk."""

    newest: Key
    oldest: Key


_NOTHING = _Range((0, ""), (0, ""))
_chunk = msgspec.json.Decoder(_Chunk)
_job = msgspec.json.Decoder(JobView)
V = TypeVar("V")


class _Remembered(Generic[V]):
    """What was found out a short while ago: chunks of past days hardly ever change, but they do."""

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


class History:
    """Reads the archive. What cannot be read in it is left out, and logged."""

    def __init__(self, connection: Connection, clock: Clock, budget: Budget | None = None) -> None:
        self._connection, self._clock, self._budget = connection, clock, budget or Budget()
        self._days: _Remembered[list[str]] = _Remembered(self._budget.remember_seconds, self._budget.remembered_max)
        self._ranges: _Remembered[_Range] = _Remembered(self._budget.remember_seconds, self._budget.remembered_max)

    async def find(self, tenant: str, job_id: str) -> KeyedJob | None:
        """None if the archive does not have it, or there is none. Raises EngineUnavailable."""
        if not _UUID7.fullmatch(job_id):
            return None
        at = int(job_id[:8] + job_id[9:13], 16)
        if at > self._clock() + _DAY:
            return None
        window = KeyRange((at + _AROUND_MS, LOWEST), (max(0, at - _AROUND_MS), LOWEST))
        async with self._in_time():
            if not await self._has_any(tenant):
                return None
            found: list[KeyedJob] = []
            for day in _days(window):
                chunks = [one for one in await self._chunks(tenant, day) if self._may_have(one, window)]
                async for _, placed in self._read_all(chunks):
                    found += [one for one in placed if one.job.job_id == job_id]
            return latest_of_each(found).get(job_id)

    async def page(self, tenant: str, window: KeyRange, limit: int, fits: Callable[[JobView], bool]) -> Archived:
        """The newest jobs of the window that fit, at least `limit` if there are so many and the budget allows. Raises
        EngineUnavailable."""
        async with self._in_time():
            if not await self._has_any(tenant):
                return Archived([], None)
            earliest = self._clock() - self._budget.days_back_max * _DAY
            window = KeyRange(window.below, max(window.above, (max(0, earliest), LOWEST)))
            return await self._page(tenant, window, limit, fits)

    async def _page(self, tenant: str, window: KeyRange, limit: int, fits: Callable[[JobView], bool]) -> Archived:
        taken: list[KeyedJob] = []
        days, left = _days(window), self._budget.chunks_max
        for some in _grouped(islice(days, self._budget.days), self._budget.at_once):
            for day, chunks in zip(some, await asyncio.gather(*(self._chunks(tenant, day) for day in some)), strict=True):
                unread = [one for one in chunks if self._ranges.get(one) is None]
                if len(unread) > left:  # after a few times of asking they are all known, and those that matter are few
                    async for _ in self._read_all(unread[:left]):
                        pass
                    return Archived(taken, min(window.below, ((day + 1) * _DAY, LOWEST)))
                left -= len(unread)
                taken += await self._of_day(chunks, window, limit - len(taken), fits)
                if len(taken) >= limit:
                    return Archived(taken, taken[-1].key)
        following = next(days, None)
        return Archived(taken, None if following is None else ((following + 1) * _DAY, LOWEST))

    async def _of_day(
        self, chunks: Sequence[str], window: KeyRange, limit: int, fits: Callable[[JobView], bool]
    ) -> list[KeyedJob]:
        """The newest ones of a day that fit: chunks with the newest jobs first, until none can have anything newer."""
        remembered = {one: self._ranges.get(one) for one in chunks}
        fresh = {name: placed async for name, placed in self._read_all([one for one in chunks if remembered[one] is None])}
        known = [(range_ or _range_of(fresh[name]), name) for name, range_ in remembered.items()]
        waiting = sorted((pair for pair in known if _overlaps(pair[0], window)), reverse=True)
        seen: list[KeyedJob] = []
        fitting: list[KeyedJob] = []
        for some in _grouped(waiting, self._budget.at_once):
            if sum(one.key >= some[0][0].newest for one in fitting) >= limit:
                break
            seen += [one for _, name in some for one in fresh.get(name, ()) if window.has(one.key)]
            async for _, placed in self._read_all([name for _, name in some if name not in fresh]):
                seen += [one for one in placed if window.has(one.key)]
            fitting = [one for one in latest_of_each(seen).values() if fits(one.job)]
        return sorted(fitting, key=lambda one: one.key, reverse=True)[:limit]

    async def _read_all(self, chunks: Sequence[str]) -> AsyncIterator[tuple[str, list[KeyedJob]]]:
        for some in _grouped(chunks, self._budget.at_once):
            for name, placed in zip(some, await asyncio.gather(*map(self._read, some)), strict=True):
                yield name, placed

    async def _read(self, subject: str) -> list[KeyedJob]:
        entry = await stream_reader.last(self._connection, STREAM, subject)
        placed, problems = _jobs_of(entry.payload) if entry else ([], [])
        if problems and entry:
            metrics.history_unreadable.inc()
            log.error("history_unreadable", subject=subject, sequence=entry.sequence, problems=problems[:3])
        self._ranges.put(subject, _range_of(placed))
        return placed

    def _may_have(self, subject: str, window: KeyRange) -> bool:
        known = self._ranges.get(subject)
        return known is None or _overlaps(known, window)

    async def _chunks(self, tenant: str, day: int) -> list[str]:
        pattern = f"history.{tenant}.{_day_text(day)}.>"
        found = self._days.get(pattern)
        if found is None:
            found = sorted(await subjects_of(self._connection, STREAM, pattern))
            self._days.put(pattern, found)
        return found

    async def _has_any(self, tenant: str) -> bool:
        info = await stream_info(self._connection, STREAM)
        if info is None or not info.state.messages:
            return False
        return bool((await stream_reader.read(self._connection, STREAM, f"history.{tenant}.>", limit=1)).entries)

    def _in_time(self) -> "_InTime":
        return _InTime(self._budget.seconds)

    async def delete_all(self, tenant: str) -> None:
        """All jobs of a tenant that goes."""
        await purge_stream(self._connection, STREAM, f"history.{tenant}.>")


class _InTime:
    """What takes longer is given up: whoever waits has other jobs to show."""

    def __init__(self, seconds: float) -> None:
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *problem: object) -> None:
        try:
            await self._timeout.__aexit__(*problem)  # type: ignore[arg-type]
        except TimeoutError as exc:
            raise EngineUnavailable("the archive did not answer in time", retry_after=1) from exc


def _jobs_of(payload: bytes) -> tuple[list[KeyedJob], list[str]]:
    """Those that can be read, and what is wrong with the others."""
    try:
        chunk = _chunk.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        return [], [str(problem)]
    if chunk.v != _VERSION:
        return [], [f"of version {chunk.v}"]
    placed, problems = [], []
    for raw in chunk.jobs:
        try:
            job = msgspec.structs.replace(_job.decode(raw), archived=True)
            placed.append(KeyedJob((millis(job.created_at), job.job_id), job))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as problem:
            problems.append(str(problem))
    return placed, problems


def _range_of(placed: Sequence[KeyedJob]) -> _Range:
    keys = [one.key for one in placed]
    return _Range(max(keys), min(keys)) if keys else _NOTHING


def _overlaps(range_: _Range, window: KeyRange) -> bool:
    return range_ != _NOTHING and range_.newest > window.above and range_.oldest < window.below


def _days(window: KeyRange) -> Iterator[int]:
    """The days of the window, counted from 1970, the latest first."""
    last = window.below[0] if window.below[1] != LOWEST else window.below[0] - 1
    return iter(range(last // _DAY, window.above[0] // _DAY - 1, -1))


def _day_text(day: int) -> str:
    return rfc3339(day * _DAY)[:10].replace("-", "")


def _grouped(items: Iterable[V], count: int) -> Iterator[list[V]]:
    rest = iter(items)
    while some := list(islice(rest, count)):
        yield some
