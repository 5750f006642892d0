"""The HTTP client for user-chosen URLs. It connects only to addresses that were checked."""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from postroad.outbound.rules import (
    Address,
    Network,
    OutboundFailed,
    OutboundRefused,
    check_headers,
    check_url,
    is_callable,
    is_loopback_host,
)

BODY_BYTES_MAX = 64 * 1024
_CONNECT_SECONDS = 5.0
_CONNECTIONS_MAX = 200
_CONNECTIONS_PER_HOST_MAX = 20
_ADDRESSES_MAX = 8  # of one name; each is tried in turn, and the name's owner chooses their number
_KEEPALIVE_SECONDS = 4.0  # many servers close after five; a request on a connection that is being closed would fail

Lookup = Callable[[str], Awaitable[Sequence[Address]]]


@dataclass(frozen=True, slots=True)
class HttpResult:
    """Status, headers with lower-case names, and body; `is_truncated` if the body was longer than `BODY_BYTES_MAX`."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_truncated: bool = False

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class Outbound:
    """The client, one per process. It follows no redirects, keeps no cookies and ignores proxies from the environment."""

    def __init__(
        self, allowed: Sequence[Network] = (), *, lookup: Lookup | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._allowed, self._lookup, self._tls = tuple(allowed), lookup or system_lookup, tls
        self._session: aiohttp.ClientSession | None = None

    def check(self, url: str, *, allow_loopback: bool = False) -> None:
        """Raises OutboundRefused if the URL is not allowed. The addresses of its host are checked on each request."""
        check_url(url, allowed=self._allowed, allow_loopback=allow_loopback)

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], *, seconds: float, allow_loopback: bool = False
    ) -> HttpResult:
        """POST and return the response, of any status. Raises OutboundRefused, and OutboundFailed also after `seconds`."""
        target = check_url(url, allowed=self._allowed, allow_loopback=allow_loopback)
        check_headers(headers)
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, _CONNECT_SECONDS))
        try:
            async with self._open_session().post(
                target, data=body, headers={**headers, "Accept-Encoding": "identity"}, timeout=timeout, allow_redirects=False
            ) as response:
                return await _read(response)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
            raise OutboundFailed(_reason(exc)) from exc

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=_CheckedResolver(self._lookup, self._allowed),
                ssl=self._tls or True,
                use_dns_cache=False,  # connect to the addresses that were just checked
                limit=_CONNECTIONS_MAX,
                limit_per_host=_CONNECTIONS_PER_HOST_MAX,
                keepalive_timeout=_KEEPALIVE_SECONDS,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                skip_auto_headers=("Content-Type",),
                headers={"User-Agent": "Postroad"},
            )
        return self._session


class _CheckedResolver(AbstractResolver):
    """Resolves a name if all its addresses are allowed. One lookup serves check and connection."""

    def __init__(self, lookup: Lookup, allowed: Sequence[Network]) -> None:
        self._lookup, self._allowed = lookup, allowed

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[ResolveResult]:
        """Raises OutboundRefused if any of the addresses is not allowed."""
        if is_loopback_host(host):  # allowed by `check_url`; name servers have no influence on it
            found: Sequence[Address] = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))
        else:
            found = (await self._lookup(host))[:_ADDRESSES_MAX]
            if not all(is_callable(address, self._allowed) for address in found):
                raise OutboundRefused("address")
        if not found:
            raise OSError("the name has no addresses")
        return [_result(host, address, port) for address in found]

    async def close(self) -> None:
        pass


async def system_lookup(host: str) -> Sequence[Address]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    texts = dict.fromkeys(str(address[0]).partition("%")[0] for _family, _type, _proto, _name, address in found)
    return [ipaddress.ip_address(text) for text in texts]


def _result(host: str, address: Address, port: int) -> ResolveResult:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(hostname=host, host=str(address), port=port, family=family, proto=0, flags=flags)


async def _read(response: aiohttp.ClientResponse) -> HttpResult:
    """The response with up to `BODY_BYTES_MAX` of its body. Unread bytes close the connection."""
    body = bytearray()
    while len(body) <= BODY_BYTES_MAX:
        chunk = await response.content.read(BODY_BYTES_MAX + 1 - len(body))
        if not chunk:
            break
        body += chunk
    headers = {name.lower(): value for name, value in response.headers.items()}
    return HttpResult(response.status, headers, bytes(body[:BODY_BYTES_MAX]), is_truncated=len(body) > BODY_BYTES_MAX)


def _reason(exc: Exception) -> str:
    match exc:
        case TimeoutError():
            return "timeout"
        case aiohttp.ClientConnectorDNSError():
            return "dns"
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return "tls"
        case aiohttp.ClientConnectorError():
            return "connect"
        case _:
            return "broken"
