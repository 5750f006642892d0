"""Throughput of framed events from the engine to the silver table: `python -m benchmarks.pipeline_ingest [events] [job,…]`.

Starts its own engine and publishes the events in frames of a hundred. Measures `pipeline run --once`, twice, over the same number
of events: reading, bronze, parsing, validating and deduplicating (`to silver`), then rollups and the commit (`in the lake`), then
every report and maintenance (`published`). A first run over a fifth of the events is not measured. The second round shows a
pipeline that has run for a while, after the JVM has compiled its code. With the job `ingest` alone, no report is published: its
processor time is that of the ingest.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from tests.pipeline.traffic import Traffic, engine_of, framed, own_engine, send

from benchmarks.pipeline_batches import _children, tree_cpu_seconds
from postroad.pipeline.driver import BatchProgress, Pipeline, PipelineConfig
from postroad.pipeline.job_names import job_names
from postroad.pipeline.lake import Lake
from postroad.pipeline.spark_session import make_session

_MINUTES = 50


def _traffic(seed: int) -> Traffic:
    start = int(time.time() * 1000) - _MINUTES * 60_000
    return Traffic(seed, tenants=tuple(f"t{number}" for number in range(20)), start=start)


def main(events: int, jobs: Collection[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as folder, own_engine(Path(folder)) as settings:
        engine_processes = _children()
        batches: list[BatchProgress] = []
        spark = make_session("local[2]", memory="2g")
        config = PipelineConfig(jobs=jobs, on_progress=batches.append)
        pipeline = Pipeline(Lake(settings.lake_root, spark), engine_of(settings), config)
        send(settings, framed(_traffic(1).jobs(events // 15, minutes=_MINUTES), size=100))
        pipeline.run_once()
        for round_number in (1, 2):
            made = _traffic(1 + round_number).jobs(events // 3, minutes=_MINUTES)
            send(settings, framed(made, size=100))
            batches.clear()
            begun, cpu = time.perf_counter(), tree_cpu_seconds(os.getpid(), engine_processes)
            pipeline.run_once()
            _print_rates(round_number, batches, len(made), time.perf_counter() - begun)
            used = tree_cpu_seconds(os.getpid(), engine_processes) - cpu
            line = {"round": round_number, "processor_seconds": round(used, 1), "microseconds_per_event": used / len(made) * 1e6}
            print(json.dumps(line), flush=True)
        spark.stop()


def _print_rates(round_number: int, batches: Sequence[BatchProgress], sent: int, seconds: float) -> None:
    found = sum(progress.counts.events for progress in batches)
    assert found == sent, f"{found} of {sent}"
    until = {
        "to silver": sum(progress.to_silver for progress in batches),
        "in the lake": sum(progress.seconds for progress in batches),
        "published": seconds,
    }
    for stage, took in until.items():
        line = {
            "round": round_number,
            "until": stage,
            "events": found,
            "seconds": round(took, 1),
            "per_second": round(found / took),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    chosen = sys.argv[2].split(",") if len(sys.argv) > 2 else job_names()
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, chosen)
