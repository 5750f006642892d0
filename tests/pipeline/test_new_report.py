"""Adding a report adds two modules: its declaration and its function. Everything else follows."""

import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from postroad.api import reports as declarations
from postroad.api.insights import Grain
from postroad.cli.insights import insight_commands
from postroad.codegen import sdk
from postroad.container import described_assembly, openapi
from postroad.insights.results import read_results
from postroad.pipeline import reports as functions
from postroad.pipeline.job_names import job_names
from postroad.pipeline.measures import measures
from postroad.pipeline.report_messages import report_messages
from postroad.report.fetch import DayData, TenantData
from postroad.report.page import render_page
from tests.architecture.test_architecture import write_docs
from tests.pipeline.event_samples import sample_events
from tests.pipeline.frames import events_table

DECLARATION = '''
"""Deliveries of messages."""

from postroad.api.insights import Report, Row, Start, TimePage, Visibility


class DeliveriesRow(Row, frozen=True, kw_only=True):
    """The number of deliveries in that time."""

    time: Start
    leased: int


class DeliveriesPage(TimePage[DeliveriesRow], frozen=True, kw_only=True):
    items: list[DeliveriesRow]


REPORT = Report(
    name="deliveries",
    row=DeliveriesRow,
    page=DeliveriesPage,
    summary="Report deliveries of messages",
    visibility=Visibility.TENANT,
    rank="leased",
)
'''

FUNCTION = '''
"""Deliveries of messages."""

import pyarrow as pa

from postroad.api.insights import Grain
from postroad.pipeline.aggregates import Measure, aggregate, with_time
from postroad.pipeline.rollups import Counted

COUNTED = {"leased": Counted("job.leased")}


def rows(rollups: pa.Table, grain: Grain) -> pa.Table:
    return aggregate(with_time(rollups, "deliveries", grain), ("tenant", "time"), {"leased": Measure("leased", "count")})
'''


@pytest.fixture(scope="module", autouse=True)
def added(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The two modules, each in its package."""
    folder = tmp_path_factory.mktemp("report")
    for package, text in ((declarations, DECLARATION), (functions, FUNCTION)):
        home = Path(folder / package.__name__)
        home.mkdir()
        (home / "deliveries.py").write_text(text)
        package.__path__.append(str(home))
    _forget()
    yield
    for package in (declarations, functions):
        package.__path__.pop()
        sys.modules.pop(f"{package.__name__}.deliveries", None)
    _forget()


def _forget() -> None:
    declarations.reports.cache_clear()
    functions.computed_reports.cache_clear()


def test_it_is_computed_published_and_read_by_the_service() -> None:
    assert "deliveries" in job_names()
    rollups = measures(events_table(sample_events()))
    [added] = [one for one in functions.computed_reports() if one.report.name == "deliveries"]
    computed = added.rows(rollups, Grain.DAY)
    [message] = [
        one
        for one in report_messages(computed, added.report, Grain.DAY, 1, datetime.now(UTC))
        if one.subject.startswith("insight.acme.deliveries.")
    ]
    results = read_results(message.data, added.report, "acme")
    assert results is not None
    assert [row.leased for _, row in results.rows] == [row["leased"] for row in computed.to_pylist() if row["tenant"] == "acme"]


def test_it_has_a_route_a_description_an_sdk_method_and_a_command() -> None:
    assert "/v1/insights/deliveries" in openapi()["paths"]
    routes = sdk.namespaces(described_assembly().routes)["insights"]
    assert "def deliveries(" in sdk.namespace_module("insights", routes)
    result = CliRunner().invoke(insight_commands(declarations.reports()), ["deliveries", "--help"])
    assert "Report deliveries of messages" in result.stdout


def test_it_has_a_section_on_the_report_page() -> None:
    [report] = [one for one in declarations.reports() if one.name == "deliveries"]
    rows = [report.row(time=f"2026-11-16T{hour:02}:00:00Z", leased=hour) for hour in (1, 2)]
    data = TenantData("acme", {"deliveries": rows})
    page = render_page(DayData(date(2026, 11, 16), "hour", (data,), "http://127.0.0.1", datetime.now(UTC)))
    assert ">Deliveries</h3>" in page and "3 leased." in page


def test_its_columns_are_in_the_documentation() -> None:
    page = write_docs().insights_page()
    assert "| `deliveries` | the number of deliveries in that time | 403 |" in page and "| `leased` |" in page
