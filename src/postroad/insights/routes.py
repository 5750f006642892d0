"""HTTP routes of reports, one for each declaration, and of the pipeline's status."""

from collections.abc import Sequence
from typing import Any

from postroad.api.insights import PipelineStatus, Report, Visibility
from postroad.api.reports import reports
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Handler, Route
from postroad.insights.pipeline_status import PipelineMonitor
from postroad.insights.results import time_text
from postroad.insights.service import Insights
from postroad.kernel.clock import rfc3339
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.identity import RouteRequirement, Scope

_TAG = "Insights"
_ERRORS = (EngineUnavailable,)
_VISIBILITY = {
    Visibility.QUEUE: "A key that is restricted to some queues gets the rows of these queues.",
    Visibility.SERVICE: "A key that is restricted to some services gets the rows of these services.",
    Visibility.TENANT: "Keys that are restricted to some queues, topics or streams may not read it.",
}


class InsightRoutes:
    def __init__(self, insights: Insights, monitor: PipelineMonitor) -> None:
        self._insights, self._monitor = insights, monitor

    def table(self) -> Sequence[Route]:
        return [
            *map(self._route, reports()),
            Route(
                "GET",
                "/api/control/pipeline",
                self.show_pipeline,
                RouteRequirement.PLATFORM,
                "Show the status of the pipeline",
                _TAG,
                response=PipelineStatus,
                errors=_ERRORS,
                description="The last batch, and the number of messages that the pipeline has not read yet.",
                sdk="pipeline.status",
            ),
        ]

    def _route(self, report: Report[Any]) -> Route:
        return Route(
            "GET",
            f"/v1/insights/{report.name}",
            self._handler(report),
            Scope.READ,
            report.summary,
            _TAG,
            query=report.query,
            response=report.page,
            errors=_ERRORS,
            description=_description(report),
            sdk=f"insights.{report.identifier}",
            sdk_page=f"insights.{report.identifier}_page",
            allows_admin=True,
        )

    def _handler(self, report: Report[Any]) -> Handler:
        async def read_report(request: Request) -> Response:
            await self._monitor.request_batch()
            as_of = await self._monitor.as_of()  # before the results are read, which may be newer
            found = await self._insights.read(request.caller, report, request.query)
            span = found.span
            times = {"grain": span.grain, "since": rfc3339(span.since), "until": rfc3339(span.until)} if span else {}
            page: Any = report.page
            return Response(
                page(
                    report=report.name,
                    computed_at=None if found.computed_at is None else time_text(found.computed_at),
                    batch=found.batch,
                    as_of=as_of,
                    dropped=found.dropped,
                    next_cursor=found.cursor,
                    items=found.rows,
                    **times,
                )
            )

        read_report.__name__ = f"report_{report.identifier}"
        return read_report

    async def show_pipeline(self, _request: Request) -> Response:
        return Response(await self._monitor.read())


def _description(report: Report[Any]) -> str:
    order = "" if report.is_snapshot else "Oldest first."
    return " ".join(filter(None, (order, report.description, _VISIBILITY[report.visibility])))
