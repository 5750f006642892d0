"""Counters of the work that one process does for each tenant. Counting is an attribute addition: it is on every request path."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

ANONYMOUS = ""  # in place of a tenant id: requests that were not authenticated, or used platform routes
HTTP_COUNTERS = ("requests", "client_errors", "server_errors", "bytes_in", "bytes_out")  # bytes of bodies


class TenantCounters:
    """Counters of one tenant, which only grow: `HTTP_COUNTERS`, and those that capabilities declare."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> int: ...
        def __setattr__(self, name: str, value: int) -> None: ...


class CountersByTenant(dict[str, TenantCounters]):
    """Creates the counters of a tenant on first access."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._kind: type[TenantCounters] = type("TenantCounters", (TenantCounters,), {"__slots__": names})

    def __missing__(self, tenant: str) -> TenantCounters:
        counters = self[tenant] = self._kind()
        for name in self._names:
            setattr(counters, name, 0)
        return counters


class UsageCounters:
    """Counters of one process. `declared` are the names of the capabilities' counters."""

    def __init__(self, declared: tuple[str, ...] = ()) -> None:
        self.names = (*HTTP_COUNTERS, *declared)
        self.open_requests = 0
        self.by_tenant = CountersByTenant(self.names)
        self._taken: dict[str, dict[str, int]] = {}

    def of(self, tenant: str) -> TenantCounters:
        """The counters of a tenant; callers that count often may keep them."""
        return self.by_tenant[tenant]

    def take(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Tenants whose counters changed since the last call, with the differences."""
        unused = dict.fromkeys(self.names, 0)
        for tenant, counters in self.by_tenant.items():
            now = {name: getattr(counters, name) for name in self.names}
            before = self._taken.get(tenant, unused)
            if now != before:
                self._taken[tenant] = now
                yield tenant, {name: now[name] - before[name] for name in self.names}
