"""Computes rollups from events, for all reports."""

import pyarrow as pa  # type: ignore[import-untyped]

from postroad.pipeline.reports import computed_reports
from postroad.pipeline.rollups import NO_MEASURES, counted_measures, merge, sampled_measures


def measures(events: pa.Table) -> pa.Table:
    """`MEASURES`: the contribution of these events, each key once."""
    reports = computed_reports()
    counted = {(one.report.identifier, label): measure for one in reports for label, measure in one.counted.items()}
    sampled = {(one.report.identifier, label): measure for one in reports for label, measure in one.sampled.items()}
    own = [one.measures(events) for one in reports if one.measures is not None]
    return merge(pa.concat_tables([NO_MEASURES, *counted_measures(events, counted), *sampled_measures(events, sampled), *own]))
