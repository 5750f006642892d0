"""From stored frames to events: pure transforms, in Spark's own expressions.

A line that is an event of the catalogue becomes a row of `events`; fields that the catalogue does not know are kept in `extra`.
Any other line goes to the quarantine with the reason, and so does a message that is no frame.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from postroad.pipeline.schemas import QUARANTINE, event_columns, events_schema, known_fields, known_versions, required_fields
from postroad.telemetry.frames import FRAME_VERSION, STREAMS

EVENT, BAD = "event", "bad"  # what a parsed line is
_BAD_FIELD = "_bad"
_RAW_CHARS_MAX = 65_536
_LATE = "INTERVAL 1 HOUR"
_EARLIEST = "2020-01-01"

# A line as it is parsed: all that any event may have, and the text itself if it did not fit.
_LINE = spark.StructType(
    [
        spark.StructField("event", spark.StringType()),
        spark.StructField("version", spark.LongType()),
        spark.StructField("event_id", spark.StringType()),
        spark.StructField("tenant", spark.StringType()),
        spark.StructField("timestamp", spark.StringType()),
        *(spark.StructField(name, kind) for name, kind in event_columns().items()),
        spark.StructField(_BAD_FIELD, spark.StringType()),
    ]
)

PARSED = spark.StructType(
    [
        *events_schema().fields,
        spark.StructField("fault", spark.StringType()),
        spark.StructField("raw", spark.StringType()),
        spark.StructField("is_late", spark.BooleanType()),
        spark.StructField("state", spark.StringType()),
        spark.StructField("day", spark.StringType()),
    ]
)


def parsed_lines(messages: DataFrame) -> DataFrame:
    """Every line of every frame, as PARSED: events, and what is none, told apart by `state`. `day` is the event's, or for what is
    none the day on which it was stored.

    Each step ends in a generator (`inline`), so that Spark works its expressions out once. Plain columns would be folded into
    those that are made of them, and a line parsed again for each.
    """
    is_frame = F.coalesce(F.col("headers")["Postroad-Frame"] == FRAME_VERSION, F.lit(False))
    text = F.col("data").cast("string")
    lines = messages.where(F.col("stream").isin(*STREAMS)).select(
        "stream",
        "sequence",
        F.col("timestamp").alias("stored"),
        F.element_at(F.split("subject", r"\."), -1).alias("owner"),
        is_frame.alias("is_frame"),
        F.posexplode(F.when(is_frame, F.split(text, "\n")).otherwise(F.array(text))).alias("line", "raw"),
    )
    parsed = lines.where(F.length("raw") > 0).select(
        "*", F.inline(F.array(F.from_json("raw", _LINE, {"columnNameOfCorruptRecord": _BAD_FIELD})))
    )
    seen = F.struct(F.expr("json_object_keys(raw)").alias("names"), F.try_to_timestamp("timestamp").alias("at"))
    looked_up = parsed.select("*", F.inline(F.array(seen))).join(_catalogue(messages), "event", "left")
    judged = looked_up.select("*", F.inline(F.array(F.struct(_fault().alias("fault"), _extra().alias("extra")))))
    is_good = F.col("fault").isNull()
    time = F.when(is_good, F.col("at")).otherwise(F.col("stored"))
    return judged.select(
        "event",
        F.col("version").cast("int").alias("version"),
        "event_id",
        "tenant",
        time.alias("time"),
        "stream",
        "sequence",
        "line",
        *event_columns(),
        F.when(is_good, F.col("extra")).alias("extra"),
        "fault",
        F.when(~is_good, F.substring("raw", 1, _RAW_CHARS_MAX)).alias("raw"),
        (is_good & (F.col("at") < F.col("stored") - F.expr(_LATE))).alias("is_late"),
        F.when(is_good, F.lit(EVENT)).otherwise(F.lit(BAD)).alias("state"),
        F.date_format(time, "yyyy-MM-dd").alias("day"),
    )


def _catalogue(frame: DataFrame) -> DataFrame:
    """What the catalogue says of each event: the newest version, the fields that it must have and those that it may have. A small
    table to be joined, since the same as conditions in one expression takes Spark longer to plan than a batch takes to run."""
    names = known_versions()
    rows = [(name, names[name], list(required_fields()[name]), list(known_fields()[name])) for name in names]
    schema = "event string, newest int, required array<string>, known array<string>"
    return F.broadcast(frame.sparkSession.createDataFrame(rows, schema))


def _fault() -> Column:
    """Why a line is no event; null if it is one. `names` are the keys of its JSON object, null if it is none."""
    is_whole = (F.size(F.array_except("required", "names")) == 0) & F.col("event_id").isNotNull() & F.col("tenant").isNotNull()
    is_of_its_time = F.col("at").between(F.lit(_EARLIEST).cast("timestamp"), F.col("stored") + F.expr("INTERVAL 1 DAY"))
    return (
        F.when(~F.col("is_frame"), F.lit("unknown-frame"))
        .when(F.col("names").isNull(), F.lit("not-json"))
        .when(F.col("event").isNull(), F.lit("no-event"))
        .when(F.col("newest").isNull(), F.lit("unknown-event"))
        .when(~F.coalesce(F.col("version").between(1, F.col("newest")), F.lit(False)), F.lit("unknown-version"))
        .when(F.col(_BAD_FIELD).isNotNull(), F.lit("bad-field"))
        .when(~is_whole, F.lit("missing-field"))
        .when(F.col("tenant") != F.col("owner"), F.lit("wrong-tenant"))
        .when(~F.coalesce(is_of_its_time, F.lit(False)), F.lit("bad-time"))
    )


def _extra() -> Column:
    """The fields that the catalogue does not know, as JSON."""
    texts = F.from_json("raw", "map<string, string>")
    others = F.map_filter(texts, lambda name, _: ~F.array_contains("known", name))
    return F.when(F.size(F.array_except("names", "known")) > 0, F.to_json(others))


def quarantined(parsed: DataFrame) -> DataFrame:
    return parsed.where(F.col("state") == BAD).select(*QUARANTINE.names)


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
