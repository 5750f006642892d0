"""Buckets: the same for numbers and for arrays, and never far from the number."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.pipeline.histogram import bucket_of, buckets_of, percentile, rank_of, ranks_of, value_of, values_of

LONG_MAX = 2**63 - 1
numbers = st.integers(0, 127) | st.integers(0, 10**6) | st.integers(0, LONG_MAX)


def test_small_numbers_are_their_own_buckets() -> None:
    assert [value_of(bucket_of(number)) for number in range(128)] == list(range(128))
    assert [bucket_of(number) for number in (127, 128, 129, 130, 255, 256, 259, 260)] == [127, 128, 128, 129, 191, 192, 192, 193]


def test_negative_numbers_have_no_bucket() -> None:
    with pytest.raises(ValueError, match="-1"):
        bucket_of(-1)


@given(numbers)
def test_the_middle_of_a_bucket_is_in_it_and_within_eight_tenths_of_a_percent(number: int) -> None:
    bucket = bucket_of(number)
    assert bucket_of(value_of(bucket)) == bucket
    assert abs(value_of(bucket) - number) <= number * 0.008


@given(numbers, numbers)
def test_buckets_are_in_the_order_of_their_numbers(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert bucket_of(low) <= bucket_of(high)


@given(st.lists(st.integers(0, 10**5), min_size=1), st.integers(1, 100))
def test_a_percentile_is_that_of_the_nearest_rank(values: list[int], percent: int) -> None:
    counts: dict[int, int] = {}
    for value in values:
        counts[bucket_of(value)] = counts.get(bucket_of(value), 0) + 1
    exact = sorted(values)[-(-len(values) * percent // 100) - 1]
    assert percentile(counts, percent) == value_of(bucket_of(exact))


def test_nothing_has_no_percentile() -> None:
    assert percentile({}, 50) is None


def test_arrays_have_the_same_buckets() -> None:
    edges = [2**bits + more for bits in range(63) for more in (-1, 0, 1)]
    some = sorted({*range(1000), *edges, *(step * 7919**2 for step in range(1000)), LONG_MAX})
    buckets = buckets_of(np.array(some, dtype=np.int64))
    assert buckets.tolist() == [bucket_of(number) for number in some]
    assert values_of(buckets).tolist() == [value_of(bucket_of(number)) for number in some]


def test_arrays_have_the_same_ranks() -> None:
    counts = np.array([1, 2, 3, 10, 99, 100, 101, 12345678901], dtype=np.int64)
    for percent in (50, 95, 99, 100):
        assert ranks_of(percent, counts).tolist() == [rank_of(percent, int(count)) for count in counts]
