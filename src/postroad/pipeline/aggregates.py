"""Adds up rollups for the rows of reports. In Arrow.

A report selects its measures by their label: `Total("published")`, `Mean("ready")`. All of them are one aggregation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.api.insights import Grain
from postroad.pipeline.rollups import TIME, floored

SECONDS = {Grain.DAY: 86_400, Grain.HOUR: 3_600, Grain.MINUTE: 60}  # days are UTC


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure of one label: the sum of whole numbers (`total`), the number of values (`count`), their `mean`, the largest
    (`top`), the latest (`last`), or the time of the latest (`last_at`). Sums and numbers are 0 without measures, others null."""

    label: str
    what: Literal["total", "count", "mean", "top", "last", "last_at"]


_AGGREGATIONS = {
    "total": [("total", "sum")],
    "count": [("n", "sum")],
    "mean": [("total", "sum"), ("n", "sum")],
    "top": [("top", "max")],
    "last": [("last_value", "last")],
    "last_at": [("last_at", "last")],
}


def with_time(rollups: pa.Table, report: str, grain: Grain) -> pa.Table:
    """The rollups of a report, with `time`: the start of the day, hour or minute."""
    chosen = rollups.filter(pc.equal(rollups.column("report"), report))
    return chosen.append_column("time", floored(chosen.column("minute"), SECONDS[grain]))


def aggregate(rollups: pa.Table, keys: Sequence[str], measures: Mapping[str, Measure]) -> pa.Table:
    """A row for each value of the keys, with the measures by name."""
    wanted = {(one.label, column, how) for one in measures.values() for column, how in _AGGREGATIONS[one.what]}
    if any(column.startswith("last") for _, column, _ in wanted):
        rollups = rollups.sort_by([("last_at", "ascending"), ("last_value", "ascending")])
    is_label = {label: pc.equal(rollups.column("label"), label) for label, _, _ in wanted}
    columns = {name: rollups.column(name) for name in keys}
    for label, column, _ in wanted:
        values = rollups.column(column)
        columns[f"{label}.{column}"] = pc.if_else(is_label[label], values, pa.scalar(None, values.type))
    grouped = (
        pa.table(columns)
        .group_by(list(keys), use_threads=False)
        .aggregate([(f"{label}.{column}", how) for label, column, how in sorted(wanted)])
    )
    found = {name: grouped.column(name) for name in keys}
    return pa.table({**found, **{name: _result(grouped, one) for name, one in measures.items()}})


def _result(grouped: pa.Table, one: Measure) -> Any:
    first, *others = (grouped.column(f"{one.label}.{column}_{how}") for column, how in _AGGREGATIONS[one.what])
    if one.what in ("total", "count"):
        return pc.fill_null(first.cast(pa.int64(), safe=False), 0)
    return rounded(pc.divide(first, others[0])) if one.what == "mean" else first


def rounded(numbers: Any) -> Any:
    """To three digits, halves away from zero."""
    return pc.round(numbers, 3, round_mode="half_towards_infinity")


def times_of(millis: Any) -> Any:
    return pc.multiply(millis, 1000).cast(TIME)
