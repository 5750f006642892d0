"""Results over HTTP: one service call, JSON out."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Handler, Route
from postroad.insights.pipeline_status import PipelineStatus, PipelineWatch
from postroad.insights.rows import (
    BacklogRow,
    Batch,
    DeadLettersRow,
    HealthRow,
    LatencyRow,
    Report,
    SessionsRow,
    UsageRow,
    When,
)
from postroad.insights.rules import Grain
from postroad.insights.service import Found, Insights
from postroad.kernel.clock import Timestamp, rfc3339
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.identity import RouteRequirement, Scope

QueueName = Annotated[str, Meta(min_length=1, max_length=80)]
Limit = Annotated[int, Meta(ge=1, le=1000)]
Cursor = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,2048}$")]


class TimeQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"since": "from", "until": "to"}):
    since: Annotated[When | None, Meta(description="A day before `to`, if it is left out.")] = None
    until: Annotated[When | None, Meta(description="Now, if it is left out.")] = None
    grain: Annotated[
        Grain | None, Meta(description="If left out: `minute` for up to 2 hours, `hour` for up to 3 days, else `day`.")
    ] = None
    limit: Limit = 200
    cursor: Cursor | None = None


class QueueTimeQuery(TimeQuery, frozen=True, forbid_unknown_fields=True, rename={"since": "from", "until": "to"}):
    queue: QueueName | None = None


class HealthQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    queue: QueueName | None = None
    limit: Limit = 200
    cursor: Cursor | None = None


class Answer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`computedAt`: when the newest of these results were computed, and `batch` by which batch; null: none were yet."""

    report: str
    computed_at: When | None
    batch: Batch | None
    dropped: Annotated[int, Meta(description="Rows that are missing since a result has at most 10,000.")]
    next_cursor: str | None


class TimeAnswer(Answer, frozen=True, kw_only=True, rename={"since": "from", "until": "to"}):
    """The range in whole minutes, hours or days."""

    grain: Grain
    since: Timestamp
    until: Timestamp


class UsageReport(TimeAnswer, frozen=True, kw_only=True):
    items: list[UsageRow]


class LatencyReport(TimeAnswer, frozen=True, kw_only=True):
    items: list[LatencyRow]


class DeadLettersReport(TimeAnswer, frozen=True, kw_only=True):
    items: list[DeadLettersRow]


class SessionsReport(TimeAnswer, frozen=True, kw_only=True):
    items: list[SessionsRow]


class BacklogReport(TimeAnswer, frozen=True, kw_only=True):
    items: list[BacklogRow]


class HealthReport(Answer, frozen=True, kw_only=True):
    items: list[HealthRow]


_TAG = "Insights"
_ERRORS = (EngineUnavailable,)
_BY_TIME = "Oldest first, as the pipeline computed it; `computedAt` says when."
_OF_QUEUES = f"{_BY_TIME} A key that is kept to some queues sees the rows of these."
_OF_TENANT = f"{_BY_TIME} Not for keys that are kept to some queues, topics or streams."


class InsightRoutes:
    def __init__(self, insights: Insights, watch: PipelineWatch) -> None:
        self._insights, self._watch = insights, watch

    def table(self) -> Sequence[Route]:
        return [
            _route(Report.USAGE, self.report_usage, "What was used, over time", TimeQuery, UsageReport, _OF_TENANT),
            _route(Report.LATENCY, self.report_latency, "How long messages took", QueueTimeQuery, LatencyReport, _OF_QUEUES),
            _route(
                Report.DEAD_LETTERS,
                self.report_dead_letters,
                "Dead letters over time, by reason",
                QueueTimeQuery,
                DeadLettersReport,
                _OF_QUEUES,
            ),
            _route(Report.SESSIONS, self.report_sessions, "What sessions did, over time", TimeQuery, SessionsReport, _OF_TENANT),
            _route(
                Report.BACKLOG, self.report_backlog, "What was in queues, over time", QueueTimeQuery, BacklogReport, _OF_QUEUES
            ),
            _route(
                Report.HEALTH,
                self.report_health,
                "How queues are",
                HealthQuery,
                HealthReport,
                "As of `computedAt`, the worst first: `unhealthy`, `unknown`, `healthy`. "
                "A key that is kept to some queues sees these.",
            ),
            Route(
                "GET",
                "/api/control/pipeline",
                self.show_pipeline,
                RouteRequirement.PLATFORM,
                "How is the pipeline?",
                _TAG,
                response=PipelineStatus,
                errors=_ERRORS,
                description="What it said after its last batch, and how far it is behind the streams at this moment.",
            ),
        ]

    async def report_usage(self, request: Request) -> Response:
        return await self._over_time(request, Report.USAGE, UsageReport)

    async def report_latency(self, request: Request) -> Response:
        return await self._over_time(request, Report.LATENCY, LatencyReport)

    async def report_dead_letters(self, request: Request) -> Response:
        return await self._over_time(request, Report.DEAD_LETTERS, DeadLettersReport)

    async def report_sessions(self, request: Request) -> Response:
        return await self._over_time(request, Report.SESSIONS, SessionsReport)

    async def report_backlog(self, request: Request) -> Response:
        return await self._over_time(request, Report.BACKLOG, BacklogReport)

    async def _over_time(self, request: Request, report: Report, answer: type[Any]) -> Response:
        query: TimeQuery = request.query
        found = await self._insights.over_time(
            request.caller,
            report,
            since=_millis(query.since),
            until=_millis(query.until),
            grain=query.grain,
            queue=query.queue if isinstance(query, QueueTimeQuery) else None,
            limit=query.limit,
            cursor=query.cursor,
        )
        grain, since, until = found.asked or (Grain.DAY, 0, 0)
        return Response(answer(grain=grain, since=rfc3339(since), until=rfc3339(until), **_page(report, found)))

    async def report_health(self, request: Request) -> Response:
        query: HealthQuery = request.query
        found = await self._insights.health(request.caller, queue=query.queue, limit=query.limit, cursor=query.cursor)
        return Response(HealthReport(**_page(Report.HEALTH, found)))

    async def show_pipeline(self, _request: Request) -> Response:
        return Response(await self._watch.now())


def _route(report: Report, handler: Handler, summary: str, query: Any, answer: Any, description: str) -> Route:
    path = f"/v1/insights/{report.value}"
    return Route(
        "GET", path, handler, Scope.READ, summary, _TAG, query=query, response=answer, errors=_ERRORS, description=description
    )


def _page(report: Report, found: Found) -> dict[str, Any]:
    return {
        "report": report.value,
        "computed_at": found.computed_at,
        "batch": found.batch,
        "items": found.rows,
        "dropped": found.dropped,
        "next_cursor": found.cursor,
    }


def _millis(when: datetime | None) -> int | None:
    return None if when is None else max(0, int(when.timestamp() * 1000))
