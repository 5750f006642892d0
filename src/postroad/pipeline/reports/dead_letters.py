"""Dead letters by queue and reason."""

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.api.insights import Grain
from postroad.pipeline.aggregates import times_of, with_time
from postroad.pipeline.rollups import measures_of, millis_of, minutes_of, of_type

COLUMNS = ("attempt", "reason", "from_queue")
REASON_CHARACTERS_MAX = 200  # consumers choose the reason freely: reasons with the same beginning are counted together


def measures(events: pa.Table) -> pa.Table:
    """`bucket` is 1 for a failure at the first attempt, else 2. Redriven messages have the reason `redriven`."""
    rows = of_type(events, "job.dead", "job.redriven")
    is_redriven = pc.equal(rows.column("event"), "job.redriven")
    is_first = pc.and_(pc.invert(is_redriven), pc.fill_null(pc.equal(rows.column("attempt"), 1), False))
    return measures_of(
        len(rows),
        report="dead_letters",
        tenant=rows.column("tenant"),
        minute=minutes_of(rows.column("time")),
        name=pc.if_else(is_redriven, rows.column("from_queue"), rows.column("queue")),
        label=pc.if_else(is_redriven, "redriven", pc.utf8_slice_codeunits(rows.column("reason"), 0, REASON_CHARACTERS_MAX)),
        bucket=pc.if_else(is_first, 1, 2),
        last_at=millis_of(rows.column("time")),
        last_value=pc.fill_null(rows.column("attempt"), 0),
    )


def rows(rollups: pa.Table, grain: Grain) -> pa.Table:
    chosen = with_time(rollups, "dead_letters", grain)
    first = pc.if_else(pc.equal(chosen.column("bucket"), 1), chosen.column("n"), 0)
    keys = ["tenant", "time", "name", "label"]
    found = (
        chosen.append_column("first", first)
        .group_by(keys, use_threads=False)
        .aggregate([("n", "sum"), ("first", "sum"), ("last_at", "max")])
    )
    return pa.table(
        {
            "tenant": found.column("tenant"),
            "time": found.column("time"),
            "queue": found.column("name"),
            "reason": found.column("label"),
            "count": found.column("n_sum"),
            "firstAttempt": found.column("first_sum"),
            "lastAt": times_of(found.column("last_at_max")),
        }
    )
