"""Computes rollups from events, for all reports."""

from collections.abc import Iterable

import pyarrow as pa  # type: ignore[import-untyped]

from postroad.pipeline.reports import computed_reports
from postroad.pipeline.rollups import NO_MEASURES, counted_measures, merge, sampled_measures

_ALWAYS = frozenset({"event", "tenant", "time", "queue"})


def measures(events: pa.Table, table: str = "events") -> pa.Table:
    """`MEASURES`: the contribution of these events of a silver table, each key once."""
    reports = computed_reports()
    events = events.select(measured_columns(events.column_names))
    own = [one.measures[table](events) for one in reports if table in one.measures]
    if table != "events":
        return merge(pa.concat_tables([NO_MEASURES, *own]))
    counted = {(one.report.identifier, label): measure for one in reports for label, measure in one.counted.items()}
    sampled = {(one.report.identifier, label): measure for one in reports for label, measure in one.sampled.items()}
    return merge(pa.concat_tables([NO_MEASURES, *counted_measures(events, counted), *sampled_measures(events, sampled), *own]))


def measured_columns(names: Iterable[str]) -> list[str]:
    """Those of the columns that measures need, which are few: others would be copied with the events of each type."""
    wanted = _ALWAYS.union(*(one.columns for one in computed_reports()))
    return [name for name in names if name in wanted]


def measured_tables() -> tuple[str, ...]:
    """Silver tables that some report measures."""
    return tuple(dict.fromkeys(("events", *(name for one in computed_reports() for name in one.measures))))
