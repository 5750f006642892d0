"""Processor time of micro-batches: `python -m benchmarks.pipeline_batches [idle seconds=60]`.

Starts its own engine. Each batch has 10, 1,000 or 50,000 events and publishes all reports that it affects; the median of five is
printed, after three that are not measured. The processor time is that of the driver, Spark's JVM and its Python workers. Then the
pipeline runs for a while without events.
"""

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.pipeline.traffic import NOON, Traffic, engine_of, framed, own_engine, send

from postroad.pipeline.driver import Pipeline, PipelineConfig
from postroad.pipeline.lake import Lake
from postroad.pipeline.spark_session import make_session
from postroad.settings import Settings

_SIZES = {10: 10, 1_000: 50, 50_000: 200}  # events, and events in a frame
_WARM, _MEASURED = 3, 5


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


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
