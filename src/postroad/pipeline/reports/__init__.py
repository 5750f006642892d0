"""Functions of the reports: a module for each declaration in `postroad.api.reports`, with the same name.

A module has `rows(rollups, grain)`, or `rows(rollups, now)` for a snapshot: `tenant` and the columns of the declared row type, in
Arrow. With a third parameter it gets the settings of the installation. Rollups (`MEASURES`) may be unmerged, and those of other
reports may be among them. The measures that the report needs are in `COUNTED`, `SAMPLED` (by label) or in the functions
`measures(events)`, of the table `events`, and `command_measures(events)`, of `command_events`; a report may use those of
others. Events have only the columns that reports name: as a `value`, or in `COLUMNS` if a function reads them.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from postroad.api.insights import Report
from postroad.api.reports import reports
from postroad.pipeline.rollups import Counted, Sampled

_FUNCTIONS = {"events": "measures", "command_events": "command_measures"}


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """Settings of the installation that reports need."""

    window_seconds: int = 60  # how far the timestamp of a command may differ from the engine's time


DEFAULT_SETTINGS = ReportSettings()


@dataclass(frozen=True, slots=True)
class ComputedReport:
    """A declared report with the functions and measures of its module. `measures` is by silver table."""

    report: Report[Any]
    rows: Callable[..., Any]
    counted: Mapping[str, Counted]
    sampled: Mapping[str, Sampled]
    measures: Mapping[str, Callable[[Any], Any]]
    columns: frozenset[str]


@cache
def computed_reports(settings: ReportSettings = DEFAULT_SETTINGS) -> tuple[ComputedReport, ...]:
    return tuple(_load(report, settings) for report in reports())


def _load(report: Report[Any], settings: ReportSettings) -> ComputedReport:
    module = importlib.import_module(f"{__name__}.{report.identifier}")
    rows = partial(module.rows, settings=settings) if "settings" in inspect.signature(module.rows).parameters else module.rows
    functions = {table: getattr(module, name) for table, name in _FUNCTIONS.items() if hasattr(module, name)}
    counted, sampled = getattr(module, "COUNTED", {}), getattr(module, "SAMPLED", {})
    values = (one.value for one in (*counted.values(), *sampled.values()))
    columns = {value for value in values if isinstance(value, str)} | set(getattr(module, "COLUMNS", ()))
    return ComputedReport(report, rows, counted, sampled, functions, frozenset(columns))
