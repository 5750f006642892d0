"""How fast framed events go from the engine to the silver table: `python -m benchmarks.pipeline_ingest [events]`.

Starts its own engine and publishes the events in frames first. What is measured is one `pipeline run --once` after the start-up:
reading, bronze, parsing, judging, deduplicating, rollups and results. A first run over a few frames warms Spark up.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from tests.pipeline.traffic import Traffic, engine_of, framed, own_engine, send

from postroad.pipeline.driver import Pipeline, Progress, Wishes
from postroad.pipeline.lake import Lake
from postroad.pipeline.session import make_session


def main(events: int) -> None:
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as folder, own_engine(Path(folder)) as settings:
        told: list[Progress] = []
        spark = make_session("local[2]", memory="2g")
        pipeline = Pipeline(Lake(settings.lake_root, spark), engine_of(settings), Wishes(tell=told.append))
        send(settings, framed(Traffic(1).jobs(20_000), size=100))
        pipeline.run_once()
        made = Traffic(2, tenants=tuple(f"t{number}" for number in range(20))).jobs(events // 3, minutes=60)
        send(settings, framed(made, size=100))
        told.clear()
        begun = time.perf_counter()
        pipeline.run_once()
        seconds = time.perf_counter() - begun
        found = sum(progress.counts.events for progress in told)
        assert found == len(made), f"{found} of {len(made)}"
        batches = [round(progress.counts.events / progress.seconds) for progress in told]
        print(
            json.dumps(
                {"events": found, "seconds": round(seconds, 1), "events_per_second": round(found / seconds), "by_batch": batches}
            )
        )
        spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
