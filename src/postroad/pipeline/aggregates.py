"""SQL expressions that reports use to add up rollups.

Measures are selected by their label. The expressions are text: each call of PySpark goes to the JVM, and every batch builds them.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

from postroad.api.insights import Grain

_SECONDS = {Grain.DAY: 86_400, Grain.HOUR: 3_600, Grain.MINUTE: 60}  # days are UTC


def start_of(grain: Grain, minute: str = "minute") -> Column:
    """Start of the day, hour or minute, as `time`."""
    return F.expr(f"timestamp_seconds(unix_seconds({minute}) - unix_seconds({minute}) % {_SECONDS[grain]}) AS time")


def total_of(label: str) -> str:
    """Sum of whole numbers: long, 0 without measures."""
    return f"bigint(coalesce(sum({_only(label, 'total')}), 0))"


def count_of(label: str) -> str:
    """Number of values: long, 0 without measures."""
    return f"coalesce(sum({_only(label, 'n')}), 0)"


def mean_of(label: str) -> str:
    """Mean of the values: double, null without measures."""
    return f"round(sum({_only(label, 'total')}) / sum({_only(label, 'n')}), 3)"


def top_of(label: str) -> str:
    """Largest value: long, null without measures."""
    return f"max({_only(label, 'top')})"


def last_of(label: str) -> str:
    """Latest value: long, null without measures."""
    return f"max({_only(label, 'last')}).value"


def _only(label: str, column: str) -> str:
    return f"CASE WHEN label = '{label}' THEN {column} END"
