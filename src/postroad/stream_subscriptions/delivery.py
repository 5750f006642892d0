"""Wakes subscribers. Runs in one process of the installation, the leader; what it knows besides the records it can find again.

Every step is stored before the next one is taken, so a successor goes on where this one stopped. A subscriber may be told of the
same wake a second time, and never of two at once.
"""

import asyncio
import contextlib
import heapq
import random

import msgspec
import structlog

from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError
from postroad.outbound.client import HttpResult, Outbound
from postroad.outbound.rules import OutboundFailed, OutboundRefused
from postroad.stream_subscriptions import metrics, rules, wake_state
from postroad.stream_subscriptions.keys import SigningKeys
from postroad.stream_subscriptions.records import Kind, SubscriptionRecord
from postroad.stream_subscriptions.service import IsServed, StreamsPort, Subscriptions, new_wake_id
from postroad.stream_subscriptions.stream_watcher import TenantFollower
from postroad.stream_subscriptions.views import WakeEvent, WebhookBody
from postroad.stream_subscriptions.wake_state import Step

_LOOK_EVERY_SECONDS = 1.0  # at the clock, which may be set
_GATHER_SECONDS = 0.002  # many appends at once are one reason to look
_AGAIN_SECONDS = 1.0
_DISABLED_MS = 5_000  # how soon a tenant that was disabled is looked at again
_CALL_SECONDS_MIN, _CALL_SECONDS_MAX = 5.0, 30.0
_CALLS_PER_TENANT = 8  # at once: one tenant's slow webhooks leave room for the others'

log = structlog.get_logger("postroad.streams")


class _Done(msgspec.Struct):
    done: bool = False


_decode_done = msgspec.json.Decoder(_Done).decode


class Delivery:
    def __init__(
        self,
        table: ReplicatedTable[SubscriptionRecord],
        subscriptions: Subscriptions,
        streams: StreamsPort,
        outbound: Outbound,
        keys: SigningKeys,
        clock: Clock,
        *,
        is_served: IsServed,
        has_localhost: bool,
    ) -> None:
        self._table, self._subscriptions, self._streams = table, subscriptions, streams
        self._outbound, self._keys, self._clock = outbound, keys, clock
        self._is_served, self._has_localhost = is_served, has_localhost
        self._records: dict[str, SubscriptionRecord] = {}
        self._followers: dict[str, TenantFollower] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._attending: dict[str, asyncio.Task[None]] = {}
        self._calls: dict[str, asyncio.Semaphore] = {}
        self._to_see: set[str] = set()
        self._timers: list[tuple[int, str]] = []
        self._timer_of: dict[str, int] = {}  # the one that counts; others of the same key are old
        self._something = asyncio.Event()
        self._is_running = False
        table.on_change(self._changed)

    def _changed(self, key: str, record: SubscriptionRecord | None) -> None:
        if record is None:
            self._records.pop(key, None)
        else:
            self._records[key] = record
        if self._is_running:
            self._hand_over(key, record)

    def _hand_over(self, key: str, record: SubscriptionRecord | None) -> None:
        tenant = key.partition(".")[0]
        follower = self._followers.get(tenant)
        if follower is None and record is not None:
            follower = self._followers[tenant] = TenantFollower(tenant, self._streams, self._see)
            self._following[tenant] = asyncio.create_task(follower.run())
        if follower is not None:
            follower.take(key, record)
            if follower.is_idle:
                self._followers.pop(tenant)
                self._following.pop(tenant).cancel()
                self._calls.pop(tenant, None)
        self._see(key)

    def _see(self, key: str) -> None:
        self._to_see.add(key)
        self._something.set()

    async def run(self) -> None:
        """Until cancelled. What is under way then is taken up by the next leader."""
        self._is_running = True
        try:
            for key, record in list(self._records.items()):
                self._hand_over(key, record)
            while True:
                self._something.clear()
                self._see_due()
                self._attend_more()
                for task in self._following.values():
                    if task.done():
                        task.result()  # it only ends by an error, which is ours to fail by
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_seconds()):
                        await self._something.wait()
                await asyncio.sleep(_GATHER_SECONDS)
        finally:
            self._is_running = False
            tasks = [*self._following.values(), *self._attending.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for known in (
                self._followers,
                self._following,
                self._attending,
                self._calls,
                self._to_see,
                self._timer_of,
                self._timers,
            ):
                known.clear()

    def _pause_seconds(self) -> float:
        if not self._timers:
            return _LOOK_EVERY_SECONDS
        return min(_LOOK_EVERY_SECONDS, max(0.0, (self._timers[0][0] - self._clock()) / 1000))

    def _see_due(self) -> None:
        while self._timers and self._timers[0][0] <= self._clock():
            at_ms, key = heapq.heappop(self._timers)
            if self._timer_of.get(key) == at_ms:
                del self._timer_of[key]
                self._to_see.add(key)

    def _see_later(self, key: str, at_ms: int) -> None:
        if self._timer_of.get(key) != at_ms:
            self._timer_of[key] = at_ms
            heapq.heappush(self._timers, (at_ms, key))
            self._something.set()

    def _attend_more(self) -> None:
        for key in [key for key in self._to_see if key not in self._attending]:
            self._to_see.discard(key)
            if key in self._records:
                self._attending[key] = asyncio.create_task(self._attend_safely(key))
                self._attending[key].add_done_callback(lambda _done, key=key: self._ended(key))  # type: ignore[misc]

    def _ended(self, key: str) -> None:
        self._attending.pop(key, None)
        self._something.set()

    async def _attend_safely(self, key: str) -> None:
        try:
            await self._attend(key)
        except PostroadError as problem:  # the engine is away, most likely
            log.warning("subscription_interrupted", subscription=key, code=problem.code)
            await asyncio.sleep(_AGAIN_SECONDS)
            self._see(key)
        except Exception as exc:  # one subscription's trouble must not stop the others'
            log.error("subscription_crashed", subscription=key, error=repr(exc))
            await asyncio.sleep(_AGAIN_SECONDS)
            self._see(key)

    async def _attend(self, key: str) -> None:
        """Take one step after the other until there is nothing to do for now."""
        while True:
            record = await self._table.fetch(key)
            follower = self._followers.get(key.partition(".")[0])
            if record is None or follower is None:
                return
            if not await self._is_served(record.tenant):
                self._see_later(key, self._clock() + _DISABLED_MS)
                return
            record = await self._link_new(key, record, follower)
            tails: dict[str, str] = {}
            if record.wake is None:
                record, tails = await self._fresh(key, record, follower)
            due = wake_state.due(record, tails, self._clock())
            match due.step:
                case Step.WAIT:
                    if due.at_ms is not None:
                        self._see_later(key, due.at_ms)
                    return
                case Step.WAKE:
                    wake_id, now = new_wake_id(), self._clock()
                    await self._table.change(key, lambda one: wake_state.woken(one, tails, now, wake_id))  # noqa: B023  # used at once
                case Step.EXPIRE:
                    await self._table.change(key, lambda one: wake_state.expired(one, self._clock()))
                case Step.TELL:
                    await self._tell(key, record, follower)

    async def _link_new(self, key: str, record: SubscriptionRecord, follower: TenantFollower) -> SubscriptionRecord:
        """Streams that have appeared are linked before what revealed them."""
        some = await follower.appeared(key, record)
        if not some:
            return record
        changed = await self._table.change(key, lambda one: rules.with_globs(one, some))
        if changed is not None and changed[1].is_full and not changed[0].is_full:
            log.warning("subscription_full", subscription=key, streams=rules.LINKS_MAX)
        return changed[1] if changed else record

    async def _fresh(
        self, key: str, record: SubscriptionRecord, follower: TenantFollower
    ) -> tuple[SubscriptionRecord, dict[str, str]]:
        """The record without streams that are gone, and where the others end."""
        found = await follower.tails(record)
        gone = [path for path, tail in found.items() if tail is None]
        if any(not record.links[path].is_explicit for path in gone):
            changed = await self._table.change(key, lambda one: rules.without_gone(one, gone))
            record = changed[1] if changed else record
        return record, {path: tail or rules.ZERO for path, tail in found.items()}

    async def _tell(self, key: str, record: SubscriptionRecord, follower: TenantFollower) -> None:
        if record.wake is None:
            return
        wake = record.wake
        if record.kind is Kind.WEBHOOK:
            record, tails = await self._fresh(key, record, follower)
            is_told, is_done = await self._call(record, wake.id, tails)
        else:
            tails, is_done = {}, False
            is_told = await self._announce(record, wake.trigger)
        metrics.wakes.labels(record.kind.value, "done" if is_done else "told" if is_told else "failed").inc()

        def make(one: SubscriptionRecord) -> SubscriptionRecord:
            if not is_told:
                return wake_state.failed(one, wake.id, self._clock(), random.random())  # noqa: S311  # spreads retries, no secret
            heard = wake_state.told(one, wake.id, self._clock())
            if is_done and heard.wake is not None and heard.wake.id == wake.id:
                return wake_state.ended(rules.acknowledged_as_told(heard, tails))
            return heard

        await self._table.change(key, make)

    async def _call(self, record: SubscriptionRecord, wake_id: str, tails: dict[str, str]) -> tuple[bool, bool]:
        """Whether the webhook took it, and whether it is done with all it was told of."""
        body = msgspec.json.encode(
            WebhookBody(
                subscription_id=record.id,
                wake_id=wake_id,
                generation=record.generation,
                streams=rules.stream_states(record, tails),
                callback_url=f"{record.root}/__ds/subscriptions/{record.id}/callback",
                callback_token=self._subscriptions.token(record),
            )
        )
        headers = {
            "Content-Type": "application/json",
            "Webhook-Signature": self._keys.signature(body, self._clock() // 1000),
        }
        seconds = min(max(record.lease_ttl_ms / 1000, _CALL_SECONDS_MIN), _CALL_SECONDS_MAX)
        try:
            async with self._calls.setdefault(record.tenant, asyncio.Semaphore(_CALLS_PER_TENANT)):
                answer = await self._outbound.post(
                    record.webhook_url or "", body, headers, seconds=seconds, allow_loopback=self._has_localhost
                )
        except (OutboundFailed, OutboundRefused) as problem:
            log.info("webhook_failed", tenant=record.tenant, subscription=record.id, reason=problem.reason)
            return False, False
        return answer.is_success, answer.is_success and _says_done(answer)

    async def _announce(self, record: SubscriptionRecord, trigger: str) -> bool:
        """Whether the wake stands in the wake stream. If that is missing or closed, whoever made the subscription may mend it."""
        event = WakeEvent(subscription_id=record.id, stream=trigger, generation=record.generation, ts=self._clock())
        try:
            await self._streams.append_json(record.tenant, record.wake_stream or "", msgspec.json.encode(event))
        except PostroadError as problem:
            log.info("wake_not_announced", tenant=record.tenant, subscription=record.id, code=problem.code)
            return False
        return True


def _says_done(answer: HttpResult) -> bool:
    try:
        return _decode_done(answer.body).done
    except msgspec.DecodeError:
        return False
