"""Processor time of micro-batches: `python -m benchmarks.pipeline_batches [idle seconds=60]`.

Starts its own engine. Each batch has 10, 1,000 or 50,000 events and publishes all reports that it affects; the median of five is
printed, after three that are not measured. The processor time is that of the driver, Spark's JVM and its Python workers. Then the
pipeline runs for a while without events. Then a whole installation rests, whose samples are its only events: its pipeline and the
rest of it are two numbers.
"""

import json
import os
import re
import statistics
import sys
import tempfile
import threading
import time
import tomllib
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.pipeline.traffic import NOON, Traffic, engine_of, framed, own_engine, send

from benchmarks.harness import Server, postroad
from postroad.pipeline.driver import Pipeline, PipelineConfig
from postroad.pipeline.lake import Lake
from postroad.pipeline.spark_session import make_session
from postroad.settings import Settings

_SIZES = {10: 10, 1_000: 50, 50_000: 200}  # events, and events in a frame
_WARM, _MEASURED = 3, 5
_QUEUES = 5
_LAST_BATCH = re.compile(r"^postroad_pipeline_last_batch_timestamp_seconds(?:{.*})? (\S+)$", re.MULTILINE)
_FIRST_BATCH_SECONDS = 300.0
_SETTLE_SECONDS = 150.0  # batches of samples become rarer: 10, 20, 40, then 60 s


def tree_cpu_seconds(root: int, without: frozenset[int] = frozenset()) -> float:
    """Processor seconds of a process and its descendants, with those of children that ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        number = int(path.parent.name)
        parents[number], ticks[number] = int(fields[1]), sum(map(int, fields[11:15]))
    chosen = {root}
    while more := {number for number, parent in parents.items() if parent in chosen and number not in chosen | without}:
        chosen |= more
    return sum(ticks.get(number, 0) for number in chosen) / os.sysconf("SC_CLK_TCK")


def _children() -> frozenset[int]:
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return frozenset(int(number) for path in found for number in path.read_text().split())


def measure(settings: Settings, pipeline: Pipeline, engine_processes: frozenset[int]) -> None:
    seed = 0
    for events, size in _SIZES.items():
        seconds, wall = [], []
        for number in range(_WARM + _MEASURED):
            seed += 1
            send(settings, framed(Traffic(seed).jobs(-(-events // 3))[:events], size))
            begun, begun_cpu = time.perf_counter(), tree_cpu_seconds(os.getpid(), engine_processes)
            pipeline.run_batch()
            if number >= _WARM:
                seconds.append(tree_cpu_seconds(os.getpid(), engine_processes) - begun_cpu)
                wall.append(time.perf_counter() - begun)
        line = {"events": events, "processor_seconds": statistics.median(seconds), "seconds": round(statistics.median(wall), 2)}
        print(json.dumps(line), flush=True)


def measure_idle(pipeline: Pipeline, engine_processes: frozenset[int], seconds: float) -> None:
    stop = threading.Event()
    threading.Timer(seconds, stop.set).start()
    begun = tree_cpu_seconds(os.getpid(), engine_processes)
    pipeline.run(stop)
    spent = tree_cpu_seconds(os.getpid(), engine_processes) - begun
    print(json.dumps({"idle_seconds": seconds, "percent_of_a_core": round(100 * spent / seconds, 2)}), flush=True)


def measure_installation(seconds: float) -> None:
    """`postroad up` with a few queues that nobody uses."""
    with postroad(POSTROAD_PIPELINE="true") as server:
        for number in range(_QUEUES):
            _fetch(server, f"/v1/queues/q{number}/messages", server.key, b'{"payload": 1}')
        _wait_for_batch(server)
        time.sleep(_SETTLE_SECONDS)
        driver = _driver_of(server)
        begun, begun_all = tree_cpu_seconds(driver), tree_cpu_seconds(server.pid)
        time.sleep(seconds)
        pipeline = tree_cpu_seconds(driver) - begun
        others = tree_cpu_seconds(server.pid) - begun_all - pipeline
        percent = {"pipeline": pipeline, "rest_of_the_installation": others}
        line = {name: round(100 * spent / seconds, 2) for name, spent in percent.items()}
        print(json.dumps({"installation_idle_seconds": seconds, "percent_of_a_core": line}), flush=True)


def _fetch(server: Server, path: str, key: str, body: bytes | None = None) -> str:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(server.url + path, body, headers), timeout=30) as answer:
        return str(answer.read().decode())


def _wait_for_batch(server: Server) -> None:
    key = tomllib.loads((server.home / "credentials.toml").read_text())["admin_key"]
    until = time.monotonic() + _FIRST_BATCH_SECONDS
    while time.monotonic() < until:
        if any(float(at) > 0 for at in _LAST_BATCH.findall(_fetch(server, "/metrics", key))):
            return
        time.sleep(1)
    raise SystemExit("the installation's pipeline has run no batch")


def _driver_of(server: Server) -> int:
    for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
        if b"pipeline\0run" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return int(pid)
    raise SystemExit("the installation has no pipeline: it needs Java and the extra `pipeline`")


def main(idle_seconds: float) -> None:
    now = datetime.fromtimestamp(NOON / 1000, UTC) + timedelta(minutes=8)
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as folder, own_engine(Path(folder)) as settings:
        engine_processes = _children()
        spark = make_session("local[2]")
        config = PipelineConfig(now=lambda: now)
        pipeline = Pipeline(Lake(settings.lake_root, spark), engine_of(settings), config)
        measure(settings, pipeline, engine_processes)
        measure_idle(pipeline, engine_processes, idle_seconds)
        spark.stop()
    measure_installation(idle_seconds)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
