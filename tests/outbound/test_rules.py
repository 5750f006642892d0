"""Which URLs, addresses and headers are allowed."""

import ipaddress

import pytest

from postroad.outbound.rules import Destinations, OutboundRefused, check_headers, check_url, is_callable, is_loopback_host

REFUSED_URLS = [
    ("http://example.com/", "scheme"),
    ("ftp://example.com/", "scheme"),
    ("file:///etc/passwd", "scheme"),
    ("//example.com/", "scheme"),
    ("example.com", "scheme"),
    ("", "scheme"),
    ("https://", "host"),
    ("https://user@example.com/", "credentials"),
    ("https://user:word@example.com/", "credentials"),
    ("https://@example.com/", "credentials"),
    ("https://example.com/#part", "fragment"),
    ("https://example.com/#", "fragment"),
    ("https://example.com:0/", "port"),
    ("https://example.com:99999/", "url"),
    ("https://example.com/" + "x" * 2048, "length"),
    ("https://example.com/a b", "url"),
    ("https://example.com/a\r\nX: y", "url"),
    ("https://example.com\\@127.0.0.1/", "url"),
    ("https://-bad-.example/", "host"),
    ("https://a..b/", "host"),
    ("https://127.1/", "host"),
    ("https://2130706433/", "host"),
    ("https://0x7f000001/", "host"),
    ("https://0177.0.0.1/", "host"),
    ("https://127.0.0.1./", "host"),
    ("https://[fe80::1%25eth0]/", "host"),
]
REFUSED_ADDRESSES = [
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "127.0.0.1",
    "127.9.9.9",
    "169.254.169.254",
    "168.63.129.16",
    "100.64.0.1",
    "100.100.100.200",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "0.0.0.0",
    "0.1.2.3",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fec0::1",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "2001:db8::1",
    "2001::1",
    "2002:7f00:1::1",
    "64:ff9b::7f00:1",
    "64:ff9b::a00:1",
    "64:ff9b:1::1",
    "::ffff:10.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::10.0.0.1",
    "100::1",
    "5f00::1",
]


def refusal(url: str, *, allow_loopback: bool = False, allowed: tuple[str, ...] = ()) -> str | None:
    try:
        check_url(url, allowed=Destinations.parse(",".join(allowed)), allow_loopback=allow_loopback)
    except OutboundRefused as refused:
        return refused.reason
    return None


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://example.com/hook?x=1",
        "https://example.com:8443/hook",
        "https://hooks.bücher.example/x",
        "https://a_b.example.com./x",
        "https://93.184.215.14/hook",
        "https://[2606:2800:21f:cb07::1]/hook",
    ],
)
def test_a_public_https_url_is_allowed(url: str) -> None:
    assert refusal(url) is None


@pytest.mark.parametrize(("url", "reason"), REFUSED_URLS)
def test_any_other_url_is_rejected_with_its_reason(url: str, reason: str) -> None:
    assert refusal(url) == reason


@pytest.mark.parametrize("address", REFUSED_ADDRESSES)
def test_a_non_public_address_is_rejected(address: str) -> None:
    assert not is_callable(ipaddress.ip_address(address))
    assert refusal(f"https://[{address}]/" if ":" in address else f"https://{address}/") == "address"


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_a_public_address_is_allowed(address: str) -> None:
    assert is_callable(ipaddress.ip_address(address))


def test_only_addresses_of_an_allowed_network_are_allowed() -> None:
    allowed = [ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("fd00::/8")]
    assert is_callable(ipaddress.ip_address("10.1.2.3"), allowed)
    assert is_callable(ipaddress.ip_address("::ffff:10.1.2.3"), allowed)
    assert is_callable(ipaddress.ip_address("fd00::1"), allowed)
    assert not is_callable(ipaddress.ip_address("10.2.0.1"), allowed)


def test_a_loopback_url_is_rejected_unless_allowed() -> None:
    for url in ("http://localhost:80/", "http://LOCALHOST/", "http://127.0.0.1:8080/", "http://127.8.8.8/", "http://[::1]:9/"):
        assert refusal(url) == "address"
        assert refusal(url, allow_loopback=True) is None
    assert refusal("http://localhost/", allowed=("127.0.0.0/8",)) is None
    assert refusal("http://10.0.0.1/", allow_loopback=True) == "scheme"
    assert refusal("https://10.0.0.1/", allow_loopback=True) == "address"


def test_plain_http_is_allowed_to_listed_addresses_and_to_names_that_may_have_them() -> None:
    assert refusal("http://10.1.2.3/", allowed=("10.1.0.0/16",)) is None
    assert refusal("http://hook.internal/", allowed=("10.1.0.0/16",)) is None
    assert refusal("http://10.2.0.1/", allowed=("10.1.0.0/16",)) == "scheme"
    assert refusal("http://93.184.215.14/", allowed=("10.1.0.0/16",)) == "scheme"


def test_only_localhost_and_loopback_addresses_are_loopback_hosts() -> None:
    assert is_loopback_host("localhost")
    assert is_loopback_host("127.0.0.1")
    assert is_loopback_host("::1")
    for host in ("localhost.", "localhost.example.com", "127.0.0.1.nip.io", "127.1", "", "::ffff:127.0.0.1"):
        assert not is_loopback_host(host)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X", "a\r\nY: b"),
        ("X", "a\nb"),
        ("X\r\nY", "a"),
        ("", "a"),
        ("X Y", "a"),
        ("Host", "x"),
        ("content-LENGTH", "1"),
        ("X", "é"),
    ],
)
def test_a_malformed_or_reserved_header_is_rejected(name: str, value: str) -> None:
    with pytest.raises(OutboundRefused, match="header"):
        check_headers({name: value})


def test_ordinary_headers_are_allowed() -> None:
    check_headers({"Content-Type": "application/json", "Webhook-Signature": "t=1,kid=x,ed25519=y"})


def test_listed_names_and_suffixes_may_be_called_without_tls() -> None:
    assert refusal("http://hook.internal/", allowed=("*.internal",)) is None
    assert refusal("http://deep.hook.internal/", allowed=("*.INTERNAL",)) is None
    assert refusal("http://internal/", allowed=("*.internal",)) == "scheme"
    assert refusal("http://hook.internal.example.com/", allowed=("*.internal",)) == "scheme"
    assert refusal("http://Receiver.:8080/", allowed=("receiver",)) is None
    assert refusal("http://other/", allowed=("receiver",)) == "scheme"
    assert refusal("https://10.1.2.3/", allowed=("receiver",)) == "address"


def test_destinations_are_networks_names_and_suffixes() -> None:
    parsed = Destinations.parse(" 10.1.0.0/16, receiver ,*.internal, ::1 ")
    assert [str(network) for network in parsed.networks] == ["10.1.0.0/16", "::1/128"]
    assert (set(parsed.hosts), parsed.suffixes) == ({"receiver"}, (".internal",))
    for text in ("10.1.0.0/99", "*", "a b", "*.*.internal", "300.1.1.1", "http://receiver"):
        with pytest.raises(ValueError):
            Destinations.parse(text)
