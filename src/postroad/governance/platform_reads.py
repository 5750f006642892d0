"""Audit entries of reads with a platform key: one for each key, tenant and interval of a process, not one for each request."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from postroad.kernel.context import RequestContext

INTERVAL_SECONDS = 600.0
_REMEMBERED_MAX = 10_000


class PlatformReads:
    """`write` appends an entry: context and operation."""

    def __init__(
        self, write: Callable[[RequestContext, str], Awaitable[object]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write, self._clock = write, clock
        self._entries: dict[tuple[str, str], tuple[float, asyncio.Future[object]]] = {}  # end of the interval, and the entry

    async def record(self, context: RequestContext, operation: str) -> None:
        """Return once the entry of this interval is durable. Raises the error of the log; the next read then tries again."""
        key, now = (context.caller.key_id, context.tenant), self._clock()
        known = self._entries.get(key)
        if known is None or known[0] <= now:
            if len(self._entries) >= _REMEMBERED_MAX:
                self._entries.clear()
            known = self._entries[key] = (now + INTERVAL_SECONDS, asyncio.ensure_future(self._write(context, operation)))
        entry = known[1]
        if entry.done() and entry.exception() is None:
            return
        try:
            await asyncio.shield(entry)
        except Exception:
            if self._entries.get(key) is known:
                del self._entries[key]
            raise
