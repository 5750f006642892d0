"""Tables of the lake: their columns, the order of their rows, and their retention."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from postroad.pipeline import rollups, session_states
from postroad.pipeline.delta_table import TableFormat
from postroad.pipeline.ended_jobs import ENDED
from postroad.pipeline.schemas import AUDIT, BRONZE, QUARANTINE, arrow_schema, events_schema

_SESSION_DAYS = 30


@cache
def table_formats() -> Mapping[str, TableFormat]:
    """In the order in which a batch is committed: with `rollups` it is complete."""
    declared = {
        "bronze": (BRONZE, "timestamp"),
        "quarantine": (QUARANTINE, "time"),
        "audit": (AUDIT, "time"),
        "events": (events_schema(), "time"),
        "sessions": (session_states.STATES, "last_at"),
        "job_history": (ENDED, "updatedAt"),
        "rollups": (rollups.ROLLUPS, "minute"),
    }
    return {name: TableFormat(name, arrow_schema(schema), time) for name, (schema, time) in declared.items()}


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """`days` is the retention; `merge` adds up rows when files are merged."""

    order: tuple[str, ...]
    days: int
    merge: Callable[[Any], Any] | None = None


def table_policies(bronze_days: int, days: int) -> Mapping[str, TablePolicy]:
    return {
        "bronze": TablePolicy(("stream", "sequence"), bronze_days),
        "events": TablePolicy(("tenant", "event", "time"), days),
        "quarantine": TablePolicy(("stream", "sequence", "line"), bronze_days),
        "audit": TablePolicy(("tenant", "sequence"), days),
        "rollups": TablePolicy(("report", "tenant", "minute"), days, _merged_rollups),
        "sessions": TablePolicy(("tenant", "session_id"), _SESSION_DAYS, session_states.merge),
        "job_history": TablePolicy(("tenant", "createdAt"), days),
    }


def _merged_rollups(table: Any) -> Any:
    return rollups.stored_rollups(rollups.merge(rollups.loaded_rollups([table])), table.schema)
