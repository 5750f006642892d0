"""What counts in the lake, and what does not."""

from datetime import date
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from postroad.pipeline.files import FileExists, Files, HadoopFiles, LocalFiles
from postroad.pipeline.lake import Counts, Entry, Lake, LakeBroken, Manifest, OtherWriter, day_span, of_days, with_staged

DAY = "2026-11-16"
START = day_span(DAY)[0]


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), spark)


@pytest.fixture(params=["local", "hadoop"])
def files(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Files:
    return LocalFiles(tmp_path) if request.param == "local" else HadoopFiles(f"file://{tmp_path}", spark)


def test_a_file_is_made_once(files: Files) -> None:
    assert files.read("a/b.json") is None
    files.create("a/b.json", "one")
    with pytest.raises(FileExists):
        files.create("a/b.json", "two")
    assert files.read("a/b.json") == "one"
    assert files.names("a") == ["b.json"]
    assert files.names("nowhere") == []


def test_data_files_are_told_from_what_spark_leaves_beside_them(files: Files, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "x" / "day=2026-11-16"
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(b"12345")
    (folder / ".part-0.parquet.crc").write_bytes(b"1")
    (tmp_path / "data" / "x" / "_SUCCESS").touch()
    assert files.sizes("data") == {"data/x/day=2026-11-16/part-0.parquet": 5}
    files.make_durable("data/x")
    assert files.age_seconds("data/x", (folder.parent).stat().st_mtime + 60) == pytest.approx(60, abs=1)
    files.remove("data/x")
    assert files.names("data") == []


def rows(lake: Lake, folder: str, *numbers: int) -> None:
    frame = lake.spark.createDataFrame([(number,) for number in numbers], "n long").withColumn("day", F.lit(DAY))
    lake.write(frame.coalesce(1), folder, "day")


def numbers(lake: Lake) -> list[int]:
    schema = lake.spark.createDataFrame([], "n long").schema
    frame = lake.read("t", schema, lake.manifest().entries("t"))
    assert frame.schema == schema
    return sorted(row.n for row in frame.collect())


def test_what_is_written_counts_once_it_is_committed(lake: Lake) -> None:
    folder = lake.folder("b1")
    rows(lake, folder, 1, 2)
    staged = lake.stage("t", folder, (START + 5, START + 9), 1)
    assert numbers(lake) == []
    before = lake.manifest()
    after = lake.commit(before, replace(with_staged(before, [staged]), batches={"c": 1}))
    assert (before.version, after.version) == (0, 1)
    assert numbers(lake) == [1, 2]
    assert lake.manifest() == after
    assert lake.manifest().has("c", 1)
    assert not lake.manifest().has("c", 2)
    assert not lake.manifest().has("d", 1)
    [entry] = after.entries("t")
    assert (entry.day, entry.first, entry.last, entry.files, entry.batch) == (DAY, START + 5, START + 9, 1, 1)
    assert entry.bytes > 100


def test_folders_take_each_others_place_at_once(lake: Lake) -> None:
    first, second = lake.folder("b1"), lake.folder("b2")
    rows(lake, first, 1, 2)
    one = lake.commit(lake.manifest(), with_staged(lake.manifest(), [lake.stage("t", first, (START, START))]))
    rows(lake, second, 3)
    old = {entry.path for entry in one.entries("t")}
    lake.commit(one, with_staged(one, [lake.stage("t", second, (START, START))], without={"t": old}))
    assert numbers(lake) == [3]


def test_the_second_of_two_writers_stops(lake: Lake) -> None:
    seen = lake.manifest()
    lake.commit(seen, replace(seen, batches={"one": 1}))
    with pytest.raises(OtherWriter):
        lake.commit(seen, replace(seen, batches={"two": 1}))
    assert lake.manifest().batches == {"one": 1}


def test_a_manifest_that_cannot_be_read_is_no_empty_lake(lake: Lake) -> None:
    lake.files.create("manifest/000000000001.json", "{")
    with pytest.raises(LakeBroken, match=r"000000000001\.json"):
        lake.manifest()


def test_folders_that_nobody_names_are_swept_when_they_are_old(lake: Lake, tmp_path: Path) -> None:
    kept, orphan = lake.folder("b1"), lake.folder("b2")
    rows(lake, kept, 1)
    rows(lake, orphan, 2)
    lake.commit(lake.manifest(), with_staged(lake.manifest(), [lake.stage("t", kept, (START, START))]))
    now = (tmp_path / "lake" / orphan).stat().st_mtime
    assert lake.sweep(now + 60) == 0
    assert lake.sweep(now + 3700) == 1
    assert numbers(lake) == [1]
    assert lake.files.names("data") == [kept.removeprefix("data/")]


def test_manifests_that_are_long_past_go(lake: Lake) -> None:
    manifest = lake.manifest()
    for number in range(60):
        manifest = lake.commit(manifest, replace(manifest, positions={"JOBS": number}))
    lake.sweep()
    assert len(lake.files.names("manifest")) == 50
    assert lake.manifest().positions == {"JOBS": 59}


def test_counts_add_up() -> None:
    one = Counts(messages=1, events=2, duplicates=3, late=4, quarantined={"a": 1})
    two = Counts(messages=10, events=20, duplicates=30, late=40, quarantined={"a": 1, "b": 2})
    assert one.plus(two) == Counts(11, 22, 33, 44, {"a": 2, "b": 2})


def test_entries_by_day_and_time() -> None:
    entries = [Entry("a", "2026-11-15", 1, 1, 100, 200), Entry("b", "2026-11-16", 1, 1, 300, 400)]
    assert [entry.path for entry in of_days(entries, {"2026-11-16"})] == ["b"]
    spans = [(0, 99), (0, 100), (200, 250), (201, 299), (250, 300), (400, 500), (401, 500)]
    assert [[entry.path for entry in entries if entry.overlaps(*span)] for span in spans] == [
        [],
        ["a"],
        ["a"],
        [],
        ["b"],
        ["b"],
        [],
    ]
    assert day_span("1970-01-02") == (86_400_000, 172_799_999)
    assert date.fromtimestamp(START / 1000) in (date(2026, 11, 15), date(2026, 11, 16))
    assert Manifest().entries("t") == []
