"""What may be called: URLs, addresses and headers. Pure: names are looked up elsewhere, and every answer comes back here.

A server that calls where its users say can be made to call its own neighbours (SSRF). So a URL is checked by its parts, and then
each address that its host has is checked before anything connects to it.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence

from yarl import URL

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

URL_CHARS_MAX = 2048
_HOST = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*\.?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_UNWANTED = re.compile(r"[\x00-\x20\x7f\\]")

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]{0,4096}")
_NOT_THEIRS = frozenset(  # they say how the request is sent, which is the client's own business
    [
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
    ]
)

# Not public, whatever the version of Python thinks of them: the first two serve clouds' machines with their metadata.
_NEVER = tuple(
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
_NEVER_V6 = tuple(
    ipaddress.IPv6Network(text)
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")  # tunnels lead anywhere; the rest leads nowhere
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


class OutboundRefused(Exception):
    """This must not be called. `reason` is one of: url, scheme, host, port, credentials, fragment, length, header, address."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class OutboundFailed(Exception):
    """The call came to nothing, and may work another time. `reason` is one of: dns, connect, tls, timeout, broken.

    It says no more than that: what a network answers inside is not for those who chose the URL.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def check_url(text: str, *, allowed: Sequence[Network] = (), allow_loopback: bool = False) -> URL:
    """The URL, to be called as it is: who reads it again may read it differently. Raises OutboundRefused.

    `https` always; `http` only on this machine. A host that is an address is checked here, since nobody looks it up.
    """
    if len(text) > URL_CHARS_MAX:
        raise OutboundRefused("length")
    if _UNWANTED.search(text):
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
    address = _literal(host)
    if url.scheme == "http" and not is_loopback_host(host):
        raise OutboundRefused("scheme")
    if address is None and is_loopback_host(host):
        address = ipaddress.IPv4Address("127.0.0.1")
    if address is not None and not is_callable(address, allowed, allow_loopback=allow_loopback):
        raise OutboundRefused("address")
    return url


def is_loopback_host(host: str) -> bool:
    """Whether it says of itself that it is this machine. A name that only leads there does not count."""
    try:
        address = None if host == "localhost" else _literal(host)
    except OutboundRefused:
        return False
    return host == "localhost" or (address is not None and _is_among(address, _LOOPBACK))


def is_callable(address: Address, allowed: Sequence[Network] = (), *, allow_loopback: bool = False) -> bool:
    """Whether an address is public, or allowed by name. IPv4 in IPv6's clothes is taken for what it is."""
    plain = _undressed(address)
    if _is_among(plain, allowed) or _is_among(address, allowed):
        return True
    if _is_among(plain, _LOOPBACK):
        return allow_loopback
    if isinstance(plain, ipaddress.IPv4Address):
        return plain.is_global and not _is_among(plain, _NEVER)
    return plain in _PUBLIC_V6 and plain.is_global and not plain.is_multicast and not _is_among(plain, _NEVER_V6)


def check_headers(headers: Mapping[str, str]) -> None:
    """Raises OutboundRefused if a header would break out of its line, or is not the caller's to set."""
    for name, value in headers.items():
        is_ours = name.lower() in _NOT_THEIRS
        if is_ours or not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise OutboundRefused("header")


def _literal(host: str) -> Address | None:
    """The address that the host is; None if it is a name. Raises OutboundRefused if it is neither.

    What ends in a number is an address or nothing: `127.1` and `0x7f000001` are read as one by some and as a name by others.
    """
    if ":" in host:
        if "%" in host:  # a zone: only what is not public has one
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


def _undressed(address: Address) -> Address:
    """An IPv4 address that came mapped into IPv6, or translated."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address


def _is_among(address: Address, networks: Sequence[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)
