"""Dry run of a route: the checks of a dispatch, without a command."""

from postroad.api.commands import RouteCheck, RouteTest, RouteTestResult
from postroad.api.queues import QueueNotFound
from postroad.commands.records import RouteRecord
from postroad.commands.registry_view import known_route
from postroad.commands.route_registry import RouteRegistry
from postroad.commands.rules import grant_source
from postroad.kernel.clock import Clock
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.records import QueueRecord


class RouteTester:
    def __init__(self, routes: RouteRegistry, queues: QueueLifecycle, clock: Clock) -> None:
        self._routes, self._queues, self._clock = routes, queues, clock

    async def test(self, record: RouteRecord, wanted: RouteTest) -> RouteTestResult:
        """Raises EngineUnavailable."""
        queue = await self._queue(record)
        now, source = self._clock(), grant_source(record.tenant, wanted.source) or wanted.source
        route = known_route(record)
        grant = route.grant(source, now)
        is_encrypted = self._routes.is_encrypted
        checks = [
            ("route", route.is_active(now), "registered" if route.is_active(now) else "expired", "route-missing"),
            (
                "signature",
                wanted.is_signed or record.signature != "required",
                record.signature,
                "command-invalid",
            ),
            ("grant", grant is not None, grant.source if grant is not None else f"no grant for {source}", "acl-deny"),
            ("queue", queue is not None, record.queue, "delivery-failure"),
            (
                "dead-letters",
                queue is not None and queue.settings.max_attempts > 0,
                "maxAttempts of the queue" if queue is not None else "no queue",
                "",
            ),
            (
                "encryption",
                bool(is_encrypted) or not self._routes.requires_encryption,
                {True: "true", False: "false", None: "unknown"}[is_encrypted],
                "",
            ),
        ]
        outcome = next((code for _, ok, _, code in checks if not ok and code), "delivered")
        return RouteTestResult(
            outcome=outcome, checks=[RouteCheck(check=name, ok=ok, detail=detail) for name, ok, detail, _ in checks]
        )

    async def _queue(self, record: RouteRecord) -> QueueRecord | None:
        try:
            return await self._queues.find(record.tenant, record.queue)
        except QueueNotFound:
            return None
