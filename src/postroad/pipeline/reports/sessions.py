"""Sessions that came, lived on and went."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from postroad.pipeline.reports.report import Report, count_of, start_of

_LABELS = ("subscribed", "unsubscribed", "touched", "deleted", "expired")


def rows(rollups: DataFrame, grain: str) -> DataFrame:
    return (
        rollups.filter(F.col("report") == "sessions")
        .groupBy("tenant", start_of(grain, F.col("minute")).alias("time"))
        .agg(*(count_of(label).alias(label) for label in _LABELS))
    )


REPORT = Report("sessions", rows, rank="subscribed")
