"""Which messages failed for good, why, and how many at their first attempt: those have a consumer that is set up wrongly."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from postroad.pipeline.reports.report import Report, start_of


def rows(rollups: DataFrame, grain: str) -> DataFrame:
    """Those that were put back count apart, with the reason `redriven`."""
    return (
        rollups.where("report = 'dead_letters'")
        .groupBy("tenant", start_of(grain), F.expr("name AS queue"), F.expr("label AS reason"))
        .agg(
            F.expr("sum(n) AS count"),
            F.expr("sum(if(bucket = 1, n, 0)) AS firstAttempt"),
            F.expr("timestamp_millis(max(last.at)) AS lastAt"),
        )
    )


REPORT = Report("dead-letters", rows, rank="count")
