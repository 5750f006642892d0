import pytest

from postroad.kernel.circuit_breaker import BreakerState, CircuitBreaker

MINUTE = 60_000


def _breaker() -> CircuitBreaker:
    return CircuitBreaker(failure_threshold=5, recovery_ms=MINUTE)


def _opened(at_ms: int = 0) -> CircuitBreaker:
    breaker = _breaker()
    for _ in range(5):
        breaker.record(0, 3, at_ms)
    return breaker


def test_a_breaker_starts_closed() -> None:
    assert _breaker().state(0) is BreakerState.CLOSED
    assert _breaker().allows(0)
    assert not _breaker().has_failures


def test_it_opens_after_the_threshold_of_failures_in_a_row() -> None:
    breaker = _breaker()
    for _ in range(4):
        breaker.record(0, 1, 0)
        assert breaker.state(0) is BreakerState.CLOSED
        assert breaker.has_failures
    breaker.record(2, 1, 0)  # a partial failure counts as one
    assert breaker.state(0) is BreakerState.OPEN
    assert not breaker.allows(0)


def test_a_call_without_failures_resets_the_count() -> None:
    breaker = _breaker()
    for successes, failures in [(0, 1)] * 4 + [(1, 0)] + [(0, 1)] * 4:
        breaker.record(successes, failures, 0)
    assert breaker.state(0) is BreakerState.CLOSED


def test_it_is_half_open_after_the_recovery_time_since_the_last_failure() -> None:
    breaker = _opened(at_ms=1000)
    assert breaker.state(1000 + MINUTE - 1) is BreakerState.OPEN
    assert breaker.state(1000 + MINUTE) is BreakerState.HALF_OPEN


def test_a_half_open_breaker_allows_one_call_per_recovery_time() -> None:
    breaker = _opened()
    assert breaker.allows(MINUTE)
    assert not breaker.allows(MINUTE)
    assert not breaker.allows(2 * MINUTE - 1)
    assert breaker.allows(2 * MINUTE), "the outcome of the first call was never recorded"


def test_a_trial_with_any_success_closes_it() -> None:
    breaker = _opened()
    assert breaker.allows(MINUTE)
    breaker.record(1, 2, MINUTE + 5)
    assert breaker.state(MINUTE + 5) is BreakerState.CLOSED
    assert not breaker.has_failures


def test_a_trial_with_failures_only_opens_it_again() -> None:
    breaker = _opened()
    assert breaker.allows(MINUTE)
    breaker.record(0, 3, MINUTE + 5)
    assert breaker.state(MINUTE + 5 + MINUTE - 1) is BreakerState.OPEN
    assert breaker.state(MINUTE + 5 + MINUTE) is BreakerState.HALF_OPEN


@pytest.mark.parametrize("now_ms", [0, MINUTE])
def test_a_call_without_failures_closes_it_from_any_state(now_ms: int) -> None:
    breaker = _opened()
    breaker.record(0, 0, now_ms)
    assert breaker.state(now_ms) is BreakerState.CLOSED


def test_a_partial_success_of_a_call_from_before_it_opened_does_not_close_it() -> None:
    breaker = _opened()
    breaker.record(2, 1, 10)
    assert breaker.state(10) is BreakerState.OPEN
