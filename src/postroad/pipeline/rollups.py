"""What events add to the reports: measures of one minute, which add up in any order and in any batches (decision 0021).

There are four small queries over the columns that each needs, put together. A single one that makes of each event all its
measures reads the events once, and is twice as slow: the code that Spark generates for it is too long for the JVM to compile.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from postroad.pipeline.buckets import bucket_column

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
_LEVELS = ("ready", "leased", "delayed", "dead", "waiting", "expected_drain_seconds")
_REPORTS_WITH_LAST = ("backlog", "dead_letters", "usage")


def measures(events: DataFrame) -> DataFrame:
    """`ROLLUPS`: what these events add, each key once."""
    minutes = events.withColumn("minute", F.expr("unix_seconds(time) div 60"))
    parts = (_latency(minutes), _counts(minutes), _dead_letters(minutes), _samples(minutes))
    return reduce(DataFrame.unionByName, parts)


def merge(rollups: DataFrame) -> DataFrame:
    """`ROLLUPS`: each key once, its measures added up."""
    has_last = F.col("report").isin(*_REPORTS_WITH_LAST)
    sums = F.sum("n").alias("n"), F.sum("total").alias("total"), F.max("top").alias("top")
    # The largest of a struct can only be found by sorting; the many rows that have none need no sorting.
    plain = rollups.filter(~has_last).groupBy(*KEY).agg(*sums).withColumn("last", _nothing("last"))
    full = rollups.filter(has_last).groupBy(*KEY).agg(*sums, F.max("last").alias("last"))
    return plain.unionByName(full).select(*ROLLUPS.names)


def _latency(events: DataFrame) -> DataFrame:
    ms = F.when(_is("job.done"), F.col("processing_ms")).otherwise(F.col("wait_ms"))
    label = F.when(_is("job.done"), "processing").otherwise("wait")
    counts = (
        events.filter(_is("job.done") | (_is("job.leased") & (F.col("attempt") == 1)))
        .select("tenant", "minute", F.col("queue").alias("name"), label.alias("label"), ms.alias("ms"))
        .filter("ms IS NOT NULL")
        .withColumn("ms", F.greatest("ms", F.lit(0)))  # clocks may disagree
        .groupBy("tenant", "minute", "name", "label", bucket_column(F.col("ms")).alias("bucket"))
        .agg(F.count("*").alias("n"), F.sum("ms").alias("total"), F.max("ms").alias("top"))
    )
    return _as_rollups(counts.withColumn("report", F.lit("latency")))


def _counts(events: DataFrame) -> DataFrame:
    """What tenants did: usage, save for storage, and sessions. All of it by tenant and minute, so it is one query."""
    one, payload = F.lit(1), F.col("payload_bytes")
    ends = {"deleted": ~F.col("is_expired"), "expired": F.col("is_expired")}
    counted = {
        ("usage", "published"): (_is("job.queued"), one),
        ("usage", "published_bytes"): (_is("job.queued"), payload),
        ("usage", "deliveries"): (_is("job.leased"), one),
        ("usage", "done"): (_is("job.done"), one),
        ("usage", "dead"): (_is("job.dead"), one),
        **{("usage", name): (_is("traffic.sampled"), F.col(name)) for name in _TRAFFIC},
        **{("sessions", what): (_is(f"session.{what}"), one) for what in ("subscribed", "unsubscribed", "touched")},
        **{("sessions", what): (_is("session.ended") & is_so, one) for what, is_so in ends.items()},
    }
    each = [
        F.struct(
            F.lit(report).alias("report"),
            F.lit(label).alias("label"),
            F.count(F.when(is_meant, value)).alias("n"),
            F.sum(F.when(is_meant, value)).alias("total"),
        )
        for (report, label), (is_meant, value) in counted.items()
    ]
    sums = (
        events.filter(
            _is("job.queued", "job.leased", "job.done", "job.dead", "traffic.sampled") | F.col("event").startswith("session.")
        )
        .groupBy("tenant", "minute")
        .agg(F.array(*each).alias("each"))
    )
    return _as_rollups(sums.select("tenant", "minute", F.inline("each")).filter("n > 0"))


def _dead_letters(events: DataFrame) -> DataFrame:
    is_redrive = _is("job.redriven")
    counts = (
        events.filter(is_redrive | _is("job.dead"))
        .groupBy(
            "tenant",
            "minute",
            F.when(is_redrive, F.col("from_queue")).otherwise(F.col("queue")).alias("name"),
            F.when(is_redrive, "redriven").otherwise(F.substring("reason", 1, REASON_CHARACTERS_MAX)).alias("label"),
            F.when(~is_redrive & (F.col("attempt") == 1), 1).otherwise(2).alias("bucket"),
        )
        .agg(F.count("*").alias("n"), F.max(_last(F.coalesce("attempt", F.lit(0)))).alias("last"))
    )
    return _as_rollups(counts.withColumn("report", F.lit("dead_letters")))


def _samples(events: DataFrame) -> DataFrame:
    """What was in the queues, and in the tenants' storage. An empty queue's oldest message is 0 ms old, so that its last sample
    says that nothing waits any more."""
    out = F.col("out_per_second") * F.col("seconds")
    # Whole numbers, whose sums are the same in any order; and a little going out is not nothing.
    values = {
        **{("backlog", name): F.col(name) for name in _LEVELS},
        ("backlog", "oldest_age_ms"): F.coalesce("oldest_age_ms", F.lit(0)),
        ("backlog", "out"): F.when(out > 0, F.greatest(F.lit(1), F.round(out))).otherwise(0).cast("long"),
        ("usage", "storage_byte_seconds"): F.round(F.col("bytes") * F.col("seconds")),
        ("usage", "stored_bytes"): F.col("bytes"),
    }
    events_of = {"backlog": "queue.sampled", "usage": "storage.sampled"}
    each = []
    for (report, label), number in values.items():
        value = F.when(_is(events_of[report]), number)
        each.append(
            F.struct(
                F.lit(report).alias("report"),
                F.lit(label).alias("label"),
                F.count(value).alias("n"),
                F.sum(value).cast("double").alias("total"),
                (F.max(value) if report == "backlog" else _nothing("top")).alias("top"),
                (_nothing("last") if label == "storage_byte_seconds" else F.max(_last(value))).alias("last"),
            )
        )
    measured = (
        events.filter(_is(*events_of.values()))
        .groupBy("tenant", "minute", F.coalesce("queue", F.lit("")).alias("name"))
        .agg(F.array(*each).alias("each"))
        .select("tenant", "minute", "name", F.inline("each"))
        .filter("n > 0")
    )
    return _as_rollups(measured)


def _is(*events: str) -> Column:
    return F.col("event").isin(*events)


def _last(value: Column) -> Column:
    return F.when(value.isNotNull(), F.struct(F.unix_millis("time").alias("at"), value.alias("value")))


def _nothing(column: str) -> Column:
    return F.lit(None).cast(ROLLUPS[column].dataType)


def _as_rollups(measured: DataFrame) -> DataFrame:
    """The columns of `ROLLUPS`, from what has the minute as a number and leaves out the columns that say nothing."""
    given = {
        "name": F.lit(""),
        "bucket": F.lit(0),
        "total": F.col("n"),
        "top": _nothing("top"),
        "last": _nothing("last"),
        **{name: F.col(name) for name in measured.columns},
        "minute": F.timestamp_seconds(F.col("minute") * 60),
    }
    return measured.select(*(given[field.name].cast(field.dataType).alias(field.name) for field in ROLLUPS))
