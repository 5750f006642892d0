"""How fast framed events go from the engine to the silver table: `python -m benchmarks.pipeline_ingest [events]`.

Starts its own engine and publishes the events in frames of a hundred. What is measured is `pipeline run --once`, twice, over as
many events each: reading, bronze, parsing, judging and deduplicating (`to silver`), then rollups and the commit (`in the lake`),
then every report and the upkeep (`told`). A first run over a fifth as many is not counted. The second shows what a pipeline does
that has run for a while: the JVM compiles what it runs often.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.pipeline.traffic import Traffic, engine_of, framed, own_engine, send

from postroad.pipeline.driver import Pipeline, PipelineConfig, Progress
from postroad.pipeline.lake import Lake
from postroad.pipeline.spark_session import make_session

_MINUTES = 50


def _traffic(seed: int) -> Traffic:
    start = int(time.time() * 1000) - _MINUTES * 60_000
    return Traffic(seed, tenants=tuple(f"t{number}" for number in range(20)), start=start)


def main(events: int) -> None:
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as folder, own_engine(Path(folder)) as settings:
        told: list[Progress] = []
        spark = make_session("local[2]", memory="2g")
        pipeline = Pipeline(Lake(settings.lake_root, spark), engine_of(settings), PipelineConfig(tell=told.append))
        send(settings, framed(_traffic(1).jobs(events // 15, minutes=_MINUTES), size=100))
        pipeline.run_once()
        for round_number in (1, 2):
            made = _traffic(1 + round_number).jobs(events // 3, minutes=_MINUTES)
            send(settings, framed(made, size=100))
            told.clear()
            begun = time.perf_counter()
            pipeline.run_once()
            _say(round_number, told, len(made), time.perf_counter() - begun)
        spark.stop()


def _say(round_number: int, told: Sequence[Progress], sent: int, seconds: float) -> None:
    found = sum(progress.counts.events for progress in told)
    assert found == sent, f"{found} of {sent}"
    until = {
        "to silver": sum(progress.to_silver for progress in told),
        "in the lake": sum(progress.seconds for progress in told),
        "told": seconds,
    }
    for what, took in until.items():
        line = {
            "round": round_number,
            "until": what,
            "events": found,
            "seconds": round(took, 1),
            "per_second": round(found / took),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
