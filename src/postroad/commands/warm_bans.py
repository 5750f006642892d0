"""Durable count of the warm bans of a sender on a route: several within some minutes become a ban on all routes and workers."""

import asyncio

import msgspec
import structlog

from postroad.commands.bans import Bans
from postroad.commands.registry_view import KnownRoute
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.conflict_retry import retry_on_conflict
from postroad.kernel.clock import Clock, EpochMs
from postroad.kernel.errors import PostroadError
from postroad.kernel.names import escape

WARM_BANS_BUCKET = "postroad_warm_bans"

log = structlog.get_logger("postroad.commands")


class WarmBansRecord(msgspec.Struct, frozen=True):
    """Format 1 of the times of a sender's warm bans on a route, with a TTL."""

    times: tuple[EpochMs, ...]
    v: int = 1


_decode = msgspec.json.Decoder(WarmBansRecord).decode
_encode = msgspec.json.Encoder().encode


class WarmBanLog:
    """`count` bans within `minutes` impose one for `ban_seconds`."""

    def __init__(self, bucket: Bucket, bans: Bans, clock: Clock, *, count: int, minutes: int, ban_seconds: int) -> None:
        self._bucket, self._bans, self._clock = bucket, bans, clock
        self._count, self._minutes, self._ban_seconds = count, minutes, ban_seconds
        self._tasks: set[asyncio.Task[None]] = set()

    def record_soon(self, route: KnownRoute, source: str, window_ms: int) -> None:
        """Count a ban in the background. Bans of several workers in one window count once."""
        task = asyncio.get_running_loop().create_task(self._record(route, source, window_ms))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _record(self, route: KnownRoute, source: str, window_ms: int) -> None:
        try:
            if await self.record(route, source, window_ms) >= self._count:
                reason = f"{self._count} warm bans within {self._minutes} minutes on {route.record.target} {route.record.command}"
                await self._bans.impose(source, "warm", seconds=self._ban_seconds, reason=reason, creator="dispatcher")
        except PostroadError as problem:
            log.warning("warm_ban_not_counted", source=source, route=route.key, code=problem.code)

    async def record(self, route: KnownRoute, source: str, window_ms: int) -> int:
        """Count a ban; returns the number of bans within the last minutes. Raises EngineUnavailable."""
        tenant, _, service = source.partition("/")
        key = f"{route.key}.{tenant}.{escape(service)}"

        @retry_on_conflict("the count of warm bans")
        async def attempt() -> int:
            now, value = self._clock(), await self._bucket.get(key)
            times = _times(value.value if value is not None else None)
            times = tuple(one for one in times if now - one < self._minutes * 60_000)
            if times and now - times[-1] < window_ms:
                return 0
            times = (*times, now)
            encoded, ttl_seconds = _encode(WarmBansRecord(times)), self._minutes * 60
            if value is None:
                await self._bucket.create(key, encoded, ttl_seconds=ttl_seconds)
            else:
                await self._bucket.update(key, encoded, value.revision, ttl_seconds=ttl_seconds)
            return len(times)

        return await attempt()


def _times(value: bytes | None) -> tuple[int, ...]:
    try:
        return () if value is None else _decode(value).times
    except msgspec.DecodeError:
        return ()
