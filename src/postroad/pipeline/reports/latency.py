"""How long messages waited for their first delivery, and how long they were worked on."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from postroad.pipeline.histogram import rank_column, value_column
from postroad.pipeline.reports.report import Report, start_of

_PERCENTS = (50, 95, 99)
_GROUP = ("tenant", "time", "queue", "phase")


def rows(rollups: DataFrame, grain: str) -> DataFrame:
    """Percentiles by nearest rank, within 0.8 %, and never above the largest."""
    counted = (
        rollups.where("report = 'latency'")
        .groupBy("tenant", start_of(grain), F.expr("name AS queue"), F.expr("label AS phase"), "bucket")
        .agg(F.expr("sum(n) AS n"), F.expr("sum(total) AS total"), F.expr("max(top) AS top"))
    )
    group = Window.partitionBy(*_GROUP).orderBy("bucket")
    up_to_here = group.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    all_of_it = group.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    ranked = counted.withColumn("seen", F.sum("n").over(up_to_here)).withColumn("count", F.sum("n").over(all_of_it))
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


REPORT = Report("latency", rows, rank="count")
