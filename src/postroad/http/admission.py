"""Admission of requests: limits on open requests, live connections and received bodies, per worker, tenant and client address.

A request belongs to the worker from its headers to the end of its response, to a tenant once its caller is authenticated, and to
a client address if its caller is anonymous. A long poll or a streamed response is a live connection while it waits: it costs
little and lasts long, so it has limits of its own. Platform keys belong to no tenant: an operator can act for a tenant at its
limit.
"""

from dataclasses import dataclass
from typing import Protocol

from postroad.http import metrics
from postroad.kernel.errors import Overloaded, PostroadError, RateLimited
from postroad.kernel.identity import Caller

_RETRY_SECONDS = 1


class CallerLimits(Protocol):
    """Limits that are configured for each tenant and key."""

    def admit(self, caller: Caller) -> None:
        """Count a request. Raises RateLimited."""

    def admit_tenant(self, tenant: str) -> object:
        """Count a request for a tenant that is known without a caller. Raises RateLimited."""

    def live_connections_max(self, tenant: str) -> int | None:
        """The tenant's own limit, 0 for none; None for that of all tenants."""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    requests_max: int
    requests_per_tenant_max: int
    requests_per_address_max: int
    live_connections_max: int
    live_connections_per_tenant_max: int
    body_buffer_bytes_max: int

    @property
    def body_buffer_bytes_per_tenant_max(self) -> int:
        return self.body_buffer_bytes_max // 2

    @property
    def response_bytes_per_tenant_max(self) -> int:
        """Of large responses that a tenant's clients have not read yet."""
        return self.body_buffer_bytes_max // 4


class _Load:
    """What the requests of a worker or a tenant hold."""

    __slots__ = ("body_bytes", "live", "requests", "response_bytes", "tenant")

    def __init__(self, tenant: str = "") -> None:
        self.tenant = tenant
        self.requests = self.live = self.body_bytes = self.response_bytes = 0


class Admission:
    """The requests of one worker."""

    def __init__(self, limits: AdmissionLimits, callers: CallerLimits | None = None) -> None:
        self.limits, self.callers = limits, callers
        self.live_by_key: dict[str, int] = {}  # of keys that have a limit
        self.worker = _Load()
        self.tenants: dict[str, _Load] = {}
        self.addresses: dict[str, int] = {}  # of anonymous callers

    @property
    def is_full(self) -> bool:
        return self.worker.requests >= self.limits.requests_max

    def open(self) -> "RequestSlot":
        """Raises Overloaded."""
        if self.is_full:
            raise _refusal(Overloaded, "worker_requests", f"{self.limits.requests_max} requests are open")
        return RequestSlot(self)


class RequestSlot:
    """The share of one request in the limits. Must be closed."""

    __slots__ = ("_address", "_admission", "_body_bytes", "_is_live", "_key", "_response_bytes", "_tenant")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._tenant: _Load | None = None
        self._address: str | None = None
        self._key: tuple[str, int] | None = None  # and its limit of live connections
        self._is_live = False
        self._body_bytes = self._response_bytes = 0
        admission.worker.requests += 1

    def assign_caller(self, caller: Caller) -> None:
        """Assign the request of a tenant's credential. Raises RateLimited."""
        if self._admission.callers is not None:
            self._admission.callers.admit(caller)
        if caller.max_live_connections:
            self._key = caller.key_id, caller.max_live_connections
        self._assign_tenant(caller.tenant)

    def identify(self, caller: Caller) -> None:
        """Assign a request to its caller that was anonymous until its body was read. Raises RateLimited."""
        self._release_address()
        self.assign_caller(caller)
        if self._tenant is not None:
            self._tenant.body_bytes += self._body_bytes

    def assign_tenant(self, tenant: str) -> None:
        """Assign a request without a caller. Raises RateLimited."""
        if self._admission.callers is not None:
            self._admission.callers.admit_tenant(tenant)
        self._assign_tenant(tenant)

    def _assign_tenant(self, tenant: str) -> None:
        admission = self._admission
        load = admission.tenants.get(tenant)
        if load is None:
            load = admission.tenants[tenant] = _Load(tenant)
        if load.requests >= admission.limits.requests_per_tenant_max:
            raise _refusal(RateLimited, "tenant_requests", f"the tenant has {load.requests} open requests")
        if load.response_bytes > admission.limits.response_bytes_per_tenant_max:
            raise _refusal(RateLimited, "tenant_response_bytes", "the tenant has too many bytes of unread responses")
        load.requests += 1
        self._tenant = load

    def assign_address(self, address: str) -> None:
        """Raises RateLimited."""
        addresses = self._admission.addresses
        count = addresses.get(address, 0)
        if count >= self._admission.limits.requests_per_address_max:
            raise _refusal(RateLimited, "address_requests", f"this address has {count} open requests without credentials")
        addresses[address] = count + 1
        self._address = address

    def add_body(self, size: int) -> None:
        """Count received bytes of the body, until the slot is closed. Raises Overloaded, RateLimited."""
        limits, worker, tenant = self._admission.limits, self._admission.worker, self._tenant
        worker.body_bytes += size
        self._body_bytes += size
        if tenant is not None:
            tenant.body_bytes += size
            if tenant.body_bytes > limits.body_buffer_bytes_per_tenant_max:
                raise _refusal(RateLimited, "tenant_body_bytes", "the tenant's open requests have too large bodies together")
        if worker.body_bytes > limits.body_buffer_bytes_max:
            raise _refusal(Overloaded, "worker_body_bytes", "the open requests have too large bodies together")

    def add_response(self, size: int) -> None:
        """Count the bytes of a large response, until the slot is closed. Over its limit the tenant's next requests are refused:
        this one has taken effect, so that its response must be sent."""
        if self._tenant is not None:
            self._tenant.response_bytes += size
            self._response_bytes += size

    def begin_live(self) -> None:
        """Count the request as a live connection. Raises Overloaded, RateLimited."""
        limits, worker, tenant = self._admission.limits, self._admission.worker, self._tenant
        if worker.live >= limits.live_connections_max:
            raise _refusal(Overloaded, "worker_live_connections", f"{worker.live} live connections are open")
        if tenant is not None:
            if tenant.live >= self._tenant_live_max(tenant.tenant):
                raise _refusal(RateLimited, "tenant_live_connections", f"the tenant has {tenant.live} live connections")
            self._count_key()
            tenant.live += 1
            tenant.requests -= 1
        worker.live += 1
        worker.requests -= 1
        self._is_live = True

    def _tenant_live_max(self, tenant: str) -> int:
        admission = self._admission
        own = None if admission.callers is None else admission.callers.live_connections_max(tenant)
        if own is None:
            return admission.limits.live_connections_per_tenant_max
        return own or admission.limits.live_connections_max

    def _count_key(self) -> None:
        """Raises RateLimited."""
        if self._key is not None:
            key, live_max = self._key
            live = self._admission.live_by_key.get(key, 0)
            if live >= live_max:
                raise _refusal(RateLimited, "key_live_connections", f"the key has {live} live connections")
            self._admission.live_by_key[key] = live + 1

    def end_live(self) -> None:
        if self._is_live:
            self._is_live = False
            if self._key is not None:
                by_key, key = self._admission.live_by_key, self._key[0]
                by_key[key] -= 1
                if not by_key[key]:
                    del by_key[key]
            for load in (self._admission.worker, self._tenant):
                if load is not None:
                    load.live -= 1
                    load.requests += 1

    def close(self) -> None:
        self.end_live()
        worker, tenant, size = self._admission.worker, self._tenant, self._body_bytes
        worker.requests -= 1
        worker.body_bytes -= size
        if tenant is not None:
            tenant.requests -= 1
            tenant.body_bytes -= size
            tenant.response_bytes -= self._response_bytes
        self._release_address()

    def _release_address(self) -> None:
        if self._address is not None:
            addresses, address = self._admission.addresses, self._address
            self._address = None
            addresses[address] -= 1
            if not addresses[address]:
                del addresses[address]


def _refusal(kind: type[PostroadError], limit: str, detail: str) -> PostroadError:
    metrics.refusals.labels(limit).inc()
    return kind(detail, retry_after=_RETRY_SECONDS)
