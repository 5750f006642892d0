"""Tables of the lake: their columns, the order of their rows, and their retention."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import types as spark

from postroad.pipeline import job_archive, rollups, session_states
from postroad.pipeline.ended_jobs import ENDED
from postroad.pipeline.schemas import AUDIT, BRONZE, QUARANTINE, events_schema

_SESSION_DAYS = 30


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """`day` is the SQL expression of a row's partition, `days` the retention, `merge` adds up rows when files are merged."""

    schema: spark.StructType
    order: tuple[str, ...]
    day: str
    days: int
    merge: Callable[[DataFrame], DataFrame] | None = None


def table_policies(bronze_days: int, days: int) -> Mapping[str, TablePolicy]:
    from_time, from_stored, from_minute = (f"date_format({name}, 'yyyy-MM-dd')" for name in ("time", "timestamp", "minute"))
    from_last = "date_format(timestamp_millis(last_at), 'yyyy-MM-dd')"
    return {
        "bronze": TablePolicy(BRONZE, ("stream", "sequence"), from_stored, bronze_days),
        "events": TablePolicy(events_schema(), ("tenant", "event", "time"), from_time, days),
        "quarantine": TablePolicy(QUARANTINE, ("stream", "sequence", "line"), from_time, bronze_days),
        "audit": TablePolicy(AUDIT, ("tenant", "sequence"), from_time, days),
        "rollups": TablePolicy(rollups.ROLLUPS, ("report", "tenant", "minute"), from_minute, days, rollups.merge),
        "sessions": TablePolicy(session_states.STATES, ("tenant", "session_id"), from_last, _SESSION_DAYS, session_states.merge),
        job_archive.TABLE: TablePolicy(ENDED, ("tenant", "createdAt"), "ended_day", days),
    }
