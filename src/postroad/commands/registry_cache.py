"""The caches of a worker: ages, refreshes from the engine, and the report of a cache that is current again."""

import asyncio
import itertools
import time

import structlog

from postroad.commands import metrics
from postroad.commands.events import CacheRefreshed
from postroad.commands.fast import CacheAges
from postroad.commands.records import RouteRecord, ServiceRecord, route_key, service_key
from postroad.commands.registry_view import KnownRoute, RegistryView, Sender
from postroad.commands.rules import Ages, CachePolicy
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.event import PLATFORM
from postroad.telemetry.outbox import Outbox

_VERIFIED_SECONDS = 1.0
_VERIFIED_MAX = 10_000
_SAMPLE_SECONDS = 0.5

log = structlog.get_logger("postroad.commands")


class RegistryCache:
    """Routes and services in memory. `slow_seconds` is the deadline of a refresh for a command."""

    def __init__(
        self,
        routes: ReplicatedTable[RouteRecord],
        services: ReplicatedTable[ServiceRecord],
        view: RegistryView,
        policy: CachePolicy,
        outbox: Outbox,
        *,
        worker: str,
        slow_seconds: float,
    ) -> None:
        self._routes, self._services, self.view, self.policy = routes, services, view, policy
        self._outbox, self._worker, self._slow_seconds = outbox, worker, slow_seconds
        self._verified: dict[str, float] = {}  # key → when the engine was asked for it

    def ages(self) -> CacheAges:
        return CacheAges(self._routes.staleness_seconds, self._services.staleness_seconds)

    def poll_soon(self) -> None:
        """Refresh both caches, after the dispatch of a command that used a stale one."""
        self._routes.poll_soon()
        self._services.poll_soon()

    def route_names(self, tenant: str, names_max: int) -> list[str]:
        """`<service>/<command>` of the tenant's first routes."""
        keys = itertools.islice(self._routes.keys_under(f"{tenant}."), names_max)
        return [f"{record.service}/{record.command}" for key in keys if (record := self._routes.get(key)) is not None]

    async def route(self, tenant: str, service: str, command: str, *, may_be_cached: bool) -> KnownRoute | None:
        """The route as the engine has it. `may_be_cached`: one that was read within the last second suffices, so that commands
        which are refused do not cost a read each. Raises EngineUnavailable at the deadline."""
        key = route_key(tenant, service, command)
        if not may_be_cached or not self._was_verified(key):
            started = time.monotonic()
            async with self._deadline():
                await self._routes.refresh(key)
            self._set_verified(key, started)
            metrics.cache_refresh_seconds.labels("routes").observe(time.monotonic() - started)
        return self.view.route(tenant, service, command)

    async def sender(self, tenant: str, service: str, *, may_be_cached: bool) -> Sender | None:
        """The sender as the engine has it; the rest like `route`."""
        key = service_key(tenant, service)
        if not may_be_cached or not self._was_verified(key):
            started = time.monotonic()
            async with self._deadline():
                await self._services.refresh(key)
            self._set_verified(key, started)
            metrics.cache_refresh_seconds.labels("secrets").observe(time.monotonic() - started)
        return self.view.sender(tenant, service)

    def _deadline(self) -> "_Deadline":
        return _Deadline(self._slow_seconds)

    def _was_verified(self, key: str) -> bool:
        return time.monotonic() - self._verified.get(key, -_VERIFIED_SECONDS) < _VERIFIED_SECONDS

    def _set_verified(self, key: str, at: float) -> None:
        if len(self._verified) >= _VERIFIED_MAX:
            self._verified.clear()
        self._verified[key] = at

    async def run(self) -> None:
        """Publish the ages as metrics, and report loads and caches that are current again, until cancelled."""
        watches = [
            _CacheWatch("routes", "routing", self.policy.routes),
            _CacheWatch("grants", "ACL", self.policy.grants),
            _CacheWatch("secrets", "HMAC", self.policy.secrets),
        ]
        while True:
            ages = self.ages()
            for watch, age in zip(watches, (ages.routes, ages.routes, ages.secrets), strict=True):
                metrics.cache_age_seconds.labels(watch.label).set(age)
                refreshed = watch.observe(age)
                if refreshed is not None:
                    self._outbox.record(None, self._event(watch, refreshed))
            await asyncio.sleep(_SAMPLE_SECONDS)

    def _event(self, watch: "_CacheWatch", age: float) -> CacheRefreshed:
        return CacheRefreshed(
            tenant=PLATFORM,
            worker=self._worker,
            cache_type=watch.cache_type,
            age_seconds=round(age, 3),
            fresh_ttl=watch.ages.fresh,
            stale_ttl=watch.ages.stale,
        )


class _Deadline:
    """Like `asyncio.timeout`, with the error of an engine that does not answer."""

    def __init__(self, seconds: float) -> None:
        self._timeout, self._seconds = asyncio.timeout(seconds), seconds

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *problem: object) -> None:
        try:
            await self._timeout.__aexit__(*problem)  # type: ignore[arg-type]
        except TimeoutError as exc:
            raise EngineUnavailable(
                f"the registry could not be read within {self._seconds:g} s; the command was not delivered", retry_after=1
            ) from exc


class _CacheWatch:
    """The age of one cache over time."""

    def __init__(self, label: str, cache_type: str, ages: Ages) -> None:
        self.label, self.cache_type, self.ages = label, cache_type, ages
        self._oldest: float | None = None  # None: not loaded yet

    def observe(self, age: float) -> float | None:
        """The greatest age that the cache had, if it is current for the first time or again; else None."""
        if age == float("inf"):
            return None
        is_current, before = age < self.ages.fresh, self._oldest
        self._oldest = age if is_current else max(age, before or 0.0)
        if before is None:
            return age
        return before if is_current and before >= self.ages.fresh else None
