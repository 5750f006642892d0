"""A lake of the former format becomes Delta tables, and the pipeline continues where it was."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from postroad.pipeline.delta_table import LakeBroken, LakeTable
from postroad.pipeline.lake import Counts, Lake
from postroad.pipeline.measures import measures
from postroad.pipeline.migration import migrate, needs_migration
from postroad.pipeline.rollups import ROLLUPS, stored_rollups
from postroad.pipeline.schemas import arrow_schema
from tests.pipeline.event_samples import sample_events
from tests.pipeline.frames import events_table

DAY = "2026-11-16"


def _entry(path: str, batch: int) -> dict[str, Any]:
    return {"path": f"{path}/day={DAY}", "day": DAY, "bytes": 1, "files": 1, "first": 0, "last": 1, "batch": batch}


def _store(root: Path, folder: str, table: pa.Table) -> None:
    target = root / folder / f"day={DAY}"
    target.mkdir(parents=True)
    (target / "_SUCCESS").touch()
    # As Spark wrote it: times of 96 bits, and the columns of invalid lines beside those of events.
    pq.write_table(table, target / "part-0.parquet", use_deprecated_int96_timestamps=True)


@pytest.fixture
def former(tmp_path: Path) -> Path:
    root = tmp_path / "lake"
    events = events_table(sample_events())
    lines = events.append_column("fault", pa.nulls(len(events), pa.string())).append_column(
        "is_late", pa.repeat(pa.scalar(False), len(events))
    )
    _store(root, "data/b00000000-1/lines/state=event", lines.slice(0, 5))
    _store(root, "data/b00000001-2/lines/state=event", lines.slice(5))
    _store(root, "data/b00000001-2/rollups", stored_rollups(measures(events), arrow_schema(ROLLUPS)))
    _store(root, "data/orphan", lines)
    manifest = {
        "v": 1,
        "version": 9,
        "tables": {
            "events": [_entry("data/b00000000-1/lines/state=event", 0), _entry("data/b00000001-2/lines/state=event", 1)],
            "rollups": [_entry("data/b00000001-2/rollups", 1)],
        },
        "batches": {"checkpoint-id": 1},
        "positions": {"JOBS": 12, "TELEMETRY": 3},
        "counts": {"messages": 15, "events": len(events), "duplicates": 2, "late": 1, "quarantined": {"not-json": 4}},
        "done": {"job_history": "2026-11-15"},
    }
    (root / "manifest").mkdir()
    (root / "manifest" / f"{8:012d}.json").write_text("{}")
    (root / "manifest" / f"{9:012d}.json").write_text(json.dumps(manifest))
    (root / "checkpoint").mkdir()
    return root


def _check(lake: Lake, root: Path) -> None:
    events = events_table(sample_events())
    found = DeltaTable(str(root / "events")).to_pyarrow_table()
    assert sorted(found.column_names) == sorted([*events.column_names, "day"])
    assert sorted(zip(found["event"].to_pylist(), found["time"].to_pylist(), strict=True)) == sorted(
        zip(events["event"].to_pylist(), events["time"].to_pylist(), strict=True)
    )
    assert len(DeltaTable(str(root / "rollups")).to_pyarrow_table()) == len(measures(events))
    assert (lake.batch, lake.begun_batch) == (1, 1)
    assert (lake.position("JOBS", "2026-11-01"), lake.position("AUDIT", "2026-11-01")) == (12, 0)
    assert lake.counts() == Counts(15, len(events), 2, 1, {"not-json": 4})
    assert lake.table("job_history").transaction("archived-day") is not None
    assert sorted(path.name for path in root.iterdir()) == sorted(lake.table_names)


def test_a_former_lake_becomes_delta_tables(spark: SparkSession, former: Path) -> None:
    lake, told = Lake(str(former), spark), list[str]()
    assert needs_migration(lake)
    assert migrate(lake, told.append)
    assert f"events: 2 files, {len(sample_events())} rows" in told
    _check(lake, former)
    assert not migrate(lake)
    _check(Lake(str(former), spark), former)


@pytest.mark.parametrize("table", ["bronze", "events", "rollups"])
def test_a_migration_that_was_interrupted_is_continued(
    spark: SparkSession, former: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    commit = LakeTable.commit

    def die(self: LakeTable, *arguments: Any, **more: Any) -> None:
        if self.format.name == table:
            raise RuntimeError("killed")
        commit(self, *arguments, **more)

    monkeypatch.setattr(LakeTable, "commit", die)
    with pytest.raises(RuntimeError, match="killed"):
        migrate(Lake(str(former), spark))
    monkeypatch.undo()
    lake = Lake(str(former), spark)
    assert migrate(lake)
    _check(lake, former)


def test_a_manifest_that_cannot_be_read_is_reported_and_kept(spark: SparkSession, former: Path) -> None:
    (former / "manifest" / f"{9:012d}.json").write_text("{oops")
    with pytest.raises(LakeBroken, match="cannot be decoded"):
        migrate(Lake(str(former), spark))
    assert (former / "data").exists()


def test_a_new_lake_needs_no_migration(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"), spark)
    assert not migrate(lake)
    assert lake.batch == -1
