import itertools

from hypothesis import given
from hypothesis import strategies as st

from postroad.kernel.backoff import Backoff


def test_delays_double_up_to_the_maximum() -> None:
    delays = Backoff(first_seconds=0.1, max_seconds=1.0).delays()
    assert [round(delay, 6) for delay in itertools.islice(delays, 6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_the_factor_can_be_chosen() -> None:
    backoff = Backoff(first_seconds=1.0, max_seconds=10.0, factor=3.0)
    assert [backoff.delay(retry) for retry in range(1, 5)] == [1.0, 3.0, 9.0, 10.0]


def test_the_jitter_is_the_range_of_a_random_factor() -> None:
    backoff = Backoff(first_seconds=1.0, max_seconds=60.0, jitter=(0.8, 1.2))
    assert [round(backoff.delay(1, chance), 6) for chance in (0.0, 0.5, 1.0)] == [0.8, 1.0, 1.2]
    assert len(set(itertools.islice(Backoff(60.0, 60.0, jitter=(0.5, 1.0)).delays(), 50))) > 1


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_a_delay_stays_within_its_bounds_after_any_number_of_retries(retry: int, chance: float) -> None:
    assert 0.05 <= Backoff(first_seconds=0.1, max_seconds=2.0, jitter=(0.5, 1.0)).delay(retry, chance) <= 2.0
