"""Admission of commands to a route with a rate limit: tokens of the route, quota of a banned sender, fairness, prefetch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from postroad.api.command_limits import FairnessViolation, RateLimitExceeded
from postroad.commands import metrics
from postroad.commands.events import CommandEvent, WarmPathBan
from postroad.commands.limit_records import QuotaRecord, quota_key
from postroad.commands.rate_rules import Limit
from postroad.commands.registry_view import KnownRoute
from postroad.commands.token_blocks import TOKEN_MS_MAX, TokenBlock
from postroad.commands.token_source import Exhausted, Token, TokenSource
from postroad.commands.warm_bans import WarmBanLog
from postroad.commands.warm_state import WarmState
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.ids import derived_id

Report = Callable[[CommandEvent], None]


class Admission(msgspec.Struct, frozen=True):
    """Permission to dispatch a command. `deliver_at_ms`: 0 for now. `is_over_limit`: a limit in shadow mode would refuse it."""

    interval: int | None = None
    quota_interval: int | None = None
    deliver_at_ms: int = 0
    is_over_limit: bool = False


_UNLIMITED = Admission()


class Limiter:
    """`quota_of` returns the record under a key of `quota_key`; `report` receives events."""

    def __init__(
        self,
        source: TokenSource,
        warm: WarmState,
        warm_bans: WarmBanLog,
        quota_of: Callable[[str], QuotaRecord | None],
        report: Report,
        clock: Clock,
        *,
        prefetch_workers: int,
    ) -> None:
        self._tokens, self._warm, self._warm_bans, self._quota_of = source, warm, warm_bans, quota_of
        self._report, self._clock, self._prefetch_workers = report, clock, prefetch_workers

    def admit_warm(self, route: KnownRoute, source: str, now_ms: int) -> Admission | None:
        """Use a token that this worker has, and count the command; None if it has none."""
        if route.limit is None:
            return _UNLIMITED
        interval = self._warm.tokens.take(route.key, now_ms)
        if interval is None:
            return None
        self._prefetch(route, route.limit, now_ms)
        self._count(route, source, now_ms, is_warm=True)
        return Admission(interval=interval)

    def _count(self, route: KnownRoute, source: str, now_ms: int, *, is_warm: bool) -> None:
        """Count a dispatched command, and report the ban if the sender loses the warm path by it."""
        rules = route.fairness
        ban = self._warm.fairness.count(route.key, source, rules, now_ms, is_warm=is_warm)
        if ban is not None and ban.is_first:
            metrics.bans.labels("warm", "worker").inc()
            window_ms = rules.window_seconds * 1000
            self._report(
                WarmPathBan(  # of several workers in one window: one event
                    event_id=derived_id(now_ms // window_ms * window_ms, "warm-path-ban", route.key, source),
                    tenant=source.partition("/")[0],
                    source=source,
                    target=route.record.target,
                    command_name=route.record.command,
                    source_share=round(ban.shares.source_share, 4),
                    competing_share=round(ban.shares.competing_share, 4),
                    retry_after_ms=ban.until_ms - now_ms,
                    throttle_until=rfc3339(ban.until_ms),
                )
            )
            self._warm_bans.record_soon(route, source, window_ms)

    async def admit(self, route: KnownRoute, source: str, *, is_banned: bool, is_cold: bool, may_prefetch: bool) -> Admission:
        """Acquire a token by a write, and one of the sender's quota if it is banned from the warm path.

        `is_cold`: the command takes the slow path for its sender's sake; it counts like one of the warm path, so that `cold-only`
        is no way around fairness.
        Raises RateLimitExceeded, FairnessViolation; EngineUnavailable.
        """
        limit = route.limit
        if limit is None:
            return _UNLIMITED
        is_shadow = route.record.rate_limit is not None and route.record.rate_limit.mode == "shadow"
        quota = await self._acquire_quota(route, source) if is_banned else None
        if isinstance(quota, Exhausted):
            if is_shadow:
                return self._shadow()
            raise self._exceeded(quota, "source-quota")
        now = self._clock()
        if may_prefetch:
            self._prefetch(route, limit, now)
        token = await self._tokens.acquire(route.key, limit)
        if isinstance(token, Exhausted):
            self._give_back_quota(route, source, quota)
            if is_shadow:
                return self._shadow()
            raise self._refused(route, source, token, is_banned=is_banned)
        self._count(route, source, now, is_warm=is_cold and not is_banned)
        return Admission(
            interval=token.interval,
            quota_interval=None if quota is None else quota.interval,
            deliver_at_ms=token.deliver_at_ms,
        )

    def release(self, route: KnownRoute, source: str, admission: Admission) -> None:
        """Return the tokens of a command that was not delivered."""
        if route.limit is not None and admission.interval is not None:
            if admission.deliver_at_ms:
                self._tokens.give_back_at(route.key, route.limit, admission.deliver_at_ms)
            else:
                self._tokens.give_back(route.key, route.limit, admission.interval)
        if admission.quota_interval is not None:
            self._give_back_quota(route, source, Token(admission.quota_interval))

    def route_changed(self, key: str, limit: Limit | None) -> None:
        """Tokens of a route whose limit has changed are not used any more."""
        if self._tokens.known_limit(key) != limit:
            self._warm.tokens.drop(key)

    async def return_unused(self) -> None:
        """Return the tokens that were taken in advance and whose time is over, to be called every few seconds: the route may get
        no further command here."""
        self._return(self._warm.tokens.take_unused(self._clock()))

    async def drain(self) -> None:
        """Return the tokens that were taken in advance, before the process ends."""
        self._return(self._warm.tokens.drain())
        await self._tokens.drain()
        await self._warm_bans.drain()

    def _return(self, unused: list[tuple[str, TokenBlock]]) -> None:
        now = self._clock()
        for key, block in unused:
            limit = self._tokens.known_limit(key)
            if limit is not None and now < (block.interval + 1) * limit.interval_ms:
                self._tokens.give_back(key, limit, block.interval, block.left)
            else:
                metrics.tokens.labels("expired").inc(block.left)

    def _prefetch(self, route: KnownRoute, limit: Limit, now_ms: int) -> None:
        count = self._warm.tokens.wanted(route.key, limit, now_ms)
        if count <= 0:
            return
        chosen = route.record.rate_limit.prefetch_workers if route.record.rate_limit is not None else None
        workers_max = self._prefetch_workers if chosen is None else chosen
        if workers_max:
            self._tokens.prefetch(route.key, limit, count, workers_max, partial(self._on_prefetched, route.key))

    def _on_prefetched(self, key: str, interval: int, count: int, end_ms: int) -> None:
        self._warm.tokens.put(key, interval, count, min(end_ms, self._clock() + TOKEN_MS_MAX))

    async def _acquire_quota(self, route: KnownRoute, source: str) -> Token | Exhausted | None:
        record = self._quota_of(quota_key(route.name, source))
        return None if record is None else await self._tokens.acquire(record.key, record.limit)

    def _give_back_quota(self, route: KnownRoute, source: str, token: Token | None) -> None:
        record = self._quota_of(quota_key(route.name, source))
        if token is not None and record is not None:
            self._tokens.give_back(record.key, record.limit, token.interval)

    def _shadow(self) -> Admission:
        metrics.shadow_refusals.inc()
        return Admission(is_over_limit=True)

    def _refused(
        self, route: KnownRoute, source: str, exhausted: Exhausted, *, is_banned: bool
    ) -> RateLimitExceeded | FairnessViolation:
        shares = self._warm.fairness.dominance(route.key, source, route.fairness, self._clock()) if is_banned else None
        if shares is None:
            return self._exceeded(exhausted, "the rate limit of the route is exhausted")
        found = {
            "source_share": round(shares.source_share, 4),
            "competing_share": round(shares.competing_share, 4),
            "dispatch_volume": shares.dispatch_volume,
        }
        hints = self._hints(exhausted)
        problem = FairnessViolation("the sender dominates the route, whose rate limit is exhausted", extra={**hints, **found})
        problem.retry_after = hints["retry_after_ms"] / 1000
        return problem

    def _exceeded(self, exhausted: Exhausted, detail: str) -> RateLimitExceeded:
        hints = self._hints(exhausted)
        return RateLimitExceeded(detail, retry_after=hints["retry_after_ms"] / 1000, extra=hints)

    def _hints(self, exhausted: Exhausted) -> dict[str, Any]:
        left_ms = max(1, exhausted.retry_at_ms - self._clock())
        return {"retry_after_ms": left_ms, "throttle_until": rfc3339(exhausted.retry_at_ms)}
