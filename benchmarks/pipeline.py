"""The pipeline, part by part: `make bench-pipeline`, or `python -m benchmarks.pipeline [events]`.

The data source beside nats-py, the ingest from the engine to the silver table, all reports beside DuckDB and Polars. Each in a
process of its own, one after the other, with nothing else running; about ten minutes.
"""

import subprocess
import sys
import time

PARTS = (
    ("the data source: 200,000 messages of 200 bytes", ("benchmarks.pipeline_source", "200000")),
    ("the ingest: 1,000,000 framed events", ("benchmarks.pipeline_ingest", "1000000")),
)


def main(events: str) -> None:
    for what, (module, *arguments) in (*PARTS, (f"the reports: {events} events", ("benchmarks.pipeline_reports", events))):
        print(f"== {what}: python -m {module} {' '.join(arguments)}", flush=True)
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", module, *arguments], check=True)
        print(f"== {time.perf_counter() - begun:.0f} s in all\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "10000000")
