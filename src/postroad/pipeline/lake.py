"""The lake: Delta tables, and the state of the pipeline in them (decision 0058).

Each commit of a batch records its number as an application transaction of the table. `bronze` is committed first, with the
positions in the streams, and `rollups` last, with the totals: a batch that `rollups` has is complete. A batch that only some
tables have is completed from its messages in `bronze`, before the next one.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types

from postroad.pipeline.delta_table import DataFile, LakeBroken, LakeTable, OtherWriter
from postroad.pipeline.frame_parser import FAULTS
from postroad.pipeline.rollups import loaded_rollups
from postroad.pipeline.storage import storage_at
from postroad.pipeline.tables import table_formats

BATCH = "postroad"  # the application of a batch's transactions
_FAULT = "fault:"


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals of the ingest."""

    messages: int = 0
    events: int = 0
    duplicates: int = 0
    late: int = 0
    quarantined: Mapping[str, int] = field(default_factory=dict)

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

    def transactions(self) -> dict[str, int]:
        plain = {name: getattr(self, name) for name in ("messages", "events", "duplicates", "late")}
        faults = {f"{_FAULT}{reason}": count for reason, count in self.quarantined.items()}
        return {f"count:{name}": count for name, count in {**plain, **faults}.items()}


class Lake:
    def __init__(self, root: str, spark: SparkSession, endpoint: str | None = None) -> None:
        self.spark, self.root = spark, root
        self.storage = storage_at(root, endpoint)
        self._tables = {name: LakeTable(self.storage, table) for name, table in table_formats().items()}

    @property
    def table_names(self) -> tuple[str, ...]:
        """In the order in which a batch is committed."""
        return tuple(self._tables)

    def table(self, name: str) -> LakeTable:
        return self._tables[name]

    def files(self, name: str) -> list[DataFile]:
        return self._tables[name].files()

    # State

    @property
    def batch(self) -> int:
        """The last complete batch; -1 before the first one."""
        return _number(self.table("rollups").transaction(BATCH), -1)

    @property
    def begun_batch(self) -> int:
        """The last batch whose messages are in `bronze`."""
        return _number(self.table("bronze").transaction(BATCH), -1)

    def position(self, stream: str, created: str) -> int:
        """The last sequence in the lake of the stream that was created at this time."""
        bronze = self.table("bronze")
        known = bronze.transaction(position_key(stream, created))
        return _number(bronze.transaction(position_key(stream, "")) if known is None else known, 0)

    def counts(self) -> Counts:
        rollups = self.table("rollups")
        totals = [_number(rollups.transaction(f"count:{name}"), 0) for name in ("messages", "events", "duplicates", "late")]
        faults = {reason: _number(rollups.transaction(f"count:{_FAULT}{reason}"), 0) for reason in FAULTS}
        messages, events, duplicates, late = totals
        return Counts(messages, events, duplicates, late, {reason: count for reason, count in faults.items() if count})

    # Reading

    def read_rollups(self, files: Iterable[DataFile]) -> pa.Table:
        """`MEASURES` of these files, not merged."""
        return loaded_rollups(self.read_files("rollups", files))

    def read_files(self, name: str, files: Iterable[DataFile]) -> list[Any]:
        schema = self.table(name).format.schema
        return [self.storage.read_table(f"{name}/{file.path}", schema) for file in files]

    def frame(self, name: str, schema: spark_types.StructType, files: Iterable[DataFile]) -> DataFrame:
        """These files as a Spark table."""
        paths = [file.path for file in files]
        if not paths:
            return self.spark.createDataFrame([], schema)
        if self.storage.is_local:
            return self.spark.read.schema(schema).parquet(*(f"{self.table(name).url}/{path}" for path in paths))
        # Spark itself needs a package of Hadoop for each object store; its tasks do not.
        storage, arrow = self.storage, self.table(name).format.schema

        def read(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                for path in batch.column("path").to_pylist():
                    yield from storage.read_table(f"{name}/{path}", arrow).to_batches()

        each = self.spark.createDataFrame([(path,) for path in paths], "path string").repartition(len(paths))
        return each.mapInArrow(read, schema)


def _number(found: int | None, default: int) -> int:
    return default if found is None else found


def position_key(stream: str, created: str) -> str:
    return f"position:{stream}:{created}"


def day_span(day: str) -> tuple[int, int]:
    """The first and the last millisecond of a day."""
    start = (date.fromisoformat(day) - date(1970, 1, 1)).days * 86_400_000
    return start, start + 86_400_000 - 1


__all__ = ["BATCH", "Counts", "DataFile", "Lake", "LakeBroken", "OtherWriter", "day_span", "position_key"]
