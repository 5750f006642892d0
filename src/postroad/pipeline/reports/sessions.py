"""Sessions that came, lived on and went."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from postroad.pipeline.reports.report import Report, count_of, start_of

_LABELS = ("subscribed", "unsubscribed", "touched", "deleted", "expired")


def rows(rollups: DataFrame, grain: str) -> DataFrame:
    counts = (F.expr(f"{count_of(label)} AS {label}") for label in _LABELS)
    return rollups.where("report = 'sessions'").groupBy("tenant", start_of(grain)).agg(*counts)


REPORT = Report("sessions", rows, rank="subscribed")
