"""What a report is, and the times that its rows stand for."""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

GRAINS = {"day": 86_400, "hour": 3_600, "minute": 60}  # seconds; days are those of UTC


@dataclass(frozen=True, slots=True)
class Report:
    """`rows(rollups, grain)` has `tenant`, `time` (the start of the day, hour or minute) and the columns that are published.

    The rollups need not be merged, and may be of other reports, too. Where there are more rows than a message may have, those
    with most of `rank` stay.
    """

    name: str
    rows: Callable[[DataFrame, str], DataFrame]
    rank: str
    grains: tuple[str, ...] = tuple(GRAINS)


def start_of(grain: str, minute: Column) -> Column:
    """When the day, hour or minute began. Raises KeyError for another grain."""
    size = GRAINS[grain]
    return F.timestamp_seconds(F.unix_seconds(minute) - F.unix_seconds(minute) % size)


def total_of(label: str) -> Column:
    """The sum of the measures with this label, which are whole numbers: long, 0 if there are none."""
    return F.coalesce(F.sum(F.when(F.col("label") == label, F.col("total"))), F.lit(0)).cast("long")


def count_of(label: str) -> Column:
    """How many there were with this label: long, 0 if there are none."""
    return F.coalesce(F.sum(F.when(F.col("label") == label, F.col("n"))), F.lit(0))


def mean_of(label: str) -> Column:
    """Of the measures with this label: double, null if there are none."""
    is_meant = F.col("label") == label
    return F.round(F.sum(F.when(is_meant, F.col("total"))) / F.sum(F.when(is_meant, F.col("n"))), 3)


def top_of(label: str) -> Column:
    return F.max(F.when(F.col("label") == label, F.col("top")))


def last_of(label: str) -> Column:
    """The latest value with this label: long, null if there is none."""
    return F.max(F.when(F.col("label") == label, F.col("last")))["value"]
