"""What was in the queues."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from postroad.pipeline.reports.report import Report, mean_of, start_of, top_of


def rows(rollups: DataFrame, grain: str) -> DataFrame:
    """Means of the samples in that time, save for what is called `Max`."""
    return (
        rollups.where("report = 'backlog'")
        .groupBy("tenant", start_of(grain), F.expr("name AS queue"))
        .agg(
            F.expr(f"{mean_of('ready')} AS ready"),
            F.expr(f"{top_of('ready')} AS readyMax"),
            F.expr(f"{mean_of('leased')} AS leased"),
            F.expr(f"{mean_of('delayed')} AS delayed"),
            F.expr(f"{mean_of('dead')} AS dead"),
            F.expr(f"{top_of('oldest_age_ms')} AS oldestAgeMsMax"),
        )
    )


REPORT = Report("backlog", rows, rank="readyMax")
