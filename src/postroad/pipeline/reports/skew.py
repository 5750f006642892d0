"""Clocks of senders: how far they differ from the engine's, and whether they drift."""

from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.api.insights import Grain
from postroad.pipeline.aggregates import rounded, with_time
from postroad.pipeline.command_keys import outcomes_of, services_of
from postroad.pipeline.histogram import buckets_of, values_of
from postroad.pipeline.percentiles import buckets_at, group_starts, sums_of
from postroad.pipeline.reports import ReportSettings
from postroad.pipeline.rollups import NO_MEASURES, TIME, measures_of, minutes_of, of_type

COLUMNS = ("source", "reason", "skew_seconds")
DRIFT_MINUTES_MIN = 10  # between the first and the last sample: over less the noise of the network is larger than any drift
_REFUSED = ("timestamp-expired", "timestamp-future")
_GROUP = ("tenant", "time", "name")
_PERCENTS = (1, 50, 99)
_DAY_HOURS = 24.0
_HOUR_MICROS = 3_600_000_000


def command_measures(events: pa.Table) -> pa.Table:
    """By sender: samples in signed buckets of milliseconds, commands `near` the limit, `accepted` ones, and those `refused` for
    their time."""
    samples = of_type(events, "snavio.telemetry.skew_sample")
    outcomes, outcome = outcomes_of(events)
    accepted = outcomes.filter(pc.invert(pc.equal(outcome, "invalid")))
    refused = outcomes.filter(pc.is_in(outcomes.column("reason"), pa.array(_REFUSED)))
    millis = np.round(np.asarray(samples.column("skew_seconds").to_numpy(), dtype=np.float64) * 1000).astype(np.int64)
    parts = [
        _counted(samples, "sample", signed_buckets(millis), millis),
        _counted(of_type(events, "snavio.telemetry.skew_near_limit"), "near"),
        _counted(accepted, "accepted"),
        _counted(refused, "refused"),
    ]
    return pa.concat_tables([NO_MEASURES, *parts])


def _counted(rows: pa.Table, label: str, bucket: Any = None, total: Any = None) -> pa.Table:
    zeros, ones = np.zeros(len(rows), dtype=np.int32), np.ones(len(rows), dtype=np.int64)
    key = {
        "tenant": rows.column("tenant"),
        "minute": minutes_of(rows.column("time")),
        "source": rows.column("source"),
        "bucket": zeros if bucket is None else bucket,
    }
    table = pa.table({**key, "total": ones if total is None else total})
    counted = table.group_by(list(key), use_threads=False).aggregate([("total", "count"), ("total", "sum")])
    found = measures_of(
        len(counted),
        report="skew",
        **{name: counted.column(name) for name in ("tenant", "minute", "bucket")},
        name=services_of(counted.column("source")),
        label=label,
        n=counted.column("total_count"),
        total=counted.column("total_sum"),
    )
    return found.filter(pc.is_valid(found.column("name")))


def signed_buckets(millis: Any) -> Any:
    """The bucket of the absolute value, with its sign. Bucket 0 is the number 0."""
    return np.sign(millis).astype(np.int32) * buckets_of(np.abs(millis))


def signed_values(buckets: Any) -> Any:
    return np.sign(buckets) * values_of(np.abs(buckets))


def rows(rollups: pa.Table, grain: Grain, settings: ReportSettings) -> pa.Table:
    """Skew in seconds, positive if the sender's clock is behind. Percentiles are accurate to 0.8 %."""
    chosen = with_time(rollups, "skew", grain)
    found = _counts(chosen)
    samples = _samples(chosen.filter(pc.equal(chosen.column("label"), "sample")), settings.window_seconds * 1000)
    found = found.join(samples, keys=list(_GROUP), join_type="left outer", use_threads=False)
    near = pc.divide(found.column("near_sum").cast(pa.float64()), pc.max_element_wise(found.column("accepted_sum"), 1))
    return pa.table(
        {
            "tenant": found.column("tenant"),
            "time": found.column("time"),
            "service": found.column("name"),
            "samples": found.column("sample_sum"),
            **{name: found.column(name) for name in ("p1", "p50", "p99", "driftPerHour")},
            "nearLimit": rounded(pc.min_element_wise(near, 1.0)),
            "refused": found.column("refused_sum"),
            "windowSeconds": pa.repeat(pa.scalar(settings.window_seconds, pa.int64()), len(found)),
            "leavesWindowAt": found.column("leavesWindowAt"),
        }
    )


def _counts(chosen: pa.Table) -> pa.Table:
    labels = ("sample", "near", "accepted", "refused")
    columns = {label: pc.if_else(pc.equal(chosen.column("label"), label), chosen.column("n"), 0) for label in labels}
    table = pa.table({**{name: chosen.column(name) for name in _GROUP}, **columns})
    return table.group_by(list(_GROUP), use_threads=False).aggregate([(label, "sum") for label in labels])


def _samples(chosen: pa.Table, window_ms: int) -> pa.Table:
    """Percentiles and drift of each sender and time."""
    counted = chosen.group_by([*_GROUP, "minute", "bucket"], use_threads=False).aggregate([("n", "sum"), ("total", "sum")])
    counted = counted.sort_by([(name, "ascending") for name in (*_GROUP, "bucket", "minute")])
    starts = group_starts(counted, _GROUP)
    n, total, bucket = (np.asarray(counted.column(name).to_numpy()) for name in ("n_sum", "total_sum", "bucket"))
    count = sums_of(n, starts)
    groups = counted.select(list(_GROUP)).take(pa.array(starts))
    slope, level, last = _drift(counted, n, total, starts)
    seconds = {
        f"p{percent}": pa.array(signed_values(buckets_at(percent, n, count, bucket, starts)) / 1000, pa.float64())
        for percent in _PERCENTS
    }
    return (
        groups.append_column("driftPerHour", _or_null(slope / 1000, np.isfinite(slope)))
        .append_column("leavesWindowAt", _leaving(slope, level, last, window_ms))
        .append_column("p1", seconds["p1"])
        .append_column("p50", seconds["p50"])
        .append_column("p99", seconds["p99"])
    )


def _drift(counted: pa.Table, n: Any, total: Any, starts: Any) -> tuple[Any, Any, Any]:
    """Of each group: milliseconds per hour by least squares (NaN if its samples are too close), the level at its last minute, and
    that minute in microseconds."""
    minute = counted.column("minute").cast(pa.int64()).to_numpy()
    if not len(starts):
        none = np.array([], dtype=np.float64)
        return none, none, np.array([], dtype=np.int64)
    first, last = np.minimum.reduceat(minute, starts), np.maximum.reduceat(minute, starts)
    origin = np.repeat(first, np.diff(np.append(starts, len(minute))))
    hours = (minute - origin) / _HOUR_MICROS
    w, x, y, xx, xy = (sums_of(values, starts) for values in (n, hours * n, total, hours * hours * n, hours * total))
    spread = w * xx - x * x
    is_long = last - first >= DRIFT_MINUTES_MIN * 60_000_000
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(is_long & (spread > 0), (w * xy - x * y) / spread, np.nan)
    level = (y - np.nan_to_num(slope) * x) / w + np.nan_to_num(slope) * (last - first) / _HOUR_MICROS
    return slope, level, last


def _leaving(slope: Any, level: Any, last: Any, window_ms: int) -> Any:
    """When the clock leaves the window at this drift, if within a day after the last sample."""
    with np.errstate(divide="ignore", invalid="ignore"):
        hours = (np.sign(slope) * window_ms - level) / slope
    is_soon = np.isfinite(hours) & (hours <= _DAY_HOURS)
    at = last + (np.clip(np.nan_to_num(hours), 0, _DAY_HOURS) * _HOUR_MICROS).astype(np.int64)
    return pc.if_else(pa.array(is_soon), pa.array(at, pa.int64()), pa.scalar(None, pa.int64())).cast(TIME)


def _or_null(values: Any, is_known: Any) -> Any:
    return rounded(pc.if_else(pa.array(is_known), pa.array(values, pa.float64()), pa.scalar(None, pa.float64())))
