"""Delta tables of the lake: what a commit adds, and what is left of one that was not completed."""

import json
import os
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from postroad.pipeline import delta_table
from postroad.pipeline.compaction import compact
from postroad.pipeline.delta_table import DataFile, LakeBroken, LakeTable, OtherWriter, TableFormat, batch_prefix, write_file
from postroad.pipeline.lake import Counts, Lake, day_span
from postroad.pipeline.measures import measures
from postroad.pipeline.retention import drop_old_days
from postroad.pipeline.rollups import KEY, merge, stored_rollups
from postroad.pipeline.storage import Storage, storage_at
from postroad.pipeline.tables import table_policies
from tests.faults.test_pipeline import ObjectLake, object_store
from tests.pipeline.event_samples import sample_events
from tests.pipeline.frames import events_table

DAY = "2026-11-16"
START = day_span(DAY)[0]
FORMAT = TableFormat("numbers", pa.schema([("number", pa.int64()), ("time", pa.timestamp("us", tz="UTC"))]), "time")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return storage_at(str(tmp_path / "lake"))


@pytest.fixture
def object_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Storage, ObjectLake]]:
    with object_store(tmp_path / "store.log") as port:
        lake = ObjectLake(port)
        for name, value in lake.environment.items():
            monkeypatch.setenv(name, value)
        yield storage_at(lake.environment["POSTROAD_LAKE"], lake.environment["POSTROAD_LAKE_ENDPOINT"]), lake


def write(storage: Storage, *numbers: int, day: str = DAY, prefix: str = "b00000001") -> DataFile:
    times = [datetime.fromtimestamp((day_span(day)[0] + number) / 1000, UTC) for number in numbers]
    return write_file(storage, FORMAT, day, pa.table({"number": numbers, "time": times}, schema=FORMAT.schema), prefix)


def numbers(storage: Storage) -> list[int]:
    """Read by Polars, which knows nothing of Postroad."""
    return sorted(pl.read_delta(storage.url(FORMAT.name))["number"].to_list())


def test_files_count_when_they_are_committed(storage: Storage) -> None:
    table = LakeTable(storage, FORMAT)
    assert (table.files(), table.transaction("a"), table.version) == ([], None, -1)
    one = write(storage, 3, 5)
    table.commit([one], transactions={"a": 0, "b": 7})
    write(storage, 9)  # never committed
    assert numbers(storage) == [3, 5]
    opened = LakeTable(storage, FORMAT)
    assert opened.files() == table.files() == [one]
    assert (one.first, one.last, one.rows, one.batch) == (START + 3, START + 6, 2, 1)
    assert (opened.transaction("a"), opened.transaction("b"), opened.transaction("c")) == (0, 7, None)


def test_a_table_is_read_by_deltalake_polars_and_plain_parquet_readers(storage: Storage) -> None:
    table = LakeTable(storage, FORMAT)
    table.commit([write(storage, 1), write(storage, 2, day="2026-11-17")])
    delta = DeltaTable(table.url)
    assert sorted(delta.to_pyarrow_table().column("number").to_pylist()) == [1, 2]
    assert sorted(number for uri in delta.file_uris() for number in pq.ParquetFile(uri).read()["number"].to_pylist()) == [1, 2]
    today = delta.to_pyarrow_table(filters=[("day", "=", DAY)])
    assert (today.column("number").to_pylist(), today.column("day").to_pylist()) == ([1], [DAY])
    assert pl.scan_delta(table.url).filter(pl.col("day") == "2026-11-17").collect()["number"].to_list() == [2]


def test_removed_files_count_no_longer_and_are_deleted_later(storage: Storage) -> None:
    table = LakeTable(storage, FORMAT)
    old, orphan = write(storage, 1), write(storage, 9)
    table.commit([old])
    table.commit([write(storage, 1, 2, prefix="merged")], [old], is_rewrite=True)
    assert numbers(storage) == [1, 2]
    paths = [Path(table.url) / file.path for file in (old, orphan)]
    table.maintain()
    assert all(path.exists() for path in paths), "a reader may still have them open"
    for path in paths:
        os.utime(path, (0, 0))
    table.maintain()
    assert not paths[1].exists(), "no commit has ever named it"
    assert numbers(storage) == [1, 2]


def test_the_state_survives_checkpoints_of_the_log(storage: Storage) -> None:
    table = LakeTable(storage, FORMAT)
    for number in range(102):
        table.commit([write(storage, number)] if number % 20 == 0 else (), transactions={"a": number})
    table.maintain()
    assert list((Path(table.url) / "_delta_log").glob("*.checkpoint.parquet"))
    assert LakeTable(storage, FORMAT).transaction("a") == 101
    assert numbers(storage) == [0, 20, 40, 60, 80, 100]


def test_a_second_writer_is_refused(storage: Storage) -> None:
    _refuse_a_second_writer(storage)
    assert numbers(storage) == [1, 2]


@pytest.mark.slow
def test_a_second_writer_is_refused_on_an_object_store(object_storage: tuple[Storage, ObjectLake]) -> None:
    """A commit is a conditional put there: without one, the second writer would replace the first one's entry of the log."""
    _refuse_a_second_writer(object_storage[0])
    assert sorted(object_storage[1].read(FORMAT.name).column("number").to_pylist()) == [1, 2]


@pytest.mark.slow
def test_the_log_on_an_object_store_is_summarized_when_it_has_grown(
    object_storage: tuple[Storage, ObjectLake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not at every maintenance."""
    monkeypatch.setitem(delta_table._CONFIGURATION, "delta.checkpointInterval", "4")
    storage, _ = object_storage
    table = LakeTable(storage, FORMAT)
    checkpoints = []
    for number in range(1, 8):
        table.commit([write(storage, number)], transactions={"a": number})
        table.maintain()
        names = storage.names(f"{FORMAT.name}/_delta_log")
        checkpoints.append(sum(name.endswith(".checkpoint.parquet") for name in names))
    assert checkpoints == [0, 0, 0, 1, 1, 1, 1]
    assert LakeTable(storage, FORMAT).transaction("a") == 7


def _refuse_a_second_writer(storage: Storage) -> None:
    one, other = LakeTable(storage, FORMAT), LakeTable(storage, FORMAT)
    one.commit([write(storage, 1)], transactions={"batch": 1})
    assert other.transaction("batch") == 1
    one.commit([write(storage, 2)], transactions={"batch": 2})
    with pytest.raises(OtherWriter, match="another pipeline writes"):
        other.commit([write(storage, 3)], transactions={"batch": 2})


@pytest.mark.parametrize("rest", [b"", b'{"commitInfo":{"time'], ids=["empty", "cut off"])
def test_a_commit_that_a_power_failure_left_incomplete_is_removed(storage: Storage, rest: bytes) -> None:
    table = LakeTable(storage, FORMAT)
    table.commit([write(storage, 1)], transactions={"batch": 1})
    table.commit([write(storage, 2)], transactions={"batch": 2})
    log = Path(table.url) / "_delta_log"
    newest = max(log.glob("*.json"))
    newest.write_bytes(rest)
    (log / "_last_checkpoint").write_bytes(b"")
    (log / f"{table.version:020d}.checkpoint.parquet").write_bytes(b"PAR")
    opened = LakeTable(storage, FORMAT)
    assert opened.transaction("batch") == 1
    opened.commit([write(storage, 3)], transactions={"batch": 2})
    assert numbers(storage) == [1, 3]


def test_a_log_that_is_broken_in_the_middle_is_reported(storage: Storage) -> None:
    table = LakeTable(storage, FORMAT)
    for number in range(3):
        table.commit([write(storage, number)])
    (Path(table.url) / "_delta_log" / f"{1:020d}.json").write_text("oops")
    with pytest.raises(LakeBroken, match="cannot be opened"):
        LakeTable(storage, FORMAT).files()


def test_a_new_column_is_added_and_null_in_older_rows(storage: Storage) -> None:
    LakeTable(storage, FORMAT).commit([write(storage, 1)])
    wider = TableFormat(FORMAT.name, FORMAT.schema.append(pa.field("colour", pa.string())), "time")
    table = LakeTable(storage, wider)
    rows: dict[str, Any] = {"number": [2], "time": [datetime.fromtimestamp(START / 1000, UTC)], "colour": ["red"]}
    table.commit([write_file(storage, wider, DAY, pa.table(rows, schema=wider.schema), batch_prefix(2))])
    found = pl.read_delta(table.url).sort("number")
    assert found["colour"].to_list() == [None, "red"]
    read = [storage.read_table(f"{wider.name}/{file.path}", wider.schema).to_pylist() for file in table.files()]
    assert sorted(row["colour"] or "" for rows in read for row in rows) == ["", "red"]


def test_commits_and_their_files_are_synced(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    really = os.fsync

    def fsync(number: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{number}").readlink()))
        really(number)

    monkeypatch.setattr(os, "fsync", fsync)
    table = LakeTable(storage, FORMAT)
    file = write(storage, 1)
    before = len(synced)
    assert f"{table.url}/{file.path}" in synced
    table.commit([file])
    assert {f"{table.url}/_delta_log", *(f"{table.url}/_delta_log/{version:020d}.json" for version in (0, 1))} <= set(
        synced[before:]
    )


def test_counts_add_up() -> None:
    one = Counts(messages=1, events=2, duplicates=3, late=4, quarantined={"a": 1})
    two = Counts(messages=10, events=20, duplicates=30, late=40, quarantined={"a": 1, "b": 2})
    assert one.plus(two) == Counts(11, 22, 33, 44, {"a": 2, "b": 2})


def _sums(lake: Lake) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = merge(lake.read_rollups(lake.files("rollups"))).sort_by([(key, "ascending") for key in KEY])
    return found.to_pylist()  # type: ignore[attr-defined,no-any-return]


def test_contents_are_kept_as_long_as_the_archive() -> None:
    days = {name: policy.days for name, policy in table_policies(30, 400, archive_days=7).items()}
    assert {name for name, kept in days.items() if kept == 7} == {"commands", "messages", "bronze", "quarantine"}
    assert days["events"] == days["command_events"] == 400
    assert table_policies(5, 400, archive_days=7)["bronze"].days == 5


def test_small_files_are_merged_and_old_days_dropped(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"), spark)
    table, policies = lake.table("rollups"), table_policies(30, 400)
    rollups = stored_rollups(measures(events_table(sample_events())), table.format.schema)
    for number in range(3):
        table.commit([write_file(lake.storage, table.format, DAY, rollups, batch_prefix(number))])
    before = _sums(lake)
    assert compact(lake, policies, date(2026, 11, 16)) == 0, "few files of the current day"
    assert compact(lake, policies, date(2026, 11, 17)) == 2
    assert _sums(lake) == before
    [file] = lake.files("rollups")
    assert (file.rows, file.batch) == (len(rollups), -1)
    assert drop_old_days(lake, policies, date(2027, 12, 21)) == 0
    assert drop_old_days(lake, policies, date(2027, 12, 22)) == 1
    assert lake.files("rollups") == []
    actions = [json.loads(line) for line in max((Path(table.url) / "_delta_log").glob("*.json")).read_text().splitlines()]
    assert [action["remove"]["path"] for action in actions if "remove" in action] == [file.path]
