"""Leader election among processes, by a lease in a bucket that expires when it is not renewed."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from postroad.jetstream.bucket import Bucket
from postroad.kernel.errors import Conflict, PostroadError

log = structlog.get_logger("postroad.jetstream")


class Leadership:
    """Runs `lead` while this process holds the lease called `name`.

    The lease lasts `ttl_seconds` and is renewed after a third of that. A leader that cannot renew stops one third before the
    lease ends, so clocks need not agree. Still, `lead` must tolerate two leaders for a moment: a paused process may resume late.
    """

    def __init__(self, bucket: Bucket, name: str, holder: str, *, ttl_seconds: int = 6) -> None:
        self._bucket, self._name, self._holder, self._ttl = bucket, name, holder.encode(), ttl_seconds
        self._revision = 0
        self.is_leader = False

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                self._revision = await self._bucket.create(self._name, self._holder, ttl_seconds=self._ttl)
            except PostroadError:
                await asyncio.sleep(self._ttl / 3)
                continue
            log.info("leadership_won", lease=self._name)
            work = asyncio.ensure_future(lead())
            self.is_leader = True
            try:
                await self._renew_until_lost(work)
            finally:
                self.is_leader = False
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                await self._release()
            log.info("leadership_lost", lease=self._name)

    async def _renew_until_lost(self, work: "asyncio.Future[None]") -> None:
        """Return when the lease could not be renewed, or the work has ended."""
        loop = asyncio.get_running_loop()
        safe_until = loop.time() + self._ttl * 2 / 3
        while loop.time() < safe_until:
            done, _ = await asyncio.wait({work}, timeout=self._ttl / 3)
            if done:
                return work.result()
            started = loop.time()
            try:
                async with asyncio.timeout_at(safe_until):
                    self._revision = await self._bucket.update(self._name, self._holder, self._revision, ttl_seconds=self._ttl)
            except Conflict:
                return None
            except (PostroadError, TimeoutError):
                continue
            safe_until = started + self._ttl * 2 / 3
        return None

    async def _release(self) -> None:
        """Delete the lease, so that the next leader need not wait for its expiry. A failure is harmless."""
        with contextlib.suppress(PostroadError, TimeoutError):
            async with asyncio.timeout(1):
                await self._bucket.delete(self._name, self._revision)
