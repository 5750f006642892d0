"""Events of sessions."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from postroad.api.insights import Grain
from postroad.pipeline.aggregates import count_of, start_of
from postroad.pipeline.rollups import Counted

COUNTED = {
    "subscribed": Counted("session.subscribed"),
    "unsubscribed": Counted("session.unsubscribed"),
    "touched": Counted("session.touched"),
    "deleted": Counted("session.ended", condition="NOT is_expired"),
    "expired": Counted("session.ended", condition="is_expired"),
}


def rows(rollups: DataFrame, grain: Grain) -> DataFrame:
    counts = (F.expr(f"{count_of(label)} AS {label}") for label in COUNTED)
    return rollups.where("report = 'sessions'").groupBy("tenant", start_of(grain)).agg(*counts)
