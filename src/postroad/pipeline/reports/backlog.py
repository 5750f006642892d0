"""What was in the queues."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from postroad.pipeline.reports.report import Report, mean_of, start_of, top_of


def rows(rollups: DataFrame, grain: str) -> DataFrame:
    """Means of the samples in that time, save for what is called `Max`."""
    return (
        rollups.filter(F.col("report") == "backlog")
        .groupBy("tenant", start_of(grain, F.col("minute")).alias("time"), F.col("name").alias("queue"))
        .agg(
            mean_of("ready").alias("ready"),
            top_of("ready").alias("readyMax"),
            mean_of("leased").alias("leased"),
            mean_of("delayed").alias("delayed"),
            mean_of("dead").alias("dead"),
            top_of("oldest_age_ms").alias("oldestAgeMsMax"),
        )
    )


REPORT = Report("backlog", rows, rank="readyMax")
