"""All reports over ten million events: Spark compared with DuckDB and Polars on the same files in the same run.

    python -m benchmarks.pipeline_reports [events=10000000] [jobs | commands]

The reports of queues and sessions, or those of commands. Spark does the work of the pipeline: it adds the events up into minutes,
writes these, and computes every report by day, hour and minute from them. The others keep their minutes in memory. The results
are compared: whole numbers, including percentiles, must be equal, and percentiles of latency within 0.8 % of the exact ones. The
start of Spark and a first run over few events, during which the JVM compiles, are not measured. Needs 300 MB of disk space.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from benchmarks.harness import table
from benchmarks.pipeline_batches import tree_cpu_seconds
from benchmarks.pipeline_command_events import write_command_events
from benchmarks.pipeline_command_peers import duckdb_command_reports, polars_command_reports
from benchmarks.pipeline_events import write_events
from benchmarks.pipeline_peers import Tables, duckdb_reports, exact_percentiles, polars_reports
from postroad.api.insights import Grain
from postroad.pipeline import reports
from postroad.pipeline.compressed_tables import compress, decompress
from postroad.pipeline.measures import measured_columns, measures
from postroad.pipeline.rollups import MEASURES, ROLLUPS, loaded_rollups, merge, stored_rollups
from postroad.pipeline.schemas import arrow_schema
from postroad.pipeline.spark_session import make_session

THREADS = 2
_SMALL = 50_000
# The events have none of these, and the others do not compute them.
_NOT_COMPARED = {
    "backlog": ("retrying",),
    "usage": ("cancelled", "expired"),
    "fairness": ("flagged", "bans", "bannedUntil"),
    "skew": ("driftPerHour", "leavesWindowAt"),
    "telemetry": ("delivered", "acknowledged", "waiting", "waitingMax", "oldestAgeMsMax", "dropped"),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Reports of the events of a silver table, and the same in DuckDB and Polars."""

    table: str
    reports: tuple[str, ...]
    write: Callable[[Path, int], None]
    duckdb: Callable[[Path, int], Tables]
    polars: Callable[[Path], Tables]


COMPARISONS = {
    "jobs": Comparison(
        "events", ("latency", "usage", "dead-letters", "sessions", "backlog"), write_events, duckdb_reports, polars_reports
    ),
    "commands": Comparison(
        "command_events",
        ("commands", "fairness", "skew", "limits", "telemetry"),
        write_command_events,
        duckdb_command_reports,
        polars_command_reports,
    ),
}


def pipeline_reports(spark: SparkSession, chosen: Comparison, events: Path, rollups: Path) -> Tables:
    """As `pipeline backfill` does: Spark's tasks add up the row groups of the events, the driver computes rows from the sums."""
    groups = [
        (str(path), number)
        for path in sorted(events.glob("*.parquet"))
        for number in range(pq.ParquetFile(path).metadata.num_row_groups)
    ]
    found = spark.sparkContext.parallelize(groups, len(groups)).map(partial(_measured, table=chosen.table)).collect()
    parts = [decompress(one, MEASURES) for one in found]
    pq.write_table(stored_rollups(merge(pa.concat_tables(parts)), arrow_schema(ROLLUPS)), rollups)
    minutes = loaded_rollups([pq.read_table(rollups)])
    declared = [one for one in reports.computed_reports() if one.report.name in chosen.reports]
    return {(one.report.name, grain): one.rows(minutes, grain) for one in declared for grain in Grain}


def _measured(group: tuple[str, int], table: str) -> bytes:
    file = pq.ParquetFile(group[0])
    events = file.read_row_group(group[1], measured_columns(file.schema_arrow.names), use_threads=False)
    return compress(measures(events, table))


class Stopwatch:
    """Measures seconds and processor seconds; the latter are more reliable on a shared machine."""

    def time(self, work: Callable[[], Tables]) -> tuple[float, float, Tables]:
        begun, begun_cpu = time.perf_counter(), self._cpu()
        found = work()
        return time.perf_counter() - begun, self._cpu() - begun_cpu, found

    def _cpu(self) -> float:
        """Processor seconds of this process, which runs DuckDB and Polars, of Spark's JVM and its Python workers."""
        return tree_cpu_seconds(os.getpid())


def compare(name: str, ours: Tables, theirs: Tables) -> int:
    """Returns the number of compared rows. Raises SystemExit if one differs."""
    for key, mine in ours.items():
        compared = mine.select([name for name in mine.column_names if name not in _NOT_COMPARED.get(key[0], ())])
        left, right = _in_order(pl.from_arrow(compared)), _in_order(pl.from_arrow(theirs[key]))
        right.columns = left.columns
        if len(left) != len(right):
            raise SystemExit(f"{name} has {len(right)} rows instead of {len(left)}: {key}")
        for column in left.columns:
            one, other = left[column], right[column]
            are_equal = (one - other).abs() < 0.002 if one.dtype.is_float() else one == other.cast(one.dtype)
            if not are_equal.all():
                raise SystemExit(f"{name} has other results: {key}, {column}\n{left}\n{right}")
    return sum(len(one) for one in ours.values())


def _in_order(rows: pl.DataFrame | pl.Series) -> pl.DataFrame:
    if not isinstance(rows, pl.DataFrame):
        raise TypeError("not a table")
    return rows.sort(*(name for name, kind in rows.schema.items() if kind == pl.String or name == "time"))


def farthest_from_exact(ours: Tables, events: Path) -> float:
    exact = {tuple(row[:3]): row[3:] for row in exact_percentiles(events, THREADS)}
    found = ours["latency", "day"].to_pylist()
    far: list[float] = [
        abs(row[f"p{percent}"] - right) / max(right, 1)
        for row in found
        for percent, right in zip((50, 95, 99), exact[row["tenant"], row["queue"], row["phase"]], strict=True)
    ]
    if max(far) > 0.008 or len(found) != len(exact):
        raise SystemExit(f"a percentile is {max(far):.2%} from the exact one")
    return max(far)


def main(events: int, kind: str) -> None:
    chosen = COMPARISONS[kind]
    home = Path(tempfile.mkdtemp(prefix="postroad-bench-"))
    sizes = (events // 10, events)
    try:
        for size in (_SMALL, *sizes):
            begun = time.perf_counter()
            chosen.write(home / str(size), size)
            print(f"{size:,} events written in {time.perf_counter() - begun:.1f} s", flush=True)
        begun = time.perf_counter()
        spark = make_session(f"local[{THREADS}]", memory="3g")
        pipeline_reports(spark, chosen, home / str(_SMALL), home / "rollups.parquet")
        print(f"Spark started and warm in {time.perf_counter() - begun:.1f} s, not counted", flush=True)
        stopwatch = Stopwatch()
        seconds: dict[str, list[float]] = {"Spark": [], "DuckDB": [], "Polars": []}
        cpu_seconds: dict[str, list[float]] = {name: [] for name in seconds}
        for size in sizes:
            folder = home / str(size)
            works: dict[str, Callable[[], Tables]] = {
                "Spark": partial(pipeline_reports, spark, chosen, folder, home / "rollups.parquet"),
                "DuckDB": partial(chosen.duckdb, folder, THREADS),
                "Polars": partial(chosen.polars, folder),
            }
            results: dict[str, Tables] = {}
            for name, work in works.items():
                took, cpu, results[name] = stopwatch.time(work)
                seconds[name].append(took)
                cpu_seconds[name].append(cpu)
                print(f"{size:,} events by {name}: {took:.1f} s, {cpu:.1f} s of processor time", flush=True)
            rows = min(compare(name, results["Spark"], results[name]) for name in ("DuckDB", "Polars"))
            print(f"{size:,} events: {rows:,} rows equal in all three", flush=True)
            if kind == "jobs":
                far = farthest_from_exact(results["Spark"], folder)
                print(f"daily percentiles within {far:.2%} of the exact ones", flush=True)
        for unit, taken in {"seconds": seconds, "processor seconds": cpu_seconds}.items():
            lines = [
                (name, *(f"{one:.1f}" for one in took), f"{took[1] / took[0]:.1f}x", f"{taken['Spark'][1] / took[1]:.1f}x")
                for name, took in taken.items()
            ]
            print(table((unit, *(f"{size:,} events" for size in sizes), "for ten times the events", "Spark needs"), lines))
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000, sys.argv[2] if len(sys.argv) > 2 else "jobs")
