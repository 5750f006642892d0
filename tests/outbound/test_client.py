"""Calling real servers on this machine, and being kept from calling others."""

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

from postroad.outbound.client import BODY_BYTES_MAX, Outbound
from postroad.outbound.rules import Address, OutboundFailed, OutboundRefused

Talk = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
HERE = ipaddress.IPv4Network("127.0.0.1/32")


class Listening:
    """A raw HTTP server: what it heard, and who connected."""

    def __init__(self) -> None:
        self.port = 0
        self.heard: list[bytes] = []
        self.connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


@asynccontextmanager
async def listening(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[Listening]:
    seen = Listening()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")), 0)
                seen.heard.append(head + await reader.readexactly(length))
                await talk(seen.heard[-1], writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    seen.port = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()


def saying(text: bytes) -> Talk:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(text)
        await writer.drain()

    return talk


OK = saying(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-More: yes\r\nSet-Cookie: a=b\r\n\r\nhi")


@pytest.fixture
async def outbound() -> AsyncIterator[Outbound]:
    made = Outbound()
    yield made
    await made.close()


@asynccontextmanager
async def calling(
    lookup: Callable[[str], Awaitable[Sequence[Address]]], *allowed: ipaddress.IPv4Network, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Outbound]:
    made = Outbound(allowed, lookup=lookup, tls=tls)
    try:
        yield made
    finally:
        await made.close()


class Names:
    """A name server whose answers change from question to question."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str) -> Sequence[Address]:
        self.asked.append(host)
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return [ipaddress.ip_address(one) for one in found]


async def test_what_is_posted_arrives_and_the_answer_comes_back(outbound: Outbound) -> None:
    async with listening(OK) as server:
        answer = await outbound.post(
            server.url, b'{"a":1}', {"Content-Type": "application/json", "X-Mine": "1"}, seconds=5, allow_loopback=True
        )
        assert (answer.status, answer.body, answer.is_truncated, answer.is_success) == (200, b"hi", False, True)
        assert answer.headers["x-more"] == "yes"
        head = server.heard[0].lower()
        assert head.startswith(b"post /hook http/1.1\r\n")
        assert head.endswith(b'{"a":1}')
        assert b"x-mine: 1" in head
        assert b"accept-encoding: identity" in head


async def test_cookies_are_forgotten(outbound: Outbound) -> None:
    async with listening(OK) as server:
        for _ in range(2):
            await outbound.post(server.url, b"", {}, seconds=5, allow_loopback=True)
        assert b"cookie" not in server.heard[1].lower()


async def test_loopback_is_refused_unless_it_is_wanted(outbound: Outbound) -> None:
    async with listening(OK) as server:
        with pytest.raises(OutboundRefused, match="address"):
            await outbound.post(server.url, b"", {}, seconds=5)
        assert server.connections == 0
        named = server.url.replace("127.0.0.1", "localhost")
        assert (await outbound.post(named, b"", {}, seconds=5, allow_loopback=True)).status == 200


async def test_a_connection_made_with_permission_is_not_used_without_it(outbound: Outbound) -> None:
    async with listening(OK) as server:
        await outbound.post(server.url, b"", {}, seconds=5, allow_loopback=True)
        with pytest.raises(OutboundRefused):
            await outbound.post(server.url, b"", {}, seconds=5)


@pytest.mark.parametrize("address", ["10.1.2.3", "127.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "fd00::1"])
async def test_a_name_that_leads_inside_is_refused_and_the_address_stays_untold(address: str) -> None:
    names = Names([address])
    async with calling(names) as outbound:
        with pytest.raises(OutboundRefused) as refused:
            await outbound.post("https://hook.example/x", b"", {}, seconds=5, allow_loopback=True)
    assert refused.value.reason == "address"
    assert address not in str(refused.value)
    assert names.asked == ["hook.example"]


async def test_a_name_with_one_foot_inside_is_refused() -> None:
    async with calling(Names(["93.184.215.14", "10.0.0.1"])) as outbound:
        with pytest.raises(OutboundRefused, match="address"):
            await outbound.post("https://hook.example/x", b"", {}, seconds=5)


async def test_the_address_that_was_checked_is_the_one_that_is_called(tmp_path: Path) -> None:
    """DNS rebinding: the second question would be answered with another address, and is not asked."""
    server_tls, client_tls = certificates("hook.example", tmp_path)
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    async with listening(OK, server_tls) as server, calling(names, HERE, tls=client_tls) as outbound:
        answer = await outbound.post(f"https://hook.example:{server.port}/x", b"", {}, seconds=5)
        assert answer.status == 200
        assert names.asked == ["hook.example"]
        assert b"host: hook.example" in server.heard[0].lower()


async def test_a_name_that_has_turned_inwards_is_refused_next_time() -> None:
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    async with listening(OK) as server, calling(names, HERE) as outbound:
        url = f"https://hook.example:{server.port}/x"
        with pytest.raises(OutboundFailed):  # it is called, but speaks no TLS
            await outbound.post(url, b"", {}, seconds=0.3)
        with pytest.raises(OutboundRefused, match="address"):
            await outbound.post(url, b"", {}, seconds=5)
        assert server.connections == 1


async def test_a_certificate_nobody_vouches_for_is_not_taken(tmp_path: Path) -> None:
    server_tls, _ = certificates("hook.example", tmp_path)
    async with listening(OK, server_tls) as server, calling(Names(["127.0.0.1"]), HERE) as outbound:
        with pytest.raises(OutboundFailed, match="tls"):
            await outbound.post(f"https://hook.example:{server.port}/x", b"", {}, seconds=5)
        assert server.heard == []


async def test_a_redirect_is_an_answer_and_is_not_followed(outbound: Outbound) -> None:
    async with listening(OK) as other:
        moved = f"HTTP/1.1 307 Moved\r\nLocation: {other.url}\r\nContent-Length: 0\r\n\r\n".encode()
        async with listening(saying(moved)) as server:
            answer = await outbound.post(server.url, b"x", {}, seconds=5, allow_loopback=True)
        assert (answer.status, answer.is_success) == (307, False)
        assert other.connections == 0


async def test_a_huge_body_is_cut(outbound: Outbound) -> None:
    async def talk(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
            await writer.drain()

    async with listening(talk) as server:
        answer = await outbound.post(server.url, b"", {}, seconds=5, allow_loopback=True)
        assert (len(answer.body), answer.is_truncated) == (BODY_BYTES_MAX, True)


async def test_a_body_that_just_fits_is_whole(outbound: Outbound) -> None:
    body = b"y" * BODY_BYTES_MAX
    async with listening(saying(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)) as server:
        answer = await outbound.post(server.url, b"", {}, seconds=5, allow_loopback=True)
        assert (answer.body, answer.is_truncated) == (body, False)


async def test_a_compressed_body_is_left_as_it_is(outbound: Outbound) -> None:
    text = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"
    async with listening(saying(text)) as server:
        assert (await outbound.post(server.url, b"", {}, seconds=5, allow_loopback=True)).body == b"abc"


async def test_who_drips_is_given_up_at_the_deadline(outbound: Outbound) -> None:
    async def drip(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    loop = asyncio.get_running_loop()
    started = loop.time()
    async with listening(drip) as server:
        with pytest.raises(OutboundFailed, match="timeout"):
            await outbound.post(server.url, b"", {}, seconds=0.3, allow_loopback=True)
    assert loop.time() - started < 2


async def test_who_says_nothing_is_given_up_at_the_deadline(outbound: Outbound) -> None:
    async def silence(_request: bytes, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    async with listening(silence) as server:
        with pytest.raises(OutboundFailed, match="timeout"):
            await outbound.post(server.url, b"", {}, seconds=0.2, allow_loopback=True)


@pytest.mark.parametrize("text", [b"what?\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"])
async def test_what_is_no_http_is_broken(outbound: Outbound, text: bytes) -> None:
    async with listening(saying(text)) as server:
        with pytest.raises(OutboundFailed, match="broken"):
            await outbound.post(server.url, b"", {}, seconds=2, allow_loopback=True)


async def test_who_hangs_up_is_broken(outbound: Outbound) -> None:
    async def hang_up(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with listening(hang_up) as server:
        with pytest.raises(OutboundFailed, match="broken"):
            await outbound.post(server.url, b"", {}, seconds=2, allow_loopback=True)


async def test_nobody_there(outbound: Outbound) -> None:
    async with listening(OK) as server:
        url = server.url
    with pytest.raises(OutboundFailed) as failed:
        await outbound.post(url, b"", {}, seconds=2, allow_loopback=True)
    assert str(failed.value) == "connect"


async def test_a_name_that_nobody_knows() -> None:
    async def unknown(_host: str) -> Sequence[Address]:
        raise OSError("no such name")

    async with calling(unknown) as outbound:
        with pytest.raises(OutboundFailed, match="dns"):
            await outbound.post("https://nowhere.example/", b"", {}, seconds=2)


async def test_the_environments_proxy_is_not_asked(outbound: Outbound, monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(OK) as server, listening(OK) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        await outbound.post(server.url, b"", {}, seconds=5, allow_loopback=True)
        assert (server.connections, proxy.connections) == (1, 0)


async def test_it_can_be_used_again_after_it_was_closed(outbound: Outbound) -> None:
    async with listening(OK) as server:
        await outbound.post(server.url, b"", {}, seconds=5, allow_loopback=True)
        await outbound.close()
        await outbound.post(server.url, b"", {}, seconds=5, allow_loopback=True)
        assert server.connections == 2


def certificates(host: str, folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """For a server of this name, and for a client that trusts it."""
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
