"""What is known of each session, and the sessions that should be over and of whose end nothing was heard.

A batch adds what it knows; states of the same session merge in any order: the latest of each time counts. The service checks its
own truth before it ends a session.
"""

from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from postroad.pipeline.timestamps import rfc3339_column

STATES = spark.StructType(
    [
        spark.StructField("tenant", spark.StringType()),
        spark.StructField("session_id", spark.StringType()),
        spark.StructField("last_at", spark.LongType()),
        spark.StructField("expires_at", spark.LongType()),
        spark.StructField("ended_at", spark.LongType()),
    ]
)
GRACE = timedelta(minutes=10)  # the service's own sweep comes first


def states(events: DataFrame) -> DataFrame:
    """`STATES`: what these events say of sessions. Times are milliseconds; null is what they do not say."""
    at = F.unix_millis("time")
    told = events.filter(F.col("event").startswith("session.") & F.col("session_id").isNotNull()).select(
        "tenant",
        "session_id",
        at.alias("last_at"),
        F.unix_millis(F.try_to_timestamp("expires_at")).alias("expires_at"),
        F.when(F.col("event") == "session.ended", at).alias("ended_at"),
    )
    return merge(told)


def merge(states: DataFrame) -> DataFrame:
    """`STATES`: each session once."""
    latest = (F.max(name).alias(name) for name in ("last_at", "expires_at", "ended_at"))
    return states.groupBy("tenant", "session_id").agg(*latest).select(*STATES.names)


def overdue(states: DataFrame, now: datetime, grace: timedelta = GRACE) -> DataFrame:
    """`subject message_id data`: a request for each merged state that expired more than the grace ago, and has not ended since it
    was last heard of."""
    before = int((now - grace).timestamp() * 1000)
    is_over = F.col("ended_at").isNotNull() & (F.col("ended_at") >= F.col("last_at"))
    late = states.filter((F.col("expires_at") < before) & ~is_over)
    body = F.struct(
        F.lit(1).alias("v"),
        "tenant",
        F.col("session_id").alias("session"),
        _shown("last_at").alias("lastSeenAt"),
        _shown("expires_at").alias("expiresAt"),
    )
    return late.select(
        F.concat(F.lit("cleanup."), "tenant").alias("subject"),
        F.concat_ws(":", F.lit("cleanup"), "tenant", "session_id", _shown("expires_at")).alias("message_id"),
        F.to_json(body).alias("data"),
    )


def _shown(at_ms: str) -> Column:
    return rfc3339_column(F.timestamp_millis(at_ms))
