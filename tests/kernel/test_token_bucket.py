"""The token bucket."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.kernel.token_bucket import TokenBucket


def test_a_burst_of_two_seconds_is_admitted_and_then_the_rate() -> None:
    bucket = TokenBucket(10, 0.0)
    assert [bucket.take(0.0) for _ in range(20)] == [0.0] * 20
    assert bucket.take(0.0) == pytest.approx(0.1)
    assert bucket.take(0.05) == pytest.approx(0.05)
    assert bucket.take(0.1) == 0.0
    assert bucket.take(0.1) > 0


def test_a_bucket_is_full_again_after_two_seconds() -> None:
    bucket = TokenBucket(10, 0.0)
    assert bucket.is_full(0.0)
    for _ in range(30):
        bucket.take(0.0)
    assert not bucket.is_full(1.9)
    assert bucket.is_full(2.0)


def test_a_rate_below_one_admits_a_request_at_once() -> None:
    bucket = TokenBucket(0.1, 0.0)
    assert bucket.take(0.0) == 0.0
    assert bucket.take(0.0) == pytest.approx(10)


@given(st.integers(1, 50), st.lists(st.floats(0, 0.2), max_size=200))
def test_no_more_than_burst_and_rate_are_admitted(rate: int, pauses: list[float]) -> None:
    bucket, now, admitted = TokenBucket(rate, 0.0), 0.0, 0
    for pause in pauses:
        now += pause
        admitted += bucket.take(now) == 0.0
    assert admitted <= bucket.burst + rate * now + 1e-6


@given(st.integers(1, 5_000), st.lists(st.integers(1, 400), max_size=300))
def test_in_any_second_at_most_so_many_are_admitted(limit: int, pauses_ms: list[int]) -> None:
    bucket, now_ms, admitted = TokenBucket.at_most(limit, 0.0), 0, list[int]()
    for pause_ms in pauses_ms:
        now_ms += pause_ms
        while len(admitted) < 20_000 and bucket.take(now_ms / 1000) == 0.0:
            admitted.append(now_ms)
    in_a_second = 0
    for first, at_ms in enumerate(admitted):
        in_a_second = max(in_a_second, bisect_left(admitted, at_ms + 1000) - first)
    assert in_a_second <= limit


@pytest.mark.parametrize("limit", [10, 100, 1_000, 5_000])
def test_what_late_timers_miss_is_caught_up_on(limit: int) -> None:
    bucket, now_ms, admitted = TokenBucket.at_most(limit, 0.0), 0, 0
    while now_ms < 10_000:
        while (wait := bucket.take(now_ms / 1000)) == 0.0:
            admitted += 1
        now_ms += max(1, round(wait * 1000)) + 3
    assert 0.95 * 10 * limit <= admitted <= 10 * limit + 1
