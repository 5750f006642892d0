"""The HTTP client for user-chosen URLs. It connects only to addresses that were checked, and shares its connections fairly."""

import asyncio
import ipaddress
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import chain, zip_longest

from postroad.kernel.buffered_metrics import Counter
from postroad.outbound import metrics
from postroad.outbound.connection_pool import ConnectionPool
from postroad.outbound.fair_slots import FairSlots, SlotLimits, SlotsBusy
from postroad.outbound.http_connection import BODY_BYTES_MAX, HttpConnection, HttpResult
from postroad.outbound.resolver import Resolver
from postroad.outbound.rules import (
    NO_HEADERS,
    NOWHERE,
    Address,
    Destinations,
    HeaderLines,
    OutboundFailed,
    OutboundRefused,
    check_url,
    encode_headers,
    is_callable,
    is_listed,
)
from postroad.outbound.system_resolver import NameUnresolved, SystemResolver

__all__ = ["BODY_BYTES_MAX", "HttpResult", "Outbound", "OutboundLimits"]

_CONNECT_SECONDS = 5.0
_NEXT_ADDRESS_SECONDS = 0.25  # as RFC 8305 recommends
_TARGETS_MAX = 4096

Lookup = Callable[[str, str, float], Awaitable[Sequence[Address]]]


@dataclass(frozen=True, slots=True)
class OutboundLimits:
    connections_max: int = 1000
    connections_per_tenant_max: int = 200
    connections_per_host_max: int = 20
    lookups_max: int = 256
    lookups_per_tenant_max: int = 8
    lookup_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class _Target:
    """A checked URL: where to connect, and the start of each request."""

    host: str
    port: int
    is_tls: bool
    allows_http: bool
    origin: str
    head: bytes


class Outbound:
    """The client, one per process. It follows no redirects, keeps no cookies and ignores proxies from the environment."""

    def __init__(
        self,
        allowed: Destinations = NOWHERE,
        limits: OutboundLimits | None = None,
        *,
        lookup: Lookup | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        chosen = limits or OutboundLimits()
        self._allowed, self._tls = allowed, tls
        self._slots = FairSlots(
            SlotLimits(chosen.connections_max, chosen.connections_per_tenant_max, chosen.connections_per_host_max)
        )
        self._pool = ConnectionPool(chosen.connections_max)
        lookups = SlotLimits(chosen.lookups_max, chosen.lookups_per_tenant_max, 1)
        self._resolver = Resolver(SystemResolver(seconds=chosen.lookup_seconds), lookups)
        self._lookup = lookup or self._resolver.resolve
        self._target = lru_cache(_TARGETS_MAX)(self._parse)

    def check(self, url: str, *, allow_loopback: bool = False, allow_http: bool = False) -> None:
        """Raises OutboundRefused if the URL is not allowed. The addresses of its host are checked on each request."""
        check_url(url, allowed=self._allowed, allow_loopback=allow_loopback, allow_http=allow_http)

    async def post(
        self,
        tenant: str,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        seconds: float,
        allow_loopback: bool = False,
        allow_http: bool = False,
        group: str = "",
        lines: HeaderLines = NO_HEADERS,
    ) -> HttpResult:
        """POST and return the response, of any status. Raises OutboundRefused, and OutboundFailed also after `seconds`.

        `allow_http`: plain `http` to public hosts, too; their addresses are checked all the same.
        `lines` are further headers, which a caller that sends them often encodes once.
        The tenant's other calls, and those of other tenants, share the connections by `fair_slots.may_take`. A caller that
        limits its own calls names a `group`: they are not limited here, and have connections of their own.
        """
        try:
            target = self._target(url, allow_loopback, allow_http)
            request = b"%b%b%bContent-Length: %d\r\n\r\n%b" % (target.head, lines, encode_headers(headers), len(body), body)
            deadline = asyncio.get_running_loop().time() + seconds
            if group:
                result = await self._exchange_on(group, tenant, target, request, deadline)
            else:
                result = await self._exchange(tenant, target, request, deadline)
        except (OutboundRefused, OutboundFailed) as problem:
            metrics.calls.labels(problem.reason if isinstance(problem, OutboundFailed) else "refused").inc()
            raise
        _answered(result.status // 100).inc()
        return result

    async def close(self) -> None:
        self._pool.close()
        await self._resolver.close()

    async def _exchange(self, tenant: str, target: _Target, request: bytes, deadline: float) -> HttpResult:
        """One exchange, when the tenant may have a connection."""
        try:
            await self._slots.acquire(tenant, target.origin, deadline)
        except SlotsBusy as exc:
            raise OutboundFailed("busy") from exc
        try:
            return await self._exchange_on(tenant, tenant, target, request, deadline)
        finally:
            self._slots.release(tenant, target.origin)

    async def _exchange_on(self, owner: str, tenant: str, target: _Target, request: bytes, deadline: float) -> HttpResult:
        """One exchange, on an idle connection of the owner if there is one."""
        connection: HttpConnection | None = None
        try:
            connection = self._pool.take((owner, target.origin)) or await self._connect(tenant, target, deadline)
            return await connection.exchange(request, deadline)
        finally:
            if connection is not None:
                self._pool.put((owner, target.origin), connection)

    async def _connect(self, tenant: str, target: _Target, deadline: float) -> HttpConnection:
        """Raises OutboundRefused, OutboundFailed."""
        self._pool.make_space(self._slots.in_use)
        loop = asyncio.get_running_loop()
        try:
            addresses = await self._addresses(tenant, target, deadline)
            async with asyncio.timeout_at(min(deadline, loop.time() + _CONNECT_SECONDS)):
                return await _connect_first([partial(self._open, target, one) for one in addresses])
        except SlotsBusy as exc:
            raise OutboundFailed("busy") from exc
        except NameUnresolved as exc:
            raise OutboundFailed("dns") from exc
        except TimeoutError as exc:
            raise OutboundFailed("timeout") from exc
        except ssl.SSLError as exc:
            raise OutboundFailed("tls") from exc
        except (OSError, ValueError) as exc:  # ValueError: a name that TLS does not accept
            raise OutboundFailed("connect") from exc

    async def _addresses(self, tenant: str, target: _Target, deadline: float) -> list[Address]:
        """Addresses to connect to, all of them checked. Raises OutboundRefused, NameUnresolved, SlotsBusy, TimeoutError."""
        if target.host == "localhost":  # allowed by `check_url`; name servers have no influence on it
            return [ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1")]
        try:
            return [ipaddress.ip_address(target.host)]  # checked by `check_url`
        except ValueError:
            found = await self._lookup(tenant, target.host, deadline)
        if not self._allowed.has_host(target.host):
            self._check_addresses(target, found)
        return _interleave(found)

    def _check_addresses(self, target: _Target, addresses: Sequence[Address]) -> None:
        """Raises OutboundRefused unless all addresses of a name are allowed."""
        networks = self._allowed.networks
        if not all(is_callable(address, networks) for address in addresses):
            raise OutboundRefused("address")
        if not target.is_tls and not target.allows_http and not all(is_listed(address, networks) for address in addresses):
            raise OutboundRefused("scheme")

    async def _open(self, target: _Target, address: Address) -> HttpConnection:
        """Connect to exactly this address: it is passed as a number, which is not looked up."""
        if self._tls is None and target.is_tls:
            self._tls = _tls_context()
        _transport, connection = await asyncio.get_running_loop().create_connection(
            HttpConnection,
            str(address),
            target.port,
            ssl=self._tls if target.is_tls else None,
            server_hostname=target.host.rstrip(".") if target.is_tls else None,
        )
        return connection

    def _parse(self, url: str, allow_loopback: bool, allow_http: bool) -> _Target:
        checked = check_url(url, allowed=self._allowed, allow_loopback=allow_loopback, allow_http=allow_http)
        host, port = (checked.raw_host or "").lower(), checked.port or 0
        head = (
            f"POST {checked.raw_path_qs} HTTP/1.1\r\nHost: {checked.host_port_subcomponent}\r\n"
            "User-Agent: Postroad\r\nAccept: */*\r\nAccept-Encoding: identity\r\n"
        )
        is_tls = checked.scheme == "https"
        return _Target(host, port, is_tls, allow_http, f"{checked.scheme}://{host}:{port}", head.encode("ascii"))


@cache
def _answered(hundreds: int) -> Counter:
    return metrics.calls.labels(f"{hundreds}xx")


def _tls_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _interleave(addresses: Sequence[Address]) -> list[Address]:
    """IPv6 and IPv4 in turn, as RFC 8305 recommends: one of the two may not work on this machine."""
    six = [one for one in addresses if one.version == 6]
    four = [one for one in addresses if one.version == 4]
    return [one for one in chain.from_iterable(zip_longest(six, four)) if one is not None]


async def _connect_first(attempts: Sequence[Callable[[], Awaitable[HttpConnection]]]) -> HttpConnection:
    """The first connection that succeeds; attempts start one after the other, at once after a failure. Raises OSError."""
    if len(attempts) == 1:
        return await attempts[0]()
    waiting, running, failure = list(attempts), set[asyncio.Future[HttpConnection]](), OSError("no addresses")
    try:
        while waiting or running:
            if waiting:
                running.add(asyncio.ensure_future(waiting.pop(0)()))
            done, _ = await asyncio.wait(
                running, timeout=_NEXT_ADDRESS_SECONDS if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for one in done:
                running.discard(one)
                problem = one.exception()
                if problem is None:
                    return one.result()
                if not isinstance(problem, OSError):
                    raise problem
                failure = problem
        raise failure
    finally:
        for one in running:
            one.cancel()
            one.add_done_callback(_close_late)


def _close_late(attempt: "asyncio.Future[HttpConnection]") -> None:
    """Close the connection of an attempt that succeeded although another one was faster."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()
