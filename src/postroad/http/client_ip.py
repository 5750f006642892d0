"""The client's IP address: that of the peer or, behind trusted proxies, the one that they report."""

import ipaddress
from collections.abc import Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(text: str) -> tuple[Network, ...]:
    """Parse comma-separated addresses and networks. Raises ValueError."""
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())


def client_address(peer: str, forwarded_for: str | None, trusted: Sequence[Network]) -> str:
    """The nearest address that is not a trusted proxy. Entries that the client itself put into the header are not used."""
    address = peer
    for claimed in reversed((forwarded_for or "").split(",")):
        if not _is_trusted(address, trusted) or not _is_address(claimed.strip()):
            break
        address = claimed.strip()
    return address


def _is_trusted(address: str, trusted: Sequence[Network]) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):  # IPv4 on a dual-stack socket
        parsed = parsed.ipv4_mapped or parsed
    return any(parsed in network for network in trusted)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
