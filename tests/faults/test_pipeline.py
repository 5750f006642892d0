"""The pipeline's driver, killed while it works: what was told is in the lake, each message and each event once."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from postroad.kernel.event import Event
from postroad.settings import Settings
from tests.pipeline.traffic import Frame, Traffic, engine_of, framed, own_engine, send

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pipeline"), pytest.mark.timeout(1500)]

EVENTS = int(os.environ.get("EVENTS", "30000"))  # 1,000,000 by hand
KILLS = int(os.environ.get("KILLS", "3"))  # 10 by hand
FRAME = 200
JOBS = ("--jobs", "ingest,usage,compact")


def start(settings: Settings, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """A driver in a process group of its own, Spark's JVM included."""
    assert settings.nats_url is not None
    env = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
    env |= {"POSTROAD_NATS_URL": settings.nats_url.reveal(), "POSTROAD_DATA_DIR": str(settings.data_dir)}
    command = [sys.executable, "-m", "postroad", "pipeline", "run", *arguments]
    return subprocess.Popen(command, env=env, stdout=log.open("ab"), stderr=subprocess.STDOUT, start_new_session=True)


def kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def table(lake: Path, name: str) -> str:
    """The table's files, as DuckDB takes them."""
    return f"read_parquet({DeltaTable(str(lake / name)).file_uris()}, union_by_name = true)"


def ask(question: str) -> list[tuple[Any, ...]]:
    return duckdb.execute(question).fetchall()


def versions(lake: Path) -> int:
    """Number of commits in all tables."""
    return sum(1 for _ in lake.glob("*/_delta_log/*.json"))


def wait_for_progress(process: subprocess.Popen[bytes], lake: Path, seen: int, chance: random.Random, log: Path) -> bool:
    """Until the lake has something more than it had, and a moment longer; whether the driver is still at it."""
    give_up_at = time.monotonic() + 240
    while versions(lake) <= seen:
        if process.poll() is not None:
            assert process.returncode == 0, log.read_text()[-3000:]
            return False
        assert time.monotonic() < give_up_at, f"no progress: {log.read_text()[-3000:]}"
        time.sleep(0.05)
    time.sleep(chance.uniform(0, 1))  # anywhere in a batch
    return process.poll() is None


def test_a_driver_that_is_killed_again_and_again_loses_nothing_and_counts_nothing_twice(tmp_path: Path) -> None:
    chance = random.Random(11)
    lake, log = tmp_path / "lake", tmp_path / "log"
    with own_engine(tmp_path) as settings:
        sent = _send(settings, chance)
        kills = 0
        while kills < KILLS:
            process = start(settings, log, *JOBS, "--once", "--max-messages", str(max(5, len(sent) // (KILLS * 3))))
            if not wait_for_progress(process, lake, versions(lake), chance, log):
                break
            kill(process)
            kills += 1
        last = start(settings, log, *JOBS, "--once")
        assert last.wait(600) == 0, log.read_text()[-3000:]
        assert kills > 0, f"it was done before it could be killed: {log.read_text()[-2000:]}"
        end = engine_of(settings).streams(("JOBS",))["JOBS"].last
    bronze, events, rollups = (table(lake, name) for name in ("bronze", "events", "rollups"))
    rows = ask(f"SELECT stream, count(*), count(DISTINCT sequence), min(sequence), max(sequence) FROM {bronze} GROUP BY 1")
    assert ("JOBS", end, end, 1, end) in rows
    lines = {line for frame in sent for line in frame.lines}
    [counts] = ask(f"SELECT count(*), count(DISTINCT event_id) FROM {events}")
    assert counts == (len(lines), len(lines))
    [(published,)] = ask(f"SELECT sum(total) FROM {rollups} WHERE report = 'usage' AND label = 'published'")
    assert published == sum(b'"event":"job.queued"' in line for line in lines)


def _send(settings: Settings, chance: random.Random) -> list[Frame]:
    """Frames of jobs, some of them twice."""
    events: list[Event] = Traffic(12).jobs(EVENTS // 3, minutes=60)
    frames = framed(events, FRAME)
    sent = [*frames, *chance.sample(frames, len(frames) // 20)]
    chance.shuffle(sent)
    send(settings, sent)
    return sent
