"""Ingest of commands beside that of jobs: `python -m benchmarks.pipeline_commands`.

Micro-batches of 50,000 events of commands and of jobs, in turns, reports included. Processor time is compared, because other
processes of the machine make the time on the clock useless.
"""

import os
import statistics
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.pipeline.command_samples import command_traffic
from tests.pipeline.traffic import NOON, Traffic, engine_of, framed, own_engine, send

from benchmarks.pipeline_batches import _children, tree_cpu_seconds
from postroad.pipeline.driver import Pipeline, PipelineConfig
from postroad.pipeline.lake import Lake
from postroad.pipeline.spark_session import make_session

_EVENTS, _ROUNDS = 50_000, 4


def ingest() -> None:
    with tempfile.TemporaryDirectory() as folder, own_engine(Path(folder)) as settings:
        others = _children()
        spark = make_session("local[2]")
        now = datetime.fromtimestamp(NOON / 1000, UTC) + timedelta(minutes=8)
        pipeline = Pipeline(Lake(settings.lake_root, spark), engine_of(settings), PipelineConfig(now=lambda: now))
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
            if number >= 2:
                seconds[kind].append(tree_cpu_seconds(os.getpid(), others) - begun)
        jobs, commands = (statistics.median(seconds[kind]) for kind in ("jobs", "commands"))
        rate = jobs / commands
        print(f"batch of {_EVENTS:,} events: jobs {jobs:.2f} s, commands {commands:.2f} s, rate of commands / jobs {rate:.2f}")
        spark.stop()


if __name__ == "__main__":
    ingest()
