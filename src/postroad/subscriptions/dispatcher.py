"""Delivery of the subscriptions that this process owns.

Each subscription has one owner among the delivery processes, so its rate, concurrency, order and breaker are exact. Progress is
stored every half second, on condition that no other process has stored it since: a process that lost a subscription is refused,
and stops delivering it. The next owner continues from the stored progress, so at most the deliveries of that time are repeated.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from postroad.api.topics import TopicNotFound
from postroad.jetstream.membership import Membership
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Conflict, PostroadError
from postroad.kernel.rendezvous import owner_of
from postroad.subscriptions import metrics
from postroad.subscriptions.attempt_log import AttemptLog
from postroad.subscriptions.attempter import Attempter
from postroad.subscriptions.delivery_cursor import OPEN_MAX
from postroad.subscriptions.endpoint_rules import Step
from postroad.subscriptions.events import DeliverySampled
from postroad.subscriptions.log_reader import LogReader, offer
from postroad.subscriptions.outgoing import OutgoingMessage
from postroad.subscriptions.owned_subscription import OwnedCursor, OwnedSubscription, Started
from postroad.subscriptions.received_message import ReceivedMessage
from postroad.subscriptions.records import SubscriptionRecord
from postroad.subscriptions.scheduler import Scheduler
from postroad.subscriptions.takeover import Takeover
from postroad.subscriptions.topic_followers import TopicFollowers
from postroad.telemetry.outbox import Outbox
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.records import TopicRecord

STORE_SECONDS = 0.5
_RECONCILE_SECONDS = 2.0
_RETRY_SECONDS = 1.0
_DRAIN_SECONDS = 2.0
_SAMPLE_SECONDS = 10.0
_FAILED_MS = 30_000  # before an attempt is repeated that failed for a reason that nothing expected
_BUSY_MAX = 256
_BUSY_SECONDS = 0.005
_RESUME_READING_FROM = OPEN_MAX // 2  # free places of a full cursor from which on the log is read again

Disable = Callable[[SubscriptionRecord, str], Awaitable[None]]

log = structlog.get_logger("postroad.subscriptions")


class Dispatcher:
    """`disable` disables a subscription whose endpoint is gone. `slots`: attempts at the same time."""

    def __init__(
        self,
        table: ReplicatedTable[SubscriptionRecord],
        topics: TopicLifecycle,
        membership: Membership,
        takeover: Takeover,
        followers: TopicFollowers,
        reader: LogReader,
        attempter: Attempter,
        attempts: AttemptLog,
        outbox: Outbox,
        clock: Clock,
        *,
        slots: int,
        is_served: Callable[[str], bool],
        disable: Disable,
    ) -> None:
        self._table, self._topics, self._membership, self._takeover = table, topics, membership, takeover
        self._followers, self._reader, self._attempter, self._attempts = followers, reader, attempter, attempts
        self._outbox, self._clock, self._disable = outbox, clock, disable
        self._scheduler = Scheduler(self._attempt, clock, slots=slots, is_served=is_served)
        self._owned: dict[str, OwnedSubscription] = {}  # by key of the record
        self._busy: dict[str, asyncio.Task[None]] = {}  # takeovers and releases in progress, by key
        self._retrying = 0  # of these, those that failed and wait
        self._reading: set[asyncio.Task[None]] = set()
        self._dirty: set[str] = set()
        self._changed: set[str] | None = set()  # keys to reconcile; None: all
        self._wake = asyncio.Event()
        table.on_change(lambda key, _record: self._reconcile_soon(key))
        membership.on_change(lambda: self._reconcile_soon(None))

    async def run(self) -> None:
        """Deliver until cancelled. Then wait for attempts in flight for a moment, store all progress and release it."""
        jobs = [
            asyncio.create_task(job)
            for job in (
                self._membership.run(),
                self._scheduler.run(),
                self._store_loop(),
                self._sample_loop(),
                self._reconcile_loop(),
            )
        ]
        self._reconcile_soon(None)
        try:
            # Unlike `gather`, `wait` leaves the jobs running when it is cancelled: the registration ends after the release.
            ended, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            for job in ended:
                job.result()
        finally:
            for job in jobs[1:]:
                job.cancel()
            await self._release_all()
            jobs[0].cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    # Ownership

    def _reconcile_soon(self, key: str | None) -> None:
        if key is None:
            self._changed = None
        elif self._changed is not None:
            self._changed.add(key)
        self._wake.set()

    async def _reconcile_loop(self) -> None:
        while True:
            self._wake.clear()
            changed, self._changed = self._changed, set()
            self._restart_followers()
            members = self._membership.members
            for key in set(self._table.keys_under()) | set(self._owned) if changed is None else changed:
                self._reconcile(key, members)
                await self._limit_busy()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RECONCILE_SECONDS):
                    await self._wake.wait()
            if not self._changed:
                self._changed = None  # a topic may have appeared or ended

    def _restart_followers(self) -> None:
        """Follow the topics again whose followers failed. What a subscription has not been handed, it reads from the log."""
        failed = self._followers.remove_failed()
        for owned in self._owned.values() if failed else ():
            if owned.record.topic_incarnation in failed:
                owned.live.is_live = False
                topic = self._topic(owned.record)
                if topic is not None:
                    self._attach(owned, topic)

    async def _limit_busy(self) -> None:
        """Wait while very many takeovers and releases are in progress: what they hold for a moment is many times what remains,
        and would stay with the process. Those that wait for another process, or to be tried again, do not count."""
        while len(self._busy) - self._takeover.awaiting_release - self._retrying >= _BUSY_MAX:  # noqa: ASYNC110
            await asyncio.sleep(_BUSY_SECONDS)

    def _reconcile(self, key: str, members: frozenset[str]) -> None:
        if key in self._busy:
            return
        record, owned = self._table.get(key), self._owned.get(key)
        topic = None if record is None or not record.is_delivered else self._topic(record)
        is_ours = record is not None and topic is not None and owner_of(record.id, members) == self._membership.name
        if owned is None:
            if is_ours and record is not None and topic is not None:
                self._start(key, self._take(key, record, topic, members))
        elif not is_ours or record is None or topic is None:
            self._start(key, self._release(key, owned, is_deleted=record is None or topic is None))
        elif record is not owned.record or any(replay.cursor not in owned.cursors for replay in record.replays):
            self._start(key, self._update(key, owned, record, topic))

    def _topic(self, record: SubscriptionRecord) -> TopicRecord | None:
        topic = self._topics.cached(record.tenant, record.topic)
        return topic if topic is not None and topic.incarnation == record.topic_incarnation else None

    def _start(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await work
            except Exception as problem:
                _report("subscription_not_reconciled", key, problem)
                self._retrying += 1
                try:
                    await asyncio.sleep(_RETRY_SECONDS)
                finally:
                    self._retrying -= 1
            finally:
                self._busy.pop(key, None)
                self._reconcile_soon(key)

        self._busy[key] = asyncio.create_task(run())

    async def _take(self, key: str, record: SubscriptionRecord, topic: TopicRecord, members: frozenset[str]) -> None:
        owned = await self._takeover.take(record, topic, members)
        owned.key = key  # the text that the table has, too
        owned.take_sample()
        self._owned[key] = owned
        self._scheduler.add(owned)
        self._attach(owned, topic)

    def _attach(self, owned: OwnedSubscription, topic: TopicRecord) -> None:
        if not owned.record.is_active:
            return
        self._followers.attach(owned.record, topic, self._on_message)
        for one in owned.cursors.values():
            self._read(owned, one)

    async def _update(self, key: str, owned: OwnedSubscription, record: SubscriptionRecord, topic: TopicRecord) -> None:
        """Apply a changed record. Another ordering, or a rewind, needs a new cursor: the subscription is released and taken
        again."""
        before = owned.record
        if (record.ordering, record.ordering_key, record.cursor) != (before.ordering, before.ordering_key, before.cursor):
            await self._release(key, owned, is_deleted=False)
            return
        if not record.is_active:
            self._detach(owned)
        owned.update(record)
        wanted = {replay.cursor: replay for replay in record.replays}
        for name in [name for name, one in owned.cursors.items() if one.replay is not None and name not in wanted]:
            del owned.cursors[name]
        for name, replay in wanted.items():
            if name not in owned.cursors:
                await self._takeover.add_replay(owned, replay, topic)
        self._attach(owned, topic)
        self._mark(owned)
        self._scheduler.wake(owned)

    def _detach(self, owned: OwnedSubscription) -> None:
        follower = self._followers.of(owned.record)
        if owned.live.is_live and follower is not None and follower.position is not None:
            owned.live.cursor.skip_to(follower.position)
        owned.live.is_live = False
        self._followers.detach(owned.record)

    async def _release(self, key: str, owned: OwnedSubscription, *, is_deleted: bool) -> None:
        """Stop delivering; unless the subscription was deleted, store where its next owner continues."""
        self._scheduler.remove(owned.record.id)
        self._detach(owned)
        if not is_deleted:
            await self._scheduler.drain(_DRAIN_SECONDS, owned)
        owned.is_released = True
        self._forget(key, owned)
        if not is_deleted:
            with contextlib.suppress(Conflict):
                for one in owned.cursors.values():
                    await self._takeover.store(owned, one, is_release=True)

    def _forget(self, key: str, owned: OwnedSubscription) -> None:
        self._owned.pop(key, None)
        self._dirty.discard(key)
        self._attempts.forget(owned.record)

    async def _release_all(self) -> None:
        for task in (*self._busy.values(), *self._reading):
            task.cancel()
        await asyncio.gather(*self._busy.values(), *self._reading, return_exceptions=True)
        with contextlib.suppress(PostroadError, TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS + 3):
                owned = list(self._owned.items())
                for _, one in owned:  # together: a message that the scheduler does not take must not count as seen
                    self._scheduler.remove(one.record.id)
                    self._detach(one)
                await self._scheduler.drain(_DRAIN_SECONDS)
                releases = [self._release(key, one, is_deleted=False) for key, one in owned]
                await asyncio.gather(*releases, self._attempts.flush(), return_exceptions=True)
        await self._scheduler.stop()
        await self._followers.close()

    # Reading

    def _on_message(self, subscription: str, message: ReceivedMessage) -> None:
        """A new message of a followed topic whose subject matches."""
        owned = self._scheduler.find(subscription)
        if owned is None or not owned.live.is_live:
            return
        if offer(owned, owned.live, message):
            self._reader.cache(owned.record.topic_incarnation, message)
        else:
            owned.live.is_live = False
        self._mark(owned)
        self._scheduler.wake(owned)

    def _read(self, owned: OwnedSubscription, one: OwnedCursor) -> None:
        """Read the log for a cursor that is behind, unless that is under way."""
        if one.is_live or one.is_reading or one.is_finished or owned.is_released or not owned.record.is_active:
            return
        one.is_reading = True
        task = asyncio.create_task(self._read_log(owned, one))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _read_log(self, owned: OwnedSubscription, one: OwnedCursor) -> None:
        def on_open() -> None:
            self._mark(owned)
            self._scheduler.wake(owned)

        try:
            while (follower := self._followers.of(owned.record)) is not None:
                try:
                    await self._reader.catch_up(owned, one, follower, on_open)
                    if not follower.is_closed:
                        return
                except Exception as problem:
                    _report("topic_not_read", owned.key, problem)
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            one.is_reading = False
            self._mark(owned)

    # Attempts

    async def _attempt(self, owned: OwnedSubscription, started: Started) -> None:
        record, one = owned.record, started.cursor
        try:
            message = self._reader.cached(record.topic_incarnation, started.sequence) or await self._load(
                record, started.sequence
            )
            if message is None:
                metrics.removed.inc()
                one.cursor.settle(started.sequence)
            else:
                decision = await self._attempter.attempt(owned, started, message)
                if decision.step is Step.DISABLE and not owned.is_released:
                    await self._disable(record, decision.reason)
        except PostroadError as problem:  # the engine is unavailable: the same attempt is made again
            log.warning("delivery_interrupted", subscription=record.id, code=problem.code)
            owned.paused_until_ms = max(owned.paused_until_ms, self._clock() + int(_RETRY_SECONDS * 1000))
            one.cursor.release(started.sequence)
        except Exception as problem:  # not even a dead letter could be made of it: try again, while the others are delivered
            _report("delivery_failed", owned.key, problem)
            one.cursor.retry(started.sequence, self._clock() + _FAILED_MS)
        finally:
            self._mark(owned)
            if not one.is_live and one.cursor.capacity >= _RESUME_READING_FROM:
                self._read(owned, one)

    async def _load(self, record: SubscriptionRecord, sequence: int) -> OutgoingMessage | None:
        """The message from the log; None if it was removed. Raises TopicNotFound, EngineUnavailable."""
        topic = self._topic(record)
        if topic is None:  # not a removed message: the topic ended, and with it the subscription, or its record is being read
            raise TopicNotFound(f"there is no topic {record.topic!r}")
        return await self._reader.message(topic, sequence)

    # Progress

    def _mark(self, owned: OwnedSubscription) -> None:
        if not owned.is_released:
            self._dirty.add(owned.key)

    async def _store_loop(self) -> None:
        while True:
            await asyncio.sleep(STORE_SECONDS)
            await self.store()

    async def store(self) -> None:
        """Store the progress of all subscriptions that changed, and the attempts."""
        keys, self._dirty = self._dirty, set()
        await asyncio.gather(*(self._store(key) for key in keys if key not in self._busy), self._attempts.flush())
        self._dirty |= {key for key in keys if key in self._busy}

    async def _store(self, key: str) -> None:
        owned = self._owned.get(key)
        if owned is None:
            return
        follower = self._followers.of(owned.record)
        if owned.live.is_live and follower is not None and follower.position is not None:
            owned.live.cursor.skip_to(follower.position)
        try:
            await self._takeover.store(owned, owned.live)
            await self._store_replays(key, owned)
        except Conflict:
            metrics.fenced.inc()
            log.info("subscription_lost", subscription=key)
            owned.is_released = True
            self._scheduler.remove(owned.record.id)
            self._detach(owned)
            self._forget(key, owned)
            self._reconcile_soon(key)
        except Exception as problem:
            _report("progress_not_stored", key, problem)
            self._dirty.add(key)

    async def _store_replays(self, key: str, owned: OwnedSubscription) -> None:
        """Store the progress of replays. The end of a replay's task deletes it: that is no loss of the subscription, whose live
        cursor was stored just before."""
        for name, one in list(owned.cursors.items()):
            if one.replay is None or one.stored_version == one.cursor.version:
                continue
            try:
                await self._takeover.store(owned, one)
            except Conflict:
                if owned.cursors.get(name) is one:
                    del owned.cursors[name]
                    self._reconcile_soon(key)

    async def _sample_loop(self) -> None:
        while True:
            await asyncio.sleep(_SAMPLE_SECONDS)
            for owned in self._owned.values():
                delivered, failed = owned.take_sample()
                if delivered or failed:
                    self._record_sample(owned, delivered, failed)

    def _record_sample(self, owned: OwnedSubscription, delivered: int, failed: int) -> None:
        record = owned.record
        self._outbox.record(
            None,
            DeliverySampled(
                tenant=record.tenant,
                subscription=record.id,
                topic=record.topic,
                seconds=_SAMPLE_SECONDS,
                delivered=delivered,
                failed=failed,
                open=owned.live.cursor.open_count,
            ),
        )


def _report(event: str, key: str, problem: Exception) -> None:
    """Log a failure that is tried again. One that nothing expected is a bug: with its trace. It must not end the deliveries of
    other subscriptions."""
    if isinstance(problem, PostroadError):
        log.warning(event, subscription=key, code=problem.code)
    else:
        log.error(event, subscription=key, exc_info=problem)
