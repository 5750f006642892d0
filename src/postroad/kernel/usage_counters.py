"""What one process does for each tenant, counted as it is done. Counting is an addition and nothing more: it is on every path."""

from collections.abc import Iterator
from typing import NamedTuple

ANONYMOUS = ""  # requests that are no tenant's: their callers were not let in, or are the platform's


class TenantCounters:
    """Counts that only grow. Whoever counts often for one tenant keeps its tally."""

    __slots__ = (
        "append_bytes",
        "appends",
        "bytes_in",
        "bytes_out",
        "client_errors",
        "fanout_messages",
        "requests",
        "server_errors",
    )

    def __init__(self) -> None:
        self.requests = self.client_errors = self.server_errors = 0
        self.bytes_in = self.bytes_out = 0  # of bodies
        self.appends = self.append_bytes = 0
        self.fanout_messages = 0


class UsageDelta(NamedTuple):
    """What was counted in some time, or, as they add up, since the beginning."""

    requests: int = 0
    client_errors: int = 0
    server_errors: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    appends: int = 0
    append_bytes: int = 0
    fanout_messages: int = 0

    @property
    def failures(self) -> int:
        return self.client_errors + self.server_errors


class TenantCounterMap(dict[str, TenantCounters]):
    """By tenant; one that is not there yet is made."""

    def __missing__(self, tenant: str) -> TenantCounters:
        found = self[tenant] = TenantCounters()
        return found


class UsageCounters:
    """The tallies of one process."""

    def __init__(self) -> None:
        self.open_requests = 0
        self.tallies = TenantCounterMap()
        self._taken: dict[str, UsageDelta] = {}

    def of(self, tenant: str) -> TenantCounters:
        return self.tallies[tenant]

    def take(self) -> Iterator[tuple[str, UsageDelta]]:
        """What was counted since the last time, of the tenants for whom that is anything."""
        for tenant, tally in self.tallies.items():
            now = UsageDelta(*(getattr(tally, field) for field in UsageDelta._fields))
            before = self._taken.get(tenant, UsageDelta())
            if now != before:
                self._taken[tenant] = now
                yield tenant, UsageDelta(*(new - old for new, old in zip(now, before, strict=True)))
