"""The pipeline's driver, killed while it works: what was told is in the lake, each message and each event once."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from pyarrow import fs

from postroad.kernel.event import Event
from postroad.runtime.embedded_server import free_port
from postroad.settings import Settings
from tests.pipeline.command_samples import command_traffic
from tests.pipeline.traffic import Frame, Traffic, engine_of, framed, own_engine, send

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pipeline"), pytest.mark.timeout(1500)]

EVENTS = int(os.environ.get("EVENTS", "30000"))  # docs/faults.md has the full size
KILLS = int(os.environ.get("KILLS", "2"))
FRAME = 200
JOBS = ("--jobs", "ingest,usage,commands,compact")
FAST_START = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}  # a driver that is killed soon need not be compiled well
_OF_EVENTS = """
    SELECT '{report}', tenant, epoch_us(time) // 60000000, {name}, {label}, count(*), sum({value}), {top}
    FROM events WHERE {which} GROUP BY ALL
"""
_OF_ROLLUPS = """
    SELECT report, tenant, epoch_us(minute) // 60000000, name, label, sum(n), sum(total), max(top)
    FROM rollups WHERE report IN ('usage', 'latency', 'dead_letters') GROUP BY ALL
"""


def start(settings: Settings, log: Path, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """A driver in a process group of its own, Spark's JVM included."""
    assert settings.nats_url is not None
    env = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
    env |= {
        **FAST_START,
        "POSTROAD_NATS_URL": settings.nats_url.reveal(),
        "POSTROAD_DATA_DIR": str(settings.data_dir),
        **environment,
    }
    command = [sys.executable, "-m", "postroad", "pipeline", "run", *arguments]
    return subprocess.Popen(command, env=env, stdout=log.open("ab"), stderr=subprocess.STDOUT, start_new_session=True)


def kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def table(lake: Path, name: str) -> str:
    """The table's files, as DuckDB takes them."""
    return f"read_parquet({DeltaTable(str(lake / name)).file_uris()}, union_by_name = true)"


def ask(question: str) -> list[tuple[Any, ...]]:
    import duckdb  # here, as a process that has only imported it reports leaks when it ends

    return duckdb.execute(question).fetchall()


class LocalLake:
    environment: Mapping[str, str] = {}

    def __init__(self, root: Path) -> None:
        self._root = root

    def commits(self) -> int:
        """Number of commits in all tables."""
        return sum(1 for _ in self._root.glob("*/_delta_log/*.json"))

    def read(self, name: str) -> pa.Table:
        """The table, read without any of the pipeline's code."""
        return DeltaTable(str(self._root / name)).to_pyarrow_table()


class ObjectLake:
    """A lake on an S3 server."""

    def __init__(self, port: int) -> None:
        endpoint = f"http://127.0.0.1:{port}"
        self._keys = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_REGION": "us-east-1"}
        self._options = {**self._keys, "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}
        lake = {"POSTROAD_LAKE": "s3://lakes/postroad", "POSTROAD_LAKE_ENDPOINT": endpoint}
        self.environment = {**lake, **self._keys, "AWS_EC2_METADATA_DISABLED": "true"}
        self._files = fs.S3FileSystem(
            access_key="tests",
            secret_key="tests",
            region="us-east-1",
            endpoint_override=f"127.0.0.1:{port}",
            scheme="http",
            allow_bucket_creation=True,
        )
        self._files.create_dir("lakes")

    def commits(self) -> int:
        found = self._files.get_file_info(fs.FileSelector("lakes", recursive=True))
        return sum(one.path.endswith(".json") for one in found)

    def read(self, name: str) -> pa.Table:
        return DeltaTable(f"s3://lakes/postroad/{name}", storage_options=self._options).to_pyarrow_table()


@contextmanager
def object_store(log: Path) -> Iterator[int]:
    """An S3 server that keeps everything in memory."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=log.open("ab"), stderr=subprocess.STDOUT
    )
    try:
        give_up_at = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 5).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < give_up_at, log.read_text()[-2000:]
                time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["local-jobs", "s3-jobs", "local-commands"])
def place_and_traffic(request: pytest.FixtureRequest) -> tuple[str, str]:
    place, traffic = request.param.split("-")
    return place, traffic


@pytest.fixture
def lake(place_and_traffic: tuple[str, str], tmp_path: Path) -> Iterator[LocalLake | ObjectLake]:
    if place_and_traffic[0] == "local":
        yield LocalLake(tmp_path / "lake")
        return
    with object_store(tmp_path / "store.log") as port:
        yield ObjectLake(port)


def wait_for_progress(
    process: subprocess.Popen[bytes], lake: LocalLake | ObjectLake, seen: int, chance: random.Random, log: Path
) -> bool:
    """Until the lake has something more than it had, and a moment longer; whether the driver is still at it."""
    give_up_at = time.monotonic() + 600
    while lake.commits() <= seen:
        if process.poll() is not None:
            assert process.returncode == 0, log.read_text()[-3000:]
            return False
        assert time.monotonic() < give_up_at, f"no progress: {log.read_text()[-3000:]}"
        time.sleep(0.05)
    time.sleep(chance.uniform(0, 1))  # anywhere in a batch
    return process.poll() is None


def test_a_driver_that_is_killed_again_and_again_loses_nothing_and_counts_nothing_twice(
    tmp_path: Path, lake: LocalLake | ObjectLake, place_and_traffic: tuple[str, str]
) -> None:
    import duckdb

    kind = place_and_traffic[1]
    stream, tables = ("JOBS", ("events",)) if kind == "jobs" else ("COMMANDS", ("command_events", "commands"))
    chance = random.Random(11)
    log = tmp_path / "log"
    with own_engine(tmp_path) as settings:
        sent = _send(settings, chance, kind)
        kills = 0
        while kills < KILLS:
            limit = str(max(5, len(sent) // (KILLS * 6)))  # a driver completes two or three batches before it is killed
            process = start(settings, log, *JOBS, "--once", "--max-messages", limit, **lake.environment)
            if not wait_for_progress(process, lake, lake.commits(), chance, log):
                break
            kill(process)
            kills += 1
        last = start(settings, log, *JOBS, "--once", **lake.environment)
        assert last.wait(600) == 0, log.read_text()[-3000:]
        assert kills == KILLS, f"it was done after {kills} kills: {log.read_text()[-2000:]}"
        end = engine_of(settings).streams((stream,))[stream].last
    with duckdb.connect() as counting:
        for name in ("bronze", *tables, "rollups"):
            counting.register(name, lake.read(name))
        rows = counting.sql(
            "SELECT stream, count(*), count(DISTINCT sequence), min(sequence), max(sequence) FROM bronze GROUP BY 1"
        )
        assert (stream, end, end, 1, end) in rows.fetchall()
        lines = {line for frame in sent for line in frame.lines}
        archived = sum(b'"event":"command.archived"' in line for line in lines)
        expected = {"events": len(lines), "command_events": len(lines) - archived, "commands": archived}
        for name in tables:
            found = counting.sql(f"SELECT count(*), count(DISTINCT event_id) FROM {name}").fetchall()
            assert found == [(expected[name], expected[name])], name
        if kind == "jobs":
            of_events, of_rollups = counting.sql(_rollups_of_jobs()).fetchall(), counting.sql(_OF_ROLLUPS).fetchall()
            assert set(of_rollups) == set(of_events) and len(of_rollups) == len(of_events) > 100
        else:
            each = "SELECT source, target, split_part(event, '.', 3), coalesce(reason, ''), coalesce(path, '')"
            direct = counting.sql(f"{each}, count(*) FROM command_events WHERE event LIKE 'snavio.command.%' GROUP BY ALL")
            rolled = counting.sql("""
                SELECT tenant || '/' || split_part(name, ' ', 2), split_part(name, ' ', 3), split_part(label, ' ', 1),
                       split_part(label, ' ', 2), split_part(label, ' ', 3), sum(n)::BIGINT
                FROM rollups WHERE report = 'commands' AND name LIKE 'source %' GROUP BY ALL
            """)
            assert _without_targets_of_invalid(direct.fetchall()) == _without_targets_of_invalid(rolled.fetchall())


def _rollups_of_jobs() -> str:
    """The rollups of jobs by minute, as DuckDB counts the events. The traffic has nothing else."""
    usage = {"job.queued": "published", "job.leased": "deliveries", "job.done": "done", "job.dead": "dead"}
    plain: dict[str, str] = {"report": "usage", "name": "''", "value": "1", "top": "NULL"}
    counted = [plain | {"label": f"'{label}'", "which": f"event = '{event}'"} for event, label in usage.items()]
    published = plain | {"label": "'published_bytes'", "value": "payload_bytes", "which": "event = 'job.queued'"}
    timed = [
        {"report": "latency", "name": "queue", "label": f"'{label}'", "value": ms, "top": f"max({ms})", "which": which}
        for label, ms, which in (
            ("wait", "wait_ms", "event = 'job.leased' AND attempt = 1"),
            ("processing", "processing_ms", "event = 'job.done'"),
        )
    ]
    dead = plain | {"report": "dead_letters", "name": "queue", "label": "reason", "which": "event = 'job.dead'"}
    return " UNION ALL ".join(_OF_EVENTS.format(**one) for one in (*counted, published, *timed, dead))


def _without_targets_of_invalid(rows: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], int]:
    """The report does not repeat what an invalid command said of its target."""
    found: dict[tuple[Any, ...], int] = {}
    for source, target, outcome, *more, count in rows:
        key = (source, "" if outcome == "invalid" else target, outcome, *more)
        found[key] = found.get(key, 0) + count
    return found


def _send(settings: Settings, chance: random.Random, kind: str) -> list[Frame]:
    """Frames of jobs or commands, some of them twice."""
    traffic = Traffic(12).jobs(EVENTS // 3, minutes=60) if kind == "jobs" else command_traffic(12, EVENTS // 2, minutes=60)
    events: list[Event] = traffic
    frames = framed(events, FRAME)
    sent = [*frames, *chance.sample(frames, len(frames) // 20)]
    chance.shuffle(sent)
    send(settings, sent)
    return sent
