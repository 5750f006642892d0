"""Rollups: measures of one minute, which add up in any order and in any batches (decision 0021)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql import types as spark

ROLLUPS = spark.StructType(
    [
        spark.StructField("report", spark.StringType(), nullable=False),
        spark.StructField("tenant", spark.StringType()),
        spark.StructField("minute", spark.TimestampType()),
        spark.StructField("name", spark.StringType()),
        spark.StructField("label", spark.StringType()),
        spark.StructField("bucket", spark.IntegerType()),
        spark.StructField("n", spark.LongType(), nullable=False),
        spark.StructField("total", spark.DoubleType()),
        spark.StructField("top", spark.LongType()),
        spark.StructField(
            "last",
            spark.StructType([spark.StructField("at", spark.LongType()), spark.StructField("value", spark.LongType())]),
        ),
    ]
)
KEY = ("report", "tenant", "minute", "name", "label", "bucket")

_REPORTS_WITHOUT_LAST = ("latency", "sessions")
_NO_LAST = "CAST(NULL AS struct<at: bigint, value: bigint>)"


@dataclass(frozen=True, slots=True)
class Counted:
    """A measure by tenant and minute: the events of a type, each with the SQL expression `value`. `n` and `total`."""

    event: str
    value: str = "1"
    condition: str = ""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A measure by tenant, minute and queue (empty if the event has none): samples of a type. `n`, `total`, `top` and `last`."""

    event: str
    value: str
    has_top: bool = True
    has_last: bool = True


def merge(rollups: DataFrame) -> DataFrame:
    """`ROLLUPS`: each key once, its measures added up."""
    has_last = ~F.col("report").isin(*_REPORTS_WITHOUT_LAST)
    sums = F.sum("n").alias("n"), F.sum("total").alias("total"), F.max("top").alias("top")
    # Spark finds the maximum of a struct by sorting; most rows have no `last` and need no sorting.
    plain = rollups.filter(~has_last).groupBy(*KEY).agg(*sums).withColumn("last", F.expr(_NO_LAST))
    full = rollups.filter(has_last).groupBy(*KEY).agg(*sums, F.max("last").alias("last"))
    return plain.union(full)


def counted_measures(minutes: DataFrame, counted: Mapping[tuple[str, str], Counted]) -> DataFrame:
    """`ROLLUPS`: measures by report and label. `minutes` are events with the number of their minute."""
    each = []
    for (report, label), one in counted.items():
        condition = f" AND {one.condition}" if one.condition else ""
        value = f"CASE WHEN event = '{one.event}'{condition} THEN {one.value} END"
        each.append(f"named_struct('report', '{report}', 'label', '{label}', 'n', count({value}), 'total', sum({value}))")
    return as_rollups(_exploded(_of_types(minutes, counted.values()).groupBy("tenant", "minute"), each))


def sampled_measures(minutes: DataFrame, sampled: Mapping[tuple[str, str], Sampled]) -> DataFrame:
    """`ROLLUPS`: measures by report and label. `minutes` are events with the number of their minute."""
    each = []
    for (report, label), one in sampled.items():
        value = f"CASE WHEN event = '{one.event}' THEN {one.value} END"
        top = f"max({value})" if one.has_top else "CAST(NULL AS bigint)"
        last = last_value(value) if one.has_last else _NO_LAST
        each.append(
            f"named_struct('report', '{report}', 'label', '{label}', 'n', count({value}), 'total', double(sum({value})), "
            f"'top', {top}, 'last', {last})"
        )
    by_queue = _of_types(minutes, sampled.values()).groupBy("tenant", "minute", F.expr("coalesce(queue, '') AS name"))
    return as_rollups(_exploded(by_queue, each))


def _of_types(minutes: DataFrame, measures: Iterable[Counted | Sampled]) -> DataFrame:
    names = ", ".join(sorted({f"'{one.event}'" for one in measures}))
    return minutes.where(f"event IN ({names})")


def _exploded(group: GroupedData, each: Iterable[str]) -> DataFrame:
    """A row for each of the structs that counts anything."""
    listed = group.agg(F.expr(f"array({', '.join(each)}) AS each"))
    return listed.selectExpr(*(name for name in listed.columns if name != "each"), "inline(each)").where("n > 0")


def last_value(value: str) -> str:
    """Time and value of the latest event for which the expression is not null."""
    return f"max(CASE WHEN {value} IS NOT NULL THEN named_struct('at', unix_millis(time), 'value', {value}) END)"


def as_rollups(measured: DataFrame, **more: str) -> DataFrame:
    """The columns of `ROLLUPS`. `minute` is a number in `measured`, which may leave out columns; `more` are expressions."""
    given = {
        "name": "''",
        "bucket": "0",
        "total": "n",
        "top": "NULL",
        "last": _NO_LAST,
        **{name: name for name in measured.columns},
        "minute": "timestamp_seconds(minute * 60)",
        **more,
    }
    return measured.selectExpr(*(f"CAST({given[one.name]} AS {one.dataType.simpleString()}) AS {one.name}" for one in ROLLUPS))
