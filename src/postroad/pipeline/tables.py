"""Tables of the lake: their columns, the order of their rows, and their retention."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from postroad.pipeline import rollups, session_states
from postroad.pipeline.delta_table import TableFormat
from postroad.pipeline.ended_jobs import ENDED
from postroad.pipeline.schemas import AUDIT, BRONZE, QUARANTINE, arrow_schema, events_schema, silver_tables

_SESSION_DAYS = 30
ARCHIVES = frozenset({"commands", "messages"})  # with what tenants sent
ROW_ORDER = {"commands": ("target", "source", "time")}  # of silver tables in the files of a batch; else by event and tenant


@cache
def table_formats() -> Mapping[str, TableFormat]:
    """In the order in which a batch is committed: with `rollups` it is complete."""
    declared = {
        "bronze": (BRONZE, "timestamp"),
        "quarantine": (QUARANTINE, "time"),
        "audit": (AUDIT, "time"),
        **{name: (events_schema(name), "time") for name in silver_tables()},
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


def table_policies(bronze_days: int, days: int, archive_days: int = 30) -> Mapping[str, TablePolicy]:
    """`archive_days` is for the tables with contents of commands and messages; frames and refused lines have them, too."""
    frame_days = min(bronze_days, archive_days)
    silver = {
        name: TablePolicy(ROW_ORDER.get(name, ("tenant", "event", "time")), archive_days if name in ARCHIVES else days)
        for name in silver_tables()
    }
    return {
        **silver,
        "bronze": TablePolicy(("stream", "sequence"), frame_days),
        "quarantine": TablePolicy(("stream", "sequence", "line"), frame_days),
        "audit": TablePolicy(("tenant", "sequence"), days),
        "rollups": TablePolicy(("report", "tenant", "minute"), days, _merged_rollups),
        "sessions": TablePolicy(("tenant", "session_id"), _SESSION_DAYS, session_states.merge),
        "job_history": TablePolicy(("tenant", "createdAt"), days),
    }


def _merged_rollups(table: Any) -> Any:
    return rollups.stored_rollups(rollups.merge(rollups.loaded_rollups([table])), table.schema)
