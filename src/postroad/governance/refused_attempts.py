"""Audit entries of refused attempts: a valid credential is used for an administrative operation that it does not permit."""

import dataclasses
import functools
from collections.abc import Awaitable, Callable

import structlog

from postroad.governance.counted_entries import CountedEntries
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Forbidden, PostroadError
from postroad.kernel.identity import RouteRequirement, Scope

_INTERVAL_SECONDS = 60.0

log = structlog.get_logger("postroad.audit")


class RefusedAttempts(CountedEntries):
    """`write` appends an entry: context, operation and number of attempts."""

    def __init__(self, write: Callable[[RequestContext, str, int], Awaitable[object]]) -> None:
        super().__init__(write, interval_seconds=_INTERVAL_SECONDS, others="other operations")

    async def record(self, context: RequestContext, target: str) -> None:
        """Record or count an attempt. Does not raise: the refusal must not depend on the log."""
        try:
            await super().record(context, target)
        except PostroadError as problem:
            log.warning("refused_attempt_not_audited", operation=target, code=problem.code)

    def recorded(self, route: Route) -> Route:
        """The route, with attempts recorded that its handler refuses."""
        if not is_administrative(route):
            return route
        handler = route.handler

        @functools.wraps(handler)
        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except Forbidden:
                await self.record(request.context, operation_of(route))
                raise

        return dataclasses.replace(route, handler=handle)


def is_administrative(route: Route) -> bool:
    return route.scope in (Scope.ADMIN, RouteRequirement.PLATFORM)


def operation_of(route: Route) -> str:
    return f"{route.method} {route.path}"
