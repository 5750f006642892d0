"""Which URLs, addresses and headers are allowed. Pure: the client resolves names and checks each address here.

A server that sends requests to URLs of its users can be made to attack its own network (SSRF). So the parts of a URL are checked,
and then each address of its host before a connection is opened to it.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NewType

from yarl import URL

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

HeaderLines = NewType("HeaderLines", bytes)  # headers as they are sent, checked: only `encode_headers` makes them
NO_HEADERS = HeaderLines(b"")

URL_CHARS_MAX = 2048
_HOST = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*\.?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_FORBIDDEN_CHARACTER = re.compile(r"[\x00-\x20\x7f\\]")

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HEADER_VALUE_CHARS_MAX = 4096
_HEADER_VALUE = re.compile(rf"[\x20-\x7e\t]{{0,{_HEADER_VALUE_CHARS_MAX}}}")
_RESERVED_HEADERS = frozenset(  # they control how the client sends the request
    [
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    ]
)

# Not public, whatever `is_global` of the Python version says. The first two are metadata services of clouds.
_NON_PUBLIC_V4 = tuple(
    ipaddress.ip_network(text)
    for text in (
        "168.63.129.16/32",
        "169.254.0.0/16",
        "0.0.0.0/8",
        "100.64.0.0/10",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "224.0.0.0/3",
    )
)
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
_NON_PUBLIC_V6 = tuple(
    ipaddress.IPv6Network(text)
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")  # tunnels, and documentation
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


_LISTED = "destinations that the operator lists in POSTROAD_OUTBOUND_ALLOW"
_EXPLANATIONS = {
    "url": "it cannot be parsed, or has a space, a backslash or a control character",
    "scheme": f"its scheme is not https; http is for {_LISTED}",
    "host": "its host is not a valid name or address",
    "port": "its port is not valid",
    "credentials": "it has a user name or a password; send these in a header",
    "fragment": "it has a fragment",
    "length": f"it has more than {URL_CHARS_MAX} characters",
    "header": "a header is malformed, or is set by the client",
    "address": f"its address is neither public nor one of the {_LISTED}",
}


class OutboundRefused(Exception):
    """The request is not allowed. `reason`: url, scheme, host, port, credentials, fragment, length, header or address."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    @property
    def explanation(self) -> str:
        """The reason as a clause about the URL, for the user who chose it."""
        return _EXPLANATIONS[self.reason]


class OutboundFailed(Exception):
    """The request failed and may be retried. `reason`: busy, dns, connect, tls, timeout or broken.

    `busy` says nothing about the called system: the tenant's other calls occupied its share of connections or lookups until the
    deadline. No details, since they would disclose our network to the user who chose the URL.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Destinations:
    """Destinations that the operator listed: networks, host names, and suffixes of names (`.internal` for `*.internal`)."""

    networks: tuple[Network, ...] = ()
    hosts: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Destinations":
        """Comma-separated networks, addresses, names and `*.suffix`. Raises ValueError."""
        networks: list[Network] = []
        hosts: set[str] = set()
        suffixes: list[str] = []
        for part in (part.strip().lower() for part in text.split(",") if part.strip()):
            name = part.removeprefix("*.")
            if not _HOST.fullmatch(name) or _NUMBER.fullmatch(name.rstrip(".").rpartition(".")[2]):
                networks.append(ipaddress.ip_network(part))
            elif name == part:
                hosts.add(name.rstrip("."))
            else:
                suffixes.append("." + name.rstrip("."))
        return cls(tuple(networks), frozenset(hosts), tuple(suffixes))

    def has_host(self, host: str) -> bool:
        """True if the name is listed, whatever its addresses are."""
        name = host.lower().rstrip(".")
        return name in self.hosts or name.endswith(self.suffixes)


NOWHERE = Destinations()


def check_url(text: str, *, allowed: Destinations = NOWHERE, allow_loopback: bool = False, allow_http: bool = False) -> URL:
    """Parse and check a URL. Raises OutboundRefused.

    Use the returned value as it is: another parser may read the text differently. `https` is allowed always, `http` only on this
    machine, to listed destinations, and with `allow_http`. A host that is an address is checked here, since it is not resolved
    later. If it is a name that is not listed, its addresses are checked at each call: by `is_callable`, and by `is_listed` for
    `http` without `allow_http`.
    """
    if len(text) > URL_CHARS_MAX:
        raise OutboundRefused("length")
    if _FORBIDDEN_CHARACTER.search(text):
        raise OutboundRefused("url")
    try:
        url = URL(text)
        host, port = (url.raw_host or "").lower(), url.port
    except ValueError as exc:
        raise OutboundRefused("url") from exc
    if url.scheme not in ("http", "https"):
        raise OutboundRefused("scheme")
    if "@" in re.split("[/?#]", text.partition("://")[2])[0]:
        raise OutboundRefused("credentials")
    if "#" in text:
        raise OutboundRefused("fragment")
    if not port or not 1 <= port <= 65535:
        raise OutboundRefused("port")
    address = _parse_address(host)
    if url.scheme == "http" and not allow_http and not is_loopback_host(host):
        may_be_listed = bool(allowed.networks) if address is None else is_listed(address, allowed.networks)
        if not may_be_listed and not allowed.has_host(host):
            raise OutboundRefused("scheme")
    if address is None and is_loopback_host(host):
        address = ipaddress.IPv4Address("127.0.0.1")
    if address is not None and not is_callable(address, allowed.networks, allow_loopback=allow_loopback):
        raise OutboundRefused("address")
    return url


def is_loopback_host(host: str) -> bool:
    """True for `localhost` and loopback addresses; not for a name that resolves to one."""
    try:
        address = None if host == "localhost" else _parse_address(host)
    except OutboundRefused:
        return False
    return host == "localhost" or (address is not None and _is_in(address, _LOOPBACK))


def is_callable(address: Address, allowed: Sequence[Network] = (), *, allow_loopback: bool = False) -> bool:
    """True if an address is public, or in an allowed network. IPv4 addresses embedded in IPv6 count as IPv4."""
    if is_listed(address, allowed):
        return True
    plain = _embedded_v4(address)
    if _is_in(plain, _LOOPBACK):
        return allow_loopback
    if isinstance(plain, ipaddress.IPv4Address):
        return plain.is_global and not _is_in(plain, _NON_PUBLIC_V4)
    return plain in _PUBLIC_V6 and plain.is_global and not plain.is_multicast and not _is_in(plain, _NON_PUBLIC_V6)


def is_listed(address: Address, allowed: Sequence[Network]) -> bool:
    """True if an address is in an allowed network, which the operator listed."""
    return _is_in(_embedded_v4(address), allowed) or _is_in(address, allowed)


def check_headers(headers: Mapping[str, str]) -> None:
    """Raises OutboundRefused if a header is malformed or reserved to the client."""
    for name, value in headers.items():
        if not _is_allowed_name(name) or not _is_allowed_value(value):
            raise OutboundRefused("header")


def encode_headers(headers: Mapping[str, str]) -> HeaderLines:
    """The lines of a request for these headers. Raises OutboundRefused if one is malformed or reserved to the client."""
    check_headers(headers)
    return HeaderLines("".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode("ascii"))


@lru_cache(maxsize=4096)
def _is_allowed_name(name: str) -> bool:
    return name.lower() not in _RESERVED_HEADERS and _HEADER_NAME.fullmatch(name) is not None


def _is_allowed_value(value: str) -> bool:
    if len(value) <= _HEADER_VALUE_CHARS_MAX and value.isascii() and value.isprintable():  # the common case, without a regex
        return True
    return _HEADER_VALUE.fullmatch(value) is not None


def _parse_address(host: str) -> Address | None:
    """The host's address, or None if it is a name. Raises OutboundRefused if it is neither.

    A host that ends in a number must be an address: some resolvers treat `127.1` and `0x7f000001` as one, others as a name.
    """
    if ":" in host:
        if "%" in host:  # a zone, which only non-public addresses have
            raise OutboundRefused("host")
        try:
            return ipaddress.IPv6Address(host)
        except ValueError as exc:
            raise OutboundRefused("host") from exc
    if not _HOST.fullmatch(host):
        raise OutboundRefused("host")
    if not _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
        return None
    try:
        return ipaddress.IPv4Address(host)
    except ValueError as exc:
        raise OutboundRefused("host") from exc


def _embedded_v4(address: Address) -> Address:
    """The IPv4 address within a mapped or translated IPv6 address; other addresses unchanged."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)
