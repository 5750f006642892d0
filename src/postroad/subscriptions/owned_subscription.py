"""A subscription in the process that delivers it: cursors, limits, breaker, counts. No I/O; the time is passed in."""

from dataclasses import dataclass, field

from postroad.kernel.circuit_breaker import BreakerState, CircuitBreaker
from postroad.kernel.token_bucket import TokenBucket
from postroad.subscriptions.content_filter import ContentFilter
from postroad.subscriptions.delivery_cursor import DeliveryCursor
from postroad.subscriptions.endpoint_rules import (
    BREAKER_FAILURES,
    BREAKER_OPEN_MS,
    BREAKER_OPEN_MS_MAX,
    ConcurrencyWindow,
    Outcome,
)
from postroad.subscriptions.filter_policy import FilterPolicy
from postroad.subscriptions.loop_detector import LoopDetector
from postroad.subscriptions.push_client import AttemptResult
from postroad.subscriptions.received_message import message_filters
from postroad.subscriptions.records import LIVE_CURSOR, ProgressRecord, ReplayRange, SubscriptionRecord

_RECENT_MS = 300_000
_RECENT_BUCKET_MS = 10_000


@dataclass(slots=True, eq=False)
class OwnedCursor:
    """A cursor with its place in the store. `revision` is that of its stored progress, `stored_version` the cursor's then.

    `is_live`: the follower of the topic hands new messages to it; else it has to read the log first. `replay` is the range of a
    replay's cursor.
    """

    name: str
    cursor: DeliveryCursor
    revision: int = 0
    stored_version: int = -1
    is_live: bool = False
    is_reading: bool = False
    replay: ReplayRange | None = None
    rate: TokenBucket | None = None
    turn: int = 0  # number of the subscription's last attempt that was this cursor's

    @property
    def is_finished(self) -> bool:
        """True for a replay whose range was read and settled."""
        return self.replay is not None and self.cursor.read_to >= self.replay.last and not self.cursor.open_count


@dataclass(slots=True)
class Started:
    """An attempt that was started."""

    cursor: OwnedCursor
    sequence: int
    attempt: int


@dataclass(slots=True, eq=False)
class OwnedSubscription:
    record: SubscriptionRecord
    cursors: dict[str, OwnedCursor]
    delivered_count: int = 0
    failed_count: int = 0
    in_flight: int = 0
    paused_until_ms: int = 0
    last_error: str | None = None
    is_released: bool = False  # another process delivers it now: results of attempts in flight do not count
    is_failing: bool = False  # the event `subscription.failing` was recorded
    filters: tuple[ContentFilter | FilterPolicy, ...] = ()
    breaker: CircuitBreaker = field(
        default_factory=lambda: CircuitBreaker(BREAKER_FAILURES, BREAKER_OPEN_MS, BREAKER_OPEN_MS_MAX)
    )
    key: str = field(init=False)
    window: ConcurrencyWindow = field(init=False)
    rate: TokenBucket | None = None
    turns: int = 0  # attempts that were started
    sampled_delivered: int = 0
    sampled_failed: int = 0
    loops: LoopDetector = field(default_factory=LoopDetector)
    _recent: list[tuple[int, int, int]] = field(default_factory=list)  # start of the bucket, successes, failures

    def __post_init__(self) -> None:
        self.key = self.record.key
        self.window = ConcurrencyWindow(self.record.max_in_flight)
        self.update(self.record)

    @property
    def live(self) -> OwnedCursor:
        return self.cursors[LIVE_CURSOR]

    def update(self, record: SubscriptionRecord) -> None:
        """Apply changed settings, other than the ordering, which a cursor has for life. A changed endpoint gets a new chance."""
        before, self.record = self.record, record
        self.filters = message_filters(record)
        self.window.maximum = record.max_in_flight
        if record.max_per_second is None:
            self.rate = None
        elif self.rate is None or record.max_per_second != before.max_per_second:
            self.rate = TokenBucket.at_most(record.max_per_second, 0.0)
        if record.url != before.url or (record.is_active and not before.is_active):
            self.breaker = CircuitBreaker(BREAKER_FAILURES, BREAKER_OPEN_MS, BREAKER_OPEN_MS_MAX)
            self.paused_until_ms, self.last_error, self.is_failing = 0, None, False

    # Attempts

    def start(self, now_ms: int) -> Started | int | None:
        """Start the next attempt. If none may start now: the time when one may, or None until something changes."""
        if self.is_released or not self.record.is_active or self.in_flight >= self.window.size:
            return None
        ready: list[OwnedCursor] = []
        first_ms: int | None = None
        for one in self.cursors.values():
            at = one.cursor.next_due_ms
            if at is None:
                continue
            if at <= now_ms:
                ready.append(one)
            elif first_ms is None or at < first_ms:
                first_ms = at
        if not ready:
            return None if first_ms is None else max(self.paused_until_ms, first_ms)
        if now_ms < self.paused_until_ms:
            return self.paused_until_ms
        if self.record.has_breaker:
            state = self.breaker.state(now_ms)
            if state is BreakerState.OPEN:
                return self.breaker.half_open_at_ms
            if state is BreakerState.HALF_OPEN and self.in_flight:  # the probe is made alone
                return None
        wait_ms = _wait(self.rate, now_ms)
        if wait_ms:
            return now_ms + wait_ms
        if len(ready) > 1:  # in turns: neither the live delivery nor a replay waits for the end of the other
            ready.sort(key=lambda one: one.turn)
        for one in ready:
            wait_ms = _wait(one.rate, now_ms)
            if wait_ms:
                first_ms = now_ms + wait_ms if first_ms is None else min(first_ms, now_ms + wait_ms)
                continue
            started = one.cursor.start(now_ms)
            if started is not None:
                return self._begin(one, started, now_ms)
        return first_ms

    @property
    def may_start_more(self) -> bool:
        """False if `start` would return None: there is no place for another attempt, or no message waits for one."""
        if self.in_flight >= self.window.size:
            return False
        for one in self.cursors.values():  # noqa: SIM110  # a generator would cost more than the rest
            if one.cursor.next_due_ms is not None:
                return True
        return False

    def _begin(self, one: OwnedCursor, started: tuple[int, int], now_ms: int) -> Started:
        for rate in (self.rate, one.rate):
            if rate is not None:
                rate.take(now_ms / 1000)
        if self.record.has_breaker:
            self.breaker.allows(now_ms)
        self.in_flight += 1
        self.turns = one.turn = self.turns + 1
        return Started(one, *started)

    def count(self, result: AttemptResult, now_ms: int) -> None:
        """Count the result of an attempt: for the breaker, the concurrency window and the success rate."""
        is_success = result.outcome is Outcome.DELIVERED
        self.delivered_count += is_success
        self.failed_count += not is_success
        self._count_recent(is_success, now_ms)
        if result.is_timeout:
            self.window.halve()
        elif is_success:
            self.window.grow()
        if result.outcome is Outcome.TRANSIENT and not result.is_ours:
            self.breaker.record(0, 1, now_ms)
        elif is_success or (self.breaker.is_trial and not result.is_ours):  # a probe that is refused shows that it responds
            self.breaker.record(1, 0, now_ms)
        self.last_error = None if is_success else result.cause

    def _count_recent(self, is_success: bool, now_ms: int) -> None:
        bucket = now_ms - now_ms % _RECENT_BUCKET_MS
        if not self._recent or self._recent[-1][0] != bucket:
            self._recent.append((bucket, 0, 0))
        at, successes, failures = self._recent[-1]
        self._recent[-1] = (at, successes + is_success, failures + (not is_success))
        while self._recent and self._recent[0][0] < now_ms - _RECENT_MS:
            del self._recent[0]

    def take_sample(self) -> tuple[int, int]:
        """The deliveries and failed attempts since the last call."""
        sample = self.delivered_count - self.sampled_delivered, self.failed_count - self.sampled_failed
        self.sampled_delivered, self.sampled_failed = self.delivered_count, self.failed_count
        return sample

    # State

    def continue_from(self, stored: ProgressRecord) -> None:
        """Keep the pause and the breaker of the previous owner, unless the subscription was changed since."""
        if stored.at_ms < self.record.updated_at_ms:
            return
        self.paused_until_ms, self.is_failing = stored.paused_until_ms, stored.is_failing
        if stored.breaker_counts is not None:
            self.breaker.restore(stored.breaker_counts)

    def resumes_at_ms(self, now_ms: int) -> int | None:
        """When delivery continues, if the breaker or the endpoint's Retry-After hold it up."""
        times = [self.paused_until_ms] if self.paused_until_ms > now_ms else []
        half_open_at_ms = self.breaker.half_open_at_ms if self.record.has_breaker else None
        if half_open_at_ms is not None and half_open_at_ms > now_ms:
            times.append(half_open_at_ms)
        return max(times, default=None)

    def progress(self, cursor: OwnedCursor, owner: str, now_ms: int) -> ProgressRecord:
        return ProgressRecord(
            owner=owner,
            at_ms=now_ms,
            cursor=cursor.cursor.state,
            delivered_count=self.delivered_count,
            failed_count=self.failed_count,
            in_flight=self.in_flight,
            recent_successes=sum(successes for _, successes, _ in self._recent),
            recent_failures=sum(failures for _, _, failures in self._recent),
            breaker=(self.breaker.state(now_ms) if self.record.has_breaker else BreakerState.CLOSED).value,
            resumes_at_ms=self.resumes_at_ms(now_ms),
            last_error=self.last_error,
            suspected_loop=self.loops.suspected,
            paused_until_ms=self.paused_until_ms,
            is_failing=self.is_failing,
            breaker_counts=self.breaker.counts,
        )


def _wait(rate: TokenBucket | None, now_ms: int) -> int:
    """The milliseconds until there is a token; 0 if there is one, or no limit."""
    if rate is None:
        return 0
    seconds = rate.wait(now_ms / 1000)
    return 0 if seconds == 0 else max(1, round(seconds * 1000))
