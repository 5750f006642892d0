"""`client.insights`: what the pipeline found out; and, with a platform key, `client.pipeline`: how it is.

Each report has a method that goes through its rows, and one for a page, which says when it was computed.
"""

from typing import Any, Literal

from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import Moment, moment
from postroad.client.shapes.insights import (
    BacklogPage,
    BacklogRow,
    DeadLettersPage,
    DeadLettersRow,
    HealthPage,
    HealthRow,
    LatencyPage,
    LatencyRow,
    PipelineStatus,
    SessionsPage,
    SessionsRow,
    UsagePage,
    UsageRow,
)

Grain = Literal["minute", "hour", "day"]


def _call(report: str, answer: Any, page_size: int, cursor: str | None, **query: object) -> Call[Any]:
    query = {**query, "limit": page_size, "cursor": cursor}
    return Call(method="GET", path=f"/v1/insights/{report}", query=query, response=answer)


def _time(since: Moment | None, until: Moment | None, grain: Grain | None) -> dict[str, object]:
    return {"from": moment(since), "to": moment(until), "grain": grain}


def _pages(call: Call[Any]) -> Pages[Any]:
    return Pages(call=call, items=lambda page: page.items, cursor=lambda page: page.next_cursor)


class InsightCalls:
    """Reports over time come oldest first: of the last 24 hours if nothing else is said, by the minute, hour or day as fits the
    range, or as `grain` says."""

    @pages
    def usage(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | None = None,
        page_size: int = 200,
    ) -> Pages[UsageRow]:
        """What the tenant used. Raises Forbidden for a key that is kept to some queues, topics or streams."""
        return _pages(_call("usage", UsagePage, page_size, None, **_time(since, until, grain)))

    @operation
    def usage_page(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | None = None,
        page_size: int = 200,
        cursor: str | None = None,
    ) -> Call[UsagePage]:
        """As `usage`, but one page: it says when it was computed and, as `next_cursor`, where to go on."""
        return _call("usage", UsagePage, page_size, cursor, **_time(since, until, grain))

    @pages
    def latency(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | None = None,
        queue: str | None = None,
        page_size: int = 200,
    ) -> Pages[LatencyRow]:
        """How long messages waited, and how long their processing took."""
        return _pages(_call("latency", LatencyPage, page_size, None, **_time(since, until, grain), queue=queue))

    @operation
    def latency_page(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | None = None,
        queue: str | None = None,
        page_size: int = 200,
        cursor: str | None = None,
    ) -> Call[LatencyPage]:
        """As `latency`, but one page: it says when it was computed and, as `next_cursor`, where to go on."""
        return _call("latency", LatencyPage, page_size, cursor, **_time(since, until, grain), queue=queue)

    @pages
    def dead_letters(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | None = None,
        queue: str | None = None,
        page_size: int = 200,
    ) -> Pages[DeadLettersRow]:
        """Messages that became dead letters, by queue and reason."""
        return _pages(_call("dead-letters", DeadLettersPage, page_size, None, **_time(since, until, grain), queue=queue))

    @operation
    def dead_letters_page(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | None = None,
        queue: str | None = None,
        page_size: int = 200,
        cursor: str | None = None,
    ) -> Call[DeadLettersPage]:
        """As `dead_letters`, but one page: it says when it was computed and, as `next_cursor`, where to go on."""
        return _call("dead-letters", DeadLettersPage, page_size, cursor, **_time(since, until, grain), queue=queue)

    @pages
    def sessions(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | None = None,
        page_size: int = 200,
    ) -> Pages[SessionsRow]:
        """What happened to sessions. Raises Forbidden as `usage` does."""
        return _pages(_call("sessions", SessionsPage, page_size, None, **_time(since, until, grain)))

    @operation
    def sessions_page(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | None = None,
        page_size: int = 200,
        cursor: str | None = None,
    ) -> Call[SessionsPage]:
        """As `sessions`, but one page: it says when it was computed and, as `next_cursor`, where to go on."""
        return _call("sessions", SessionsPage, page_size, cursor, **_time(since, until, grain))

    @pages
    def backlog(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | None = None,
        queue: str | None = None,
        page_size: int = 200,
    ) -> Pages[BacklogRow]:
        """What was in the queues."""
        return _pages(_call("backlog", BacklogPage, page_size, None, **_time(since, until, grain), queue=queue))

    @operation
    def backlog_page(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | None = None,
        queue: str | None = None,
        page_size: int = 200,
        cursor: str | None = None,
    ) -> Call[BacklogPage]:
        """As `backlog`, but one page: it says when it was computed and, as `next_cursor`, where to go on."""
        return _call("backlog", BacklogPage, page_size, cursor, **_time(since, until, grain), queue=queue)

    @pages
    def health(self, *, queue: str | None = None, page_size: int = 200) -> Pages[HealthRow]:
        """How the queues are: `unhealthy` ones first, then `unknown`, then `healthy`."""
        return _pages(_call("health", HealthPage, page_size, None, queue=queue))

    @operation
    def health_page(self, *, queue: str | None = None, page_size: int = 200, cursor: str | None = None) -> Call[HealthPage]:
        """As `health`, but one page: it says when it was computed and, as `next_cursor`, where to go on."""
        return _call("health", HealthPage, page_size, cursor, queue=queue)


class Insights(InsightCalls, SyncNamespace):
    pass


class AsyncInsights(InsightCalls, AsyncNamespace):
    pass


class PipelineCalls:
    @operation
    def status(self) -> Call[PipelineStatus]:
        """How far the pipeline is, as of now. Needs a platform key."""
        return Call(method="GET", path="/api/control/pipeline", response=PipelineStatus)


class Pipeline(PipelineCalls, SyncNamespace):
    pass


class AsyncPipeline(PipelineCalls, AsyncNamespace):
    pass
