"""Acquisition of tokens from the record of a limit: one compare-and-set for a worker's waiting commands and its prefetch."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog

from postroad.commands import metrics, rate_rules
from postroad.commands.rate_rules import Limit, RateRecord
from postroad.jetstream.bucket import Bucket
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Conflict, EngineUnavailable, PostroadError

RATES_BUCKET = "postroad_rates"
_LINES_MAX = 20_000
_EXHAUSTED_MS_MAX = 5_000  # before the record is read again: another worker may have returned tokens
_CONFLICT_SECONDS = 0.002
_CONFLICTS_FAST = 3  # before the next attempts wait

log = structlog.get_logger("postroad.commands")
_decode = msgspec.json.Decoder(RateRecord).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Token:
    """Permission for one command. `deliver_at_ms`: 0 for now."""

    interval: int
    deliver_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Exhausted:
    """There is no token before this time."""

    retry_at_ms: int


Prefetched = Callable[[int, int, int], None]  # interval, number of tokens, end of the interval


@dataclass(slots=True)
class _Line:
    """What waits for one record, and the record as it was last known here."""

    limit: Limit
    record: RateRecord | None = None
    revision: int | None = None  # None: not known
    waiters: list["asyncio.Future[Token | Exhausted]"] = field(default_factory=list)
    prefetch: int = 0
    prefetch_workers: int = 0
    on_prefetched: Prefetched | None = None
    returned: dict[int, int] = field(default_factory=dict)
    exhausted_until_ms: int = 0
    read_again_at_ms: int = 0  # of a record that is exhausted
    task: "asyncio.Task[None] | None" = None


class TokenSource:
    """`worker` names this process in the records."""

    def __init__(self, bucket: Bucket, clock: Clock, *, worker: str, deadline_seconds: float) -> None:
        self._bucket, self._clock, self._worker, self._deadline_seconds = bucket, clock, worker, deadline_seconds
        self._lines: dict[str, _Line] = {}

    async def acquire(self, key: str, limit: Limit) -> Token | Exhausted:
        """A token for one command. Raises EngineUnavailable at the deadline; then a token may be lost."""
        line = self._line(key, limit)
        if self._is_exhausted(line):
            return Exhausted(line.exhausted_until_ms)
        future: asyncio.Future[Token | Exhausted] = asyncio.get_running_loop().create_future()
        line.waiters.append(future)
        self._start(key, line)
        try:
            async with asyncio.timeout(self._deadline_seconds):
                return await future
        except TimeoutError as exc:
            raise EngineUnavailable("no token of the rate limit could be acquired in time", retry_after=1) from exc

    def prefetch(self, key: str, limit: Limit, count: int, workers_max: int, on_prefetched: Prefetched) -> None:
        """Take tokens in advance, with the next write. `on_prefetched` receives them."""
        line = self._line(key, limit)
        if line.prefetch or self._is_exhausted(line):
            return
        line.prefetch, line.prefetch_workers, line.on_prefetched = count, workers_max, on_prefetched
        self._start(key, line)

    def give_back(self, key: str, limit: Limit, interval: int, count: int = 1) -> None:
        """Return tokens that were not used, with the next write."""
        line = self._line(key, limit)
        line.returned[interval] = line.returned.get(interval, 0) + count
        self._start(key, line)

    def give_back_at(self, key: str, limit: Limit, at_ms: int) -> None:
        """Return a token that was borrowed from a later interval, once that has begun: earlier it could be borrowed twice."""
        seconds = max(0.0, (at_ms - self._clock()) / 1000)
        asyncio.get_running_loop().call_later(seconds, self.give_back, key, limit, at_ms // limit.interval_ms)

    def known_limit(self, key: str) -> Limit | None:
        """The limit that tokens were last acquired under."""
        line = self._lines.get(key)
        return None if line is None else line.limit

    async def usage(self, key: str, limit: Limit) -> RateRecord:
        """The record as the engine has it now. Raises EngineUnavailable."""
        value = await self._bucket.get(key)
        return rate_rules.current(None if value is None else _record(value.value), limit, self._clock())

    async def drain(self) -> None:
        """Wait for the writes that are under way."""
        await asyncio.gather(*[line.task for line in self._lines.values() if line.task is not None], return_exceptions=True)

    def _line(self, key: str, limit: Limit) -> _Line:
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= _LINES_MAX:
                self._lines = {name: one for name, one in self._lines.items() if one.task is not None}
            line = self._lines[key] = _Line(limit)
        elif line.limit != limit:
            line.limit, line.exhausted_until_ms = limit, 0
        return line

    def _is_exhausted(self, line: _Line) -> bool:
        """As far as it is known: the record is read again after some seconds, or with the next interval."""
        now = self._clock()
        if now >= line.exhausted_until_ms:
            return False
        if now < line.read_again_at_ms:
            return True
        line.read_again_at_ms = now + _EXHAUSTED_MS_MAX
        line.revision = None
        return False

    def _start(self, key: str, line: _Line) -> None:
        if line.task is None:
            line.task = asyncio.get_running_loop().create_task(self._run(key, line))

    async def _run(self, key: str, line: _Line) -> None:
        waiters: list[asyncio.Future[Token | Exhausted]] = []
        try:
            while line.waiters or line.prefetch or line.returned:
                waiters, line.waiters = [one for one in line.waiters if not one.done()], []
                await self._acquire_for(key, line, waiters)
        except PostroadError as problem:
            line.revision, line.returned, line.prefetch = None, {}, 0
            for waiter in (*waiters, *line.waiters):
                if not waiter.done():
                    waiter.set_exception(problem)
            line.waiters = []
        finally:
            line.task = None

    async def _acquire_for(self, key: str, line: _Line, waiters: "list[asyncio.Future[Token | Exhausted]]") -> None:
        prefetch, line.prefetch, returned, line.returned = line.prefetch, 0, line.returned, {}
        conflicts = 0
        while True:
            if line.revision is None:
                await self._read(key, line)
            now, before, limit = self._clock(), line.record, line.limit
            for interval, count in returned.items():
                before = rate_rules.give_back(before, limit, now, interval, count) or before
            acquired = rate_rules.acquire(
                before,
                limit,
                now,
                len(waiters),
                prefetch=prefetch,
                worker=self._worker,
                prefetch_workers=line.prefetch_workers,
            )
            is_changed = acquired.granted or acquired.borrowed or acquired.prefetched or before is not line.record
            is_cooling = before is None or acquired.record.cooldown_until_ms != before.cooldown_until_ms
            if not is_changed and not is_cooling:
                break
            try:
                await self._write(key, line, acquired.record)
                break
            except Conflict:
                metrics.token_conflicts.inc()
                line.revision = None
                conflicts += 1
                if conflicts > _CONFLICTS_FAST:
                    await asyncio.sleep(_CONFLICT_SECONDS)
        if returned and before is not None:
            metrics.tokens.labels("returned").inc(sum(returned.values()))
        self._distribute(line, acquired, waiters)

    def _distribute(self, line: _Line, acquired: rate_rules.Acquired, waiters: "list[asyncio.Future[Token | Exhausted]]") -> None:
        record, limit = acquired.record, line.limit
        metrics.tokens.labels("acquired").inc(acquired.granted + len(acquired.borrowed) + acquired.prefetched)
        tokens = [Token(record.interval)] * acquired.granted
        tokens += [Token(record.interval, at_ms) for at_ms in acquired.borrowed]
        for waiter, token in zip(waiters, tokens, strict=False):
            if not waiter.done():
                waiter.set_result(token)
            elif not token.deliver_at_ms:  # its caller has gone
                line.returned[token.interval] = line.returned.get(token.interval, 0) + 1
        if len(tokens) < len(waiters):
            now = self._clock()
            line.exhausted_until_ms, line.read_again_at_ms = rate_rules.retry_at_ms(record, limit, now), now + _EXHAUSTED_MS_MAX
            for waiter in waiters[len(tokens) :]:
                if not waiter.done():
                    waiter.set_result(Exhausted(line.exhausted_until_ms))
        elif rate_rules.available(record, limit):
            line.exhausted_until_ms = record.cooldown_until_ms
        if acquired.prefetched and line.on_prefetched is not None:
            line.on_prefetched(record.interval, acquired.prefetched, rate_rules.end_ms(record))

    async def _read(self, key: str, line: _Line) -> None:
        value = await self._bucket.get(key)
        line.record = None if value is None else _record(value.value)
        line.revision = 0 if value is None else value.revision

    async def _write(self, key: str, line: _Line, record: RateRecord) -> None:
        """Raises Conflict."""
        encoded, ttl_seconds = _encode(record), rate_rules.ttl_seconds(record, line.limit)
        if not line.revision:
            revision = await self._bucket.create(key, encoded, ttl_seconds=ttl_seconds)
        else:
            revision = await self._bucket.update(key, encoded, line.revision, ttl_seconds=ttl_seconds)
        metrics.token_writes.inc()
        line.record, line.revision = record, revision


def _record(value: bytes | None) -> RateRecord | None:
    """None for a record that cannot be read: then the limit starts as with a new one."""
    try:
        record = None if value is None else _decode(value)
    except msgspec.DecodeError:
        record = None
    if value is not None and (record is None or not rate_rules.is_possible(record)):
        log.error("rate_record_unreadable")
        return None
    return record
