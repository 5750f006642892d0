"""Delivery of wakes to subscribers, in one process of the installation: the leader.

Each step is stored before the next, so that a new leader continues after the last one. A subscriber may receive the same wake
twice, but never has two wakes at once. Everything outside the records can be rebuilt.
"""

import asyncio
import contextlib
import heapq
import random

import msgspec
import structlog

from postroad.api.stream_subscriptions import WakeEvent, WebhookPayload
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError
from postroad.kernel.spans import NO_SPAN, Span, Tracer
from postroad.outbound.client import HttpResult, Outbound
from postroad.outbound.rules import OutboundFailed, OutboundRefused
from postroad.stream_subscriptions import metrics, rules, wake_state
from postroad.stream_subscriptions.keys import SigningKeys
from postroad.stream_subscriptions.records import Kind, SubscriptionRecord, Wake
from postroad.stream_subscriptions.service import IsServed, StreamsPort, StreamSubscriptions, new_wake_id
from postroad.stream_subscriptions.stream_watcher import StreamWatcher
from postroad.stream_subscriptions.wake_state import Action
from postroad.tracing.messaging import waking

_CLOCK_POLL_SECONDS = 1.0  # the wall clock may be set
_COALESCE_SECONDS = 0.002  # many appends at once cause one check
_RETRY_SECONDS = 1.0
_DISABLED_RETRY_MS = 5_000
_CALL_SECONDS_MIN, _CALL_SECONDS_MAX = 5.0, 30.0

log = structlog.get_logger("postroad.streams")


class _WebhookReply(msgspec.Struct):
    done: bool = False


_decode_reply = msgspec.json.Decoder(_WebhookReply).decode


class WakeDelivery:
    def __init__(
        self,
        table: ReplicatedTable[SubscriptionRecord],
        subscriptions: StreamSubscriptions,
        streams: StreamsPort,
        outbound: Outbound,
        keys: SigningKeys,
        clock: Clock,
        *,
        is_served: IsServed,
        has_localhost: bool,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self._table, self._subscriptions, self._streams = table, subscriptions, streams
        self._outbound, self._keys, self._clock = outbound, keys, clock
        self._is_served, self._has_localhost = is_served, has_localhost
        self._records: dict[str, SubscriptionRecord] = {}
        self._watchers: dict[str, StreamWatcher] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._processing: dict[str, asyncio.Task[None]] = {}
        self._due: set[str] = set()
        self._timers: list[tuple[int, str]] = []
        self._timer_of: dict[str, int] = {}  # the valid timer of each key; other entries in the heap are outdated
        self._work_available = asyncio.Event()
        self._is_running = False
        table.on_change(self._on_change)

    def _on_change(self, key: str, record: SubscriptionRecord | None) -> None:
        if record is None:
            self._records.pop(key, None)
        else:
            self._records[key] = record
        if self._is_running:
            self._update_watcher(key, record)

    def _update_watcher(self, key: str, record: SubscriptionRecord | None) -> None:
        tenant = key.partition(".")[0]
        watcher = self._watchers.get(tenant)
        if watcher is None and record is not None:
            watcher = self._watchers[tenant] = StreamWatcher(tenant, self._streams, self._schedule)
            self._watching[tenant] = asyncio.create_task(watcher.run())
        if watcher is not None:
            watcher.update(key, record)
            if watcher.is_idle:
                self._watchers.pop(tenant)
                self._watching.pop(tenant).cancel()
        self._schedule(key)

    def _schedule(self, key: str) -> None:
        self._due.add(key)
        self._work_available.set()

    async def run(self) -> None:
        """Run until cancelled. The next leader continues interrupted deliveries."""
        self._is_running = True
        try:
            for key, record in list(self._records.items()):
                self._update_watcher(key, record)
            while True:
                self._work_available.clear()
                self._collect_timers()
                self._start_processing()
                for task in self._watching.values():
                    if task.done():
                        task.result()  # a watcher ends only with an error, which must end this job too
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._wait_seconds()):
                        await self._work_available.wait()
                await asyncio.sleep(_COALESCE_SECONDS)
        finally:
            self._is_running = False
            tasks = [*self._watching.values(), *self._processing.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for state in (
                self._watchers,
                self._watching,
                self._processing,
                self._due,
                self._timer_of,
                self._timers,
            ):
                state.clear()

    def _wait_seconds(self) -> float:
        if not self._timers:
            return _CLOCK_POLL_SECONDS
        return min(_CLOCK_POLL_SECONDS, max(0.0, (self._timers[0][0] - self._clock()) / 1000))

    def _collect_timers(self) -> None:
        while self._timers and self._timers[0][0] <= self._clock():
            at_ms, key = heapq.heappop(self._timers)
            if self._timer_of.get(key) == at_ms:
                del self._timer_of[key]
                self._due.add(key)

    def _schedule_at(self, key: str, at_ms: int) -> None:
        if self._timer_of.get(key) != at_ms:
            self._timer_of[key] = at_ms
            heapq.heappush(self._timers, (at_ms, key))
            self._work_available.set()

    def _start_processing(self) -> None:
        for key in [key for key in self._due if key not in self._processing]:
            self._due.discard(key)
            if key in self._records:
                self._processing[key] = asyncio.create_task(self._process_safely(key))
                self._processing[key].add_done_callback(lambda _done, key=key: self._on_processed(key))  # type: ignore[misc]

    def _on_processed(self, key: str) -> None:
        self._processing.pop(key, None)
        self._work_available.set()

    async def _process_safely(self, key: str) -> None:
        try:
            await self._process(key)
            return
        except PostroadError as problem:  # most likely JetStream is unavailable
            log.warning("subscription_interrupted", subscription=key, code=problem.code)
        except Exception as exc:  # a failing subscription must not stop the others
            log.error("subscription_crashed", subscription=key, error=repr(exc))
        await asyncio.sleep(_RETRY_SECONDS)
        self._schedule(key)

    async def _process(self, key: str) -> None:
        """Execute actions of the subscription until it has to wait."""
        while True:
            record = await self._table.fetch(key)
            watcher = self._watchers.get(key.partition(".")[0])
            if record is None or watcher is None:
                return
            if not await self._is_served(record.tenant):
                self._schedule_at(key, self._clock() + _DISABLED_RETRY_MS)
                return
            record = await self._link_new_streams(key, record, watcher)
            tails: dict[str, str] = {}
            if record.wake is None:
                record, tails = await self._refresh_links(key, record, watcher)
            following = wake_state.next_action(record, tails, self._clock())
            match following.action:
                case Action.WAIT:
                    if following.at_ms is not None:
                        self._schedule_at(key, following.at_ms)
                    return
                case Action.WAKE:
                    wake_id, now = new_wake_id(), self._clock()
                    await self._table.change(key, lambda one: wake_state.start_wake(one, tails, now, wake_id))  # noqa: B023  # used at once
                case Action.EXPIRE:
                    await self._table.change(key, lambda one: wake_state.expire_lease(one, self._clock()))
                case Action.DELIVER:
                    if record.wake is not None:
                        await self._deliver(key, record, record.wake, watcher)

    async def _link_new_streams(self, key: str, record: SubscriptionRecord, watcher: StreamWatcher) -> SubscriptionRecord:
        """Link new streams before their data is compared with the acknowledged offsets."""
        new = await watcher.new_streams(key, record)
        if not new:
            return record
        changed = await self._table.change(key, lambda one: rules.link_matching(one, new))
        if changed is not None and changed[1].is_full and not changed[0].is_full:
            log.warning("subscription_full", subscription=key, streams=rules.LINKS_MAX)
        return changed[1] if changed else record

    async def _refresh_links(
        self, key: str, record: SubscriptionRecord, watcher: StreamWatcher
    ) -> tuple[SubscriptionRecord, dict[str, str]]:
        """The record without deleted streams, and the ends of the others."""
        tails = await watcher.tails(record)
        deleted = [path for path, tail in tails.items() if tail is None]
        if any(not record.links[path].is_explicit for path in deleted):
            changed = await self._table.change(key, lambda one: rules.unlink_deleted(one, deleted))
            record = changed[1] if changed else record
        return record, {path: tail or rules.ZERO for path, tail in tails.items()}

    async def _deliver(self, key: str, record: SubscriptionRecord, wake: Wake, watcher: StreamWatcher) -> None:
        tails: dict[str, str] = {}
        is_done = False
        if record.kind is Kind.WEBHOOK:
            record, tails = await self._refresh_links(key, record, watcher)
            is_delivered, is_done = await self._call_webhook(record, wake.id, tails)
        else:
            is_delivered = await self._append_wake(record, wake.trigger)
        outcome = "done" if is_done else "delivered" if is_delivered else "failed"
        metrics.wakes.labels(record.kind.value, outcome).inc()

        def change(one: SubscriptionRecord) -> SubscriptionRecord:
            if not is_delivered:
                return wake_state.delivery_failed(one, wake.id, self._clock(), random.random())  # noqa: S311  # spreads retries, no secret
            delivered = wake_state.delivered(one, wake.id, self._clock())
            if is_done and delivered.wake is not None and delivered.wake.id == wake.id:
                return wake_state.end_wake(rules.acknowledge_sent(delivered, tails))
            return delivered

        await self._table.change(key, change)

    async def _call_webhook(self, record: SubscriptionRecord, wake_id: str, tails: dict[str, str]) -> tuple[bool, bool]:
        """Whether the webhook accepted the call, and whether it is done with all data in it."""
        body = msgspec.json.encode(
            WebhookPayload(
                subscription_id=record.id,
                wake_id=wake_id,
                generation=record.generation,
                streams=rules.pending_streams(record, tails),
                callback_url=f"{self._subscriptions.root_of(record)}/__ds/subscriptions/{record.id}/callback",
                callback_token=self._subscriptions.token(record),
            )
        )
        headers = {
            "Content-Type": "application/json",
            "Webhook-Signature": self._keys.signature(body, self._clock() // 1000),
        }
        span = None if self._tracer is None else waking(self._tracer, record.tenant, record.id)
        if span is not None:
            headers["traceparent"] = span.traceparent
        with span or NO_SPAN:
            return await self._post_wake(record, body, headers, span)

    async def _post_wake(
        self, record: SubscriptionRecord, body: bytes, headers: dict[str, str], span: Span | None
    ) -> tuple[bool, bool]:
        seconds = min(max(record.lease_ttl_ms / 1000, _CALL_SECONDS_MIN), _CALL_SECONDS_MAX)
        try:
            result = await self._outbound.post(
                record.tenant,
                record.webhook_url or "",
                body,
                headers,
                seconds=seconds,
                allow_loopback=self._has_localhost,
            )
        except (OutboundFailed, OutboundRefused) as problem:
            log.info("webhook_failed", tenant=record.tenant, subscription=record.id, reason=problem.reason)
            if span is not None:
                span.end(problem.reason)
            return False, False
        if span is not None:
            span.attributes["http.response.status_code"] = result.status
            span.end(None if result.is_success else str(result.status))
        return result.is_success, result.is_success and _is_done(result)

    async def _append_wake(self, record: SubscriptionRecord, trigger: str) -> bool:
        """Append the wake to the wake stream. False if that stream is missing or closed: its owner may create it again."""
        event = WakeEvent(subscription_id=record.id, stream=trigger, generation=record.generation, ts=self._clock())
        try:
            await self._streams.append_json(record.tenant, record.wake_stream or "", msgspec.json.encode(event))
        except PostroadError as problem:
            log.info("wake_not_appended", tenant=record.tenant, subscription=record.id, code=problem.code)
            return False
        return True


def _is_done(result: HttpResult) -> bool:
    try:
        return _decode_reply(result.body).done
    except msgspec.DecodeError:
        return False
