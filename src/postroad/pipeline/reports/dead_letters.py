"""Dead letters by queue and reason."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from postroad.api.insights import Grain
from postroad.pipeline.aggregates import start_of
from postroad.pipeline.rollups import as_rollups, last_value

REASON_CHARACTERS_MAX = 200  # consumers choose the reason freely: reasons with the same beginning are counted together


def measures(minutes: DataFrame) -> DataFrame:
    """`bucket` is 1 for a failure at the first attempt, else 2. Redriven messages have the reason `redriven`."""
    counts = (
        minutes.where("event IN ('job.dead', 'job.redriven')")
        .groupBy(
            "tenant",
            "minute",
            F.expr("if(event = 'job.redriven', from_queue, queue) AS name"),
            F.expr(f"if(event = 'job.redriven', 'redriven', substring(reason, 1, {REASON_CHARACTERS_MAX})) AS label"),
            F.expr("if(event = 'job.dead' AND attempt = 1, 1, 2) AS bucket"),
        )
        .agg(F.expr("count(*) AS n"), F.expr(f"{last_value('coalesce(attempt, 0)')} AS last"))
    )
    return as_rollups(counts, report="'dead_letters'")


def rows(rollups: DataFrame, grain: Grain) -> DataFrame:
    return (
        rollups.where("report = 'dead_letters'")
        .groupBy("tenant", start_of(grain), F.expr("name AS queue"), F.expr("label AS reason"))
        .agg(
            F.expr("sum(n) AS count"),
            F.expr("sum(if(bucket = 1, n, 0)) AS firstAttempt"),
            F.expr("timestamp_millis(max(last.at)) AS lastAt"),
        )
    )
