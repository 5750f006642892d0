"""A histogram of numbers: exact to 127, then 64 buckets per doubling, so that a percentile is accurate to 0.8 %.

The functions in Python and the expressions in Spark give the same bucket. That of a number from 128 up consists of the number of
doublings above 64 and the first seven bits of the number: `doublings * 64 + (number >> doublings)`.
"""

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

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


def bucket_column(number: Column) -> Column:
    """`bucket_of` as an expression: int. A negative number, the result of clocks that disagree, counts as 0."""
    # Spark cannot count bits. Next to a power of two the logarithm may be off by one, but both values give the same bucket.
    doublings = F.floor(F.log2(number)).cast("int") - (PER_DOUBLING.bit_length() - 1)
    coarse = doublings * PER_DOUBLING + F.call_function("shiftright", number, doublings).cast("int")
    return F.when(number < EXACT, F.greatest(number, F.lit(0)).cast("int")).otherwise(coarse)


def value_column(bucket: Column) -> Column:
    """`value_of` as an expression: long."""
    doublings = F.floor(bucket / PER_DOUBLING).cast("int") - 1
    first = _shifted_left((bucket % PER_DOUBLING + PER_DOUBLING).cast("long"), doublings)
    return F.when(bucket < EXACT, bucket.cast("long")).otherwise(first + _shifted_left(F.lit(1).cast("long"), doublings - 1))


def rank_column(percent: int, count: Column) -> Column:
    """`rank_of` as an expression: long."""
    return F.greatest(F.lit(1), F.ceil(count * percent / 100)).cast("long")


def _shifted_left(number: Column, by: Column) -> Column:
    """PySpark's own function shifts by literals only."""
    return F.call_function("shiftleft", number, by)
