"""Taking a subscription over: load the stored progress of its cursors, and store it again as their new owner."""

import asyncio

from postroad.api.subscriptions import Ordering
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Conflict
from postroad.kernel.token_bucket import TokenBucket
from postroad.subscriptions import metrics
from postroad.subscriptions.delivery_cursor import CursorState, DeliveryCursor
from postroad.subscriptions.log_reader import LogReader
from postroad.subscriptions.owned_subscription import OwnedCursor, OwnedSubscription
from postroad.subscriptions.progress_store import ProgressStore, StoredProgress
from postroad.subscriptions.records import LIVE_CURSOR, ReplayRange, SubscriptionRecord
from postroad.topics.records import TopicRecord

_RELEASE_SECONDS = 3.0  # how long to wait for a living owner that is about to release the subscription
_POLL_SECONDS = 0.1


class Takeover:
    def __init__(self, progress: ProgressStore, reader: LogReader, clock: Clock, worker: str) -> None:
        self._progress, self._reader, self._clock, self._worker = progress, reader, clock, worker
        self.awaiting_release = 0  # takeovers that wait for another process

    async def take(self, record: SubscriptionRecord, topic: TopicRecord, members: frozenset[str]) -> OwnedSubscription:
        """The subscription, with this process as its owner. Raises EngineUnavailable."""
        stored = await self._await_release(record, members)
        state = stored.record.cursor if stored.record is not None else CursorState(read_to=record.start_after)
        live = OwnedCursor(LIVE_CURSOR, _cursor(record, state), stored.revision)
        owned = OwnedSubscription(record, {LIVE_CURSOR: live})
        if stored.record is not None:
            owned.delivered_count, owned.failed_count = stored.record.delivered_count, stored.record.failed_count
            owned.last_error = stored.record.last_error
            owned.continue_from(stored.record)
        await self._reader.set_keys(owned, live, topic)
        try:
            await self.store(owned, live)
        except Conflict:  # another process stored its progress at the same time
            return await self.take(record, topic, members)
        for replay in record.replays:
            await self.add_replay(owned, replay, topic)
        metrics.takeovers.inc()
        return owned

    async def add_replay(self, owned: OwnedSubscription, replay: ReplayRange, topic: TopicRecord) -> None:
        """Add the cursor of a replay, from where it was stored last. Raises EngineUnavailable."""
        record, name = owned.record, replay.cursor
        stored = await self._progress.load(record, name)
        state = stored.record.cursor if stored.record is not None else CursorState(read_to=replay.first - 1)
        rate = TokenBucket.at_most(replay.rate_per_second, self._clock() / 1000)
        one = OwnedCursor(name, _cursor(record, state), stored.revision, replay=replay, rate=rate)
        await self._reader.set_keys(owned, one, topic)
        owned.cursors[name] = one

    async def store(self, owned: OwnedSubscription, one: OwnedCursor, *, is_release: bool = False) -> None:
        """Store the progress of a cursor. Raises Conflict if another process is the owner now, EngineUnavailable."""
        record, version = owned.record, one.cursor.version
        progress = owned.progress(one, "" if is_release else self._worker, self._clock())
        try:
            one.revision = await self._progress.store(record, one.name, progress, one.revision)
        except Conflict:
            # Another store of this process may have been faster, or its answer was lost: its name is on what is stored then.
            stored = await self._progress.load(record, one.name)
            if stored.record is None or stored.record.owner != self._worker:
                raise
            one.revision = await self._progress.store(record, one.name, progress, stored.revision)
        one.stored_version = version

    async def _await_release(self, record: SubscriptionRecord, members: frozenset[str]) -> StoredProgress:
        """The newest progress, once its owner has released it. An owner that died, or takes too long, is not waited for."""
        deadline = asyncio.get_running_loop().time() + _RELEASE_SECONDS
        while True:
            stored = await self._progress.load(record)
            owner = "" if stored.record is None else stored.record.owner
            is_held = owner not in ("", self._worker) and owner in members
            if not is_held or asyncio.get_running_loop().time() > deadline:
                return stored
            self.awaiting_release += 1
            try:
                await asyncio.sleep(_POLL_SECONDS)
            finally:
                self.awaiting_release -= 1


def _cursor(record: SubscriptionRecord, state: CursorState) -> DeliveryCursor:
    return DeliveryCursor(state, is_ordered=record.ordering is Ordering.KEY)
