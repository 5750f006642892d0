"""The pipeline from the streams of the engine to the published results."""

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import nats
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from postroad.commands.events import CommandArchived, CommandDelivered
from postroad.contracts.batch_requests import SUBJECT
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.kernel.clock import rfc3339
from postroad.kernel.event import Event
from postroad.pipeline.compaction import compact
from postroad.pipeline.delta_table import LakeTable, OtherWriter
from postroad.pipeline.driver import BatchProgress, LakeBusy, Pipeline, PipelineConfig, lake_lock
from postroad.pipeline.ingest import SOURCES
from postroad.pipeline.jetstream import Engine
from postroad.pipeline.lake import BATCH, Counts, Lake
from postroad.pipeline.measures import measures
from postroad.pipeline.report_publisher import NOTHING, affected_by
from postroad.pipeline.rollups import KEY, merge
from postroad.pipeline.tables import table_policies
from postroad.settings import Settings
from spark_jetstream import JetStreamDataSource
from spark_jetstream.client import Client
from spark_jetstream.options import write_options
from spark_jetstream.protocol import encode_publish
from spark_jetstream.publisher import Message
from tests.pipeline.command_samples import command_traffic
from tests.pipeline.frames import events_table
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


class Environment:
    """A lake and an engine, and new pipelines on them, as after a restart of the driver."""

    def __init__(self, settings: Settings, spark: SparkSession) -> None:
        self.settings, self.spark = settings, spark
        self.lake = Lake(settings.lake_root, spark)
        self.batches: list[BatchProgress] = []

    def pipeline(self, now: datetime = LATER, messages_max: int = 20_000) -> Pipeline:
        config = PipelineConfig(on_progress=self.batches.append, now=lambda: now, messages_max=messages_max)
        return Pipeline(self.lake, engine_of(self.settings), config)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """As a reader sees them that knows nothing of Postroad."""
        found: list[dict[str, Any]] = DeltaTable(self.lake.table(table).url).to_pyarrow_table().to_pylist()
        return found

    def event_ids(self) -> list[str]:
        return sorted(row["event_id"] for row in self.rows("events"))

    def rollups(self) -> list[dict[str, Any]]:
        return sums(merge(self.lake.read_rollups(self.lake.files("rollups"))))

    def recreate(self, stream: str) -> None:
        async def recreate() -> None:
            assert self.settings.nats_url is not None
            client = await nats.connect(self.settings.nats_url.reveal())
            try:
                manager = client.jsm()
                config = (await manager.stream_info(stream)).config
                await manager.delete_stream(stream)
                await manager.add_stream(config)
            finally:
                await client.close()

        asyncio.run(recreate())

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
def environment(installation: Settings, spark_with_source: SparkSession) -> Environment:
    return Environment(installation, spark_with_source)


def sums(rollups: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rollups.sort_by([(name, "ascending") for name in KEY]).to_pylist()
    return found


def test_every_event_is_in_the_lake_once_and_the_results_are_published(environment: Environment) -> None:
    traffic = Traffic(1)
    events = [*traffic.jobs(60), *traffic.samples(minutes=8), *traffic.sessions(12)]
    frames = framed(events)
    send(environment.settings, frames)
    environment.pipeline().run_once()

    assert environment.event_ids() == sorted(event.event_id for event in events)
    [progress] = environment.batches
    assert progress.counts.messages == len(frames)
    assert progress.counts.events == len(events)
    assert progress.lag == dict.fromkeys(SOURCES, 0)
    assert f"{len(frames)} messages, {len(events)} events" in progress.line()
    assert len(environment.rows("bronze")) == len(frames)

    acme = [event for event in events if event.tenant == "acme"]
    queued = [event for event in acme if type(event).__name__ == "JobQueued"]
    [usage] = environment.results("insight.acme.usage.20261101.day")
    assert usage["rows"][0]["published"] == len(queued)
    assert usage["batch"] == 0
    assert {part["part"] for part in environment.results("insight.acme.latency.20261101.*")} == {"minute-12", "hour", "day"}
    [health] = environment.results("insight.acme.health.now.all")
    assert health["rows"][0]["queue"] == "orders"
    assert health["rows"][0]["problems"] == ["old", "growing"]
    [status] = environment.results("insight._platform.pipeline.now.all")
    assert {row["stream"]: row["lag"] for row in status["rows"]} == dict.fromkeys(SOURCES, 0)
    assert status["batch"] == 0

    environment.pipeline().run_once()  # no new events: no batch
    assert len(environment.batches) == 1


def test_events_of_commands_and_archived_commands_are_in_their_tables_once(environment: Environment) -> None:
    """In small batches after restarts, with duplicates and out of order, compared with one batch."""
    events = [*command_traffic(5, 60, start=NOON), *command_traffic(6, 10, start=NOON - 86_400_000), *Traffic(5).jobs(10)]
    frames = framed(events, size=7)
    chance = random.Random(4)
    chance.shuffle(frames)
    again = [Frame(frame.stream, frame.tenant, frame.lines[:3]) for frame in chance.sample(frames, 6)]
    foreign = Frame("COMMANDS", "other", framed(command_traffic(7, 1))[0].lines)
    sent = [*frames, *again, foreign]
    half = len(sent) // 2
    for some in (sent[:half], sent[half:]):
        send(environment.settings, some)
        environment.pipeline(messages_max=9).run_once()

    for table in ("command_events", "commands", "events"):
        expected = sorted(event.event_id for event in events if event.table == table)
        assert sorted(row["event_id"] for row in environment.rows(table)) == expected, table
    assert environment.lake.counts().duplicates == sum(len(frame.lines) for frame in again)
    assert environment.lake.counts().quarantined == {"wrong-tenant": len(foreign.lines)}
    tables = {table: [event for event in events if event.table == table] for table in ("events", "command_events")}
    parts = [measures(events_table(some, table), table) for table, some in tables.items()]
    assert environment.rollups() == sums(merge(pa.concat_tables(parts)))

    payloads = {event.event_id: (event.payload, event.outcome) for event in events if isinstance(event, CommandArchived)}
    assert {row["event_id"]: (row["payload"], row["outcome"]) for row in environment.rows("commands")} == payloads
    [commands] = environment.results("insight.globex.commands.20261101.day")
    routed = [row for row in commands["rows"] if row["role"] == "target" and row["outcome"] == "delivered"]
    delivered = [
        event for event in tables["command_events"] if isinstance(event, CommandDelivered) and event.timestamp > "2026-11-01"
    ]
    assert sum(row["count"] for row in routed) == sum(event.target == "globex/bot" for event in delivered)


def test_streaming_with_restarts_late_events_and_duplicates_equals_a_batch(environment: Environment) -> None:
    """Small batches after restarts, with duplicates and out of order, on two days, compared with one batch."""
    traffic = Traffic(2)
    yesterday = Traffic(3, start=NOON - 86_400_000)
    events: list[Event] = [*traffic.jobs(80), *traffic.samples(), *traffic.sessions(10), *yesterday.jobs(20)]
    frames = framed(events, size=7)
    chance = random.Random(4)
    chance.shuffle(frames)  # some are late
    again = [Frame(frame.stream, frame.tenant, frame.lines[:3]) for frame in chance.sample(frames, 12)]
    sent = [*frames, *again, *again[:4]]
    half = len(sent) // 2
    for some in (sent[:half], sent[half:]):
        send(environment.settings, some)
        environment.pipeline(messages_max=15).run_once()

    assert len(environment.batches) >= 4
    assert environment.event_ids() == sorted(event.event_id for event in events)
    assert environment.lake.counts().duplicates == sum(len(frame.lines) for frame in [*again, *again[:4]])
    expected = sums(measures(events_table(events)))
    assert environment.rollups() == expected

    compact(environment.lake, table_policies(30, 400), date(2026, 11, 16), include_today=True)
    assert environment.rollups() == expected
    assert len(environment.event_ids()) == len(events)
    assert len(environment.lake.files("rollups")) == 2  # one for each day

    published = environment.results("insight.*.*.20261101.day")
    environment.pipeline().backfill([date(2026, 11, 1)], lambda _: None)
    assert environment.rollups() == expected
    assert _rows(environment.results("insight.*.*.20261101.day")) == _rows(published)


def _rows(results: list[dict[str, Any]]) -> list[Any]:
    return sorted((result["tenant"], result["report"], json.dumps(result["rows"])) for result in results)


def test_invalid_lines_are_quarantined_counted_and_reported(environment: Environment) -> None:
    [good] = framed(Traffic(5).jobs(1))
    odd = Frame("JOBS", good.tenant, (b"{oops", b'{"event":"job.flown","version":1}', *good.lines))
    send(environment.settings, [odd])
    send_raw(environment.settings, [Message(b"telemetry.acme", b"", b"\xff\xfe")])
    environment.pipeline().run_once()
    [progress] = environment.batches
    assert progress.counts.quarantined == {"not-json": 1, "unknown-event": 1, "unknown-frame": 1}
    assert progress.counts.events == len(good.lines)
    assert {row["fault"] for row in environment.rows("quarantine")} == set(progress.counts.quarantined)
    [status] = environment.results("insight._platform.pipeline.now.all")
    assert status["quarantined"] == progress.counts.quarantined
    assert "3 quarantined" in progress.line()


def test_an_event_that_is_repeated_a_minute_later_counts_once(environment: Environment) -> None:
    events = Traffic(8, tenants=("acme",)).jobs(20, minutes=1)
    send(environment.settings, framed(events))
    environment.pipeline().run_once()
    first = datetime.fromisoformat(events[-1].timestamp)
    again = msgspec.structs.replace(events[-1], timestamp=rfc3339(int((first + timedelta(minutes=1)).timestamp() * 1000)))
    send(environment.settings, framed([again]))
    environment.pipeline().run_once()
    assert [progress.counts.duplicates for progress in environment.batches] == [0, 1]
    assert len(environment.event_ids()) == len(events)


def test_a_stream_that_was_created_again_is_read_from_its_beginning(environment: Environment) -> None:
    first, second = Traffic(6).jobs(20), Traffic(7).jobs(5)
    send(environment.settings, framed(first))
    environment.pipeline().run_once()
    environment.recreate("JOBS")
    send(environment.settings, framed(second))
    environment.pipeline().run_once()
    assert environment.event_ids() == sorted(event.event_id for event in [*first, *second])


def test_the_results_of_a_completed_batch_are_published_after_a_restart(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = Traffic(8).jobs(10)
    send(environment.settings, framed(events))
    died = environment.pipeline()

    def die(*_: object, **__: object) -> None:
        raise RuntimeError("killed before publishing")

    monkeypatch.setattr(died._publisher, "publish", die)
    with pytest.raises(RuntimeError, match="killed before publishing"):
        died.run_once()
    assert len(environment.event_ids()) == len(events)
    assert environment.results("insight.acme.usage.>") == []
    environment.pipeline().run_once()
    assert len(environment.event_ids()) == len(events)
    assert len(environment.results("insight.acme.usage.>")) == 3
    assert [progress.counts.events for progress in environment.batches] == [len(events)]


@pytest.mark.parametrize("table", ["bronze", "quarantine", "events", "command_events", "commands", "sessions", "rollups"])
def test_a_batch_that_was_interrupted_between_two_tables_is_completed(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """The driver dies before the commit of each table in turn, then after a restart again before the next one."""
    traffic = Traffic(21)
    events: list[Event] = [*traffic.jobs(30), *traffic.samples(minutes=1), *traffic.sessions(6)]
    events += command_traffic(21, 20, start=NOON)
    before = Traffic(22).jobs(5)
    send(environment.settings, framed(before))
    environment.pipeline().run_once()
    frames = framed(events, size=9)
    again = [Frame(frames[0].stream, frames[0].tenant, frames[0].lines[:2])]
    send(environment.settings, [*frames, *again, Frame("JOBS", "acme", (b"{oops",))])
    commit = LakeTable.commit

    def die(self: LakeTable, *arguments: Any, **more: Any) -> None:
        if self.format.name == table:
            raise RuntimeError("killed between two commits")
        commit(self, *arguments, **more)

    monkeypatch.setattr(LakeTable, "commit", die)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="killed between"):
            environment.pipeline().run_once()
    monkeypatch.undo()
    environment.pipeline().run_once()
    every = [*before, *events]
    for name in ("events", "command_events", "commands"):
        expected = sorted(event.event_id for event in every if event.table == name)
        assert sorted(row["event_id"] for row in environment.rows(name)) == expected, name
    silver = {name: [event for event in every if event.table == name] for name in ("events", "command_events")}
    parts = [measures(events_table(some, name), name) for name, some in silver.items()]
    assert environment.rollups() == sums(merge(pa.concat_tables(parts)))
    places = [(row["stream"], row["sequence"]) for row in environment.rows("bronze")]
    assert len(places) == len(set(places)) == len(framed(before)) + len(frames) + 2
    assert [row["fault"] for row in environment.rows("quarantine")] == ["not-json"]
    assert environment.lake.counts() == Counts(len(places), len(every), 2, len(every) + 2, {"not-json": 1})


def test_a_second_writer_is_refused(environment: Environment) -> None:
    """On another machine, where the lock has no effect."""
    send(environment.settings, framed(Traffic(1).jobs(5)))
    environment.pipeline().run_once()
    late = Lake(environment.settings.lake_root, environment.spark)
    assert late.begun_batch == late.batch == 0
    send(environment.settings, framed(Traffic(2).jobs(5)))
    environment.pipeline().run_once()
    with pytest.raises(OtherWriter, match="another pipeline writes"):
        late.table("bronze").commit(transactions={BATCH: 1})
    assert environment.lake.batch == 1


def test_all_parts_of_a_report_are_published_from_one_batch(environment: Environment) -> None:
    """Minutes alone would be newer than the day that they belong to."""
    send(environment.settings, framed(Traffic(1).jobs(20)))
    pipeline = environment.pipeline()
    pipeline.run_once()
    publisher = pipeline._publisher
    affected = affected_by(environment.lake.read_rollups(environment.lake.files("rollups")))
    assert affected.hours

    def batches() -> dict[str, int]:
        return {part["part"]: part["batch"] for part in environment.results("insight.acme.usage.20261101.*")}

    publisher._due = 0.0
    publisher.publish(7, affected, LATER)
    assert batches() == {"minute-12": 7, "hour": 7, "day": 7}
    publisher._due = float("inf")
    publisher.publish(8, affected, LATER)
    assert batches() == {"minute-12": 7, "hour": 7, "day": 7}, "they wait for each other"
    publisher._due = 0.0
    publisher.publish(9, NOTHING, LATER)
    assert batches() == {"minute-12": 9, "hour": 9, "day": 9}


def test_expired_sessions_become_cleanup_requests(environment: Environment) -> None:
    send(environment.settings, framed(Traffic(9).sessions(8)))
    environment.pipeline(now=LATER + timedelta(hours=2)).run_once()
    requests = environment.results("cleanup.*", "CLEANUPS")
    assert sorted(request["session"] for request in requests) == ["s1", "s3", "s5", "s7"]  # the others have ended
    assert {request["tenant"] for request in requests} == {"globex"}


def test_jobs_of_a_completed_day_are_archived(environment: Environment) -> None:
    events = Traffic(10).jobs(30)
    send(environment.settings, framed(events))
    environment.pipeline(now=LATER + timedelta(days=1)).run_once()
    chunks = environment.results("history.*.20261101.20261101.*", "HISTORY")
    jobs = [job for chunk in chunks for job in chunk["jobs"]]
    assert sorted(job["jobId"] for job in jobs) == sorted({msgspec.to_builtins(event)["job_id"] for event in events})
    assert {job["status"] for job in jobs} == {"done", "dead"}
    version = environment.lake.table("job_history").version
    assert sorted(row["jobId"] for row in environment.rows("job_history")) == sorted(job["jobId"] for job in jobs)
    environment.batches.clear()
    environment.pipeline(now=LATER + timedelta(days=1)).run_once()
    assert environment.lake.table("job_history").version == version, "the day is not archived again"


def test_one_pipeline_at_a_time(environment: Environment) -> None:
    with lake_lock(environment.lake), pytest.raises(LakeBusy, match="another pipeline uses"):
        environment.pipeline().run_once()


def request_batch(engine: Engine) -> None:
    with Client(write_options(engine.options).connection) as client:
        client.open()
        client.send(encode_publish(SUBJECT.encode(), b"", b"", b""))


def test_a_reader_gets_a_batch_without_waiting_for_the_period(environment: Environment) -> None:
    """Samples alone would wait for the quiet interval."""
    traffic = Traffic(31)
    send(environment.settings, framed(traffic.samples()))
    engine, stop, asked = engine_of(environment.settings), threading.Event(), threading.Event()
    config = PipelineConfig(
        on_progress=environment.batches.append, now=lambda: LATER, period_seconds=3600, quiet_seconds=3600, jobs=("ingest",)
    )
    pipeline = Pipeline(environment.lake, engine, config)
    worker = threading.Thread(target=pipeline.run, args=(stop,))
    worker.start()
    try:
        deadline = time.monotonic() + 120
        while not environment.batches and time.monotonic() < deadline:
            asked.wait(0.1)
        send(environment.settings, framed(traffic.samples()))
        while len(environment.batches) < 2 and time.monotonic() < deadline:
            request_batch(engine)
            asked.wait(0.5)
    finally:
        stop.set()
        worker.join()
    assert len(environment.batches) == 2
    [status] = environment.results("insight._platform.pipeline.now.all")
    assert (status["freshUntil"], status["isComplete"]) == (rfc3339(int(LATER.timestamp() * 1000)), True)
