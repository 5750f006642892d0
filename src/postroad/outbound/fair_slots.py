"""Slots that tenants share fairly: no tenant, and none of its hosts, can occupy them all."""

import asyncio
from collections import deque
from dataclasses import dataclass


class SlotsBusy(Exception):
    """No slot became free before the deadline."""


@dataclass(frozen=True, slots=True)
class SlotLimits:
    total: int
    per_tenant: int
    per_host: int


def may_take(limits: SlotLimits, *, total: int, of_tenant: int, of_host: int) -> bool:
    """True if a host of a tenant may take one more slot, given the slots that are in use.

    Dynamic thresholds: a tenant may have as many slots as are free, and so may a host within its tenant's share. Whatever
    they ask for, n tenants leave a part of 1/(n+1) free, so that a further tenant or host never waits for their slots.
    """
    return of_tenant < min(limits.per_tenant, limits.total - total) and of_host < min(
        limits.per_host, limits.per_tenant - of_tenant
    )


class FairSlots:
    def __init__(self, limits: SlotLimits) -> None:
        self._limits = limits
        self._total = 0
        self._of_tenant: dict[str, int] = {}
        self._of_host: dict[tuple[str, str], int] = {}
        self._waiting: dict[str, dict[str, deque[asyncio.Future[None]]]] = {}  # in the order in which they are served next

    @property
    def in_use(self) -> int:
        return self._total

    async def acquire(self, tenant: str, host: str, deadline: float) -> None:
        """Take a slot; `release` returns it. Raises SlotsBusy at the deadline, which is a time of the event loop."""
        if host not in self._waiting.get(tenant, ()) and self._may_take(tenant, host):
            self._take(tenant, host)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, {}).setdefault(host, deque()).append(granted)
        try:
            async with asyncio.timeout_at(deadline):
                await granted
        except BaseException as exc:
            if granted.done() and not granted.cancelled():  # granted at the same moment
                self.release(tenant, host)
            else:
                self._forget(tenant, host, granted)
            if isinstance(exc, TimeoutError):
                raise SlotsBusy from exc
            raise

    def release(self, tenant: str, host: str) -> None:
        self._total -= 1
        self._of_tenant[tenant] -= 1
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
        self._of_host[tenant, host] -= 1
        if not self._of_host[tenant, host]:
            del self._of_host[tenant, host]
        while self._waiting and self._grant_next():
            pass

    def _may_take(self, tenant: str, host: str) -> bool:
        of_tenant, of_host = self._of_tenant.get(tenant, 0), self._of_host.get((tenant, host), 0)
        return may_take(self._limits, total=self._total, of_tenant=of_tenant, of_host=of_host)

    def _take(self, tenant: str, host: str) -> None:
        self._total += 1
        self._of_tenant[tenant] = self._of_tenant.get(tenant, 0) + 1
        self._of_host[tenant, host] = self._of_host.get((tenant, host), 0) + 1

    def _grant_next(self) -> bool:
        """Grant a slot to the first waiting call that may have one; its tenant and host are served last from then on."""
        for tenant, hosts in self._waiting.items():
            if not self._may_take(tenant, ""):  # no host of it may
                continue
            for host, waiting in hosts.items():
                if self._may_take(tenant, host):
                    granted = waiting.popleft()
                    if not granted.done():  # else it is being cancelled
                        self._take(tenant, host)
                        granted.set_result(None)
                    self._waiting[tenant] = self._waiting.pop(tenant)
                    hosts[host] = hosts.pop(host)
                    self._remove_if_empty(tenant, host)
                    return True
        return False

    def _forget(self, tenant: str, host: str, granted: "asyncio.Future[None]") -> None:
        waiting = self._waiting.get(tenant, {}).get(host, ())
        if granted in waiting:
            self._waiting[tenant][host].remove(granted)
            self._remove_if_empty(tenant, host)

    def _remove_if_empty(self, tenant: str, host: str) -> None:
        hosts = self._waiting[tenant]
        if not hosts[host]:
            del hosts[host]
        if not hosts:
            del self._waiting[tenant]
