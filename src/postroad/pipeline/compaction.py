"""Compaction: merges the small files of a day into few large ones.

The files of a completed day are merged in the order of tenant and event. Those of the current day are merged when there are many,
so that a reader never opens more than a few dozen. Rollups and sessions are added up at the same time. Spark's tasks write the
files, because delta-rs's own compaction does not sync them to the disk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial

import pyarrow as pa  # type: ignore[import-untyped]

from postroad.pipeline.delta_table import DataFile, TableFormat, write_file
from postroad.pipeline.lake import Lake
from postroad.pipeline.storage import Storage
from postroad.pipeline.tables import TablePolicy

SMALL_FILES_MAX = 30
_LARGE_BYTES = 64 * 1024 * 1024
_PREFIX = "merged"


@dataclass(frozen=True, slots=True)
class _Rewrite:
    table: TableFormat
    policy: TablePolicy
    files: tuple[DataFile, ...]


def compact(lake: Lake, tables: Mapping[str, TablePolicy], today: date, *, include_today: bool = False) -> int:
    """Merge small files; with `include_today` also few files of the current day. Returns by how many the files decreased.

    Raises OtherWriter.
    """
    removed = 0
    for name, policy in tables.items():
        table = lake.table(name)
        due = [
            _Rewrite(table.format, policy, group)
            for day, small in _small_files(table.files()).items()
            if day < today.isoformat() or include_today or len(small) > SMALL_FILES_MAX
            for group in _groups(small)
        ]
        if not due:
            continue
        written = lake.spark.sparkContext.parallelize(due, len(due)).map(partial(_rewrite, storage=lake.storage)).collect()
        old = [file for one in due for file in one.files]
        table.commit(written, old, is_rewrite=True)
        removed += len(old) - len(written)
    return removed


def _small_files(files: Sequence[DataFile]) -> dict[str, list[DataFile]]:
    found: dict[str, list[DataFile]] = {}
    for file in sorted(files, key=lambda one: one.first):
        if file.size < _LARGE_BYTES:
            found.setdefault(file.day, []).append(file)
    return found


def _groups(files: Sequence[DataFile]) -> list[tuple[DataFile, ...]]:
    """Groups of two or more files, each of a size that fits a task's memory."""
    groups: list[list[DataFile]] = []
    size = _LARGE_BYTES
    for file in files:
        if size + file.size > _LARGE_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return [tuple(group) for group in groups if len(group) > 1]


def _rewrite(one: _Rewrite, storage: Storage) -> DataFile:
    rows = pa.concat_tables([storage.read_table(f"{one.table.name}/{file.path}", one.table.schema) for file in one.files])
    merged = one.policy.merge(rows) if one.policy.merge else rows
    ordered = merged.sort_by([(name, "ascending") for name in one.policy.order])
    return write_file(storage, one.table, one.files[0].day, ordered, _PREFIX)
