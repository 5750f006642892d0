"""The same pipeline on a real Spark cluster: a master and two workers, from the package that pip installed."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from postroad.runtime.embedded_server import free_port
from tests.faults.test_pipeline import FAST_START, ask, start, table
from tests.pipeline.command_samples import command_traffic
from tests.pipeline.traffic import NOON, Traffic, framed, own_engine, send

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pipeline"), pytest.mark.timeout(1500)]

SILVER = ("events", "command_events", "commands")


@contextmanager
def _process(log: Path, *arguments: str) -> Iterator[None]:
    """One of Spark's own, in a process group that ends with the block."""
    home = str(Path(pyspark.__file__).parent)
    env = {
        **os.environ,
        **FAST_START,
        "SPARK_HOME": home,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    command = [f"{home}/bin/spark-class", *arguments]
    process = subprocess.Popen(command, env=env, stdout=log.open("ab"), stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def _wait_for(log: Path, text: str, count: int = 1, seconds: float = 300) -> None:
    give_up_at = time.monotonic() + seconds
    while not log.exists() or len(re.findall(text, log.read_text(errors="replace"))) < count:
        assert time.monotonic() < give_up_at, f"never said {text!r}: {log.read_text(errors='replace')[-2000:]}"
        time.sleep(0.1)


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    port, deploy = free_port(), "org.apache.spark.deploy"
    master, log = f"spark://127.0.0.1:{port}", folder / "master.log"
    with ExitStack() as stack:
        at = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port()))
        stack.enter_context(_process(log, f"{deploy}.master.Master", *at))
        _wait_for(log, "I have been elected leader")
        for number in (1, 2):
            own = ("--cores", "1", "--memory", "1g", "--host", "127.0.0.1", "--webui-port", str(free_port()))
            work = folder / f"worker-{number}"
            stack.enter_context(
                _process(folder / f"worker-{number}.log", f"{deploy}.worker.Worker", *own, "--work-dir", str(work), master)
            )
        _wait_for(log, "Registering worker", 2)
        yield master


def _with_event_log(folder: Path) -> dict[str, str]:
    """Environment of a driver that logs Spark's events into the folder."""
    folder.mkdir()
    values = {"enabled": "true", "dir": folder.as_uri(), "compress": "false", "rolling.enabled": "false"}
    lines = "".join(f"spark.eventLog.{name} {value}\n" for name, value in values.items())
    (folder / "spark-defaults.conf").write_text(lines)
    return {"SPARK_CONF_DIR": str(folder)}


def _ended_tasks(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """By stage, what Spark logged when its tasks ended."""
    found: dict[int, list[dict[str, Any]]] = {}
    for path in (one for one in folder.iterdir() if one.suffix != ".conf"):
        for event in map(json.loads, path.read_text().splitlines()):
            if event["Event"] == "SparkListenerTaskEnd":
                found.setdefault(event["Stage ID"], []).append(event)
    return found


def test_the_pipeline_runs_on_a_cluster(tmp_path: Path) -> None:
    """Reading, parsing and writing is the work of one stage. Both workers have tasks of it, and the driver receives file names,
    rollups and hashes of ids, which are a small part of what the tasks have read."""
    traffic = Traffic(13)
    events = [*traffic.jobs(4000), *traffic.samples(), *traffic.sessions(10), *command_traffic(13, 3000, start=NOON)]
    frames = framed(events, size=50)
    read = sum(len(frame.message.data) for frame in frames)
    with own_engine(tmp_path) as settings, cluster(tmp_path) as master:
        send(settings, frames)
        log = tmp_path / "log"
        process = start(
            settings,
            log,
            "--once",
            "--jobs",
            "ingest,usage,commands",
            "--master",
            master,
            **_with_event_log(tmp_path / "spark-events"),
        )
        try:
            assert process.wait(900) == 0, log.read_text()[-3000:]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
        assert f"{len(events)} events" in log.read_text()
    lake = tmp_path / "lake"
    stored = [ask(f"SELECT count(*), count(DISTINCT event_id) FROM {table(lake, name)}")[0] for name in SILVER]
    assert [sum(counts) for counts in zip(*stored, strict=True)] == [len(events), len(events)]
    executors = sorted(path.parent.parent.name for path in tmp_path.glob("worker-*/app-*/*"))
    assert executors == ["worker-1", "worker-2"]
    stages = _ended_tasks(tmp_path / "spark-events")
    assert {one["Task Info"]["Executor ID"] for one in stages[0]} == {"0", "1"}, "tasks of the batch ran on both"
    received = sum(one["Task Metrics"]["Result Size"] for tasks in stages.values() for one in tasks)
    assert 0 < received < read / 10, f"the driver received {received:,} bytes of {read:,}"
