"""What events add to the reports: measures of one minute, which add up in any order and in any batches (decision 0021).

Each report has its own small query over the columns that it needs, and the results are put together. One query that makes all the
measures of an event at once reads the events once, and was many times slower: its generated code is too long to be compiled.
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
    parts = (
        _latency(minutes),
        _usage_of_jobs(minutes),
        _usage_of_traffic(minutes),
        _usage_of_storage(minutes),
        _dead_letters(minutes),
        _sessions(minutes),
        _backlog(minutes),
    )
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
    return _as_rollups(counts, "latency")


def _usage_of_jobs(events: DataFrame) -> DataFrame:
    labels = {"job.queued": "published", "job.leased": "deliveries", "job.done": "done", "job.dead": "dead"}
    label = F.element_at(F.create_map(*(F.lit(text) for pair in labels.items() for text in pair)), F.col("event"))
    sums = (
        events.filter(_is(*labels))
        .groupBy("tenant", "minute", "event")
        .agg(F.count("*").alias("n"), F.sum("payload_bytes").alias("bytes"))
    )
    count = F.struct(label.alias("label"), F.col("n").alias("total"))
    size = F.struct(F.lit("published_bytes").alias("label"), F.col("bytes").alias("total"))
    return _as_usage(sums, count, size)


def _usage_of_traffic(events: DataFrame) -> DataFrame:
    sums = (
        events.filter(_is("traffic.sampled"))
        .groupBy("tenant", "minute")
        .agg(F.count("*").alias("n"), *(F.sum(name).alias(name) for name in _TRAFFIC))
    )
    return _as_usage(sums, *(F.struct(F.lit(name).alias("label"), F.col(name).alias("total")) for name in _TRAFFIC))


def _usage_of_storage(events: DataFrame) -> DataFrame:
    # Whole byte-seconds: sums of whole numbers are the same in any order.
    byte_seconds = F.round(F.col("bytes") * F.col("seconds"))
    sums = (
        events.filter(_is("storage.sampled") & byte_seconds.isNotNull())
        .groupBy("tenant", "minute")
        .agg(
            F.count("*").alias("n"),
            F.sum(byte_seconds).alias("byte_seconds"),
            F.sum("bytes").cast("double").alias("bytes"),
            F.max(_last(F.col("bytes"))).alias("last"),
        )
    )
    over_time = F.struct(
        F.lit("storage_byte_seconds").alias("label"), F.col("byte_seconds").alias("total"), _nothing("last").alias("last")
    )
    at_last = F.struct(F.lit("stored_bytes").alias("label"), F.col("bytes").alias("total"), F.col("last").alias("last"))
    return _as_usage(sums, over_time, at_last)


def _as_usage(sums: DataFrame, *labelled: Column) -> DataFrame:
    """A row for each of the structs, those without a total left out."""
    each = sums.select("tenant", "minute", "n", F.inline(F.array(*labelled)))
    return _as_rollups(each.filter("total IS NOT NULL"), "usage")


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
    return _as_rollups(counts, "dead_letters")


def _sessions(events: DataFrame) -> DataFrame:
    label = (
        F.when(_is("session.subscribed"), "subscribed")
        .when(_is("session.unsubscribed"), "unsubscribed")
        .when(_is("session.touched"), "touched")
        .when(_is("session.ended"), F.when(F.col("is_expired"), "expired").otherwise("deleted"))
    )
    counts = (
        events.filter(F.col("event").startswith("session."))
        .select("tenant", "minute", label.alias("label"))
        .filter("label IS NOT NULL")
        .groupBy("tenant", "minute", "label")
        .agg(F.count("*").alias("n"))
    )
    return _as_rollups(counts, "sessions")


def _backlog(events: DataFrame) -> DataFrame:
    """An empty queue's oldest message is 0 ms old, so that its last sample says that nothing waits any more."""
    out = F.col("out_per_second") * F.col("seconds")
    values = {
        **{name: F.col(name) for name in _LEVELS},
        "oldest_age_ms": F.coalesce("oldest_age_ms", F.lit(0)),
        "out": F.when(out > 0, F.greatest(F.lit(1), F.round(out))).otherwise(0).cast("long"),  # a little is not nothing
    }
    aggregates = [
        F.struct(
            F.lit(label).alias("label"),
            F.count(label).alias("n"),
            F.sum(label).alias("total"),
            F.max(label).alias("top"),
            F.max(F.when(F.col(label).isNotNull(), F.struct("at", F.col(label).alias("value")))).alias("last"),
        )
        for label in values
    ]
    measured = (
        events.filter(_is("queue.sampled"))
        .select(
            "tenant",
            "minute",
            F.col("queue").alias("name"),
            F.unix_millis("time").alias("at"),
            *(value.alias(label) for label, value in values.items()),
        )
        .groupBy("tenant", "minute", "name")
        .agg(F.array(*aggregates).alias("each"))
        .select("tenant", "minute", "name", F.inline("each"))
        .filter("n > 0")
    )
    return _as_rollups(measured, "backlog")


def _is(*events: str) -> Column:
    return F.col("event").isin(*events)


def _last(value: Column) -> Column:
    return F.struct(F.unix_millis("time").alias("at"), value.alias("value"))


def _nothing(column: str) -> Column:
    return F.lit(None).cast(ROLLUPS[column].dataType)


def _as_rollups(measured: DataFrame, report: str) -> DataFrame:
    """The columns of `ROLLUPS`, from what has the minute as a number and leaves out the columns that say nothing."""
    given = {
        "name": F.lit(""),
        "bucket": F.lit(0),
        "total": F.col("n"),
        "top": _nothing("top"),
        "last": _nothing("last"),
        **{name: F.col(name) for name in measured.columns},
        "report": F.lit(report),
        "minute": F.timestamp_seconds(F.col("minute") * 60),
    }
    return measured.select(*(given[field.name].cast(field.dataType).alias(field.name) for field in ROLLUPS))
