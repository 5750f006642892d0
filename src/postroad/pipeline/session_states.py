"""State of each session, and requests to clean up sessions that seem to have expired without an event.

Each batch adds its states; states of the same session merge in any order: the latest of each time counts. The service checks its
own state before it ends a session.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import types as spark

from postroad.contracts.session_cleanups import SESSION_CLEANUPS
from postroad.kernel.clock import AwareDatetime, rfc3339
from postroad.pipeline.messages import OutgoingMessage, contract_message
from postroad.pipeline.rollups import millis_of
from postroad.pipeline.schemas import arrow_schema

STATES = spark.StructType(
    [
        spark.StructField("tenant", spark.StringType()),
        spark.StructField("session_id", spark.StringType()),
        spark.StructField("last_at", spark.LongType()),
        spark.StructField("expires_at", spark.LongType()),
        spark.StructField("ended_at", spark.LongType()),
    ]
)
NO_STATES = arrow_schema(STATES).empty_table()
GRACE = timedelta(minutes=10)  # the service's own reconciler comes first
_TIMES = ("last_at", "expires_at", "ended_at")


def states(events: pa.Table) -> pa.Table:
    """`STATES`: one row per session of these events. Times are milliseconds; null if unknown."""
    is_session = pc.and_(pc.starts_with(events.column("event"), "session."), pc.is_valid(events.column("session_id")))
    rows = events.filter(is_session)
    at = millis_of(rows.column("time"))
    ended = pc.if_else(pc.equal(rows.column("event"), "session.ended"), at, pa.scalar(None, pa.int64()))
    expires = pa.array([_millis(text) for text in rows.column("expires_at").to_pylist()], pa.int64())
    columns = [rows.column("tenant"), rows.column("session_id"), at, expires, ended]
    return merge(pa.table(columns, schema=arrow_schema(STATES)))


def merge(states: pa.Table) -> pa.Table:
    """`STATES`: each session once."""
    found = states.group_by(["tenant", "session_id"], use_threads=False).aggregate([(name, "max") for name in _TIMES])
    columns = [found.column(name) for name in ("tenant", "session_id", *(f"{name}_max" for name in _TIMES))]
    return pa.table(columns, schema=arrow_schema(STATES))


def _millis(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(msgspec.convert(text, AwareDatetime).timestamp() * 1000)
    except msgspec.ValidationError:
        return None


def cleanup_messages(states: pa.Table, now: datetime, grace: timedelta = GRACE) -> list[OutgoingMessage]:
    """A request for each merged state that expired longer than `grace` ago and has not ended since its last event."""
    before = int((now - grace).timestamp() * 1000)
    has_ended = pc.fill_null(pc.greater_equal(states.column("ended_at"), states.column("last_at")), False)
    is_overdue = pc.and_(pc.fill_null(pc.less(states.column("expires_at"), before), False), pc.invert(has_ended))
    return [_cleanup(row) for row in states.filter(is_overdue).to_pylist()]


def _cleanup(state: dict[str, Any]) -> OutgoingMessage:
    tenant, session, expires_at = state["tenant"], state["session_id"], rfc3339(state["expires_at"])
    body = SESSION_CLEANUPS.body(
        v=1, tenant=tenant, session=session, last_seen_at=rfc3339(state["last_at"]), expires_at=expires_at
    )
    return contract_message(SESSION_CLEANUPS, body, tenant=tenant, session=session, expires_at=expires_at)


def day_of(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()
