"""Requests to real servers on this machine, and rejected requests to others."""

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from postroad.outbound.client import BODY_BYTES_MAX, Lookup, Outbound, OutboundLimits
from postroad.outbound.rules import Address, Destinations, Network, OutboundFailed, OutboundRefused
from postroad.outbound.system_resolver import NameUnresolved
from postroad.runtime.embedded_server import free_port
from tests.waiting import eventually

Talk = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
TENANT = "acme"
HERE = ipaddress.IPv4Network("127.0.0.1/32")
LOOPBACK = (ipaddress.IPv4Network("127.0.0.0/8"), ipaddress.IPv6Network("::1/128"))


class Listening:
    """A raw HTTP server: the requests that it received, and its number of connections."""

    def __init__(self) -> None:
        self.port = 0
        self.received: list[bytes] = []
        self.connections = self.open_connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


@asynccontextmanager
async def listening(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[Listening]:
    seen = Listening()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        seen.open_connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")), 0)
                seen.received.append(head + await reader.readexactly(length))
                await talk(seen.received[-1], writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.LimitOverrunError):
            pass
        finally:
            seen.open_connections -= 1
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    seen.port = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()


def responding(text: bytes) -> Talk:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(text)
        await writer.drain()

    return talk


OK = responding(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-More: yes\r\nSet-Cookie: a=b\r\n\r\nhi")


@pytest.fixture
async def outbound() -> AsyncIterator[Outbound]:
    made = Outbound()
    yield made
    await made.close()


@asynccontextmanager
async def calling(lookup: Lookup, *allowed: Network, tls: ssl.SSLContext | None = None) -> AsyncIterator[Outbound]:
    made = Outbound(Destinations(tuple(allowed)), lookup=lookup, tls=tls)
    try:
        yield made
    finally:
        await made.close()


class Names:
    """A resolver whose answers change with each query."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.queries: list[str] = []

    async def __call__(self, _tenant: str, host: str, _deadline: float) -> Sequence[Address]:
        self.queries.append(host)
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return [ipaddress.ip_address(one) for one in found]


async def test_post_sends_the_request_and_returns_the_response(outbound: Outbound) -> None:
    async with listening(OK) as server:
        answer = await outbound.post(
            TENANT, server.url, b'{"a":1}', {"Content-Type": "application/json", "X-Mine": "1"}, seconds=5, allow_loopback=True
        )
        assert (answer.status, answer.body, answer.is_truncated, answer.is_success) == (200, b"hi", False, True)
        assert answer.headers["x-more"] == "yes"
        head = server.received[0].lower()
        assert head.startswith(b"post /hook http/1.1\r\n")
        assert head.endswith(b'{"a":1}')
        assert b"x-mine: 1" in head
        assert b"accept-encoding: identity" in head


async def test_cookies_are_not_stored(outbound: Outbound) -> None:
    async with listening(OK) as server:
        for _ in range(2):
            await outbound.post(TENANT, server.url, b"", {}, seconds=5, allow_loopback=True)
        assert b"cookie" not in server.received[1].lower()


async def test_loopback_is_rejected_unless_allowed(outbound: Outbound) -> None:
    async with listening(OK) as server:
        with pytest.raises(OutboundRefused, match="address"):
            await outbound.post(TENANT, server.url, b"", {}, seconds=5)
        assert server.connections == 0
        named = server.url.replace("127.0.0.1", "localhost")
        assert (await outbound.post(TENANT, named, b"", {}, seconds=5, allow_loopback=True)).status == 200


async def test_a_connection_to_loopback_is_not_reused_without_permission(outbound: Outbound) -> None:
    async with listening(OK) as server:
        await outbound.post(TENANT, server.url, b"", {}, seconds=5, allow_loopback=True)
        with pytest.raises(OutboundRefused):
            await outbound.post(TENANT, server.url, b"", {}, seconds=5)


@pytest.mark.parametrize("address", ["10.1.2.3", "127.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "fd00::1"])
async def test_a_name_with_a_private_address_is_rejected_without_naming_the_address(address: str) -> None:
    names = Names([address])
    async with calling(names) as outbound:
        with pytest.raises(OutboundRefused) as refused:
            await outbound.post(TENANT, "https://hook.example/x", b"", {}, seconds=5, allow_loopback=True)
    assert refused.value.reason == "address"
    assert address not in str(refused.value)
    assert names.queries == ["hook.example"]


async def test_a_name_with_a_public_and_a_private_address_is_rejected() -> None:
    async with calling(Names(["93.184.215.14", "10.0.0.1"])) as outbound:
        with pytest.raises(OutboundRefused, match="address"):
            await outbound.post(TENANT, "https://hook.example/x", b"", {}, seconds=5)


async def test_the_client_connects_to_the_checked_address(tmp_path: Path) -> None:
    """DNS rebinding: a second query would return another address, and is not made."""
    server_tls, client_tls = certificates("hook.example", tmp_path)
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    async with listening(OK, server_tls) as server, calling(names, HERE, tls=client_tls) as outbound:
        answer = await outbound.post(TENANT, f"https://hook.example:{server.port}/x", b"", {}, seconds=5)
        assert answer.status == 200
        assert names.queries == ["hook.example"]
        assert b"host: hook.example" in server.received[0].lower()


async def test_a_name_that_changes_to_a_private_address_is_rejected() -> None:
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    async with listening(OK) as server, calling(names, HERE) as outbound:
        url = f"https://hook.example:{server.port}/x"
        with pytest.raises(OutboundFailed):  # the request is sent, but the server does not speak TLS
            await outbound.post(TENANT, url, b"", {}, seconds=0.3)
        with pytest.raises(OutboundRefused, match="address"):
            await outbound.post(TENANT, url, b"", {}, seconds=5)
        assert server.connections == 1


async def test_an_untrusted_certificate_is_rejected(tmp_path: Path) -> None:
    server_tls, _ = certificates("hook.example", tmp_path)
    async with listening(OK, server_tls) as server, calling(Names(["127.0.0.1"]), HERE) as outbound:
        with pytest.raises(OutboundFailed, match="tls"):
            await outbound.post(TENANT, f"https://hook.example:{server.port}/x", b"", {}, seconds=5)
        assert server.received == []


async def test_a_redirect_is_returned_and_not_followed(outbound: Outbound) -> None:
    async with listening(OK) as other:
        moved = f"HTTP/1.1 307 Moved\r\nLocation: {other.url}\r\nContent-Length: 0\r\n\r\n".encode()
        async with listening(responding(moved)) as server:
            answer = await outbound.post(TENANT, server.url, b"x", {}, seconds=5, allow_loopback=True)
        assert (answer.status, answer.is_success) == (307, False)
        assert other.connections == 0


async def test_a_large_body_is_truncated(outbound: Outbound) -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
            await writer.drain()

    async with listening(talk) as server:
        answer = await outbound.post(TENANT, server.url, b"", {}, seconds=5, allow_loopback=True)
        assert (len(answer.body), answer.is_truncated) == (BODY_BYTES_MAX, True)


async def test_a_body_of_the_maximum_size_is_complete(outbound: Outbound) -> None:
    body = b"y" * BODY_BYTES_MAX
    async with listening(responding(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)) as server:
        answer = await outbound.post(TENANT, server.url, b"", {}, seconds=5, allow_loopback=True)
        assert (answer.body, answer.is_truncated) == (body, False)


async def test_a_compressed_body_is_not_decompressed(outbound: Outbound) -> None:
    text = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"
    async with listening(responding(text)) as server:
        assert (await outbound.post(TENANT, server.url, b"", {}, seconds=5, allow_loopback=True)).body == b"abc"


async def test_a_slow_response_times_out(outbound: Outbound) -> None:
    async def drip(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with listening(drip) as server:
        with pytest.raises(OutboundFailed, match="timeout"):
            await outbound.post(TENANT, server.url, b"", {}, seconds=0.3, allow_loopback=True)


async def test_a_missing_response_times_out(outbound: Outbound) -> None:
    async def silence(_request: bytes, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    async with listening(silence) as server:
        with pytest.raises(OutboundFailed, match="timeout"):
            await outbound.post(TENANT, server.url, b"", {}, seconds=0.2, allow_loopback=True)


@pytest.mark.parametrize("text", [b"what?\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"])
async def test_an_invalid_response_fails_with_broken(outbound: Outbound, text: bytes) -> None:
    async with listening(responding(text)) as server:
        with pytest.raises(OutboundFailed, match="broken"):
            await outbound.post(TENANT, server.url, b"", {}, seconds=2, allow_loopback=True)


async def test_a_closed_connection_fails_with_broken(outbound: Outbound) -> None:
    async def hang_up(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with listening(hang_up) as server:
        with pytest.raises(OutboundFailed, match="broken"):
            await outbound.post(TENANT, server.url, b"", {}, seconds=2, allow_loopback=True)


async def test_a_closed_port_fails_with_connect(outbound: Outbound) -> None:
    async with listening(OK) as server:
        url = server.url
    with pytest.raises(OutboundFailed) as failed:
        await outbound.post(TENANT, url, b"", {}, seconds=2, allow_loopback=True)
    assert str(failed.value) == "connect"


async def test_an_unknown_name_fails_with_dns() -> None:
    async def unknown(_tenant: str, _host: str, _deadline: float) -> Sequence[Address]:
        raise NameUnresolved

    async with calling(unknown) as outbound:
        with pytest.raises(OutboundFailed, match="dns"):
            await outbound.post(TENANT, "https://nowhere.example/", b"", {}, seconds=2)


async def test_the_proxy_of_the_environment_is_ignored(outbound: Outbound, monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(OK) as server, listening(OK) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        await outbound.post(TENANT, server.url, b"", {}, seconds=5, allow_loopback=True)
        assert (server.connections, proxy.connections) == (1, 0)


async def test_a_closed_client_can_be_used_again(outbound: Outbound) -> None:
    async with listening(OK) as server:
        await outbound.post(TENANT, server.url, b"", {}, seconds=5, allow_loopback=True)
        await outbound.close()
        await outbound.post(TENANT, server.url, b"", {}, seconds=5, allow_loopback=True)
        assert server.connections == 2


def endless(start: bytes, piece: bytes) -> Talk:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            writer.write(piece)
            await writer.drain()

    return talk


_HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (_HEAD, b"X-More: " + b"y" * 1000 + b"\r\n"),
        (_HEAD + b"X-More: ", b"y" * 1000),
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"),
        (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;", b"extension" * 100),
        (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X-Trailer: y\r\n" * 100),
    ],
    ids=["headers", "one header", "interim responses", "chunk extension", "trailers"],
)
async def test_an_endless_response_without_a_body_is_ended(outbound: Outbound, start: bytes, piece: bytes) -> None:
    async with listening(endless(start, piece)) as server:
        with pytest.raises(OutboundFailed, match="broken"):
            await outbound.post(TENANT, server.url, b"", {}, seconds=30, allow_loopback=True)
        await eventually(lambda: server.open_connections == 0)


@pytest.mark.parametrize("framing", [b"Content-Length: 99999999999", b"X-Until: the end"])
async def test_a_connection_with_a_large_body_is_closed_at_once(outbound: Outbound, framing: bytes) -> None:
    async with listening(endless(_HEAD + framing + b"\r\n\r\n", b"x" * 10_000)) as server:
        answer = await outbound.post(TENANT, server.url, b"", {}, seconds=30, allow_loopback=True)
        assert (answer.body, answer.is_truncated) == (b"x" * BODY_BYTES_MAX, True)
        await eventually(lambda: server.open_connections == 0)


async def test_headers_over_the_limit_in_one_packet_fail(outbound: Outbound) -> None:
    text = _HEAD + b"".join(b"X-%d: %b\r\n" % (n, b"y" * 1000) for n in range(40)) + b"Content-Length: 0\r\n\r\n"
    async with listening(responding(text)) as server:
        with pytest.raises(OutboundFailed, match="broken"):
            await outbound.post(TENANT, server.url, b"", {}, seconds=5, allow_loopback=True)


async def test_a_connection_is_reused_by_its_tenant_only(outbound: Outbound) -> None:
    async with listening(OK) as server:
        for tenant in ("a", "a", "b", "b", "a"):
            await outbound.post(tenant, server.url, b"x", {}, seconds=5, allow_loopback=True)
        assert (server.connections, len(server.received)) == (2, 5)


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi garbage",
    ],
    ids=["close", "1.0", "two responses", "garbage"],
)
async def test_a_connection_is_not_reused_after_such_a_response(outbound: Outbound, text: bytes) -> None:
    async with listening(responding(text)) as server:
        for _ in range(2):
            answer = await outbound.post(TENANT, server.url, b"", {}, seconds=5, allow_loopback=True)
            assert answer.body == b"hi"
        assert server.connections == 2


async def test_a_response_that_nothing_requested_ends_the_connection(outbound: Outbound) -> None:
    is_idle = asyncio.Event()

    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        await is_idle.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")

    async with listening(talk) as server:
        assert (await outbound.post(TENANT, server.url, b"", {}, seconds=5, allow_loopback=True)).body == b"hi"
        is_idle.set()
        await eventually(lambda: server.open_connections == 0)
        is_idle.clear()
        assert (await outbound.post(TENANT, server.url, b"", {}, seconds=5, allow_loopback=True)).body == b"hi"


async def test_an_interim_response_is_skipped(outbound: Outbound) -> None:
    text = b"HTTP/1.1 103 Early Hints\r\nX-Early: 1\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nhi"
    async with listening(responding(text)) as server:
        answer = await outbound.post(TENANT, server.url, b"", {}, seconds=5, allow_loopback=True)
        assert (answer.status, answer.body, "x-early" in answer.headers) == (201, b"hi", False)


async def test_a_switch_of_protocols_fails(outbound: Outbound) -> None:
    text = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhi"
    async with listening(responding(text)) as server:
        with pytest.raises(OutboundFailed, match="broken"):
            await outbound.post(TENANT, server.url, b"", {}, seconds=5, allow_loopback=True)


@pytest.mark.parametrize(
    ("text", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Trailer: 1\r\n\r\n", b"hi"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
    ids=["end of connection", "chunks", "no body"],
)
async def test_a_body_ends_where_its_framing_says(outbound: Outbound, text: bytes, body: bytes) -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(text)
        writer.close()

    async with listening(talk) as server:
        answer = await outbound.post(TENANT, server.url, b"", {}, seconds=5, allow_loopback=True)
        assert (answer.body, "x-trailer" in answer.headers) == (body, False)


async def test_a_body_that_is_cut_off_fails(outbound: Outbound) -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhi")
        writer.close()

    async with listening(talk) as server:
        with pytest.raises(OutboundFailed, match="broken"):
            await outbound.post(TENANT, server.url, b"", {}, seconds=5, allow_loopback=True)


async def test_a_large_request_is_sent_completely(outbound: Outbound) -> None:
    async with listening(OK) as server:
        for _ in range(2):
            await outbound.post(TENANT, server.url, b"z" * 3_000_000, {}, seconds=10, allow_loopback=True)
        assert all(request.endswith(b"\r\n\r\n" + b"z" * 3_000_000) for request in server.received)


async def test_another_address_is_tried_if_the_first_does_not_answer(tmp_path: Path) -> None:
    server_tls, client_tls = certificates("hook.example", tmp_path)
    names = Names(["127.0.0.9", "::1", "127.0.0.1"])  # nothing listens on the first two
    async with listening(OK, server_tls) as server, calling(names, *LOOPBACK, tls=client_tls) as outbound:
        answer = await outbound.post(TENANT, f"https://hook.example:{server.port}/x", b"", {}, seconds=5)
        assert answer.status == 200


async def test_plain_http_is_sent_to_listed_networks_only() -> None:
    async with listening(OK) as server:
        url = f"http://hook.example:{server.port}/x"
        async with calling(Names(["127.0.0.1"]), HERE) as outbound:
            assert (await outbound.post(TENANT, url, b"", {}, seconds=5)).status == 200
            numeric = url.replace("hook.example", "127.0.0.1")
            assert (await outbound.post(TENANT, numeric, b"", {}, seconds=5)).status == 200
        async with calling(Names(["93.184.215.14"]), HERE) as outbound:
            with pytest.raises(OutboundRefused, match="scheme"):
                await outbound.post(TENANT, url, b"", {}, seconds=5)
        async with calling(Names(["127.0.0.1"])) as outbound:
            with pytest.raises(OutboundRefused, match="scheme"):
                await outbound.post(TENANT, url, b"", {}, seconds=5)


async def test_an_idle_connection_is_closed_when_others_need_its_place() -> None:
    outbound = Outbound(limits=OutboundLimits(connections_max=2, connections_per_tenant_max=2))
    async with listening(OK) as first, listening(OK) as second, listening(OK) as third:
        for server in (first, second, third):
            await outbound.post(TENANT, server.url, b"", {}, seconds=5, allow_loopback=True)
        await eventually(lambda: first.open_connections == 0)
        assert (second.open_connections, third.open_connections) == (1, 1)
        await outbound.close()
        await eventually(lambda: third.open_connections == 0)


async def test_a_cancelled_call_closes_its_connection_and_returns_its_slot() -> None:
    outbound = Outbound(limits=OutboundLimits(connections_per_host_max=1))

    async def talk(request: bytes, writer: asyncio.StreamWriter) -> None:
        if request.endswith(b"hang"):
            await asyncio.sleep(30)
        await OK(request, writer)

    async with listening(talk) as server:
        call = asyncio.create_task(outbound.post(TENANT, server.url, b"hang", {}, seconds=30, allow_loopback=True))
        await eventually(lambda: server.received)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert (await outbound.post(TENANT, server.url, b"", {}, seconds=5, allow_loopback=True)).status == 200
        assert server.connections == 2
    await outbound.close()


def certificates(host: str, folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS contexts for a server of this name and for a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, private)
    return server, ssl.create_default_context(cafile=str(certificate))


async def test_a_listed_name_may_have_private_addresses() -> None:
    looked_up: list[str] = []

    async def lookup(_tenant: str, host: str, _deadline: float) -> list[Address]:
        looked_up.append(host)
        return [ipaddress.ip_address("127.0.0.1")]

    outbound = Outbound(Destinations.parse("*.internal"), lookup=lookup)
    try:
        with pytest.raises(OutboundFailed) as failed:  # nothing listens there
            await outbound.post("t", f"http://hook.internal:{free_port()}/", b"", {}, seconds=5)
        assert failed.value.reason == "connect"
        with pytest.raises(OutboundRefused) as refused:
            await outbound.post("t", "https://hook.example/", b"", {}, seconds=5)
        assert refused.value.reason == "address"
    finally:
        await outbound.close()
    assert looked_up == ["hook.internal", "hook.example"]
