"""Benchmarks of the pipeline's parts: `make bench-pipeline`, or `python -m benchmarks.pipeline [events]`.

The data source compared with nats-py, micro-batches, the ingest from JetStream to the silver table, the ingest of commands
beside that of jobs, freshness at 1,000 events/s with the cost of each job, a selection for a replay, and all reports compared
with DuckDB and Polars. Each runs in its own process, one after the other; about half an hour.
"""

import subprocess
import sys
import time

PARTS = (
    ("the data source: 200,000 messages of 200 bytes", ("benchmarks.pipeline_source", "200000")),
    ("micro-batches and an idle pipeline: processor time", ("benchmarks.pipeline_batches", "300")),
    ("the ingest: 1,000,000 framed events", ("benchmarks.pipeline_ingest", "1000000")),
    ("the ingest of commands beside that of jobs", ("benchmarks.pipeline_commands",)),
    ("freshness and the cost of each job at 1,000 events/s", ("benchmarks.pipeline_freshness", "180")),
    ("a replay: 100,000 of 10,000,000 archived commands", ("benchmarks.pipeline_replay",)),
)


def main(events: str) -> None:
    reports = [
        (f"the reports of {kind}: {events} events", ("benchmarks.pipeline_reports", events, kind))
        for kind in ("jobs", "commands")
    ]
    for what, (module, *arguments) in (*PARTS, *reports):
        print(f"== {what}: python -m {module} {' '.join(arguments)}", flush=True)
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", module, *arguments], check=True)
        print(f"== {time.perf_counter() - begun:.0f} s in all\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "10000000")
