"""Compaction: merges the small files of a day into few large ones.

The files of a completed day are merged in the order of tenant and event. Those of the current day are merged when there are many,
so that a reader never opens more than a few dozen. Rollups and sessions are added up at the same time.
"""

from collections.abc import Mapping
from datetime import date

from pyspark.sql import functions as F

from postroad.pipeline.lake import Entry, Lake, Manifest, with_staged
from postroad.pipeline.tables import TablePolicy

SMALL_ENTRIES_MAX = 30
_LARGE_BYTES = 128 * 1024 * 1024


def compact(lake: Lake, tables: Mapping[str, TablePolicy], today: date, *, include_today: bool = False) -> int:
    """Merge small files, one day of a table at a time; with `include_today` also few files of the current day.

    Returns by how many the folders decreased. Raises OtherWriter.
    """
    removed = 0
    for table, policy in tables.items():
        for day in sorted({entry.day for entry in lake.manifest().entries(table)}):
            manifest = lake.manifest()
            small = [entry for entry in manifest.entries(table) if entry.day == day and entry.bytes < _LARGE_BYTES]
            is_due = day < today.isoformat() or include_today or len(small) > SMALL_ENTRIES_MAX
            if is_due and len(small) > 1:
                _rewrite(lake, manifest, table, policy, small)
                removed += len(small) - 1
    return removed


def _rewrite(lake: Lake, manifest: Manifest, table: str, policy: TablePolicy, entries: list[Entry]) -> None:
    rows = lake.read(table, policy.schema, entries)
    merged = (policy.merge(rows) if policy.merge else rows).withColumn("day", F.expr(policy.day))
    files = max(1, sum(entry.bytes for entry in entries) // _LARGE_BYTES)
    ordered = merged.repartitionByRange(int(files), *policy.order) if files > 1 else merged.coalesce(1)
    folder = lake.folder(f"{table}-{entries[0].day}")
    lake.write(ordered.sortWithinPartitions("day", *policy.order), folder, "day")
    span = min(entry.first for entry in entries), max(entry.last for entry in entries)
    staged = lake.stage(table, folder, span)
    lake.commit(manifest, with_staged(manifest, [staged], without={table: {entry.path for entry in entries}}))
