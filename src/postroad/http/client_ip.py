"""Whose request it is, by address: the socket's other end or, behind proxies that are trusted, who they say it is."""

import ipaddress
from collections.abc import Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(text: str) -> tuple[Network, ...]:
    """Comma-separated addresses and networks. Raises ValueError."""
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())


def client_address(peer: str, forwarded_for: str | None, trusted: Sequence[Network]) -> str:
    """The address nearest to us that is not a trusted proxy's. What a stranger writes into the header is never reached."""
    address = peer
    for claimed in reversed((forwarded_for or "").split(",")):
        if not _is_among(address, trusted) or not _is_address(claimed.strip()):
            break
        address = claimed.strip()
    return address


def _is_among(address: str, trusted: Sequence[Network]) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):  # of a socket that takes both kinds
        parsed = parsed.ipv4_mapped or parsed
    return any(parsed in network for network in trusted)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
