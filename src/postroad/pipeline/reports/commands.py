"""Commands by route and outcome, and the latency of their dispatch."""

from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.api.insights import Grain
from postroad.pipeline.aggregates import with_time
from postroad.pipeline.command_keys import ROUTE_REASONS, key_of, outcomes_of, services_of, tenants_of, with_names
from postroad.pipeline.histogram import buckets_of, values_of
from postroad.pipeline.percentiles import buckets_at, group_starts, largest_of, sums_of
from postroad.pipeline.rollups import NO_MEASURES, measures_of, minutes_of

COLUMNS = ("source", "target", "command_name", "reason", "path", "dispatch_latency_ms")
_PERCENTS = (50, 95, 99)
_GROUP = ("tenant", "time", "name", "label")
_KEY = ("minute", "tenant", "source", "target", "command", "outcome", "reason", "path", "bucket")
_MICROS = [("micros", "count"), ("micros", "sum"), ("micros", "max")]
_NAMES = ("role", "service", "peer", "command")
_LABEL = ("outcome", "reason", "path")


def command_measures(events: pa.Table) -> pa.Table:
    """`bucket` and `total` are the dispatch latency of delivered commands in microseconds; 0 for others."""
    counted = _counted(events)
    is_valid = pc.invert(pc.equal(counted.column("outcome"), "invalid"))
    is_of_route = pc.is_in(counted.column("reason"), pa.array(ROUTE_REASONS))
    routed = counted.filter(pc.and_(is_valid, pc.or_(pc.invert(pc.equal(counted.column("outcome"), "failed")), is_of_route)))
    source, target, command = (counted.column(name) for name in ("source", "target", "command"))
    parts = [
        _measured(counted, counted.column("tenant"), key_of("source", services_of(source), target, command)),
        _measured(
            routed,
            tenants_of(routed.column("target")),
            key_of("target", services_of(routed.column("target")), "", routed.column("command")),
        ),
    ]
    return pa.concat_tables([NO_MEASURES, *parts])


def _counted(events: pa.Table) -> pa.Table:
    """Commands by `_KEY`. Invalid ones have no target and no command: what they say of them is not repeated."""
    rows, outcome = outcomes_of(events)
    is_valid = pc.invert(pc.equal(outcome, "invalid"))
    millis = pc.multiply(pc.fill_null(rows.column("dispatch_latency_ms"), 0.0), 1000.0)
    micros = np.asarray(pc.max_element_wise(pc.round(millis).cast(pa.int64()), 0).to_numpy(), dtype=np.int64)
    table = pa.table(
        {
            "minute": minutes_of(rows.column("time")),
            "tenant": rows.column("tenant"),
            "source": rows.column("source"),
            "target": pc.if_else(is_valid, _or_empty(rows.column("target")), ""),
            "command": pc.if_else(is_valid, _or_empty(rows.column("command_name")), ""),
            "outcome": outcome,
            "reason": _or_empty(rows.column("reason")),
            "path": _or_empty(rows.column("path")),
            "bucket": buckets_of(micros),
            "micros": micros,
        }
    )
    return table.group_by(list(_KEY), use_threads=False).aggregate(_MICROS)


def _or_empty(column: Any) -> Any:
    return pc.fill_null(column, "")


def _measured(counted: pa.Table, tenant: Any, name: Any) -> pa.Table:
    found = measures_of(
        len(counted),
        report="commands",
        tenant=tenant,
        minute=counted.column("minute"),
        name=name,
        label=pc.binary_join_element_wise(*(counted.column(part) for part in _LABEL), " "),
        bucket=counted.column("bucket"),
        n=counted.column("micros_count"),
        total=counted.column("micros_sum"),
        top=counted.column("micros_max"),
    )
    return found.filter(pc.and_(pc.is_valid(found.column("tenant")), pc.is_valid(found.column("name"))))


def rows(rollups: pa.Table, grain: Grain) -> pa.Table:
    """Percentiles by nearest rank, accurate to 0.8 %, and never above the maximum."""
    sums = [("n", "sum"), ("top", "max")]
    counted = with_time(rollups, "commands", grain).group_by([*_GROUP, "bucket"], use_threads=False).aggregate(sums)
    counted = counted.sort_by([(name, "ascending") for name in (*_GROUP, "bucket")])
    starts = group_starts(counted, _GROUP)
    n, top, bucket = (np.asarray(counted.column(name).to_numpy()) for name in ("n_sum", "top_max", "bucket"))
    count, largest = sums_of(n, starts), largest_of(top, starts)
    groups = with_names(counted.select(list(_GROUP)).take(pa.array(starts)), *_NAMES)
    groups = with_names(groups, *_LABEL, column="label")
    is_delivered = pc.equal(groups.column("outcome"), "delivered")

    def milliseconds(micros: Any) -> Any:
        return pc.if_else(is_delivered, pa.array(np.asarray(micros, dtype=np.float64) / 1000), pa.scalar(None, pa.float64()))

    return pa.table(
        {
            **{name: groups.column(name) for name in ("tenant", "time", *_NAMES, *_LABEL)},
            "count": pa.array(count, pa.int64()),
            **{
                f"p{percent}": milliseconds(np.minimum(values_of(buckets_at(percent, n, count, bucket, starts)), largest))
                for percent in _PERCENTS
            },
            "max": milliseconds(largest),
        }
    )
