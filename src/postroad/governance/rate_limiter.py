"""Limits on the requests per second of each tenant and key in one worker, and on their live connections.

A tenant without a limit of its own may use a whole worker while it is alone there. While other tenants use the worker, too, each
is limited to `shared_rate`, so that none of them can take the worker's time from the others.
"""

import time
from collections.abc import Callable

from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.http import metrics
from postroad.kernel.errors import RateLimited
from postroad.kernel.identity import Caller
from postroad.kernel.token_bucket import TokenBucket

_WINDOW_SECONDS = 1.0


class _TenantRate:
    """The limit of one tenant in the current window, None without one, and whether it sent a request in the window."""

    __slots__ = ("bucket", "is_active")

    def __init__(self, bucket: TokenBucket | None) -> None:
        self.bucket, self.is_active = bucket, True


class RateLimiter:
    """`shared_rate` and `key_rate`: requests per second of a tenant and of a key by default, 0 for no limit."""

    def __init__(
        self,
        tenant_settings: TenantSettingsStore,
        *,
        shared_rate: int,
        key_rate: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tenant_settings, self._shared_rate, self._key_rate, self._now = tenant_settings, shared_rate, key_rate, now
        self._tenants: dict[str, _TenantRate] = {}
        self._keys: dict[str, TokenBucket] = {}
        self._is_shared = False
        self._window_ends = 0.0

    def admit(self, caller: Caller) -> None:
        """Count a request of a caller. Raises RateLimited."""
        now = self.admit_tenant(caller.tenant)
        rate = caller.max_requests_per_second
        if rate is None:
            rate = self._key_rate
        if rate:
            bucket = self._keys.get(caller.key_id)
            if bucket is None or bucket.rate != rate:
                bucket = self._keys[caller.key_id] = TokenBucket(rate, now)
            wait = bucket.take(now)
            if wait:
                raise _refusal("key", bucket, wait)

    def live_connections_max(self, tenant: str) -> int | None:
        return self._tenant_settings.of(tenant).max_live_connections

    def admit_tenant(self, tenant: str) -> float:
        """Count a request for a tenant; return the time. Raises RateLimited."""
        now = self._now()
        if now >= self._window_ends:
            self._begin_window(now)
        rate = self._tenants.get(tenant)
        if rate is None:
            rate = self._tenants[tenant] = _TenantRate(self._bucket(tenant, None, now))
        rate.is_active = True
        if rate.bucket is not None:
            wait = rate.bucket.take(now)
            if wait:
                raise _refusal("tenant", rate.bucket, wait)
        return now

    def _begin_window(self, now: float) -> None:
        """Apply the settings, and whether several tenants used the worker in the last window; forget idle tenants and keys."""
        self._window_ends = now + _WINDOW_SECONDS
        self._is_shared = sum(rate.is_active for rate in self._tenants.values()) > 1
        kept: dict[str, _TenantRate] = {}
        for tenant, rate in self._tenants.items():
            if rate.is_active or (rate.bucket is not None and not rate.bucket.is_full(now)):
                rate.bucket, rate.is_active = self._bucket(tenant, rate.bucket, now), False
                kept[tenant] = rate
        self._tenants = kept
        self._keys = {key: bucket for key, bucket in self._keys.items() if not bucket.is_full(now)}

    def _bucket(self, tenant: str, before: TokenBucket | None, now: float) -> TokenBucket | None:
        chosen = self._tenant_settings.of(tenant).max_requests_per_second
        rate = chosen if chosen is not None else self._shared_rate if self._is_shared else 0
        if not rate:
            return None
        return before if before is not None and before.rate == rate else TokenBucket(rate, now)


def _refusal(limit: str, bucket: TokenBucket, wait: float) -> RateLimited:
    metrics.refusals.labels(f"{limit}_rate").inc()
    rate = int(bucket.rate)
    headers = [("RateLimit-Policy", f'"{limit}";q={rate};w=1'), ("RateLimit", f'"{limit}";r=0;t={max(1, round(wait))}')]
    return RateLimited(
        f"the {limit} has sent more than {rate} requests per second to this worker", retry_after=wait, headers=headers
    )
