"""State machine of wakes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stream_subscriptions.subscription_samples import at, record

from postroad.api.stream_subscriptions import LeaseHeld, NothingPending, WakeFenced
from postroad.kernel.clock import rfc3339
from postroad.stream_subscriptions import wake_state
from postroad.stream_subscriptions.records import Kind, Link, SubscriptionRecord, listed
from postroad.stream_subscriptions.wake_state import Action, NextAction

TAILS = {"events/a": at(1), "events/b": at(4)}
NOW = 1_000_000


def pending(**changes: Any) -> SubscriptionRecord:
    """A subscription with pending data in `events/b`."""
    return record(links={"events/a": Link(at(1)), "events/b": Link(at(3))}, **changes)


def pull(**changes: Any) -> SubscriptionRecord:
    return pending(kind=Kind.PULL_WAKE, webhook_url=None, wake_stream="w", **changes)


def test_a_subscription_without_pending_data_waits() -> None:
    assert wake_state.next_action(pending(), {"events/b": at(3)}, NOW) == NextAction(Action.WAIT)


def test_pending_data_starts_one_wake() -> None:
    assert wake_state.next_action(pending(), TAILS, NOW) == NextAction(Action.WAKE)
    awake = wake_state.start_wake(pending(), TAILS, NOW, "w1")
    assert awake.generation == 1
    assert awake.wake is not None
    assert (awake.wake.id, awake.wake.trigger) == ("w1", "events/b")
    assert wake_state.next_action(awake, TAILS, NOW) == NextAction(Action.DELIVER)
    assert wake_state.start_wake(awake, TAILS, NOW, "w2") == awake


def test_the_lease_of_a_webhook_begins_with_its_delivery() -> None:
    delivered = wake_state.delivered(wake_state.start_wake(pending(), TAILS, NOW, "w1"), "w1", NOW + 500)
    assert wake_state.next_action(delivered, TAILS, NOW + 500) == NextAction(Action.WAIT, NOW + 30_500)
    assert wake_state.next_action(delivered, TAILS, NOW + 30_500) == NextAction(Action.EXPIRE)
    assert wake_state.expire_lease(delivered, NOW + 30_499) == delivered
    over = wake_state.expire_lease(delivered, NOW + 30_500)
    assert over.wake is None
    assert wake_state.start_wake(over, TAILS, NOW + 30_500, "w2").generation == 2


def test_a_failed_delivery_is_retried_later() -> None:
    awake = wake_state.start_wake(pending(), TAILS, NOW, "w1")
    once = wake_state.delivery_failed(awake, "w1", NOW, 0.5)
    assert (once.failures, wake_state.next_action(once, TAILS, NOW)) == (1, NextAction(Action.WAIT, NOW + 1000))
    twice = wake_state.delivery_failed(once, "w1", NOW + 1000, 0.5)
    assert wake_state.next_action(twice, TAILS, NOW + 1000) == NextAction(Action.WAIT, NOW + 3000)
    assert wake_state.delivered(twice, "w1", NOW + 3000).failures == 0


def test_a_list_shows_failures_the_next_attempt_and_the_lease() -> None:
    awake = wake_state.start_wake(pending(), TAILS, NOW, "w1")
    failed = listed(wake_state.delivery_failed(awake, "w1", NOW, 0.5))
    assert (failed.failures, failed.next_attempt_at, failed.leased_until) == (1, rfc3339(NOW + 1000), None)
    delivered = listed(wake_state.delivered(awake, "w1", NOW))
    assert (delivered.failures, delivered.next_attempt_at, delivered.leased_until) == (0, None, rfc3339(NOW + 30_000))
    claimed = listed(wake_state.claim(pull(), "worker-1", TAILS, NOW, "w1"))
    assert (claimed.holder, claimed.leased_until) == ("worker-1", rfc3339(NOW + 30_000))
    asleep = listed(pending())
    assert (asleep.pending, asleep.next_attempt_at, asleep.leased_until, asleep.holder) == (False, None, None, None)


def test_a_callback_during_a_failed_call_counts() -> None:
    awake = wake_state.start_wake(pending(), TAILS, NOW, "w1")
    alive = wake_state.renew_lease(awake, NOW)
    assert wake_state.delivery_failed(alive, "w1", NOW, 0.5) == alive
    assert wake_state.delivery_failed(wake_state.end_wake(awake), "w1", NOW, 0.5).wake is None


def test_the_outcome_of_another_wake_is_ignored() -> None:
    awake = wake_state.start_wake(pending(), TAILS, NOW, "w2")
    assert wake_state.delivered(awake, "w1", NOW) == awake
    assert wake_state.delivery_failed(awake, "w1", NOW, 0.5) == awake


def test_a_delivered_pull_wake_waits_for_a_claim() -> None:
    delivered = wake_state.delivered(wake_state.start_wake(pull(), TAILS, NOW, "w1"), "w1", NOW)
    assert wake_state.next_action(delivered, TAILS, NOW + 10**9) == NextAction(Action.WAIT)
    claimed = wake_state.claim(delivered, "worker-1", TAILS, NOW, "unused")
    assert claimed.wake is not None
    assert (claimed.wake.id, claimed.wake.holder, claimed.generation) == ("w1", "worker-1", 1)


def test_a_claim_needs_no_delivered_wake() -> None:
    claimed = wake_state.claim(pull(), "worker-1", TAILS, NOW, "w1")
    assert claimed.wake is not None
    assert (claimed.wake.id, claimed.generation) == ("w1", 1)
    assert wake_state.next_action(claimed, TAILS, NOW) == NextAction(Action.WAIT, NOW + 30_000)


def test_a_claimed_wake_cannot_be_claimed_before_its_lease_expires() -> None:
    claimed = wake_state.claim(pull(), "worker-1", TAILS, NOW, "w1")
    with pytest.raises(LeaseHeld) as taken:
        wake_state.claim(claimed, "worker-2", TAILS, NOW + 29_999, "w2")
    assert taken.value.extra["error"] == {"current_holder": "worker-1", "generation": 1}
    later = wake_state.claim(claimed, "worker-2", TAILS, NOW + 30_000, "w2")
    assert later.wake is not None
    assert (later.wake.holder, later.generation) == ("worker-2", 2)


def test_a_claim_without_pending_data_is_refused() -> None:
    with pytest.raises(NothingPending):
        wake_state.claim(pull(), "worker-1", {}, NOW, "w1")


def test_an_ended_wake_is_fenced() -> None:
    claimed = wake_state.claim(pull(), "worker-1", TAILS, NOW, "w1")
    wake_state.check_wake(claimed, "w1", 1, NOW + 29_999)
    for wake_id, generation, now in [("w1", 2, NOW), ("w2", 1, NOW), (None, None, NOW), ("w1", 1, NOW + 30_000)]:
        with pytest.raises(WakeFenced):
            wake_state.check_wake(claimed, wake_id, generation, now)
    with pytest.raises(WakeFenced):
        wake_state.check_wake(wake_state.end_wake(claimed), "w1", 1, NOW)


def test_an_ack_renews_the_lease() -> None:
    claimed = wake_state.claim(pull(), "worker-1", TAILS, NOW, "w1")
    assert wake_state.next_action(wake_state.renew_lease(claimed, NOW + 20_000), TAILS, NOW + 40_000) == NextAction(
        Action.WAIT, NOW + 50_000
    )


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_retry_delays_grow_from_one_second_to_a_minute_with_jitter(failures: int, chance: float) -> None:
    assert 800 <= wake_state.retry_ms(failures, chance) <= 72_000
    assert wake_state.retry_ms(failures, 0.5) == min(1000 * 2 ** min(failures - 1, 20), 60_000)


@given(st.lists(st.sampled_from(["wake", "delivered", "failed", "claim", "beat", "end", "tick"]), max_size=40))
def test_generations_only_grow_and_there_is_at_most_one_wake(steps: list[str]) -> None:
    """For random transitions."""
    one, now = pull(), NOW
    for number, step in enumerate(steps):
        before = one
        current = one.wake.id if one.wake else ""
        match step:
            case "wake":
                one = wake_state.start_wake(one, TAILS, now, f"w{number}")
            case "delivered":
                one = wake_state.delivered(one, current, now)
            case "failed":
                one = wake_state.delivery_failed(one, current, now, 0.5)
            case "claim":
                try:
                    one = wake_state.claim(one, "worker", TAILS, now, f"w{number}")
                except LeaseHeld:
                    assert before.wake is not None
            case "beat":
                one = wake_state.renew_lease(one, now)
            case "end":
                one = wake_state.end_wake(one)
            case _:
                now += 31_000
                one = wake_state.expire_lease(one, now)
        assert one.generation - before.generation in (0, 1)
        is_new = one.wake is not None and one.wake.id != current
        assert is_new == (one.generation > before.generation)
