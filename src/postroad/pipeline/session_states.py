"""State of each session, and requests to clean up sessions that seem to have expired without an event.

Each batch adds its states; states of the same session merge in any order: the latest of each time counts. The service checks its
own state before it ends a session.
"""

from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from postroad.contracts.contract import VERSION
from postroad.contracts.session_cleanups import SESSION_CLEANUPS
from postroad.pipeline.messages import body_json, contract_messages
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
GRACE = timedelta(minutes=10)  # the service's own reconciler comes first


def states(events: DataFrame) -> DataFrame:
    """`STATES`: one row per session of these events. Times are milliseconds; null if unknown."""
    at = F.unix_millis("time")
    observed = events.filter(F.col("event").startswith("session.") & F.col("session_id").isNotNull()).select(
        "tenant",
        "session_id",
        at.alias("last_at"),
        F.unix_millis(F.try_to_timestamp("expires_at")).alias("expires_at"),
        F.when(F.col("event") == "session.ended", at).alias("ended_at"),
    )
    return merge(observed)


def merge(states: DataFrame) -> DataFrame:
    """`STATES`: each session once."""
    latest = (F.max(name).alias(name) for name in ("last_at", "expires_at", "ended_at"))
    return states.groupBy("tenant", "session_id").agg(*latest).select(*STATES.names)


def cleanup_messages(states: DataFrame, now: datetime, grace: timedelta = GRACE) -> DataFrame:
    """A request for each merged state that expired longer than `grace` ago and has not ended since its last event."""
    before = int((now - grace).timestamp() * 1000)
    has_ended = F.col("ended_at").isNotNull() & (F.col("ended_at") >= F.col("last_at"))
    overdue = states.filter((F.col("expires_at") < before) & ~has_ended)
    tenant, session, expires_at = F.col("tenant"), F.col("session_id"), _time_text("expires_at")
    data = body_json(
        SESSION_CLEANUPS,
        v=F.lit(VERSION),
        tenant=tenant,
        session=session,
        lastSeenAt=_time_text("last_at"),
        expiresAt=expires_at,
    )
    return contract_messages(overdue, SESSION_CLEANUPS, data, tenant=tenant, session=session, expires_at=expires_at)


def _time_text(at_ms: str) -> Column:
    return rfc3339_column(F.timestamp_millis(at_ms))
