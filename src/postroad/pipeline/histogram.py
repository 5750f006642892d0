"""A histogram of numbers: exact to 127, then 64 buckets per doubling, so that a percentile is accurate to 0.8 %.

The functions of numbers and those of arrays give the same bucket. That of a number from 128 up consists of the number of
doublings above 64 and the first seven bits of the number: `doublings * 64 + (number >> doublings)`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

EXACT = 128  # below this a number is its own bucket
PER_DOUBLING = 64


def bucket_of(number: int) -> int:
    """Raises ValueError for a negative number."""
    if number < 0:
        raise ValueError(f"a histogram has no bucket for the negative number {number}")
    if number < EXACT:
        return number
    doublings = number.bit_length() - PER_DOUBLING.bit_length()
    return doublings * PER_DOUBLING + (number >> doublings)


def value_of(bucket: int) -> int:
    """The number in the middle of the bucket, which represents all of its numbers."""
    if bucket < EXACT:
        return bucket
    doublings = bucket // PER_DOUBLING - 1
    return (bucket % PER_DOUBLING + PER_DOUBLING << doublings) + (1 << doublings - 1)


def rank_of(percent: int, count: int) -> int:
    """Position of the percentile in the ordered numbers, from 1: the nearest rank."""
    return max(1, -(-count * percent // 100))


def percentile(counts: Mapping[int, int], percent: int) -> int | None:
    """The percentile of the counts by bucket; None without counts."""
    rank, seen = rank_of(percent, sum(counts.values())), 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            return value_of(bucket)
    return None


def buckets_of(numbers: Any) -> Any:
    """`bucket_of` of an array of numbers that are not negative."""
    _, bits = np.frexp(numbers.astype(np.float64))
    # A float has 53 bits: a larger number may have been rounded up to the next power of two.
    bits = bits - (np.right_shift(numbers, np.clip(bits - 1, 0, 62)) == 0)
    doublings = np.clip(bits - PER_DOUBLING.bit_length(), 0, 62).astype(np.int64)
    return np.where(numbers < EXACT, numbers, doublings * PER_DOUBLING + np.right_shift(numbers, doublings)).astype(np.int32)


def values_of(buckets: Any) -> Any:
    """`value_of` of an array of buckets."""
    buckets = buckets.astype(np.int64)
    doublings = np.maximum(buckets // PER_DOUBLING - 1, 1)
    middle = np.left_shift(buckets % PER_DOUBLING + PER_DOUBLING, doublings) + np.left_shift(np.int64(1), doublings - 1)
    return np.where(buckets < EXACT, buckets, middle)


def ranks_of(percent: int, counts: Any) -> Any:
    """`rank_of` of an array of counts."""
    return np.maximum(1, -(-counts * percent // 100))
