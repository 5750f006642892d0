"""All reports over ten million events: how long does Spark take, beside DuckDB and Polars on the same files in the same run?

    python -m benchmarks.pipeline_reports [events=10000000]

Spark does what the pipeline does: it adds the events up into minutes, writes these, and works out every report by day, hour and
minute from what it wrote. The others keep their minutes in memory. The answers are compared: whole numbers, percentiles among
them, must be equal, and percentiles within 0.8 % of those found by sorting everything. Spark's start, and a first run over few
events that has the JVM compile what it runs, are not counted. Takes some 200 MB of disk for as long as it runs.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.sql import SparkSession

from benchmarks.harness import table
from benchmarks.pipeline_events import write_events
from benchmarks.pipeline_peers import Tables, duckdb_reports, exact_percentiles, polars_reports
from postroad.pipeline.reports import GRAINS, REPORTS
from postroad.pipeline.rollups import ROLLUPS, measures
from postroad.pipeline.schemas import events_schema
from postroad.pipeline.spark_session import make_session

THREADS = 2
_SMALL = 50_000


def spark_reports(spark: SparkSession, events: Path, rollups: Path) -> Tables:
    measures(spark.read.schema(events_schema()).parquet(str(events))).write.parquet(str(rollups), mode="overwrite")
    minutes = spark.read.schema(ROLLUPS).parquet(str(rollups))
    return {(name, grain): report.rows(minutes, grain).toArrow() for name, report in REPORTS.items() for grain in GRAINS}


class Stopwatch:
    """Seconds, and seconds of processor time: on a machine that others use, too, the latter say more."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm

    def time(self, work: Callable[[], Tables]) -> tuple[float, float, Tables]:
        begun, begun_cpu = time.perf_counter(), self._cpu()
        found = work()
        return time.perf_counter() - begun, self._cpu() - begun_cpu, found

    def _cpu(self) -> float:
        """Of this process, in which DuckDB and Polars are, and of Spark's."""
        spent = self._jvm.java.lang.ProcessHandle.current().info().totalCpuDuration().get().toMillis()
        return time.process_time() + float(spent) / 1000


def compare(name: str, ours: Tables, theirs: Tables) -> int:
    """Returns how many rows were compared. Raises SystemExit if one differs."""
    for key, mine in ours.items():
        left, right = _in_order(pl.from_arrow(mine)), _in_order(pl.from_arrow(theirs[key]))
        right.columns = left.columns
        for column in left.columns:
            one, other = left[column], right[column]
            are_equal = (one - other).abs() < 0.002 if one.dtype.is_float() else one == other.cast(one.dtype)
            if len(one) != len(other) or not are_equal.all():
                raise SystemExit(f"{name} has other answers: {key}, {column}\n{left}\n{right}")
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


def main(events: int) -> None:
    home = Path(tempfile.mkdtemp(prefix="postroad-bench-"))
    sizes = (events // 10, events)
    try:
        for size in (_SMALL, *sizes):
            begun = time.perf_counter()
            write_events(home / str(size), size)
            print(f"{size:,} events written in {time.perf_counter() - begun:.1f} s", flush=True)
        begun = time.perf_counter()
        spark = make_session(f"local[{THREADS}]", memory="3g")
        spark_reports(spark, home / str(_SMALL), home / "rollups")
        print(f"Spark started and warm in {time.perf_counter() - begun:.1f} s, not counted", flush=True)
        stopwatch = Stopwatch(spark)
        seconds: dict[str, list[float]] = {"Spark": [], "DuckDB": [], "Polars": []}
        cpu_seconds: dict[str, list[float]] = {name: [] for name in seconds}
        for size in sizes:
            folder = home / str(size)
            works: dict[str, Callable[[], Tables]] = {
                "Spark": partial(spark_reports, spark, folder, home / "rollups"),
                "DuckDB": partial(duckdb_reports, folder, THREADS),
                "Polars": partial(polars_reports, folder),
            }
            answers: dict[str, Tables] = {}
            for name, work in works.items():
                took, cpu, answers[name] = stopwatch.time(work)
                seconds[name].append(took)
                cpu_seconds[name].append(cpu)
                print(f"{size:,} events by {name}: {took:.1f} s, {cpu:.1f} s of processor time", flush=True)
            rows = min(compare(name, answers["Spark"], answers[name]) for name in ("DuckDB", "Polars"))
            far = farthest_from_exact(answers["Spark"], folder)
            print(f"{size:,} events: {rows:,} rows equal in all three; daily percentiles within {far:.2%} of the exact ones")
        for what, taken in {"seconds": seconds, "of the processors": cpu_seconds}.items():
            lines = [
                (name, *(f"{one:.1f}" for one in took), f"{took[1] / took[0]:.1f}x", f"{taken['Spark'][1] / took[1]:.1f}x")
                for name, took in taken.items()
            ]
            print(table((what, *(f"{size:,} events" for size in sizes), "for ten times the events", "Spark takes"), lines))
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000)
