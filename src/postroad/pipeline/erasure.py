"""Erasure: removes the rows of deleted tenants from tables with what tenants sent. A tenant id is never used again."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.pipeline.delta_table import DataFile, TableFormat, write_file
from postroad.pipeline.lake import Lake
from postroad.pipeline.storage import Storage
from postroad.pipeline.tables import ARCHIVES

TABLES = ("command_events", *sorted(ARCHIVES))
ERASED = "erased-tenants"  # the application whose version is the sequence of the last deletion in the audit log
_LOOK_BACK = timedelta(days=14)
_ACTION = "tenant.delete"


@dataclass(frozen=True, slots=True)
class _Rewrite:
    table: TableFormat
    file: DataFile
    tenants: tuple[str, ...]


def erase_deleted_tenants(lake: Lake, today: date) -> int:
    """Returns the number of files that were written again. May be repeated after an interruption. Raises OtherWriter."""
    marker = lake.table("commands")
    done = marker.transaction(ERASED) or 0
    deleted = _deletions(lake, (today - _LOOK_BACK).isoformat(), done)
    if not deleted:
        return 0
    changed = sum(_erase(lake, name, tuple(sorted(deleted))) for name in TABLES if name in lake.table_names)
    marker.commit(transactions={ERASED: max(deleted.values())})
    return changed


def _deletions(lake: Lake, since: str, after: int) -> dict[str, int]:
    """Tenants whose deletion is in the audit log after this sequence, each with its sequence."""
    schema = lake.table("audit").format.schema
    found: dict[str, int] = {}
    for file in lake.files("audit"):
        if file.day >= since:
            entries = lake.storage.read_table(f"audit/{file.path}", schema, ["tenant", "sequence", "action"])
            is_new = pc.and_(pc.equal(entries.column("action"), _ACTION), pc.greater(entries.column("sequence"), after))
            for row in entries.filter(pc.fill_null(is_new, False)).to_pylist():
                found[row["tenant"]] = max(found.get(row["tenant"], 0), row["sequence"])
    return found


def _erase(lake: Lake, name: str, tenants: tuple[str, ...]) -> int:
    table = lake.table(name)
    due = [_Rewrite(table.format, file, tenants) for file in table.files()]
    if not due:
        return 0
    written = lake.spark.sparkContext.parallelize(due, len(due)).map(partial(_rewrite, storage=lake.storage)).collect()
    changed = [(one.file, new) for one, new in zip(due, written, strict=True) if new != [one.file]]
    if changed:
        table.commit([file for _, new in changed for file in new], [file for file, _ in changed])
    return len(changed)


def _rewrite(one: _Rewrite, storage: Storage) -> list[DataFile]:
    """The file itself if it has no row of these tenants; else one without them, or none if no row is left."""
    path = f"{one.table.name}/{one.file.path}"
    if not _has_any(storage.read_table(path, one.table.schema, ["tenant"]).column("tenant"), one.tenants):
        return [one.file]
    rows = storage.read_table(path, one.table.schema)
    left = rows.filter(pc.invert(_is_any(rows.column("tenant"), one.tenants)))
    return [write_file(storage, one.table, one.file.day, left, "erased")] if len(left) else []


def _is_any(column: pa.ChunkedArray, tenants: Collection[str]) -> pa.ChunkedArray:
    return pc.is_in(column, pa.array(list(tenants), pa.string()))


def _has_any(column: pa.ChunkedArray, tenants: Collection[str]) -> bool:
    return bool(pc.any(_is_any(column, tenants)).as_py())
