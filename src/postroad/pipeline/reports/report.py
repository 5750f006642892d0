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


def start_of(grain: str, minute: str = "minute") -> Column:
    """When the day, hour or minute began, as `time`. Raises KeyError for another grain."""
    return F.expr(f"timestamp_seconds(unix_seconds({minute}) - unix_seconds({minute}) % {GRAINS[grain]}) AS time")


# Of the measures with a label, as text: each call of PySpark goes to the JVM and back, and every batch builds these anew.


def total_of(label: str) -> str:
    """Their sum, if they are whole numbers: long, 0 if there are none."""
    return f"bigint(coalesce(sum({_only(label, 'total')}), 0))"


def count_of(label: str) -> str:
    """How many there were: long, 0 if there are none."""
    return f"coalesce(sum({_only(label, 'n')}), 0)"


def mean_of(label: str) -> str:
    """Double, null if there are none."""
    return f"round(sum({_only(label, 'total')}) / sum({_only(label, 'n')}), 3)"


def top_of(label: str) -> str:
    """Long, null if there are none."""
    return f"max({_only(label, 'top')})"


def last_of(label: str) -> str:
    """The latest value: long, null if there is none."""
    return f"max({_only(label, 'last')}).value"


def _only(label: str, column: str) -> str:
    return f"CASE WHEN label = '{label}' THEN {column} END"
