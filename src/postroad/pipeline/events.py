"""From stored frames to events: pure transforms.

A line that is an event of the catalogue becomes a row of `events`; fields that the catalogue does not know are kept in `extra`.
Any other line goes to the quarantine with the reason, and so does a message that is no frame. `lines.py` tells them apart.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from postroad.pipeline import frame_parser
from postroad.pipeline.schemas import events_schema
from postroad.telemetry.frames import STREAMS

EVENT, BAD = "event", "bad"  # what a parsed line is

_LINES = spark.StructType(
    [
        *events_schema().fields,
        spark.StructField("fault", spark.StringType()),
        spark.StructField("raw", spark.StringType()),
        spark.StructField("is_late", spark.BooleanType()),
    ]
)
PARSED = spark.StructType(
    [*_LINES.fields, spark.StructField("state", spark.StringType()), spark.StructField("day", spark.StringType())]
)


def parsed_lines(messages: DataFrame) -> DataFrame:
    """Every line of every frame, as PARSED: events, and what is none, told apart by `state`. `day` is the event's, or for what is
    none the day on which it was stored.

    Lines are read in Python, a batch of columns at a time: Spark's own expressions for the same took ten times as long
    (decision 0021).
    """
    handed_over = messages.where(F.col("stream").isin(*STREAMS)).select(
        "stream",
        "sequence",
        F.col("timestamp").alias("stored"),
        F.element_at(F.split("subject", r"\."), -1).alias("owner"),
        F.col("headers")["Postroad-Frame"].alias("frame"),
        "data",
    )
    read = handed_over.mapInArrow(frame_parser.read, _LINES)
    return read.select(
        "*",
        F.when(F.col("fault").isNull(), F.lit(EVENT)).otherwise(F.lit(BAD)).alias("state"),
        F.date_format("time", "yyyy-MM-dd").alias("day"),
    )


def without_duplicates(events: DataFrame, seen: DataFrame) -> DataFrame:
    """Each event once, the one that was stored first, and none that is among `seen` (its column `event_id`)."""
    first = events.groupBy("event_id").agg(F.min(F.struct("stream", "sequence", "line")).alias("at"))
    chosen = first.join(seen.select("event_id").distinct(), "event_id", "left_anti")
    positions = chosen.select("event_id", "at.stream", "at.sequence", "at.line")
    left = events.join(positions, ["event_id", "stream", "sequence", "line"], "left_semi")
    return left.select(*events.columns)


def audit_entries(messages: DataFrame) -> DataFrame:
    """The audit log's messages are one entry each."""
    text = F.col("data").cast("string")
    entry = F.from_json(text, "action string, tenant string")
    return messages.where(F.col("stream") == "AUDIT").select(
        F.element_at(F.split("subject", r"\."), -1).alias("tenant"),
        F.col("timestamp").alias("time"),
        "sequence",
        entry["action"].alias("action"),
        text.alias("entry"),
        F.date_format("timestamp", "yyyy-MM-dd").alias("day"),
    )
