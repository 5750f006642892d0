"""Changes of one tenant's streams, as far as its subscriptions need them. In memory: a new leader reads everything again."""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from postroad.kernel.errors import PostroadError
from postroad.stream_subscriptions import rules
from postroad.stream_subscriptions.records import SubscriptionRecord
from postroad.stream_subscriptions.service import StreamsPort, read_tails

_PATHS_MAX = 50_000
_FIRST_RESCAN_SECONDS = 2.0  # finds data written while the watch began
_RESCAN_SECONDS = 300.0
_RETRY_SECONDS = 1.0

log = structlog.get_logger("postroad.streams")


class StreamWatcher:
    """Calls `on_change` with the keys of subscriptions whose streams may have new data, and caches the ends of the streams."""

    def __init__(self, tenant: str, streams: StreamsPort, on_change: Callable[[str], None]) -> None:
        self._tenant, self._streams, self._on_change = tenant, streams, on_change
        self._records: dict[str, SubscriptionRecord] = {}
        self._keys_by_path: dict[str, tuple[str, ...]] = {}
        self._new_paths: dict[str, set[str]] = {}  # by key: matching paths that may have to be linked
        self._tails: dict[str, str | None] = {}
        self._stale: set[str] = set()
        self._rescan_due = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        return not self._records

    def update(self, key: str, record: SubscriptionRecord | None) -> None:
        """Set the current record of a subscription; None if it was deleted."""
        before = self._records.get(key)
        if record is None:
            self._records.pop(key, None)
            self._new_paths.pop(key, None)
        else:
            self._records[key] = record
        if before is None or record is None or before.pattern != record.pattern or before.links.keys() != record.links.keys():
            self._keys_by_path.clear()
        if before is None and record is not None:
            self._rescan_due.set()  # a stream may have been created at the same time as the subscription

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            group.create_task(self._rescan())

    async def _watch(self) -> None:
        while True:
            try:
                async for path, _offset in self._streams.appends(self._tenant):
                    self._on_append(path)
            except PostroadError as problem:
                log.warning("stream_watch_interrupted", tenant=self._tenant, code=problem.code)
            await asyncio.sleep(_RETRY_SECONDS)
            self._stale.update(self._tails)
            self._rescan_due.set()

    def _on_append(self, path: str) -> None:
        keys = self._keys_by_path.get(path)
        if keys is None:
            if len(self._keys_by_path) >= _PATHS_MAX:
                self._keys_by_path.clear()
            keys = tuple(key for key, one in self._records.items() if path in one.links or rules.matches_pattern(one, path))
            self._keys_by_path[path] = keys
        if keys:
            self._stale.add(path)
        for key in keys:
            one = self._records[key]
            if path not in one.links:
                self._new_paths.setdefault(key, set()).add(path)
                self._on_change(key)
            elif one.wake is None:  # otherwise the end of the wake causes a check
                self._on_change(key)

    async def _rescan(self) -> None:
        """List all streams at the start, for each new subscription and every few minutes, to find missed ones."""
        wait_seconds = _FIRST_RESCAN_SECONDS
        while True:
            self._rescan_due.clear()
            try:
                has_pattern = any(one.pattern for one in self._records.values())
                for path in await self._streams.paths(self._tenant) if has_pattern else ():
                    for key, one in self._records.items():
                        if path not in one.links and rules.matches_pattern(one, path):
                            self._new_paths.setdefault(key, set()).add(path)
                self._stale.update(self._tails)
                for key in self._records:
                    self._on_change(key)
            except PostroadError as problem:
                log.warning("stream_rescan_failed", tenant=self._tenant, code=problem.code)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._rescan_due.wait()
                wait_seconds = _FIRST_RESCAN_SECONDS
            except TimeoutError:
                wait_seconds = _RESCAN_SECONDS

    async def new_streams(self, key: str, record: SubscriptionRecord) -> dict[str, str]:
        """New streams to link to the subscription, with their acknowledged offset: before the first message."""
        some = {path for path in self._new_paths.pop(key, ()) if path not in record.links}
        tails = await read_tails(self._streams, self._tenant, some)
        return {path: rules.BEFORE_FIRST for path, tail in tails.items() if tail is not None}

    async def tails(self, record: SubscriptionRecord) -> Mapping[str, str | None]:
        """Ends of the subscription's streams; None for a deleted one."""
        outdated = [path for path in record.links if path in self._stale or path not in self._tails]
        self._stale.difference_update(outdated)  # first: a write during the read makes them stale again
        try:
            self._tails.update(await read_tails(self._streams, self._tenant, outdated))
        except BaseException:
            self._stale.update(outdated)
            raise
        return {path: self._tails.get(path) for path in record.links}
