"""The same pipeline on a real Spark cluster: a master and two workers, from the package that pip installed."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from postroad.runtime.embedded_server import free_port
from tests.faults.test_pipeline import ask, start, table
from tests.pipeline.traffic import Traffic, framed, own_engine, send

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pipeline"), pytest.mark.timeout(600)]


@contextmanager
def _process(log: Path, *arguments: str) -> Iterator[None]:
    """One of Spark's own, in a process group that ends with the block."""
    home = str(Path(pyspark.__file__).parent)
    env = {
        **os.environ,
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


def _wait_for(log: Path, text: str, count: int = 1, seconds: float = 120) -> None:
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


def test_the_pipeline_runs_on_a_cluster(tmp_path: Path) -> None:
    traffic = Traffic(13)
    events = [*traffic.jobs(200), *traffic.samples(), *traffic.sessions(10)]
    with own_engine(tmp_path) as settings, cluster(tmp_path) as master:
        send(settings, framed(events, size=5))
        log = tmp_path / "log"
        process = start(settings, log, "--once", "--jobs", "ingest,usage", "--master", master)
        try:
            assert process.wait(400) == 0, log.read_text()[-3000:]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
        assert f"{len(events)} events" in log.read_text()
    lake = tmp_path / "lake"
    [counts] = ask(f"SELECT count(*), count(DISTINCT event_id) FROM {table(lake, 'events')}")
    assert counts == (len(events), len(events))
    executors = sorted(path.parent.parent.name for path in tmp_path.glob("worker-*/app-*/*"))
    assert executors == ["worker-1", "worker-2"]  # both took part
