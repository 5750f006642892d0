"""Converts a lake of the former format (folders listed by `manifest/<version>.json`) to Delta tables, in place.

Every file is written again as a file of its table, by Spark's tasks. A table is committed at once with all of its files, so that
a migration that is interrupted continues with the next table. The former files are removed when all tables are complete.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import partial

import msgspec

from postroad.pipeline.delta_table import DataFile, LakeBroken, TableFormat, write_file
from postroad.pipeline.job_archive import DONE
from postroad.pipeline.lake import BATCH, Counts, Lake, position_key
from postroad.pipeline.storage import Storage

_MANIFESTS, _DATA, _CHECKPOINT = "manifest", "data", "checkpoint"
_MIGRATED = "manifest"  # the application whose version is that of the manifest


class _Entry(msgspec.Struct, frozen=True):
    path: str
    day: str
    batch: int = -1


class _Counts(msgspec.Struct, frozen=True):
    messages: int = 0
    events: int = 0
    duplicates: int = 0
    late: int = 0
    quarantined: dict[str, int] = {}


class _Manifest(msgspec.Struct, frozen=True):
    version: int = 0
    tables: dict[str, list[_Entry]] = {}
    batches: dict[str, int] = {}
    positions: dict[str, int] = {}
    counts: _Counts = _Counts()
    done: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class _OldFile:
    path: str
    day: str


def needs_migration(lake: Lake) -> bool:
    return bool(lake.storage.names(_MANIFESTS))


def migrate(lake: Lake, echo: Callable[[str], None] = lambda _: None) -> bool:
    """Returns whether there was anything to migrate. Idempotent. Raises LakeBroken if the manifest cannot be decoded."""
    if not needs_migration(lake):
        return False
    manifest = _newest_manifest(lake.storage)
    for name in manifest.tables:
        if name not in lake.table_names:
            raise LakeBroken(f"the manifest of {lake.root} lists an unknown table: {name}")
    for name in lake.table_names:  # `rollups`, which completes a batch, is the last
        table = lake.table(name)
        if table.transaction(_MIGRATED) is not None:
            continue
        old = [
            _OldFile(path, entry.day) for entry in manifest.tables.get(name, []) for path in lake.storage.files_below(entry.path)
        ]
        rewrite = partial(_rewrite, storage=lake.storage, table=table.format)
        written = lake.spark.sparkContext.parallelize(old, len(old)).map(rewrite).collect() if old else []
        table.commit(written, transactions={_MIGRATED: manifest.version, **_state(name, manifest)})
        echo(f"{name}: {len(written)} files, {sum(file.rows for file in written)} rows")
    lake.storage.remove_folder(_CHECKPOINT)
    lake.storage.remove_folder(_DATA)
    lake.storage.remove_folder(_MANIFESTS)
    return True


def _newest_manifest(storage: Storage) -> _Manifest:
    name = storage.names(_MANIFESTS)[-1]
    try:
        return msgspec.json.decode(storage.read_text(f"{_MANIFESTS}/{name}") or "", type=_Manifest)
    except msgspec.DecodeError as exc:
        raise LakeBroken(f"{storage.url(_MANIFESTS)}/{name} cannot be decoded: {exc}") from exc


def _state(name: str, manifest: _Manifest) -> dict[str, int]:
    """The state of the pipeline that the table keeps."""
    batch = {BATCH: max(manifest.batches.values())} if manifest.batches else {}
    if name == "bronze":
        return {**batch, **{position_key(stream, ""): sequence for stream, sequence in manifest.positions.items()}}
    if name == "rollups":
        return {**batch, **Counts(**msgspec.structs.asdict(manifest.counts)).transactions()}
    done = manifest.done.get(name)
    return {DONE: date.fromisoformat(done).toordinal()} if done else {}


def _rewrite(old: _OldFile, storage: Storage, table: TableFormat) -> DataFile:
    return write_file(storage, table, old.day, storage.read_table(old.path, table.schema), "migrated")
