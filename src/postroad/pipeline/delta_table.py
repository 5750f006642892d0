"""A Delta table of the lake (decision 0058). Others write its Parquet files; this commits them.

delta-rs syncs nothing to the disk. On a local disk the commit is therefore synced here, after the data files, and an entry of the
log that a power failure left incomplete is removed before the table is opened: nothing was reported as committed with it.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import Field
from deltalake.transaction import AddAction, RemoveAction

from postroad.pipeline.storage import Storage, new_name, sync

DAY = "day"  # the partition column of every table
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CONFIGURATION = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
_GRACE_HOURS = 1  # for readers that opened the table before a file was removed from it
_ALWAYS = 2**62


class OtherWriter(Exception):
    """Another pipeline has written to the lake."""


class LakeBroken(Exception):
    """A table of the lake cannot be opened."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table. `first` and `last` are bounds of the time of its rows, in milliseconds."""

    path: str
    day: str
    size: int
    rows: int
    first: int
    last: int

    @property
    def batch(self) -> int:
        """The batch that wrote it; -1 if it was written by maintenance."""
        name = self.path.rsplit("/", 1)[-1]
        return int(name[1:9]) if name[0] == "b" and name[1:9].isdigit() else -1

    def overlaps(self, first: int, last: int) -> bool:
        return self.first <= last and self.last >= first


def batch_prefix(batch: int) -> str:
    return f"b{batch:08d}"


@dataclass(frozen=True, slots=True)
class TableFormat:
    """Name and columns of a table, without `day`. `time` is the column of a row's time: a timestamp, or milliseconds."""

    name: str
    schema: pa.Schema
    time: str


def write_file(storage: Storage, table: TableFormat, day: str, rows: pa.Table, prefix: str) -> DataFile:
    """Write rows of one day as a new file, which the table has when it is committed."""
    path = f"{DAY}={day}/{new_name(prefix)}"
    size = storage.write_table(f"{table.name}/{path}", rows)
    bounds = pc.min_max(_millis(rows.column(table.time)))
    first, last = bounds["min"].as_py(), bounds["max"].as_py()
    return DataFile(path, day, size, len(rows), 0 if first is None else first, _ALWAYS if last is None else last + 1)


def _millis(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    return column


class LakeTable:
    """Opened when it is used first. One writer: commits of a second one fail."""

    def __init__(self, storage: Storage, table: TableFormat) -> None:
        self.format = table
        self._storage = storage
        self._schema = Schema.from_arrow(table.schema.append(pa.field(DAY, pa.string())))
        self._opened: DeltaTable | None = None
        self._files: tuple[int, list[DataFile]] | None = None
        self._synced = -1  # version of the log

    @property
    def url(self) -> str:
        return self._storage.url(self.format.name)

    @property
    def version(self) -> int:
        """Of the log; -1 if the table does not exist."""
        table = self._existing()
        return -1 if table is None else table.version()

    def files(self) -> list[DataFile]:
        """The current files. Raises LakeBroken."""
        table = self._existing()
        if table is None:
            return []
        version = table.version()
        if self._files is None or self._files[0] != version:
            self._files = (version, _data_files(table, self.format.time))
        return self._files[1]

    def files_of_days(self, days: Iterable[str]) -> list[DataFile]:
        wanted = set(days)
        return [file for file in self.files() if file.day in wanted]

    def transaction(self, application: str) -> int | None:
        """The version that a commit has recorded for the application. Raises LakeBroken."""
        table = self._existing()
        return None if table is None else table.transaction_version(application)

    def commit(
        self,
        add: Sequence[DataFile] = (),
        remove: Sequence[DataFile] = (),
        transactions: Mapping[str, int] | None = None,
        *,
        is_rewrite: bool = False,
    ) -> None:
        """Add and remove files in one version of the table; `is_rewrite` if its rows stay the same. Raises OtherWriter."""
        table = self._existing() or self._create()
        actions: list[Any] = [_added(file, self.format, has_new_rows=not is_rewrite) for file in add]
        actions += [RemoveAction(file.path, not is_rewrite, _now_ms(), file.size, {DAY: file.day}) for file in remove]
        properties = CommitProperties(
            max_commit_retries=1,
            app_transactions=[Transaction(name, version) for name, version in (transactions or {}).items()],
        )
        try:
            table.create_write_transaction(
                actions,
                "append",
                self._schema,
                [DAY],
                commit_properties=properties,
                post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
            )
        except CommitFailedError as exc:
            raise OtherWriter(f"another pipeline writes to {self.url}: {exc}") from exc
        self._refresh(table)

    def maintain(self) -> None:
        """Summarize the log, and delete files that no reader needs any more."""
        table = self._existing()
        if table is None:
            return
        if table.version() - self._last_checkpoint() >= int(_CONFIGURATION["delta.checkpointInterval"]):
            table.create_checkpoint()
            self._sync_log(f"{table.version():020d}.checkpoint.parquet", "_last_checkpoint")
            table.cleanup_metadata()
        if self._vacuum(table, dry_run=True):
            self._vacuum(table, dry_run=False)
            self._refresh(table)

    def _last_checkpoint(self) -> int:
        """The version that the last summary of the log has; 0 if there is none."""
        pointer = self._storage.read_text(f"{self.format.name}/_delta_log/_last_checkpoint")
        return int(json.loads(pointer)["version"]) if pointer else 0

    def _vacuum(self, table: DeltaTable, *, dry_run: bool) -> list[str]:
        return table.vacuum(retention_hours=_GRACE_HOURS, dry_run=dry_run, enforce_retention_duration=False, full=True)

    def _refresh(self, table: DeltaTable) -> None:
        """Read and sync the commits since the last one that was read."""
        table.update_incremental()
        versions = range(max(self._synced + 1, table.version() - 10), table.version() + 1)
        self._sync_log(*(f"{version:020d}.json" for version in versions))
        self._synced = table.version()

    def _existing(self) -> DeltaTable | None:
        if self._opened is not None:
            return self._opened
        folder = self._log_folder()
        if folder is not None:
            repair_log(folder)
        try:
            if not DeltaTable.is_deltatable(self.url, self._storage.delta_options):
                return None
            self._opened = DeltaTable(self.url, storage_options=self._storage.delta_options)
        except DeltaError as exc:
            raise LakeBroken(f"{self.url} cannot be opened: {exc}") from exc
        self._add_columns(self._opened)
        return self._opened

    def _create(self) -> DeltaTable:
        self._opened = DeltaTable.create(
            self.url,
            self._schema,
            mode="ignore",
            partition_by=[DAY],
            name=self.format.name,
            configuration=_CONFIGURATION,
            storage_options=self._storage.delta_options,
        )
        self._refresh(self._opened)
        return self._opened

    def _add_columns(self, table: DeltaTable) -> None:
        known = {field.name for field in table.schema().fields}
        missing: list[Field] = [field for field in self._schema.fields if field.name not in known]
        if missing:
            table.alter.add_columns(missing)
            self._refresh(table)

    def _log_folder(self) -> Path | None:
        return Path(self.url) / "_delta_log" if self._storage.is_local else None

    def _sync_log(self, *names: str) -> None:
        folder = self._log_folder()
        if folder is not None:
            for path in (*(folder / name for name in names), folder, folder.parent, folder.parent.parent):
                sync(path)


def repair_log(folder: Path) -> None:
    """Remove entries at the end of a log that were not written completely."""
    for path in sorted(folder.glob("*.json"), reverse=True):
        if _is_complete_json(path):
            break
        path.unlink()
    for path in folder.glob("*.checkpoint.parquet"):
        if not path.read_bytes().endswith(b"PAR1"):
            path.unlink()
            (folder / "_last_checkpoint").unlink(missing_ok=True)
    pointer = folder / "_last_checkpoint"
    if pointer.exists() and not _is_complete_json(pointer):
        pointer.unlink()


def _is_complete_json(path: Path) -> bool:
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines() if line]
    except ValueError:
        return False
    return bool(lines)


def _data_files(table: DeltaTable, time_column: str) -> list[DataFile]:
    found = pa.table(table.get_add_actions(flatten=True))
    names = set(found.column_names)

    def values(name: str) -> list[Any]:
        return list(found.column(name).to_pylist()) if name in names else [None] * len(found)

    columns = ("path", "partition.day", "size_bytes", "num_records", f"min.{time_column}", f"max.{time_column}")
    rows = zip(*map(values, columns), strict=True)
    return [
        DataFile(path, day, size, count or 0, _bound(low, 0), _bound(high, _ALWAYS)) for path, day, size, count, low, high in rows
    ]


def _bound(value: Any, unknown: int) -> int:
    if value is None:
        return unknown
    return value if isinstance(value, int) else (value - _EPOCH) // timedelta(milliseconds=1)


def _added(file: DataFile, table: TableFormat, *, has_new_rows: bool) -> AddAction:
    statistics: dict[str, Any] = {"numRecords": file.rows}
    if file.last < _ALWAYS:
        is_time = pa.types.is_timestamp(table.schema.field(table.time).type)
        low, high = (_time_text(at) if is_time else at for at in (file.first, file.last))
        statistics |= {"minValues": {table.time: low}, "maxValues": {table.time: high}}
    return AddAction(file.path, file.size, {DAY: file.day}, _now_ms(), has_new_rows, json.dumps(statistics))


def _time_text(at_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
