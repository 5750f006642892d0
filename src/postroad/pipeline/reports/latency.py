"""Latency of messages: time until the first delivery, and time of processing."""

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.api.insights import Grain
from postroad.pipeline.aggregates import rounded, with_time
from postroad.pipeline.histogram import buckets_of, values_of
from postroad.pipeline.percentiles import buckets_at, group_starts, largest_of, sums_of
from postroad.pipeline.rollups import NO_MEASURES, measures_of, minutes_of, of_type

COLUMNS = ("attempt", "wait_ms", "processing_ms")
_PERCENTS = (50, 95, 99)
_GROUP = ("tenant", "time", "name", "label")


def measures(events: pa.Table) -> pa.Table:
    """Counts by bucket of the milliseconds. Clocks may disagree: negative times count as 0."""
    leased = of_type(events, "job.leased")
    leased = leased.filter(pc.equal(leased.column("attempt"), 1))
    parts = [_counted(leased, "wait", "wait_ms"), _counted(of_type(events, "job.done"), "processing", "processing_ms")]
    return pa.concat_tables([NO_MEASURES, *parts])


def _counted(events: pa.Table, label: str, column: str) -> pa.Table:
    events = events.filter(pc.is_valid(events.column(column)))
    ms = np.maximum(np.asarray(events.column(column).to_numpy(), dtype=np.int64), 0)
    table = pa.table(
        {
            "tenant": events.column("tenant"),
            "minute": minutes_of(events.column("time")),
            "name": events.column("queue"),
            "bucket": buckets_of(ms),
            "ms": ms,
        }
    )
    found = table.group_by(["tenant", "minute", "name", "bucket"], use_threads=False).aggregate(
        [("ms", "count"), ("ms", "sum"), ("ms", "max")]
    )
    key = {name: found.column(name) for name in ("tenant", "minute", "name", "bucket")}
    numbers = {"n": found.column("ms_count"), "total": found.column("ms_sum"), "top": found.column("ms_max")}
    return measures_of(len(found), report="latency", label=label, **key, **numbers)


def rows(rollups: pa.Table, grain: Grain) -> pa.Table:
    """Percentiles by nearest rank, accurate to 0.8 %, and never above the maximum."""
    sums = [("n", "sum"), ("total", "sum"), ("top", "max")]
    counted = with_time(rollups, "latency", grain).group_by([*_GROUP, "bucket"], use_threads=False).aggregate(sums)
    counted = counted.sort_by([(name, "ascending") for name in (*_GROUP, "bucket")])
    starts = group_starts(counted, _GROUP)
    n, total, top, bucket = (np.asarray(counted.column(name).to_numpy()) for name in ("n_sum", "total_sum", "top_max", "bucket"))
    count, largest = sums_of(n, starts), largest_of(top, starts)
    mean = sums_of(total, starts) / np.maximum(count, 1)
    groups = counted.select(list(_GROUP)).take(pa.array(starts))
    return pa.table(
        {
            "tenant": groups.column("tenant"),
            "time": groups.column("time"),
            "queue": groups.column("name"),
            "phase": groups.column("label"),
            "count": pa.array(count, pa.int64()),
            **{
                f"p{percent}": pa.array(np.minimum(values_of(buckets_at(percent, n, count, bucket, starts)), largest), pa.int64())
                for percent in _PERCENTS
            },
            "max": pa.array(largest, pa.int64()),
            "mean": rounded(pa.array(mean, pa.float64())),
        }
    )
