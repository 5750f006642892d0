"""What happens in one tenant's streams, as far as its subscriptions care. In memory: whoever leads next looks for itself."""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from postroad.kernel.errors import PostroadError
from postroad.stream_subscriptions import rules
from postroad.stream_subscriptions.records import SubscriptionRecord
from postroad.stream_subscriptions.service import StreamsPort, tails_of

_PATHS_KNOWN_MAX = 50_000
_LOOK_AGAIN_SECONDS = 2.0  # what was written while the following began
_LOOK_EVERY_SECONDS = 300.0
_PAUSE_SECONDS = 1.0

log = structlog.get_logger("postroad.streams")


class TenantFollower:
    """Tells `changed` which subscriptions have reason to look at their streams, and knows where those end."""

    def __init__(self, tenant: str, streams: StreamsPort, changed: Callable[[str], None]) -> None:
        self._tenant, self._streams, self._changed = tenant, streams, changed
        self._records: dict[str, SubscriptionRecord] = {}
        self._concerned: dict[str, tuple[str, ...]] = {}  # by path: the keys of the subscriptions that follow it
        self._appeared: dict[str, set[str]] = {}  # by key: paths that match and may have to be linked
        self._tails: dict[str, str | None] = {}
        self._stale: set[str] = set()
        self._must_look = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        return not self._records

    def take(self, key: str, record: SubscriptionRecord | None) -> None:
        """A subscription as it is now; None if it is gone."""
        before = self._records.get(key)
        if record is None:
            self._records.pop(key, None)
            self._appeared.pop(key, None)
        else:
            self._records[key] = record
        if before is None or record is None or before.pattern != record.pattern or before.links.keys() != record.links.keys():
            self._concerned.clear()
        if before is None and record is not None:
            self._must_look.set()  # a stream may have been made while the subscription was

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._hear())
            both.create_task(self._look())

    async def _hear(self) -> None:
        while True:
            try:
                async for path, _offset in self._streams.appended(self._tenant):
                    self._note(path)
            except PostroadError as problem:
                log.warning("subscriptions_deaf", tenant=self._tenant, code=problem.code)
            await asyncio.sleep(_PAUSE_SECONDS)
            self._stale.update(self._tails)
            self._must_look.set()

    def _note(self, path: str) -> None:
        keys = self._concerned.get(path)
        if keys is None:
            if len(self._concerned) >= _PATHS_KNOWN_MAX:
                self._concerned.clear()
            keys = tuple(key for key, one in self._records.items() if path in one.links or rules.follows(one, path))
            self._concerned[path] = keys
        if keys:
            self._stale.add(path)
        for key in keys:
            one = self._records[key]
            if path not in one.links:
                self._appeared.setdefault(key, set()).add(path)
                self._changed(key)
            elif one.wake is None:  # otherwise it is looked at when that wake is over
                self._changed(key)

    async def _look(self) -> None:
        """At all streams, for what was not heard of: when it begins, when a subscription is new, and now and then."""
        wait = _LOOK_AGAIN_SECONDS
        while True:
            self._must_look.clear()
            try:
                for path in await self._streams.paths(self._tenant) if any(one.pattern for one in self._records.values()) else ():
                    for key, one in self._records.items():
                        if path not in one.links and rules.follows(one, path):
                            self._appeared.setdefault(key, set()).add(path)
                self._stale.update(self._tails)
                for key in self._records:
                    self._changed(key)
            except PostroadError as problem:
                log.warning("subscriptions_blind", tenant=self._tenant, code=problem.code)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            try:
                async with asyncio.timeout(wait):
                    await self._must_look.wait()
                wait = _LOOK_AGAIN_SECONDS
            except TimeoutError:
                wait = _LOOK_EVERY_SECONDS

    async def appeared(self, key: str, record: SubscriptionRecord) -> dict[str, str]:
        """Streams that the subscription should be linked to, each with the offset to begin at: before its first."""
        some = {path for path in self._appeared.pop(key, ()) if path not in record.links}
        found = await tails_of(self._streams, self._tenant, some)
        return {path: rules.BEFORE_FIRST for path, tail in found.items() if tail is not None}

    async def tails(self, record: SubscriptionRecord) -> Mapping[str, str | None]:
        """Where the subscription's streams end; None for one that is no more."""
        unsure = [path for path in record.links if path in self._stale or path not in self._tails]
        self._stale.difference_update(unsure)  # first: what is written while we ask makes them stale again
        try:
            self._tails.update(await tails_of(self._streams, self._tenant, unsure))
        except BaseException:
            self._stale.update(unsure)
            raise
        return {path: self._tails.get(path) for path in record.links}
