"""Feeds of the tenants with open streams. Each tenant's feeds are read once a second while it has streams, and kept for a minute
after the last one, so that a reload is cheap."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import structlog

from postroad.kernel.waiters import Waiters
from postroad.live_state import metrics
from postroad.live_state.feed import Feed
from postroad.live_state.watch import Watch
from postroad.telemetry.live_sections import LiveSection

_INTERVAL_SECONDS = 1.0
_KEEP_SECONDS = 60.0
_NAMES_MAX = 500  # rows of a section that are up to date each second, for all streams of a tenant in this process

log = structlog.get_logger("postroad.live_state")


class TenantHub:
    """The feeds of one tenant, read in a task."""

    def __init__(self, tenant: str, sections: dict[str, LiveSection]) -> None:
        self._tenant, self._sections = tenant, sections
        self.feeds: dict[str, Feed] = {}
        self._watches: dict[object, Sequence[Watch]] = {}
        self._refreshed = Waiters()
        self.idle_since: float | None = None
        self.rounds = 0
        self.shared_frames: dict[object, bytes] = {}  # of this round
        self._running = asyncio.create_task(self._run())
        self._running.add_done_callback(lambda _: self._refreshed.wake())

    def feed(self, section: str) -> Feed:
        found = self.feeds.get(section)
        if found is None:
            found = self.feeds[section] = Feed(self._sections[section], self._tenant)
        return found

    def join(self, reader: object, watches: Sequence[Watch]) -> None:
        self._watches[reader] = watches
        self.idle_since = None

    def leave(self, reader: object) -> None:
        self._watches.pop(reader, None)
        if not self._watches:
            self.idle_since = asyncio.get_running_loop().time()

    def names(self, section: str) -> frozenset[str]:
        """The rows on screen, over all streams; if they are too many, those of the oldest streams."""
        found: dict[str, None] = {}
        for watches in self._watches.values():
            for watch in watches:
                if watch.section == section:
                    found |= dict.fromkeys(sorted(watch.names))
        return frozenset(list(found)[:_NAMES_MAX])

    async def wait(self) -> None:
        """Wait for the next round. Raises what ended the hub."""
        if not self._running.done():
            await self._refreshed.wait()
        if self._running.done():
            self._running.result()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            watched = {watch.section for watches in self._watches.values() for watch in watches}
            for section in sorted(watched):
                await self.feed(section).refresh(self.names(section))
            for section in self.feeds.keys() - watched:
                if self.idle_since is None:  # another section is watched: this one is read again when it is
                    self.feeds.pop(section).close()
            self.rounds += 1
            self.shared_frames = {}
            metrics.refresh_seconds.observe(loop.time() - started)
            self._refreshed.wake()
            await asyncio.sleep(max(0.2, _INTERVAL_SECONDS - (loop.time() - started)))

    def close(self) -> None:
        self._running.cancel()
        for feed in self.feeds.values():
            feed.close()


class LiveHub:
    def __init__(self, sections: dict[str, LiveSection]) -> None:
        self.sections = sections
        self._tenants: dict[str, TenantHub] = {}

    @contextmanager
    def join(self, tenant: str, watches: Sequence[Watch]) -> Iterator[TenantHub]:
        """The feeds of a tenant, as long as the context lasts."""
        self._drop_idle()
        hub = self._tenants.get(tenant)
        if hub is None:
            hub = self._tenants[tenant] = TenantHub(tenant, self.sections)
        reader = object()
        hub.join(reader, watches)
        metrics.streams.inc()
        try:
            yield hub
        finally:
            metrics.streams.dec()
            hub.leave(reader)
            asyncio.get_running_loop().call_later(_KEEP_SECONDS + 1, self._drop_idle)

    def _drop_idle(self) -> None:
        now = asyncio.get_running_loop().time()
        for tenant, hub in list(self._tenants.items()):
            if hub.idle_since is not None and now - hub.idle_since > _KEEP_SECONDS:
                del self._tenants[tenant]
                hub.close()

    def close(self) -> None:
        for hub in self._tenants.values():
            hub.close()
        self._tenants.clear()
