"""Erasure: removes the rows of deleted tenants from tables with what tenants sent. A tenant id is never used again.

Payloads are in the archives, in the frames of `bronze`, and in lines of them that are in `quarantine`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.pipeline.delta_table import DataFile, TableFormat, write_file
from postroad.pipeline.lake import Lake
from postroad.pipeline.storage import Storage
from postroad.pipeline.tables import ARCHIVES
from postroad.telemetry.frames import STREAMS

_BY_TENANT = ("command_events", *sorted(ARCHIVES))
_BY_FRAME = ("quarantine", "bronze")  # in this order: the frames are needed to find the lines in quarantine
TABLES = (*_BY_TENANT, *_BY_FRAME)
_COLUMNS = {"bronze": ["subject"], "quarantine": ["stream", "sequence"]}  # with the owner of a row; else `tenant`
ERASED = "erased-tenants"  # the application whose version is the sequence of the last deletion in the audit log
_LOOK_BACK = timedelta(days=14)
_ACTION = "tenant.delete"


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """`owners`: tenants, their subjects, or places of their frames, as `_owners` reads them."""

    table: TableFormat
    file: DataFile
    owners: tuple[str, ...]


def erase_deleted_tenants(lake: Lake, today: date) -> int:
    """Returns the number of files that were written again. May be repeated after an interruption. Raises OtherWriter."""
    marker = lake.table("commands")
    done = marker.transaction(ERASED) or 0
    deleted = _deletions(lake, (today - _LOOK_BACK).isoformat(), done)
    if not deleted:
        return 0
    subjects = tuple(f"{prefix}.{tenant}" for tenant in sorted(deleted) for prefix in STREAMS.values())
    owners = {name: tuple(sorted(deleted)) for name in _BY_TENANT}
    owners |= {"quarantine": _quarantined(lake, subjects), "bronze": subjects}
    changed = sum(_erase(lake, name, owners[name]) for name in TABLES if name in lake.table_names)
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


def _quarantined(lake: Lake, subjects: tuple[str, ...]) -> tuple[str, ...]:
    """The places of frames with these subjects that have lines in the quarantine."""
    read, schema = lake.storage.read_table, lake.table("quarantine").format.schema
    places: set[str] = set()
    for file in lake.files("quarantine"):
        places.update(_owners("quarantine", read(f"quarantine/{file.path}", schema, _COLUMNS["quarantine"])).to_pylist())
    files = lake.files("bronze") if places else []
    if not files:
        return ()
    find = partial(_places_of, storage=lake.storage, table=lake.table("bronze").format, subjects=subjects, places=sorted(places))
    found = lake.spark.sparkContext.parallelize(files, len(files)).flatMap(find).collect()
    return tuple(sorted(found))


def _places_of(
    file: DataFile, storage: Storage, table: TableFormat, subjects: tuple[str, ...], places: Sequence[str]
) -> list[str]:
    frames = storage.read_table(f"bronze/{file.path}", table.schema, ["subject", "stream", "sequence"])
    frames = frames.filter(_is_any(frames.column("subject"), subjects))
    found = _owners("quarantine", frames)
    return list(found.filter(_is_any(found, places)).to_pylist())


def _erase(lake: Lake, name: str, owners: tuple[str, ...]) -> int:
    table = lake.table(name)
    due = [_Rewrite(table.format, file, owners) for file in table.files()] if owners else []
    if not due:
        return 0
    written = lake.spark.sparkContext.parallelize(due, len(due)).map(partial(_rewrite, storage=lake.storage)).collect()
    changed = [(one.file, new) for one, new in zip(due, written, strict=True) if new != [one.file]]
    if changed:
        table.commit([file for _, new in changed for file in new], [file for file, _ in changed])
    return len(changed)


def _rewrite(one: _Rewrite, storage: Storage) -> list[DataFile]:
    """The file itself if it has no row of these owners; else one without them, or none if no row is left."""
    name, path = one.table.name, f"{one.table.name}/{one.file.path}"
    if not pc.any(
        _is_any(_owners(name, storage.read_table(path, one.table.schema, _COLUMNS.get(name, ["tenant"]))), one.owners)
    ).as_py():
        return [one.file]
    rows = storage.read_table(path, one.table.schema)
    left = rows.filter(pc.invert(_is_any(_owners(name, rows), one.owners)))
    return [write_file(storage, one.table, one.file.day, left, "erased")] if len(left) else []


def _owners(table: str, rows: pa.Table) -> pa.ChunkedArray:
    """Whose each row is: a tenant, the subject of a frame, or the place of one."""
    if table == "quarantine":
        sequences = pc.cast(rows.column("sequence"), pa.string())
        return pc.binary_join_element_wise(rows.column("stream"), sequences, ":")
    return rows.column("subject" if table == "bronze" else "tenant")


def _is_any(column: pa.ChunkedArray, values: Collection[str]) -> pa.ChunkedArray:
    return pc.fill_null(pc.is_in(column, pa.array(list(values), pa.string())), False)
