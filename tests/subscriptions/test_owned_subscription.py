"""A subscription in the process that delivers it: the breaker's probe, and subscriptions that wait for a slot."""

import asyncio
from functools import partial
from typing import Any

from postroad.kernel.circuit_breaker import BreakerState
from postroad.kernel.token_bucket import TokenBucket
from postroad.subscriptions.delivery_cursor import CursorState, DeliveryCursor
from postroad.subscriptions.endpoint_rules import BREAKER_FAILURES, BREAKER_OPEN_MS, Outcome
from postroad.subscriptions.owned_subscription import OwnedCursor, OwnedSubscription, Started
from postroad.subscriptions.push_client import AttemptResult
from postroad.subscriptions.records import LIVE_CURSOR, ReplayRange
from postroad.subscriptions.scheduler import Scheduler
from tests.subscriptions.simulation import new_record
from tests.waiting import eventually

FAILED = AttemptResult(Outcome.TRANSIENT, 1, 500)
REFUSED = AttemptResult(Outcome.REFUSED, 1, 400)


def _owned(open_count: int, **changes: Any) -> OwnedSubscription:
    cursor = DeliveryCursor(CursorState(read_to=0))
    for sequence in range(1, open_count + 1):
        cursor.open(sequence)
    return OwnedSubscription(new_record(max_in_flight=8, **changes), {LIVE_CURSOR: OwnedCursor(LIVE_CURSOR, cursor)})


def test_the_probe_of_a_half_open_breaker_is_made_alone() -> None:
    """Also when it takes longer than the breaker was open for, and when earlier attempts have not ended."""
    owned = _owned(5)
    for _ in range(3):
        owned.window.grow()
    assert isinstance(owned.start(0), Started)
    for _ in range(BREAKER_FAILURES):
        owned.count(FAILED, 0)
    assert owned.start(0) == BREAKER_OPEN_MS
    assert owned.start(BREAKER_OPEN_MS) is None, "an attempt from before is in flight"
    owned.in_flight -= 1
    assert isinstance(owned.start(BREAKER_OPEN_MS), Started)
    assert owned.start(3 * BREAKER_OPEN_MS) is None, "the probe is in flight"


def test_more_attempts_may_start_while_there_is_a_place_and_a_message_that_waits() -> None:
    """Then `start` starts one, and else it returns None."""
    owned = _owned(3)
    may_start: list[bool] = []
    for is_started in (True, False, True, True, False):  # the window has one place at first; in the end no message waits
        may_start.append(owned.may_start_more)
        assert isinstance(owned.start(0), Started) is is_started
        if not is_started or owned.in_flight > 1:
            owned.window.grow()
    assert may_start == [True, False, True, True, False]


def test_a_refused_message_neither_counts_for_the_breaker_nor_against_it() -> None:
    owned = _owned(0)
    for _ in range(BREAKER_FAILURES - 1):
        owned.count(FAILED, 0)
    for _ in range(2 * BREAKER_FAILURES):
        owned.count(REFUSED, 0)
    assert owned.breaker.state(0) is BreakerState.CLOSED
    owned.count(FAILED, 0)
    assert owned.breaker.state(0) is BreakerState.OPEN
    owned.count(REFUSED, 0)  # of an attempt from before
    assert owned.breaker.state(0) is BreakerState.OPEN


def test_a_probe_that_is_refused_closes_the_breaker() -> None:
    """The endpoint responds again."""
    owned = _owned(2)
    for _ in range(BREAKER_FAILURES):
        owned.count(FAILED, 0)
    assert isinstance(owned.start(BREAKER_OPEN_MS), Started)
    owned.count(REFUSED, BREAKER_OPEN_MS)
    assert owned.breaker.state(BREAKER_OPEN_MS) is BreakerState.CLOSED


def _with_replay(owned: OwnedSubscription, open_count: int, rate_per_second: int) -> OwnedCursor:
    cursor = DeliveryCursor(CursorState(read_to=0))
    for sequence in range(1, open_count + 1):
        cursor.open(sequence)
    replay = ReplayRange(task="t", first=1, last=open_count, rate_per_second=rate_per_second)
    made = OwnedCursor(replay.cursor, cursor, replay=replay, rate=TokenBucket(rate_per_second, 0.0, burst=1))
    owned.cursors[replay.cursor] = made
    return made


def _started(owned: OwnedSubscription, now_ms: int) -> str:
    """The cursor whose attempt starts; the attempt ends at once."""
    started = owned.start(now_ms)
    assert isinstance(started, Started)
    owned.in_flight -= 1
    started.cursor.cursor.settle(started.sequence)
    return started.cursor.name


def test_a_replay_and_the_live_delivery_take_turns() -> None:
    owned = _owned(100)
    replays = [_with_replay(owned, 100, 10_000).name]
    assert sorted(_started(owned, 1000 * number) for number in range(20)) == sorted([LIVE_CURSOR, *replays] * 10)


def test_a_replay_that_waits_for_its_rate_costs_the_live_delivery_nothing() -> None:
    owned = _owned(0)
    owned.update(new_record(max_in_flight=8, max_per_second=1))
    replay = _with_replay(owned, 10, 1)
    assert _started(owned, 0) == replay.name
    owned.rate = TokenBucket(1, 0.0, burst=1)  # full again, while the replay has no token
    assert owned.start(500) == 1000
    owned.live.cursor.open(11)
    assert _started(owned, 500) == LIVE_CURSOR


def test_a_high_rate_is_reached_although_timers_are_late() -> None:
    owned = _owned(1000, max_per_second=1000)
    now_ms = started = 0
    while now_ms < 900:
        found = owned.start(now_ms)
        if isinstance(found, Started):
            owned.in_flight, started = 0, started + 1
        else:
            assert found is not None
            now_ms = found + 3
    assert 0.95 * 900 <= started <= 940


async def test_a_subscription_waits_once_for_the_slots_of_its_tenant() -> None:
    async def attempt(_owned: OwnedSubscription, _started: Started) -> None:
        """Not called in this test."""

    scheduler = Scheduler(attempt, lambda: 0, slots=2, is_served=lambda _tenant: True)
    scheduler._in_flight["acme"] = 1  # all that it may have while there are two slots
    owned = _owned(5)
    scheduler.add(owned)
    for _ in range(10):
        scheduler.wake(owned)
        scheduler._pump()
    assert [list(waiting) for waiting in scheduler._deferred.values()] == [[owned.record.id]]
    scheduler.remove(owned.record.id)


async def test_a_tenant_without_attempts_starts_one_however_many_tenants_have_some() -> None:
    """It is not left waiting while a slot is free: no attempt of its own would end and wake it."""
    started: list[str] = []
    hold = asyncio.Event()

    async def attempt(owned: OwnedSubscription, _started: Started) -> None:
        started.append(owned.record.tenant)
        await hold.wait()

    scheduler = Scheduler(attempt, lambda: 0, slots=3, is_served=lambda _tenant: True)
    for tenant in ("acme", "globex", "initech"):
        scheduler.add(_owned(5, id=f"sub-of-{tenant}", tenant=tenant))
        await eventually(partial(started.__contains__, tenant))
    assert sorted(started) == ["acme", "globex", "initech"]
    hold.set()
    await scheduler.stop()


async def test_an_attempt_that_is_cancelled_before_it_runs_frees_its_place() -> None:
    async def attempt(_owned: OwnedSubscription, _started: Started) -> None:
        """Not reached."""

    scheduler = Scheduler(attempt, lambda: 0, slots=3, is_served=lambda _tenant: True)
    owned = _owned(1)
    scheduler.add(owned)
    scheduler._pump()
    assert owned.in_flight == scheduler.in_flight == 1
    await scheduler.stop()
    await eventually(lambda: owned.in_flight == 0)
