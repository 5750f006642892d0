"""The lake: tables of Parquet files, and manifests that list the current files (decision 0021).

`manifest/<version>.json` lists the folders of every table. A batch writes new folders; a new manifest then adds them to all
tables at once. A batch that is in the manifest is not repeated. Readers open the folders of the newest manifest, so they never
see a part of a batch or an incomplete file.
"""

import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date

import msgspec
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types

from postroad.pipeline.files import FileExists, Files, files_at

_MANIFESTS = "manifest"
_DATA = "data"
_MANIFESTS_KEPT = 50
_ORPHAN_SECONDS = 3600.0


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A folder of Parquet files of one day. `first` and `last` are bounds of the time of its rows, in milliseconds."""

    path: str
    day: str
    bytes: int
    files: int
    first: int
    last: int
    batch: int = -1  # the batch that wrote it; -1 after a merge

    def overlaps(self, first: int, last: int) -> bool:
        return self.first <= last and self.last >= first


class Counts(msgspec.Struct, frozen=True):
    """Totals of the ingest."""

    messages: int = 0
    events: int = 0
    duplicates: int = 0
    late: int = 0
    quarantined: dict[str, int] = {}

    def plus(self, other: "Counts") -> "Counts":
        reasons = {**self.quarantined}
        for reason, count in other.quarantined.items():
            reasons[reason] = reasons.get(reason, 0) + count
        return Counts(
            self.messages + other.messages,
            self.events + other.events,
            self.duplicates + other.duplicates,
            self.late + other.late,
            reasons,
        )


class Manifest(msgspec.Struct, frozen=True):
    v: int = 1
    version: int = 0
    tables: dict[str, list[Entry]] = {}
    batches: dict[str, int] = {}  # by checkpoint, the last completed batch
    positions: dict[str, int] = {}  # by stream, the last sequence in the lake
    counts: Counts = Counts()
    done: dict[str, str] = {}  # by daily job, the last completed day

    def has(self, checkpoint: str, batch: int) -> bool:
        return self.batches.get(checkpoint, -1) >= batch

    def entries(self, table: str) -> list[Entry]:
        return self.tables.get(table, [])


class OtherWriter(Exception):
    """Another pipeline has written to the lake."""


class LakeBroken(Exception):
    """A manifest of the lake cannot be decoded."""


_decode = msgspec.json.Decoder(Manifest).decode


class Staged(msgspec.Struct, frozen=True):
    """Folders that are written but not in a manifest yet."""

    table: str
    entries: list[Entry]


class Lake:
    def __init__(self, root: str, spark: SparkSession) -> None:
        self.spark = spark
        self.files: Files = files_at(root, spark)
        self.root = root

    @property
    def checkpoint(self) -> str:
        return self.files.url("checkpoint")

    # Manifests

    def manifest(self) -> Manifest:
        """The newest manifest. Raises LakeBroken."""
        names = self.files.names(_MANIFESTS)
        if not names:
            return Manifest()
        text = self.files.read(f"{_MANIFESTS}/{names[-1]}")
        try:
            return _decode(text or "")
        except msgspec.DecodeError as exc:
            raise LakeBroken(f"{self.files.url(_MANIFESTS)}/{names[-1]} cannot be decoded: {exc}") from exc

    def commit(self, before: Manifest, after: Manifest) -> Manifest:
        """Store `after` as the successor of `before`. Raises OtherWriter."""
        after = replace(after, version=before.version + 1)
        text = msgspec.json.format(msgspec.json.encode(after), indent=1).decode()
        try:
            self.files.create(f"{_MANIFESTS}/{after.version:012d}.json", text)
        except FileExists as exc:
            raise OtherWriter(f"another pipeline writes to {self.root}: version {after.version} exists") from exc
        return after

    # Writing

    def folder(self, name: str) -> str:
        """A new folder name below `data/`."""
        return f"{_DATA}/{name}-{uuid.uuid4().hex[:12]}"

    def write(self, frame: DataFrame, folder: str, *partitions: str) -> None:
        writer = frame.write.mode("errorifexists")
        (writer.partitionBy(*partitions) if partitions else writer).parquet(self.files.url(folder))

    def stage(self, table: str, folder: str, span: tuple[int, int], batch: int = -1) -> Staged:
        """Prepare a written folder, partitioned by `day` last, for a manifest. `span` are bounds of the time of its rows."""
        self.files.make_durable(folder)
        by_path: dict[str, list[int]] = {}
        for name, size in self.files.sizes(folder).items():
            by_path.setdefault(name.rsplit("/", 1)[0], []).append(size)
        entries = []
        for path, sizes in by_path.items():
            day = path.rsplit("day=", 1)[1].split("/", 1)[0]
            first, last = day_span(day)
            entries.append(Entry(path, day, sum(sizes), len(sizes), max(first, span[0]), min(last, span[1]), batch))
        return Staged(table, entries)

    # Reading

    def read(self, table: str, schema: spark_types.StructType, entries: Iterable[Entry]) -> DataFrame:
        paths = [self.files.url(entry.path) for entry in entries]
        if not paths:
            return self.spark.createDataFrame([], schema)
        return self.spark.read.schema(schema).parquet(*paths)

    def read_folder(self, folder: str, schema: spark_types.StructType) -> DataFrame:
        return self.spark.read.schema(schema).parquet(self.files.url(folder))

    # Cleanup

    def sweep(self, now: float | None = None) -> int:
        """Remove old manifests, and folders that no other manifest lists. Returns the number of folders."""
        now = time.time() if now is None else now
        names = self.files.names(_MANIFESTS)
        for name in names[:-_MANIFESTS_KEPT]:
            self.files.remove(f"{_MANIFESTS}/{name}")
        named: set[str] = set()
        for name in names[-_MANIFESTS_KEPT:]:
            for entries in _decode(self.files.read(f"{_MANIFESTS}/{name}") or "").tables.values():
                named.update(entry.path.split("/")[1] for entry in entries)
        removed = 0
        for folder in self.files.names(_DATA):
            path = f"{_DATA}/{folder}"
            if folder not in named and self.files.age_seconds(path, now) > _ORPHAN_SECONDS:
                self.files.remove(path)
                removed += 1
        return removed


def with_staged(
    manifest: Manifest, staged: Sequence[Staged], *, without: Mapping[str, Collection[str]] | None = None
) -> Manifest:
    """The manifest with added folders and, for each table, without the given ones."""
    tables = {name: list(entries) for name, entries in manifest.tables.items()}
    for table, gone in (without or {}).items():
        tables[table] = [entry for entry in tables.get(table, []) if entry.path not in gone]
    for one in staged:
        tables.setdefault(one.table, []).extend(one.entries)
    return replace(manifest, tables=tables)


def of_days(entries: Iterable[Entry], days: Collection[str]) -> list[Entry]:
    return [entry for entry in entries if entry.day in days]


def day_span(day: str) -> tuple[int, int]:
    """The first and the last millisecond of a day."""
    start = (date.fromisoformat(day) - date(1970, 1, 1)).days * 86_400_000
    return start, start + 86_400_000 - 1
