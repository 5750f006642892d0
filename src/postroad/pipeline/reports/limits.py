"""Use of the rate limits of routes."""

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.api.insights import Grain
from postroad.pipeline.aggregates import SECONDS, Measure, aggregate, rounded, with_time
from postroad.pipeline.command_keys import services_of, tenants_of, with_names
from postroad.pipeline.rollups import NO_MEASURES, measures_of, millis_of, minutes_of, of_type

COLUMNS = ("target", "command_name", "reason", "shadow", "max", "interval_seconds")
_MEASURES = {
    "used": Measure("used", "count"),
    "max": Measure("max", "last"),
    "intervalSeconds": Measure("interval", "last"),
    "refused": Measure("refused", "count"),
    "shadow": Measure("shadow", "count"),
}
_LIMIT = ("max", "intervalSeconds")


def command_measures(events: pa.Table) -> pa.Table:
    """By route: commands that were delivered, refused by the limit, or would have been; and the limit, from its samples."""
    delivered = of_type(events, "snavio.command.delivered")
    failed = of_type(events, "snavio.command.failed")
    refused = failed.filter(pc.fill_null(pc.equal(failed.column("reason"), "rate-limit-exceeded"), False))
    samples = of_type(events, "limit.sampled")
    at = millis_of(samples.column("time"))
    shadow = delivered.filter(pc.is_valid(delivered.column("shadow")))
    parts = [_counted(delivered, "used"), _counted(refused, "refused"), _counted(shadow, "shadow")]
    for label, column in (("max", "max"), ("interval", "interval_seconds")):
        parts.append(_measured(_routes(samples), label, last_at=at, last_value=samples.column(column)))
    return pa.concat_tables([NO_MEASURES, *parts])


def _routes(rows: pa.Table) -> pa.Table:
    names = {"target": rows.column("target"), "command": rows.column("command_name")}
    return pa.table({**names, "minute": minutes_of(rows.column("time"))})


def _counted(rows: pa.Table, label: str) -> pa.Table:
    routes = _routes(rows)
    found = routes.group_by(routes.column_names, use_threads=False).aggregate([([], "count_all")])
    return _measured(found, label, n=found.column("count_all"))


def _measured(routes: pa.Table, label: str, **columns: Any) -> pa.Table:
    target = routes.column("target")
    found = measures_of(
        len(routes),
        report="limits",
        tenant=tenants_of(target),
        minute=routes.column("minute"),
        name=pc.binary_join_element_wise(services_of(target), routes.column("command"), " "),
        label=label,
        **columns,
    )
    return found.filter(pc.and_(pc.is_valid(found.column("tenant")), pc.is_valid(found.column("name"))))


def rows(rollups: pa.Table, grain: Grain) -> pa.Table:
    """`usage` compares the commands with those that the limit allows in the whole time. A limit is sampled every five minutes:
    times without a sample have the limit of the last one."""
    chosen = with_time(rollups, "limits", grain)
    found = _with_limits(aggregate(chosen, ("tenant", "time", "name"), _MEASURES), chosen)
    found = with_names(found, "service", "command")
    most, interval = (found.column(name).cast(pa.float64()) for name in _LIMIT)
    allowed = pc.divide(pc.multiply(most, float(SECONDS[grain])), interval)
    usage = rounded(pc.divide(found.column("used").cast(pa.float64()), allowed))
    names = ("tenant", "time", "service", "command", "used", "max", "intervalSeconds", "usage", "refused", "shadow")
    return found.append_column("usage", usage).select(list(names))


def _with_limits(found: pa.Table, chosen: pa.Table) -> pa.Table:
    limits = {
        (row["tenant"], row["name"]): row
        for row in aggregate(chosen, ("tenant", "name"), {name: _MEASURES[name] for name in _LIMIT}).to_pylist()
    }
    keys = list(zip(found.column("tenant").to_pylist(), found.column("name").to_pylist(), strict=True))
    for name in _LIMIT:
        known = pa.array([limits[key][name] for key in keys], pa.int64())
        place = found.column_names.index(name)
        found = found.set_column(place, name, pc.coalesce(found.column(name), known))
    return found
