"""What events add to the reports: measures of one minute, which add up in any order and in any batches (decision 0021).

There are four small queries over the columns that each needs, put together. A single one that makes of each event all its
measures reads the events once, and is twice as slow: the code that Spark generates for it is too long for the JVM to compile.
They are written as text: put together call by call they took twice the processor time or more to build, for every batch.
"""

from collections.abc import Iterable
from functools import reduce

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from postroad.pipeline.histogram import bucket_column

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
REASON_CHARACTERS_MAX = 200  # consumers may give any text as their reason: what begins alike counts as one

_TRAFFIC = ("requests", "bytes_in", "bytes_out", "appends", "append_bytes", "fanout_messages")
_REPORTS_WITH_LAST = ("backlog", "dead_letters", "usage")
_NO_LAST = "CAST(NULL AS struct<at: bigint, value: bigint>)"

# What is counted by tenant and minute: of which events, and how much each one adds.
_COUNTED = {
    ("usage", "published"): ("event = 'job.queued'", "1"),
    ("usage", "published_bytes"): ("event = 'job.queued'", "payload_bytes"),
    ("usage", "deliveries"): ("event = 'job.leased'", "1"),
    ("usage", "done"): ("event = 'job.done'", "1"),
    ("usage", "dead"): ("event = 'job.dead'", "1"),
    **{("usage", name): ("event = 'traffic.sampled'", name) for name in _TRAFFIC},
    ("sessions", "subscribed"): ("event = 'session.subscribed'", "1"),
    ("sessions", "unsubscribed"): ("event = 'session.unsubscribed'", "1"),
    ("sessions", "touched"): ("event = 'session.touched'", "1"),
    ("sessions", "deleted"): ("event = 'session.ended' AND NOT is_expired", "1"),
    ("sessions", "expired"): ("event = 'session.ended' AND is_expired", "1"),
}

# What samples say of queues. An empty queue's oldest message is 0 ms old, so that its last sample says that nothing waits any
# more. All are whole numbers, whose sums are the same in any order; and a little going out is not nothing.
_LEVELS = {
    **{name: name for name in ("ready", "leased", "delayed", "dead", "waiting", "expected_drain_seconds")},
    "oldest_age_ms": "coalesce(oldest_age_ms, 0)",
    "out": "bigint(if(out_per_second * seconds > 0, greatest(1, round(out_per_second * seconds)), 0))",
}


def measures(events: DataFrame) -> DataFrame:
    """`ROLLUPS`: what these events add, each key once."""
    minutes = events.withColumn("minute", F.expr("unix_seconds(time) div 60"))
    parts = (_latency(minutes), _counts(minutes), _dead_letters(minutes), _samples(minutes))
    return reduce(DataFrame.union, parts)


def merge(rollups: DataFrame) -> DataFrame:
    """`ROLLUPS`: each key once, its measures added up."""
    has_last = F.col("report").isin(*_REPORTS_WITH_LAST)
    sums = F.sum("n").alias("n"), F.sum("total").alias("total"), F.max("top").alias("top")
    # The largest of a struct can only be found by sorting; the many rows that have none need no sorting.
    plain = rollups.filter(~has_last).groupBy(*KEY).agg(*sums).withColumn("last", F.expr(_NO_LAST))
    full = rollups.filter(has_last).groupBy(*KEY).agg(*sums, F.max("last").alias("last"))
    return plain.union(full)


def _latency(events: DataFrame) -> DataFrame:
    """How long messages waited for their first delivery, and how long they were worked on. Clocks may disagree: not below 0."""
    counts = (
        events.where("event = 'job.done' OR (event = 'job.leased' AND attempt = 1)")
        .selectExpr(
            "tenant",
            "minute",
            "queue AS name",
            "if(event = 'job.done', 'processing', 'wait') AS label",
            "if(event = 'job.done', processing_ms, wait_ms) AS ms",
        )
        .where("ms IS NOT NULL")
        .withColumn("ms", F.expr("greatest(ms, 0)"))
        .groupBy("tenant", "minute", "name", "label", bucket_column(F.col("ms")).alias("bucket"))
        .agg(F.expr("count(*) AS n"), F.expr("sum(ms) AS total"), F.expr("max(ms) AS top"))
    )
    return _as_rollups(counts, report="'latency'")


def _counts(events: DataFrame) -> DataFrame:
    """What tenants did: usage, save for storage, and sessions."""
    each = (
        f"named_struct('report', '{report}', 'label', '{label}', "
        f"'n', count(CASE WHEN {is_meant} THEN {value} END), 'total', sum(CASE WHEN {is_meant} THEN {value} END))"
        for (report, label), (is_meant, value) in _COUNTED.items()
    )
    counted = events.where(
        "event IN ('job.queued', 'job.leased', 'job.done', 'job.dead', 'traffic.sampled') OR event LIKE 'session.%'"
    )
    return _as_rollups(_each_of(counted.groupBy("tenant", "minute"), each))


def _dead_letters(events: DataFrame) -> DataFrame:
    counts = (
        events.where("event IN ('job.dead', 'job.redriven')")
        .groupBy(
            "tenant",
            "minute",
            F.expr("if(event = 'job.redriven', from_queue, queue) AS name"),
            F.expr(f"if(event = 'job.redriven', 'redriven', substring(reason, 1, {REASON_CHARACTERS_MAX})) AS label"),
            F.expr("if(event = 'job.dead' AND attempt = 1, 1, 2) AS bucket"),
        )
        .agg(F.expr("count(*) AS n"), F.expr(f"{_last_of('coalesce(attempt, 0)')} AS last"))
    )
    return _as_rollups(counts, report="'dead_letters'")


def _samples(events: DataFrame) -> DataFrame:
    """What was in the queues, and in the tenants' storage."""
    each = []
    for label, level in _LEVELS.items():
        value = f"CASE WHEN event = 'queue.sampled' THEN {level} END"
        each.append(
            f"named_struct('report', 'backlog', 'label', '{label}', 'n', count({value}), 'total', double(sum({value})), "
            f"'top', max({value}), 'last', {_last_of(value)})"
        )
    stored = "CASE WHEN event = 'storage.sampled' THEN bytes END"
    for label, total, last in (
        ("storage_byte_seconds", f"round({stored} * seconds)", _NO_LAST),
        ("stored_bytes", stored, _last_of(stored)),
    ):
        each.append(
            f"named_struct('report', 'usage', 'label', '{label}', 'n', count({total}), 'total', double(sum({total})), "
            f"'top', CAST(NULL AS bigint), 'last', {last})"
        )
    samples = events.where("event IN ('queue.sampled', 'storage.sampled')")
    return _as_rollups(_each_of(samples.groupBy("tenant", "minute", F.expr("coalesce(queue, '') AS name")), each))


def _each_of(group: GroupedData, each: Iterable[str]) -> DataFrame:
    """A row for each of the structs that count something."""
    listed = group.agg(F.expr(f"array({', '.join(each)}) AS each"))
    return listed.selectExpr(*(name for name in listed.columns if name != "each"), "inline(each)").where("n > 0")


def _last_of(value: str) -> str:
    return f"max(CASE WHEN {value} IS NOT NULL THEN named_struct('at', unix_millis(time), 'value', {value}) END)"


def _as_rollups(measured: DataFrame, **more: str) -> DataFrame:
    """The columns of `ROLLUPS`, from what has the minute as a number and leaves out the columns that say nothing."""
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
