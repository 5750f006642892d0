"""Audit entries of refused attempts: a valid credential is used for an administrative operation that it does not permit.

The first attempt of a key at an operation is recorded at once. Repetitions within the interval are counted and become one entry,
and a tenant has a limited number of entries per interval and process, so that attempts cannot fill the log.
"""

import asyncio
import dataclasses
import functools
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Forbidden, PostroadError
from postroad.kernel.identity import RouteRequirement, Scope

INTERVAL_SECONDS = 60.0
OPERATIONS_PER_TENANT_MAX = 20
_OTHERS = "other operations"

log = structlog.get_logger("postroad.audit")


@dataclass(slots=True)
class _Repeated:
    """Attempts since the last entry, and the latest of them."""

    context: RequestContext
    count: int = 0


class RefusedAttempts:
    """`write` appends an entry: context, operation and number of attempts."""

    def __init__(self, write: Callable[[RequestContext, str, int], Awaitable[object]]) -> None:
        self._write = write
        self._repeated: dict[tuple[str, str, str], _Repeated] = {}
        self._operations = Counter[str]()  # of each tenant in this interval

    async def record(self, context: RequestContext, operation: str) -> None:
        """Record or count an attempt. Does not raise: the refusal must not depend on the log."""
        tenant = context.tenant
        key = (tenant, context.caller.key_id, operation)
        is_new = key not in self._repeated
        if is_new and self._operations[tenant] >= OPERATIONS_PER_TENANT_MAX:
            key, is_new = (tenant, "", _OTHERS), False
        repeated = self._repeated.setdefault(key, _Repeated(context))
        repeated.context = context
        if is_new:
            self._operations[tenant] += 1
            await self._append(context, operation, 1)
        else:
            repeated.count += 1

    async def flush(self) -> None:
        """Write the counted repetitions; the next attempt is recorded at once again."""
        ended, self._repeated = self._repeated, {}
        self._operations.clear()
        for (_, _, operation), repeated in ended.items():
            if repeated.count:
                await self._append(repeated.context, operation, repeated.count)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            await self.flush()

    async def _append(self, context: RequestContext, operation: str, count: int) -> None:
        try:
            await self._write(context, operation, count)
        except PostroadError as problem:
            log.warning("refused_attempt_not_audited", operation=operation, attempts=count, code=problem.code)

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
