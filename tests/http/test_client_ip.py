import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.http.client_ip import client_address, networks

PROXIES = networks("10.0.0.0/8, 192.0.2.1, 2001:db8::/32")
addresses = st.ip_addresses().map(str)


def test_networks_are_addresses_and_ranges_separated_by_commas() -> None:
    assert networks("") == networks(" , ") == ()
    assert [str(one) for one in PROXIES] == ["10.0.0.0/8", "192.0.2.1/32", "2001:db8::/32"]


@pytest.mark.parametrize("text", ["x", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/8;10.0.0.1", "localhost"])
def test_an_invalid_network_is_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        networks(text)


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "expected"),
    [
        ("203.0.113.9", None, "203.0.113.9"),
        ("203.0.113.9", "198.51.100.1", "203.0.113.9"),  # an untrusted peer
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "198.51.100.1, 10.0.0.2", "198.51.100.1"),  # two trusted proxies
        ("10.0.0.1", "1.2.3.4, 198.51.100.1, 10.0.0.2", "198.51.100.1"),  # 1.2.3.4 is what the client claims
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),  # only trusted proxies
        ("10.0.0.1", " 198.51.100.1 ", "198.51.100.1"),
        ("10.0.0.1", "unknown", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.1, unknown", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.1:4711", "10.0.0.1"),
        ("10.0.0.1", ",", "10.0.0.1"),
        ("192.0.2.1", "2001:db8:1::1, 2001:db8::2", "2001:db8:1::1"),
        ("2001:db8::1", "2001:dead::1", "2001:dead::1"),
        ("::ffff:10.0.0.1", "198.51.100.1", "198.51.100.1"),  # a proxy on a dual-stack socket
        ("::ffff:203.0.113.9", "198.51.100.1", "::ffff:203.0.113.9"),
        ("", "198.51.100.1", ""),
        ("unix", "198.51.100.1", "unix"),
    ],
)
def test_the_client_is_the_nearest_address_that_is_not_a_trusted_proxy(
    peer: str, forwarded_for: str | None, expected: str
) -> None:
    assert client_address(peer, forwarded_for, PROXIES) == expected


@given(addresses, st.lists(addresses | st.text(max_size=5)).map(",".join))
def test_forwarded_addresses_of_an_untrusted_peer_are_ignored(peer: str, forwarded_for: str) -> None:
    assert client_address(peer, forwarded_for, ()) == peer


@given(st.lists(addresses | st.text("1.:x, ", max_size=5), max_size=5), addresses)
def test_addresses_that_a_client_claims_are_ignored(claims: list[str], client: str) -> None:
    """The proxy appends the real address to whatever the client sends."""
    if any(ipaddress.ip_address(client) in network for network in PROXIES):
        return
    seen = client_address("10.0.0.1", ",".join([*claims, client]), PROXIES)
    mapped = ipaddress.ip_address(client)
    is_mapped = isinstance(mapped, ipaddress.IPv6Address) and mapped.ipv4_mapped is not None
    assert seen == client or is_mapped
