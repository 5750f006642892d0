"""Calls of `client.insights`. Generated from the route table by `make generate`; do not edit."""

from postroad.api.insights import Grain
from postroad.api.reports.backlog import BacklogPage, BacklogRow
from postroad.api.reports.commands import CommandsPage, CommandsRow
from postroad.api.reports.dead_letters import DeadLettersPage, DeadLettersRow
from postroad.api.reports.fairness import FairnessPage, FairnessRow
from postroad.api.reports.health import HealthPage, HealthRow
from postroad.api.reports.latency import LatencyPage, LatencyRow
from postroad.api.reports.limits import LimitsPage, LimitsRow
from postroad.api.reports.sessions import SessionsPage, SessionsRow
from postroad.api.reports.skew import SkewPage, SkewRow
from postroad.api.reports.telemetry import TelemetryPage, TelemetryRow
from postroad.api.reports.usage import UsagePage, UsageRow
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import Moment, moment


class InsightsCalls:
    @pages
    def backlog(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | str | None = None,
        queue: str | None = None,
        page_size: int = 200,
    ) -> Pages[BacklogRow]:
        """Report the contents of queues: means, and the largest number of ready messages.

        Oldest first. A key that is restricted to some queues gets the rows of these queues.
        """
        return Pages(
            call=Call(
                method="GET",
                path="/v1/insights/backlog",
                query={"from": moment(since), "to": moment(until), "grain": grain, "queue": queue, "limit": page_size},
                response=BacklogPage,
            )
        )

    @operation
    def backlog_page(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | str | None = None,
        queue: str | None = None,
        page_size: int = 200,
        cursor: str | None = None,
    ) -> Call[BacklogPage]:
        """One page of `backlog`, with its other fields. `cursor` is the `next_cursor` of the previous page."""
        return Call(
            method="GET",
            path="/v1/insights/backlog",
            query={
                "from": moment(since),
                "to": moment(until),
                "grain": grain,
                "queue": queue,
                "limit": page_size,
                "cursor": cursor,
            },
            response=BacklogPage,
        )

    @pages
    def commands(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | str | None = None,
        service: str | None = None,
        page_size: int = 200,
    ) -> Pages[CommandsRow]:
        """Report the commands that were sent and received, by outcome, with the latency of their dispatch.

        Oldest first. A sender sees the outcome of its commands; the owner of a route those of the senders that it has
        granted it to. A key that is restricted to some services gets the rows of these services.
        """
        return Pages(
            call=Call(
                method="GET",
                path="/v1/insights/commands",
                query={"from": moment(since), "to": moment(until), "grain": grain, "service": service, "limit": page_size},
                response=CommandsPage,
            )
        )

    @operation
    def commands_page(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | str | None = None,
        service: str | None = None,
        page_size: int = 200,
        cursor: str | None = None,
    ) -> Call[CommandsPage]:
        """One page of `commands`, with its other fields. `cursor` is the `next_cursor` of the previous page."""
        return Call(
            method="GET",
            path="/v1/insights/commands",
            query={
                "from": moment(since),
                "to": moment(until),
                "grain": grain,
                "service": service,
                "limit": page_size,
                "cursor": cursor,
            },
            response=CommandsPage,
        )

    @pages
    def dead_letters(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | str | None = None,
        queue: str | None = None,
        page_size: int = 200,
    ) -> Pages[DeadLettersRow]:
        """Report messages that became dead letters, by queue and reason.

        Oldest first. Many failures at the first attempt indicate a misconfigured consumer. A key that is restricted to
        some queues gets the rows of these queues.
        """
        return Pages(
            call=Call(
                method="GET",
                path="/v1/insights/dead-letters",
                query={"from": moment(since), "to": moment(until), "grain": grain, "queue": queue, "limit": page_size},
                response=DeadLettersPage,
            )
        )

    @operation
    def dead_letters_page(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | str | None = None,
        queue: str | None = None,
        page_size: int = 200,
        cursor: str | None = None,
    ) -> Call[DeadLettersPage]:
        """One page of `dead_letters`, with its other fields. `cursor` is the `next_cursor` of the previous page."""
        return Call(
            method="GET",
            path="/v1/insights/dead-letters",
            query={
                "from": moment(since),
                "to": moment(until),
                "grain": grain,
                "queue": queue,
                "limit": page_size,
                "cursor": cursor,
            },
            response=DeadLettersPage,
        )

    @pages
    def fairness(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | str | None = None,
        service: str | None = None,
        page_size: int = 200,
    ) -> Pages[FairnessRow]:
        """Report the share of each source on the routes of the tenant, and bans.

        Oldest first. The tenant of a source sees its own numbers, and not those of its competitors. A key that is
        restricted to some services gets the rows of these services.
        """
        return Pages(
            call=Call(
                method="GET",
                path="/v1/insights/fairness",
                query={"from": moment(since), "to": moment(until), "grain": grain, "service": service, "limit": page_size},
                response=FairnessPage,
            )
        )

    @operation
    def fairness_page(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | str | None = None,
        service: str | None = None,
        page_size: int = 200,
        cursor: str | None = None,
    ) -> Call[FairnessPage]:
        """One page of `fairness`, with its other fields. `cursor` is the `next_cursor` of the previous page."""
        return Call(
            method="GET",
            path="/v1/insights/fairness",
            query={
                "from": moment(since),
                "to": moment(until),
                "grain": grain,
                "service": service,
                "limit": page_size,
                "cursor": cursor,
            },
            response=FairnessPage,
        )

    @pages
    def health(self, *, queue: str | None = None, page_size: int = 200) -> Pages[HealthRow]:
        """Report the current state of queues, the worst first.

        As of `computedAt`: first `unhealthy`, then `unknown`, then `healthy` queues. A key that is restricted to some
        queues gets the rows of these queues.
        """
        return Pages(
            call=Call(method="GET", path="/v1/insights/health", query={"queue": queue, "limit": page_size}, response=HealthPage)
        )

    @operation
    def health_page(self, *, queue: str | None = None, page_size: int = 200, cursor: str | None = None) -> Call[HealthPage]:
        """One page of `health`, with its other fields. `cursor` is the `next_cursor` of the previous page."""
        return Call(
            method="GET",
            path="/v1/insights/health",
            query={"queue": queue, "limit": page_size, "cursor": cursor},
            response=HealthPage,
        )

    @pages
    def latency(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | str | None = None,
        queue: str | None = None,
        page_size: int = 200,
    ) -> Pages[LatencyRow]:
        """Report the time that messages waited for their first delivery, and the time of their processing.

        Oldest first. A key that is restricted to some queues gets the rows of these queues.
        """
        return Pages(
            call=Call(
                method="GET",
                path="/v1/insights/latency",
                query={"from": moment(since), "to": moment(until), "grain": grain, "queue": queue, "limit": page_size},
                response=LatencyPage,
            )
        )

    @operation
    def latency_page(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | str | None = None,
        queue: str | None = None,
        page_size: int = 200,
        cursor: str | None = None,
    ) -> Call[LatencyPage]:
        """One page of `latency`, with its other fields. `cursor` is the `next_cursor` of the previous page."""
        return Call(
            method="GET",
            path="/v1/insights/latency",
            query={
                "from": moment(since),
                "to": moment(until),
                "grain": grain,
                "queue": queue,
                "limit": page_size,
                "cursor": cursor,
            },
            response=LatencyPage,
        )

    @pages
    def limits(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | str | None = None,
        service: str | None = None,
        page_size: int = 200,
    ) -> Pages[LimitsRow]:
        """Report the use of the rate limits of the tenant's routes.

        Oldest first. A key that is restricted to some services gets the rows of these services.
        """
        return Pages(
            call=Call(
                method="GET",
                path="/v1/insights/limits",
                query={"from": moment(since), "to": moment(until), "grain": grain, "service": service, "limit": page_size},
                response=LimitsPage,
            )
        )

    @operation
    def limits_page(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | str | None = None,
        service: str | None = None,
        page_size: int = 200,
        cursor: str | None = None,
    ) -> Call[LimitsPage]:
        """One page of `limits`, with its other fields. `cursor` is the `next_cursor` of the previous page."""
        return Call(
            method="GET",
            path="/v1/insights/limits",
            query={
                "from": moment(since),
                "to": moment(until),
                "grain": grain,
                "service": service,
                "limit": page_size,
                "cursor": cursor,
            },
            response=LimitsPage,
        )

    @pages
    def sessions(
        self, *, since: Moment | None = None, until: Moment | None = None, grain: Grain | str | None = None, page_size: int = 200
    ) -> Pages[SessionsRow]:
        """Report sessions that subscribed, were touched, deleted or expired.

        Oldest first. Keys that are restricted to some queues, topics or streams may not read it.
        """
        return Pages(
            call=Call(
                method="GET",
                path="/v1/insights/sessions",
                query={"from": moment(since), "to": moment(until), "grain": grain, "limit": page_size},
                response=SessionsPage,
            )
        )

    @operation
    def sessions_page(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | str | None = None,
        page_size: int = 200,
        cursor: str | None = None,
    ) -> Call[SessionsPage]:
        """One page of `sessions`, with its other fields. `cursor` is the `next_cursor` of the previous page."""
        return Call(
            method="GET",
            path="/v1/insights/sessions",
            query={"from": moment(since), "to": moment(until), "grain": grain, "limit": page_size, "cursor": cursor},
            response=SessionsPage,
        )

    @pages
    def skew(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | str | None = None,
        service: str | None = None,
        page_size: int = 200,
    ) -> Pages[SkewRow]:
        """Report how far the clocks of the services that send commands differ from the engine's.

        Oldest first. A key that is restricted to some services gets the rows of these services.
        """
        return Pages(
            call=Call(
                method="GET",
                path="/v1/insights/skew",
                query={"from": moment(since), "to": moment(until), "grain": grain, "service": service, "limit": page_size},
                response=SkewPage,
            )
        )

    @operation
    def skew_page(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | str | None = None,
        service: str | None = None,
        page_size: int = 200,
        cursor: str | None = None,
    ) -> Call[SkewPage]:
        """One page of `skew`, with its other fields. `cursor` is the `next_cursor` of the previous page."""
        return Call(
            method="GET",
            path="/v1/insights/skew",
            query={
                "from": moment(since),
                "to": moment(until),
                "grain": grain,
                "service": service,
                "limit": page_size,
                "cursor": cursor,
            },
            response=SkewPage,
        )

    @pages
    def telemetry(
        self, *, since: Moment | None = None, until: Moment | None = None, grain: Grain | str | None = None, page_size: int = 200
    ) -> Pages[TelemetryRow]:
        """Report the events of the tenant's commands, and whether its telemetry queue is read.

        Oldest first. Keys that are restricted to some queues, topics or streams may not read it.
        """
        return Pages(
            call=Call(
                method="GET",
                path="/v1/insights/telemetry",
                query={"from": moment(since), "to": moment(until), "grain": grain, "limit": page_size},
                response=TelemetryPage,
            )
        )

    @operation
    def telemetry_page(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | str | None = None,
        page_size: int = 200,
        cursor: str | None = None,
    ) -> Call[TelemetryPage]:
        """One page of `telemetry`, with its other fields. `cursor` is the `next_cursor` of the previous page."""
        return Call(
            method="GET",
            path="/v1/insights/telemetry",
            query={"from": moment(since), "to": moment(until), "grain": grain, "limit": page_size, "cursor": cursor},
            response=TelemetryPage,
        )

    @pages
    def usage(
        self, *, since: Moment | None = None, until: Moment | None = None, grain: Grain | str | None = None, page_size: int = 200
    ) -> Pages[UsageRow]:
        """Report the tenant's usage: messages, deliveries, requests, appends, storage.

        Oldest first. Keys that are restricted to some queues, topics or streams may not read it.
        """
        return Pages(
            call=Call(
                method="GET",
                path="/v1/insights/usage",
                query={"from": moment(since), "to": moment(until), "grain": grain, "limit": page_size},
                response=UsagePage,
            )
        )

    @operation
    def usage_page(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        grain: Grain | str | None = None,
        page_size: int = 200,
        cursor: str | None = None,
    ) -> Call[UsagePage]:
        """One page of `usage`, with its other fields. `cursor` is the `next_cursor` of the previous page."""
        return Call(
            method="GET",
            path="/v1/insights/usage",
            query={"from": moment(since), "to": moment(until), "grain": grain, "limit": page_size, "cursor": cursor},
            response=UsagePage,
        )


class Insights(InsightsCalls, SyncNamespace):
    pass


class AsyncInsights(InsightsCalls, AsyncNamespace):
    pass
