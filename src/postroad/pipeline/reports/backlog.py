"""Contents of queues over time."""

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.api.insights import Grain
from postroad.pipeline.aggregates import Measure, aggregate, with_time
from postroad.pipeline.rollups import Sampled

COLUMNS = ("retrying", "oldest_age_ms", "out_per_second", "seconds")


def _or_zero(name: str) -> Any:
    return lambda events: pc.fill_null(events.column(name), 0)


def _out(events: pa.Table) -> Any:
    """Messages that left; a small outflow is rounded up to 1."""
    count = pc.multiply(events.column("out_per_second"), events.column("seconds"))
    whole = pc.max_element_wise(pc.round(count, round_mode="half_towards_infinity"), 1.0)
    return pc.if_else(pc.greater(count, 0.0), whole, 0.0).cast(pa.int64())


# An empty queue has an oldest message of 0 ms, so that its last sample shows that no message waits any more. All are whole
# numbers, whose sums do not depend on the order.
_LEVELS: dict[str, Any] = {
    **{name: name for name in ("ready", "leased", "delayed", "dead", "waiting", "expected_drain_seconds")},
    "retrying": _or_zero("retrying"),  # older samples do not have it: their `leased` contains these messages
    "oldest_age_ms": _or_zero("oldest_age_ms"),
    "out": _out,
}
SAMPLED = {label: Sampled("queue.sampled", level) for label, level in _LEVELS.items()}
_MEANS = ("ready", "leased", "retrying", "delayed", "dead")


def rows(rollups: pa.Table, grain: Grain) -> pa.Table:
    """Means of the samples, except for `readyMax` and `oldestAgeMsMax`."""
    measures = {
        **{name: Measure(name, "mean") for name in _MEANS},
        "readyMax": Measure("ready", "top"),
        "oldest": Measure("oldest_age_ms", "top"),
    }
    found = aggregate(with_time(rollups, "backlog", grain), ("tenant", "time", "name"), measures)
    oldest = found.column("oldest")
    is_waiting = pc.or_kleene(pc.greater(found.column("readyMax"), 0), pc.greater(oldest, 0))
    means = {name: found.column(name) for name in _MEANS} | {"retrying": pc.fill_null(found.column("retrying"), 0.0)}
    return pa.table(
        {
            **{name: found.column(name) for name in ("tenant", "time")},
            "queue": found.column("name"),
            "ready": means.pop("ready"),
            "readyMax": found.column("readyMax"),
            **means,
            "oldestAgeMsMax": pc.if_else(is_waiting, oldest, pa.scalar(None, pa.int64())),
        }
    )
