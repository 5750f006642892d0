"""How a wake goes on from one state to the next."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stream_subscriptions.making import at, record

from postroad.kernel.errors import LeaseHeld, NothingPending, WakeFenced
from postroad.stream_subscriptions import wake_state
from postroad.stream_subscriptions.records import Kind, Link, SubscriptionRecord
from postroad.stream_subscriptions.wake_state import Due, Step

TAILS = {"events/a": at(1), "events/b": at(4)}
NOW = 1_000_000


def pending(**changes: Any) -> SubscriptionRecord:
    """`events/b` has more than was acknowledged."""
    return record(links={"events/a": Link(at(1)), "events/b": Link(at(3))}, **changes)


def pull(**changes: Any) -> SubscriptionRecord:
    return pending(kind=Kind.PULL_WAKE, webhook_url=None, wake_stream="w", **changes)


def test_nothing_pending_is_nothing_to_do() -> None:
    assert wake_state.due(pending(), {"events/b": at(3)}, NOW) == Due(Step.WAIT)


def test_something_pending_wakes_once() -> None:
    assert wake_state.due(pending(), TAILS, NOW) == Due(Step.WAKE)
    awake = wake_state.woken(pending(), TAILS, NOW, "w1")
    assert awake.generation == 1
    assert awake.wake is not None
    assert (awake.wake.id, awake.wake.trigger) == ("w1", "events/b")
    assert wake_state.due(awake, TAILS, NOW) == Due(Step.TELL)
    assert wake_state.woken(awake, TAILS, NOW, "w2") == awake


def test_a_webhooks_lease_begins_when_it_was_told() -> None:
    told = wake_state.told(wake_state.woken(pending(), TAILS, NOW, "w1"), "w1", NOW + 500)
    assert wake_state.due(told, TAILS, NOW + 500) == Due(Step.WAIT, NOW + 30_500)
    assert wake_state.due(told, TAILS, NOW + 30_500) == Due(Step.EXPIRE)
    assert wake_state.expired(told, NOW + 30_499) == told
    over = wake_state.expired(told, NOW + 30_500)
    assert over.wake is None
    assert wake_state.woken(over, TAILS, NOW + 30_500, "w2").generation == 2


def test_who_cannot_be_told_is_told_again_later() -> None:
    awake = wake_state.woken(pending(), TAILS, NOW, "w1")
    once = wake_state.failed(awake, "w1", NOW, 0.5)
    assert (once.failures, wake_state.due(once, TAILS, NOW)) == (1, Due(Step.WAIT, NOW + 1000))
    twice = wake_state.failed(once, "w1", NOW + 1000, 0.5)
    assert wake_state.due(twice, TAILS, NOW + 1000) == Due(Step.WAIT, NOW + 3000)
    assert wake_state.told(twice, "w1", NOW + 3000).failures == 0


def test_a_callback_that_came_while_the_call_failed_counts() -> None:
    awake = wake_state.woken(pending(), TAILS, NOW, "w1")
    alive = wake_state.extended(awake, NOW)
    assert wake_state.failed(alive, "w1", NOW, 0.5) == alive
    assert wake_state.failed(wake_state.ended(awake), "w1", NOW, 0.5).wake is None


def test_news_of_another_wake_change_nothing() -> None:
    awake = wake_state.woken(pending(), TAILS, NOW, "w2")
    assert wake_state.told(awake, "w1", NOW) == awake
    assert wake_state.failed(awake, "w1", NOW, 0.5) == awake


def test_a_wake_that_is_pulled_waits_to_be_claimed() -> None:
    told = wake_state.told(wake_state.woken(pull(), TAILS, NOW, "w1"), "w1", NOW)
    assert wake_state.due(told, TAILS, NOW + 10**9) == Due(Step.WAIT)
    claimed = wake_state.claimed(told, "worker-1", TAILS, NOW, "unused")
    assert claimed.wake is not None
    assert (claimed.wake.id, claimed.wake.holder, claimed.generation) == ("w1", "worker-1", 1)


def test_a_claim_needs_no_wake_to_have_been_told() -> None:
    claimed = wake_state.claimed(pull(), "worker-1", TAILS, NOW, "w1")
    assert claimed.wake is not None
    assert (claimed.wake.id, claimed.generation) == ("w1", 1)
    assert wake_state.due(claimed, TAILS, NOW) == Due(Step.WAIT, NOW + 30_000)


def test_what_is_claimed_is_not_claimed_again_before_its_lease_ends() -> None:
    claimed = wake_state.claimed(pull(), "worker-1", TAILS, NOW, "w1")
    with pytest.raises(LeaseHeld) as taken:
        wake_state.claimed(claimed, "worker-2", TAILS, NOW + 29_999, "w2")
    assert taken.value.extra["error"] == {"current_holder": "worker-1", "generation": 1}
    later = wake_state.claimed(claimed, "worker-2", TAILS, NOW + 30_000, "w2")
    assert later.wake is not None
    assert (later.wake.holder, later.generation) == ("worker-2", 2)


def test_nothing_to_read_is_nothing_to_claim() -> None:
    with pytest.raises(NothingPending):
        wake_state.claimed(pull(), "worker-1", {}, NOW, "w1")


def test_a_wake_that_is_over_is_fenced() -> None:
    claimed = wake_state.claimed(pull(), "worker-1", TAILS, NOW, "w1")
    wake_state.check_wake(claimed, "w1", 1, NOW + 29_999)
    for wake_id, generation, now in [("w1", 2, NOW), ("w2", 1, NOW), (None, None, NOW), ("w1", 1, NOW + 30_000)]:
        with pytest.raises(WakeFenced):
            wake_state.check_wake(claimed, wake_id, generation, now)
    with pytest.raises(WakeFenced):
        wake_state.check_wake(wake_state.ended(claimed), "w1", 1, NOW)


def test_a_heartbeat_makes_the_lease_begin_anew() -> None:
    claimed = wake_state.claimed(pull(), "worker-1", TAILS, NOW, "w1")
    assert wake_state.due(wake_state.extended(claimed, NOW + 20_000), TAILS, NOW + 40_000) == Due(Step.WAIT, NOW + 50_000)


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_retries_come_from_one_second_to_a_minute_apart_a_fifth_more_or_less(failures: int, chance: float) -> None:
    assert 800 <= wake_state.retry_ms(failures, chance) <= 72_000
    assert wake_state.retry_ms(failures, 0.5) == min(1000 * 2 ** min(failures - 1, 20), 60_000)


@given(st.lists(st.sampled_from(["wake", "told", "failed", "claim", "beat", "end", "tick"]), max_size=40))
def test_generations_only_grow_and_one_wake_is_under_way(steps: list[str]) -> None:
    """Whatever happens in whatever order."""
    one, now = pull(), NOW
    for number, step in enumerate(steps):
        before = one
        current = one.wake.id if one.wake else ""
        match step:
            case "wake":
                one = wake_state.woken(one, TAILS, now, f"w{number}")
            case "told":
                one = wake_state.told(one, current, now)
            case "failed":
                one = wake_state.failed(one, current, now, 0.5)
            case "claim":
                try:
                    one = wake_state.claimed(one, "worker", TAILS, now, f"w{number}")
                except LeaseHeld:
                    assert before.wake is not None
            case "beat":
                one = wake_state.extended(one, now)
            case "end":
                one = wake_state.ended(one)
            case _:
                now += 31_000
                one = wake_state.expired(one, now)
        assert one.generation - before.generation in (0, 1)
        is_new = one.wake is not None and one.wake.id != current
        assert is_new == (one.generation > before.generation)
