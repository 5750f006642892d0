"""Ingest of commands beside that of jobs: `python -m benchmarks.pipeline_commands`.

Micro-batches of 50,000 events of commands and of jobs, in turns: the ingest alone, then with all reports. Processor time is
compared, because other processes of the machine make the time on the clock useless.
"""

import os
import statistics
import tempfile
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.pipeline.command_samples import command_traffic
from tests.pipeline.traffic import NOON, Traffic, engine_of, framed, own_engine, send

from benchmarks.pipeline_batches import _children, tree_cpu_seconds
from postroad.pipeline.driver import Pipeline, PipelineConfig
from postroad.pipeline.job_names import job_names
from postroad.pipeline.lake import Lake
from postroad.pipeline.spark_session import make_session

_EVENTS, _ROUNDS, _WARM = 50_000, 8, 3  # Java compiles during the first rounds


def ingest(what: str, jobs: Collection[str]) -> None:
    before = _children()  # Spark's JVM stays for the second measurement
    with tempfile.TemporaryDirectory() as folder, own_engine(Path(folder)) as settings:
        others = _children() - before
        spark = make_session("local[2]")
        now = datetime.fromtimestamp(NOON / 1000, UTC) + timedelta(minutes=8)
        pipeline = Pipeline(Lake(settings.lake_root, spark), engine_of(settings), PipelineConfig(jobs=jobs, now=lambda: now))
        seconds: dict[str, list[float]] = {"jobs": [], "commands": []}
        for number in range(2 * _ROUNDS):
            kind = ("jobs", "commands")[number % 2]
            if kind == "jobs":
                events = Traffic(number).jobs(_EVENTS // 3 + 1)[:_EVENTS]
            else:
                events = command_traffic(number, _EVENTS // 2, start=NOON)[:_EVENTS]
            send(settings, framed(events, 200))
            begun = tree_cpu_seconds(os.getpid(), others)
            pipeline.run_batch()
            if number >= 2 * _WARM:
                seconds[kind].append(tree_cpu_seconds(os.getpid(), others) - begun)
        of_jobs, of_commands = (statistics.median(seconds[kind]) for kind in ("jobs", "commands"))
        rate = of_jobs / of_commands
        times = f"jobs {of_jobs:.2f} s, commands {of_commands:.2f} s"
        print(f"batch of {_EVENTS:,} events, {what}: {times}, rate of commands / jobs {rate:.2f}", flush=True)
        spark.stop()


if __name__ == "__main__":
    ingest("the ingest", ("ingest",))
    ingest("with all reports", job_names())
