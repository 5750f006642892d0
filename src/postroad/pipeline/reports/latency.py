"""Latency of messages: time until the first delivery, and time of processing."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from postroad.api.insights import Grain
from postroad.pipeline.aggregates import start_of
from postroad.pipeline.histogram import bucket_column, rank_column, value_column
from postroad.pipeline.rollups import as_rollups

_PERCENTS = (50, 95, 99)
_GROUP = ("tenant", "time", "queue", "phase")


def measures(minutes: DataFrame) -> DataFrame:
    """Counts by bucket of the milliseconds. Clocks may disagree: negative times count as 0."""
    counts = (
        minutes.where("event = 'job.done' OR (event = 'job.leased' AND attempt = 1)")
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
    return as_rollups(counts, report="'latency'")


def rows(rollups: DataFrame, grain: Grain) -> DataFrame:
    """Percentiles by nearest rank, accurate to 0.8 %, and never above the maximum."""
    counted = (
        rollups.where("report = 'latency'")
        .groupBy("tenant", start_of(grain), F.expr("name AS queue"), F.expr("label AS phase"), "bucket")
        .agg(F.expr("sum(n) AS n"), F.expr("sum(total) AS total"), F.expr("max(top) AS top"))
    )
    group = Window.partitionBy(*_GROUP).orderBy("bucket")
    up_to_bucket = group.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    whole_group = group.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    ranked = counted.withColumn("seen", F.sum("n").over(up_to_bucket)).withColumn("count", F.sum("n").over(whole_group))
    return (
        ranked.groupBy(*_GROUP)
        .agg(
            F.sum("n").alias("count"),
            *(_percentile(percent).alias(f"p{percent}") for percent in _PERCENTS),
            F.max("top").alias("max"),
            F.round(F.sum("total") / F.sum("n"), 3).alias("mean"),
        )
        .select(*_GROUP, "count", *(F.least(f"p{percent}", "max").alias(f"p{percent}") for percent in _PERCENTS), "max", "mean")
    )


def _percentile(percent: int) -> Column:
    reaches_rank = F.col("seen") >= rank_column(percent, F.col("count"))
    return value_column(F.min(F.when(reaches_rank, F.col("bucket"))))
