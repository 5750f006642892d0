"""When each key was last used: noted in memory with every request, written now and then, precise to about a minute."""

import asyncio
from collections.abc import Iterable

import structlog

from postroad.jetstream.bucket import Bucket
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError

_WRITE_EVERY_SECONDS = 5.0
_SAME_MS = 60_000  # a use this soon after the one that is stored is not written again
_AT_ONCE = 64

log = structlog.get_logger("postroad.access")


class KeyUsage:
    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket, self._clock = bucket, clock
        self._seen: dict[str, int] = {}
        self._stored: dict[str, int] = {}

    def note(self, key_id: str, at_ms: int) -> None:
        self._seen[key_id] = at_ms

    def forget(self, key_id: str) -> None:
        self._seen.pop(key_id, None)
        self._stored.pop(key_id, None)

    async def run(self) -> None:
        """Write what is new, for as long as the process lives."""
        while True:
            await asyncio.sleep(_WRITE_EVERY_SECONDS)
            await self.write()

    async def write(self) -> None:
        due = [key for key, at in self._seen.items() if at - self._stored.get(key, 0) >= _SAME_MS]
        for start in range(0, len(due), _AT_ONCE):
            try:
                await asyncio.gather(*(self._write(key) for key in due[start : start + _AT_ONCE]))
            except PostroadError as problem:  # it is a convenience: the next round tries again
                log.warning("key_uses_not_written", code=problem.code)
                return

    async def _write(self, key: str) -> None:
        at = self._seen.get(key)
        if at is not None:
            await self._bucket.put(key, str(at).encode())
            self._stored[key] = at

    async def of(self, keys: Iterable[str]) -> dict[str, int]:
        """When these keys were last used; one that never was is left out."""
        wanted = list(keys)
        found: dict[str, int] = {}
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            for key, value in zip(some, await asyncio.gather(*map(self._bucket.get, some)), strict=True):
                stored = int(value.value) if value is not None and value.value else 0
                latest = max(stored, self._seen.get(key, 0))
                if latest:
                    found[key] = latest
        return found
