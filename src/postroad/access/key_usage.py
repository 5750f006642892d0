"""Time of the last use of each key: recorded in memory per request, stored periodically, precise to about a minute."""

import asyncio
from collections.abc import Iterable

import structlog

from postroad.jetstream.bucket import Bucket
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError

_FLUSH_SECONDS = 5.0
_PRECISION_MS = 60_000  # a use this soon after the stored one is not written
_CONCURRENCY = 64

log = structlog.get_logger("postroad.access")


class KeyUsage:
    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket, self._clock = bucket, clock
        self._seen: dict[str, int] = {}
        self._stored: dict[str, int] = {}

    def record(self, key_id: str, at_ms: int) -> None:
        self._seen[key_id] = at_ms

    def forget(self, key_id: str) -> None:
        self._seen.pop(key_id, None)
        self._stored.pop(key_id, None)

    async def run(self) -> None:
        """Flush periodically until cancelled."""
        while True:
            await asyncio.sleep(_FLUSH_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        due = [key for key, at in self._seen.items() if at - self._stored.get(key, 0) >= _PRECISION_MS]
        for start in range(0, len(due), _CONCURRENCY):
            try:
                await asyncio.gather(*(self._write(key) for key in due[start : start + _CONCURRENCY]))
            except PostroadError as problem:  # not essential: the next round tries again
                log.warning("key_uses_not_written", code=problem.code)
                return

    async def _write(self, key: str) -> None:
        at = self._seen.get(key)
        if at is not None:
            await self._bucket.put(key, str(at).encode())
            self._stored[key] = at

    async def last_used(self, keys: Iterable[str]) -> dict[str, int]:
        """Times of the last use in milliseconds, without the keys that were never used."""
        wanted = list(keys)
        found: dict[str, int] = {}
        for start in range(0, len(wanted), _CONCURRENCY):
            some = wanted[start : start + _CONCURRENCY]
            for key, value in zip(some, await asyncio.gather(*map(self._bucket.get, some)), strict=True):
                stored = int(value.value) if value is not None and value.value else 0
                latest = max(stored, self._seen.get(key, 0))
                if latest:
                    found[key] = latest
        return found
