"""Functions of the reports: a module for each declaration in `postroad.api.reports`, with the same name.

A module has `rows(rollups, grain)`, or `rows(rollups, now)` for a snapshot: `tenant` and the columns of the declared row type, in
Arrow. Rollups (`MEASURES`) may be unmerged, and those of other reports may be among them. The measures that the report needs are
in `COUNTED`, `SAMPLED` (by label) or the function `measures(events)`; a report may also use those of others.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from postroad.api.insights import Report
from postroad.api.reports import reports
from postroad.pipeline.rollups import Counted, Sampled


@dataclass(frozen=True, slots=True)
class ComputedReport:
    """A declared report with the functions and measures of its module."""

    report: Report[Any]
    rows: Callable[..., Any]
    counted: Mapping[str, Counted]
    sampled: Mapping[str, Sampled]
    measures: Callable[[Any], Any] | None


@cache
def computed_reports() -> tuple[ComputedReport, ...]:
    return tuple(map(_load, reports()))


def _load(report: Report[Any]) -> ComputedReport:
    module = importlib.import_module(f"{__name__}.{report.identifier}")
    return ComputedReport(
        report, module.rows, getattr(module, "COUNTED", {}), getattr(module, "SAMPLED", {}), getattr(module, "measures", None)
    )
