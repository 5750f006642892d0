"""Dry run of a route: the checks of a dispatch, without a command."""

from typing import NamedTuple

from postroad.api.commands import RouteCheck, RouteTest, RouteTestResult
from postroad.api.queues import QueueNotFound
from postroad.commands.ban_view import BanView
from postroad.commands.rate_rules import available
from postroad.commands.records import RouteRecord
from postroad.commands.registry_view import KnownRoute, known_route
from postroad.commands.route_registry import RouteRegistry
from postroad.commands.rules import grant_source
from postroad.commands.token_source import TokenSource
from postroad.kernel.clock import Clock, rfc3339
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.records import QueueRecord


class _Check(NamedTuple):
    """`refusal` is the code with which a command is refused that fails the check; empty if it is not refused."""

    name: str
    is_ok: bool
    detail: str
    refusal: str = ""


class RouteTester:
    def __init__(self, routes: RouteRegistry, queues: QueueLifecycle, bans: BanView, tokens: TokenSource, clock: Clock) -> None:
        self._routes, self._queues, self._bans, self._tokens, self._clock = routes, queues, bans, tokens, clock

    async def test(self, record: RouteRecord, wanted: RouteTest) -> RouteTestResult:
        """Raises EngineUnavailable."""
        queue = await self._queue(record)
        now, source = self._clock(), grant_source(record.tenant, wanted.source) or wanted.source
        route = known_route(record)
        grant = route.grant(source, now)
        is_active, is_signed = route.is_active(now), wanted.is_signed or record.signature != "required"
        checks = [
            self._check_ban(record, source, now),
            _Check("route", is_active, "registered" if is_active else "expired", "route-missing"),
            _Check("signature", is_signed, record.signature, "command-invalid"),
            _Check("grant", grant is not None, grant.source if grant is not None else f"no grant for {source}", "acl-deny"),
            await self._check_limit(route, now),
            _Check("queue", queue is not None, record.queue, "delivery-failure"),
            _Check(
                "dead-letters",
                queue is not None and queue.settings.max_attempts > 0,
                "maxAttempts of the queue" if queue is not None else "no queue",
            ),
            self._check_encryption(),
        ]
        outcome = next((one.refusal for one in checks if not one.is_ok and one.refusal), "delivered")
        return RouteTestResult(
            outcome=outcome, checks=[RouteCheck(check=one.name, ok=one.is_ok, detail=one.detail) for one in checks]
        )

    def _check_ban(self, record: RouteRecord, source: str, now_ms: int) -> _Check:
        """Bans on all routes are the business of the sender's tenant, so the owner of a route does not learn of them."""
        ban = self._bans.find(source, record.tenant, record.service, record.command, now_ms)
        is_own = source.partition("/")[0] == record.tenant
        if ban is None or (ban.route is None and not is_own):
            return _Check("ban", True, "none")
        detail = f"{ban.kind} until {rfc3339(ban.expires_at_ms)}: {ban.reason}"
        return _Check("ban", ban.kind != "hard", detail, "fairness-violation")

    async def _check_limit(self, route: KnownRoute, now_ms: int) -> _Check:
        limit, rate = route.limit, route.record.rate_limit
        if limit is None or rate is None:
            return _Check("rate-limit", True, "none")
        usage = await self._tokens.usage(route.key, limit)
        is_cooling = now_ms < usage.cooldown_until_ms
        free = 0 if is_cooling else available(usage, limit) + limit.delay_intervals * limit.max - usage.debt
        is_ok = free > 0 or rate.mode == "shadow"
        return _Check("rate-limit", is_ok, f"{max(0, free)} commands left, {rate.mode}", "rate-limit-exceeded")

    def _check_encryption(self) -> _Check:
        is_encrypted = self._routes.is_encrypted
        detail = {True: "true", False: "false", None: "unknown"}[is_encrypted]
        return _Check("encryption", bool(is_encrypted) or not self._routes.requires_encryption, detail)

    async def _queue(self, record: RouteRecord) -> QueueRecord | None:
        try:
            return await self._queues.find(record.tenant, record.queue)
        except QueueNotFound:
            return None
