"""Health of a queue from its samples."""

import pytest

from postroad.route_health.rules import (
    Assessment,
    HealthSample,
    QueueCondition,
    RouteState,
    assess,
    next_state,
)

FINE = QueueCondition()
DRAIN = 300


def sample(index: int, ready: float, **more: float) -> HealthSample:
    return HealthSample(at_ms=index * 10_000, ready=ready, **more)  # type: ignore[arg-type]


def found(samples: list[HealthSample], condition: QueueCondition = FINE, *, late_ms: int = 0) -> Assessment:
    latest = samples[-1] if samples else None
    now = (0 if latest is None else latest.at_ms) + late_ms
    return assess(samples, latest, DRAIN, condition, now_ms=now, max_age_ms=60_000)


def test_a_queue_whose_oldest_message_is_older_than_two_drain_times_is_old() -> None:
    """Requirement 39"""
    assert found([sample(1, 3, leased=1, oldest_age_ms=600_000)]).problems == ()
    assert found([sample(1, 3, leased=1, oldest_age_ms=600_001)]).problems == ("old",)


def test_a_queue_that_rose_in_five_samples_in_a_row_is_growing() -> None:
    """Requirement 40"""
    rising = [sample(index, index, leased=1) for index in range(1, 7)]
    assert found(rising).problems == ("growing",)
    assert found(rising[1:]).problems == ()
    assert found([*rising[:3], sample(4, 3, leased=1), *rising[4:]]).problems == ()


def test_ready_messages_without_a_lease_a_waiting_pull_or_a_settlement_are_unpolled() -> None:
    """Requirement 41"""
    idle = [sample(index, 5) for index in range(1, 6)]
    assert found(idle).problems == ("unpolled",)
    assert found(idle[1:]).problems == ()
    for activity in ("leased", "retrying", "waiting", "settled"):
        assert found([*idle[:4], sample(5, 5, **{activity: 1})]).problems == ()
        assert found([*idle[:1], sample(2, 5, **{activity: 1}), *idle[2:]]).problems == ()
    assert found([*idle[:4], sample(5, 0)]).problems == (), "an empty queue needs no consumer"


@pytest.mark.parametrize(
    ("condition", "problems"),
    [
        (QueueCondition(exists=False), ("missing-queue",)),
        (QueueCondition(is_paused=True), ("paused",)),
        (QueueCondition(has_dead_letters=False), ("not-dead-lettering",)),
        (QueueCondition(is_full=True), ("full",)),
        (QueueCondition(is_paused=True, is_full=True), ("paused", "full")),
    ],
)
def test_conditions_are_problems_with_and_without_samples(condition: QueueCondition, problems: tuple[str, ...]) -> None:
    assert found([], condition) == Assessment("unhealthy", problems)  # type: ignore[arg-type]
    assert found([sample(1, 0)], condition).problems == problems


def test_without_a_recent_sample_the_health_is_unknown() -> None:
    assert found([]).status == "unknown"
    assert found([sample(1, 5, oldest_age_ms=10**9)], late_ms=60_001).status == "unknown"
    assert found([sample(1, 0)], late_ms=60_000).status == "healthy"


def test_one_outlier_does_not_change_the_status_and_two_samples_do() -> None:
    healthy, bad, good = RouteState("healthy"), Assessment("unhealthy", ("old",)), Assessment("healthy")
    once = next_state(healthy, bad, 1)
    assert (once.status, once.problems) == ("healthy", ())
    assert next_state(next_state(once, good, 2), bad, 3).status == "healthy"
    twice = next_state(once, bad, 2)
    assert (twice.status, twice.problems, twice.since_ms) == ("unhealthy", ("old",), 2)
    assert next_state(twice, good, 3).status == "unhealthy"
    assert next_state(next_state(twice, good, 3), good, 4) == RouteState("healthy", (), 4)


def test_an_unhealthy_route_does_not_recover_by_too_few_samples_or_none() -> None:
    state = RouteState("unhealthy", ("growing",), 1)
    for vague in (Assessment("healthy", (), is_conclusive=False), Assessment("unknown")):
        assert next_state(next_state(state, vague, 2), vague, 3) == state


def test_other_problems_of_an_unhealthy_route_show_at_once() -> None:
    state = next_state(RouteState("unhealthy", ("old",), 1), Assessment("unhealthy", ("old", "paused")), 2)
    assert (state.problems, state.since_ms) == (("old", "paused"), 1)
