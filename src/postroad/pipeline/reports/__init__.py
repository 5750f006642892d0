"""Answers from rollups: a module for each report. To add one: measures in `rollups`, a module with its `REPORT`, a line here."""

from datetime import datetime

from pyspark.sql import DataFrame

from postroad.pipeline.reports import backlog, dead_letters, health, latency, sessions, usage
from postroad.pipeline.reports.messages import ROWS_MAX, report_messages
from postroad.pipeline.reports.report import GRAINS, Report

__all__ = ["GRAINS", "REPORTS", "Report", "messages"]

REPORTS = {one.REPORT.name: one.REPORT for one in (latency, usage, dead_letters, sessions, backlog)}
_RANKS = {**{name: report.rank for name, report in REPORTS.items()}, health.NAME: "ready"}


def messages(
    rows: DataFrame, report: str, grain: str, batch: int | str, computed_at: datetime, rows_max: int = ROWS_MAX
) -> DataFrame:
    """`subject message_id data` of the rows of a report; `grain` is `all` for health."""
    return report_messages(rows, report, grain, _RANKS[report], batch, computed_at, rows_max)
