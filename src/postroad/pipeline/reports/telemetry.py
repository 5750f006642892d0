"""Delivery of a tenant's telemetry: events of its commands, and whether they are read."""

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.api.insights import Grain
from postroad.pipeline.aggregates import Measure, aggregate, with_time
from postroad.pipeline.rollups import NO_MEASURES, Sampled, measures_of, minutes_of, of_type

COLUMNS = ("oldest_age_ms", "dropped_events")
SAMPLED = {
    "waiting": Sampled("telemetry.sampled", "waiting"),
    "delivered": Sampled("telemetry.sampled", "delivered"),
    "acknowledged": Sampled("telemetry.sampled", "acknowledged"),
    "oldest_age_ms": Sampled("telemetry.sampled", lambda events: pc.fill_null(events.column("oldest_age_ms"), 0)),
}
_MEASURES = {
    "emitted": Measure("emitted", "count"),
    "delivered": Measure("delivered", "last"),
    "acknowledged": Measure("acknowledged", "last"),
    "waiting": Measure("waiting", "last"),
    "waitingMax": Measure("waiting", "top"),
    "oldestAgeMsMax": Measure("oldest_age_ms", "top"),
    "dropped": Measure("dropped", "total"),
}


def command_measures(events: pa.Table) -> pa.Table:
    """Events by tenant and minute, and those that were dropped unread."""
    events = events.filter(pc.invert(pc.ends_with(events.column("event"), ".sampled")))
    dropped = of_type(events, "snavio.telemetry.dropped")
    one = pa.repeat(pa.scalar(1, pa.int64()), len(events))
    parts = [_counted(events, "emitted", one), _counted(dropped, "dropped", dropped.column("dropped_events"))]
    return pa.concat_tables([NO_MEASURES, *parts])


def _counted(rows: pa.Table, label: str, total: Any) -> pa.Table:
    table = pa.table({"tenant": rows.column("tenant"), "minute": minutes_of(rows.column("time")), "total": total})
    found = table.group_by(["tenant", "minute"], use_threads=False).aggregate([("total", "count"), ("total", "sum")])
    return measures_of(
        len(found),
        report="telemetry",
        tenant=found.column("tenant"),
        minute=found.column("minute"),
        label=label,
        n=found.column("total_count"),
        total=found.column("total_sum"),
    )


def rows(rollups: pa.Table, grain: Grain) -> pa.Table:
    """Columns of samples are null without one."""
    return aggregate(with_time(rollups, "telemetry", grain), ("tenant", "time"), _MEASURES)
