"""Which messages failed for good, why, and how many at their first attempt: those have a consumer that is set up wrongly."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from postroad.pipeline.reports.report import Report, start_of


def rows(rollups: DataFrame, grain: str) -> DataFrame:
    """Those that were put back count apart, with the reason `redriven`."""
    return (
        rollups.filter(F.col("report") == "dead_letters")
        .groupBy(
            "tenant", start_of(grain, F.col("minute")).alias("time"), F.col("name").alias("queue"), F.col("label").alias("reason")
        )
        .agg(
            F.sum("n").alias("count"),
            F.coalesce(F.sum(F.when(F.col("bucket") == 1, F.col("n"))), F.lit(0)).alias("firstAttempt"),
            F.timestamp_millis(F.max("last.at")).alias("lastAt"),
        )
    )


REPORT = Report("dead-letters", rows, rank="count")
