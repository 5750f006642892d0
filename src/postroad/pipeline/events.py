"""Transforms of stored frames into events. Pure.

A valid line becomes a row of `events`; fields that its event type does not define are kept in `extra`. Other lines, and messages
that are not frames, go to the quarantine with the reason. `frame_parser.py` decides which they are.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from postroad.pipeline import frame_parser
from postroad.pipeline.schemas import events_schema
from postroad.telemetry.frames import STREAMS

EVENT, BAD = "event", "bad"  # values of `state`

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
    """All lines of all frames, as PARSED: `state` distinguishes events from invalid lines. `day` is that of the event, or the
    day on which an invalid line was stored.

    Lines are parsed in Python, in batches of columns: Spark's own expressions took ten times as long (decision 0021).
    """
    frames = messages.where(F.col("stream").isin(*STREAMS)).select(
        "stream",
        "sequence",
        F.col("timestamp").alias("stored"),
        F.element_at(F.split("subject", r"\."), -1).alias("owner"),
        F.col("headers")["Postroad-Frame"].alias("frame"),
        "data",
    )
    parsed = frames.mapInArrow(frame_parser.read, _LINES)
    return parsed.select(
        "*",
        F.when(F.col("fault").isNull(), F.lit(EVENT)).otherwise(F.lit(BAD)).alias("state"),
        F.date_format("time", "yyyy-MM-dd").alias("day"),
    )


def without_duplicates(events: DataFrame, seen: DataFrame) -> DataFrame:
    """Each event once, as first stored, without those in `seen` (its column `event_id`)."""
    first = events.groupBy("event_id").agg(F.min(F.struct("stream", "sequence", "line")).alias("at"))
    chosen = first.join(seen.select("event_id").distinct(), "event_id", "left_anti")
    positions = chosen.select("event_id", "at.stream", "at.sequence", "at.line")
    left = events.join(positions, ["event_id", "stream", "sequence", "line"], "left_semi")
    return left.select(*events.columns)


def audit_entries(messages: DataFrame) -> DataFrame:
    """Entries of the audit log: one per message."""
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
