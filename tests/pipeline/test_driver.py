"""The pipeline from the engine's streams to what the service is told."""

import asyncio
import json
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.kernel.clock import rfc3339
from postroad.kernel.event import Event
from postroad.pipeline.driver import JOBS, LakeBusy, Pipeline, PipelineConfig, Progress, held
from postroad.pipeline.lake import Lake
from postroad.pipeline.maintenance import Upkeep, tables
from postroad.pipeline.rollups import KEY, ROLLUPS, measures, merge
from postroad.pipeline.schemas import BRONZE, QUARANTINE, events_schema
from postroad.settings import Settings
from spark_jetstream import JetStreamDataSource
from spark_jetstream.publisher import Message
from tests.pipeline.frames import events_frame
from tests.pipeline.traffic import NOON, Frame, Traffic, engine_of, framed, own_engine, send, send_raw

pytestmark = pytest.mark.timeout(300)

LATER = datetime.fromtimestamp(NOON / 1000, UTC) + timedelta(minutes=8)


@pytest.fixture(scope="module")
def spark_with_source(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(JetStreamDataSource)
    return spark


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Settings]:
    with own_engine(tmp_path) as settings:
        yield settings


class World:
    """A lake and an engine, and pipelines on them, each as a driver that starts anew would be."""

    def __init__(self, settings: Settings, spark: SparkSession) -> None:
        self.settings, self.spark = settings, spark
        self.lake = Lake(settings.lake_root, spark)
        self.told: list[Progress] = []

    def pipeline(self, now: datetime = LATER, messages_max: int = 20_000) -> Pipeline:
        wishes = PipelineConfig(jobs=JOBS, tell=self.told.append, now=lambda: now, messages_max=messages_max)
        return Pipeline(self.lake, engine_of(self.settings), wishes)

    def events(self) -> DataFrame:
        return self.lake.read("events", events_schema(), self.lake.manifest().entries("events"))

    def rollups(self) -> list[dict[str, Any]]:
        return sums(merge(self.lake.read("rollups", ROLLUPS, self.lake.manifest().entries("rollups"))))

    def results(self, subject: str, stream: str = "INSIGHTS") -> list[dict[str, Any]]:
        async def read() -> list[dict[str, Any]]:
            assert self.settings.nats_url is not None
            connection = Connection(ConnectionSettings((self.settings.nats_url.reveal(),), name="tests"))
            await connection.open()
            try:
                page = await stream_reader.read(connection, stream, subject, 1, 1000)
                return [json.loads(entry.payload) for entry in page.entries]
            finally:
                await connection.close()

        return asyncio.run(read())


@pytest.fixture
def world(installation: Settings, spark_with_source: SparkSession) -> World:
    return World(installation, spark_with_source)


def sums(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.orderBy(*KEY).collect()]


def test_everything_that_was_told_is_in_the_lake_once_and_the_service_is_told_what_follows(world: World) -> None:
    traffic = Traffic(1)
    events = [*traffic.jobs(60), *traffic.samples(minutes=8), *traffic.sessions(12)]
    frames = framed(events)
    send(world.settings, frames)
    world.pipeline().run_once()

    assert sorted(row.event_id for row in world.events().collect()) == sorted(event.event_id for event in events)
    [progress] = world.told
    assert progress.counts.messages == len(frames)
    assert progress.counts.events == len(events)
    assert progress.lag == {"JOBS": 0, "TELEMETRY": 0, "AUDIT": 0}
    assert f"{len(frames)} messages, {len(events)} events" in progress.line()
    bronze = world.lake.read("bronze", BRONZE, world.lake.manifest().entries("bronze"))
    assert bronze.count() == len(frames)

    acme = [event for event in events if event.tenant == "acme"]
    queued = [event for event in acme if type(event).__name__ == "JobQueued"]
    [usage] = world.results("insight.acme.usage.20261101.day")
    assert usage["rows"][0]["published"] == len(queued)
    assert usage["batch"] == 0
    assert [part["part"] for part in world.results("insight.acme.latency.20261101.*")] == ["minute-12", "hour", "day"]
    [health] = world.results("insight.acme.health.now.all")
    assert health["rows"][0]["queue"] == "orders"
    assert health["rows"][0]["problems"] == ["old", "growing"]
    [status] = world.results("insight._platform.pipeline.now.all")
    assert {row["stream"]: row["lag"] for row in status["rows"]} == {"JOBS": 0, "TELEMETRY": 0, "AUDIT": 0}
    assert status["batch"] == 0

    world.pipeline().run_once()  # nothing new: nothing is done
    assert len(world.told) == 1


def test_streaming_with_restarts_late_events_and_duplicates_equals_a_batch(world: World) -> None:
    """Small batches by drivers that start anew, told twice and out of order, on two days; and all of it at once."""
    traffic = Traffic(2)
    yesterday = Traffic(3, start=NOON - 86_400_000)
    events: list[Event] = [*traffic.jobs(80), *traffic.samples(), *traffic.sessions(10), *yesterday.jobs(20)]
    frames = framed(events, size=7)
    chance = random.Random(4)
    chance.shuffle(frames)  # late ones among them
    again = [Frame(frame.stream, frame.tenant, frame.lines[:3]) for frame in chance.sample(frames, 12)]
    sent = [*frames, *again, *again[:4]]
    half = len(sent) // 2
    for some in (sent[:half], sent[half:]):
        send(world.settings, some)
        world.pipeline(messages_max=15).run_once()

    assert len(world.told) >= 4
    assert sorted(row.event_id for row in world.events().collect()) == sorted(event.event_id for event in events)
    assert world.lake.manifest().counts.duplicates == sum(len(frame.lines) for frame in [*again, *again[:4]])
    expected = sums(measures(events_frame(world.spark, events)))
    assert world.rollups() == expected

    Upkeep(world.lake, tables(30, 400)).compact(date(2026, 11, 16), all_of_it=True)
    assert world.rollups() == expected
    assert world.events().count() == len(events)
    assert len(world.lake.manifest().entries("rollups")) == 2  # a day each

    told = world.results("insight.*.*.20261101.day")
    world.pipeline().backfill([date(2026, 11, 1)], lambda _: None)
    assert world.rollups() == expected
    assert _rows(world.results("insight.*.*.20261101.day")) == _rows(told)


def _rows(results: list[dict[str, Any]]) -> list[Any]:
    return sorted((result["tenant"], result["report"], json.dumps(result["rows"])) for result in results)


def test_what_is_no_event_is_quarantined_counted_and_told(world: World) -> None:
    [good] = framed(Traffic(5).jobs(1))
    odd = Frame("JOBS", good.tenant, (b"{oops", b'{"event":"job.flown","version":1}', *good.lines))
    send(world.settings, [odd])
    send_raw(world.settings, [Message(b"telemetry.acme", b"", b"\xff\xfe")])
    world.pipeline().run_once()
    [progress] = world.told
    assert progress.counts.quarantined == {"not-json": 1, "unknown-event": 1, "unknown-frame": 1}
    assert progress.counts.events == len(good.lines)
    quarantine = world.lake.read("quarantine", QUARANTINE, world.lake.manifest().entries("quarantine"))
    assert {row.fault for row in quarantine.collect()} == set(progress.counts.quarantined)
    [status] = world.results("insight._platform.pipeline.now.all")
    assert status["quarantined"] == progress.counts.quarantined
    assert "bad" in progress.line()


def test_an_event_that_is_told_again_a_minute_later_counts_once(world: World) -> None:
    events = Traffic(8, tenants=("acme",)).jobs(20, minutes=1)
    send(world.settings, framed(events))
    world.pipeline().run_once()
    first = datetime.fromisoformat(events[-1].timestamp)
    again = msgspec.structs.replace(events[-1], timestamp=rfc3339(int((first + timedelta(minutes=1)).timestamp() * 1000)))
    send(world.settings, framed([again]))
    world.pipeline().run_once()
    assert [progress.counts.duplicates for progress in world.told] == [0, 1]
    assert world.events().count() == len(events)


def test_after_a_lost_checkpoint_nothing_is_in_the_lake_twice(world: World, tmp_path: Path) -> None:
    events = Traffic(6).jobs(20)
    send(world.settings, framed(events))
    world.pipeline().run_once()
    _remove(tmp_path / "lake" / "checkpoint")
    more = Traffic(7).jobs(5)
    send(world.settings, framed(more))
    world.pipeline().run_once()
    assert sorted(row.event_id for row in world.events().collect()) == sorted(event.event_id for event in [*events, *more])
    bronze = world.lake.read("bronze", BRONZE, world.lake.manifest().entries("bronze")).collect()
    assert len(bronze) == len({(row.stream, row.sequence) for row in bronze}) == len(framed(events)) + len(framed(more))


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def test_a_batch_that_was_done_is_only_told_of_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    events = Traffic(8).jobs(10)
    send(world.settings, framed(events))
    died = world.pipeline()

    def die(*_: object) -> None:
        raise RuntimeError("killed before it could tell")

    monkeypatch.setattr(died, "_answer", die)
    with pytest.raises(Exception, match="killed before it could tell"):
        died.run_once()
    assert world.events().count() == len(events)
    assert world.results("insight.acme.usage.>") == []
    world.pipeline().run_once()
    assert world.events().count() == len(events)
    assert len(world.results("insight.acme.usage.>")) == 3
    assert [progress.counts.events for progress in world.told] == [0]


def test_sessions_that_should_be_over_become_requests(world: World) -> None:
    send(world.settings, framed(Traffic(9).sessions(8)))
    world.pipeline(now=LATER + timedelta(hours=2)).run_once()
    requests = world.results("cleanup.*", "CLEANUPS")
    assert sorted(request["session"] for request in requests) == ["s1", "s3", "s5", "s7"]  # the others have ended
    assert {request["tenant"] for request in requests} == {"globex"}


def test_jobs_of_a_day_that_is_over_become_history(world: World) -> None:
    events = Traffic(10).jobs(30)
    send(world.settings, framed(events))
    world.pipeline(now=LATER + timedelta(days=1)).run_once()
    chunks = world.results("history.*.20261101.20261101.*", "HISTORY")
    jobs = [job for chunk in chunks for job in chunk["jobs"]]
    assert sorted(job["jobId"] for job in jobs) == sorted({msgspec.to_builtins(event)["job_id"] for event in events})
    assert {job["status"] for job in jobs} == {"done", "dead"}
    assert world.lake.manifest().done == {"job_history": "2026-11-01"}


def test_one_pipeline_at_a_time(world: World) -> None:
    with held(world.lake), pytest.raises(LakeBusy, match="another pipeline has"):
        world.pipeline().run_once()
