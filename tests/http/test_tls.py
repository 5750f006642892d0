"""HTTPS: handshakes, limits, and certificates that are replaced while connections are open."""

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvloop
from cryptography import x509

from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.tls import TlsCertificate
from postroad.kernel.errors import CertificateInvalid
from postroad.settings import SettingsInvalid, load_settings
from tests.certificates import Authority
from tests.gateway import served
from tests.http.small import NOTES, RawConnection, route, small_app
from tests.waiting import eventually

GET = b"GET /url HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def own_url(request: Request) -> Response:
    return Response(f'"{request.base_url(None)}"'.encode())


APP = small_app(NOTES, route("/url", own_url), body_bytes_max=4_000_000, anonymous_body_bytes_max=4_000_000)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path)
    made.issue()
    return made


@asynccontextmanager
async def serving(certificate: TlsCertificate, **limits: Any) -> AsyncIterator[str]:
    async with served(APP, certificate=certificate, **limits) as url:
        yield url


def loaded(authority: Authority) -> TlsCertificate:
    return TlsCertificate(authority.certificate, authority.key)


@asynccontextmanager
async def connected(url: str, authority: Authority) -> AsyncIterator[RawConnection]:
    where = urlsplit(url)
    context = ssl.create_default_context(cafile=authority.ca_file)
    context.set_alpn_protocols(["h2", "http/1.1"])
    reader, writer = await asyncio.open_connection(where.hostname, where.port, ssl=context)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.transport.abort()


def serial_of(connection: RawConnection) -> int:
    [secured] = [connection.writer.get_extra_info("ssl_object")]
    return x509.load_der_x509_certificate(secured.getpeercert(binary_form=True)).serial_number


async def test_requests_are_served_over_tls(authority: Authority) -> None:
    async with serving(loaded(authority)) as url, connected(url, authority) as connection:
        assert connection.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        for _ in range(3):  # on one connection
            await connection.send(GET)
            assert (await connection.answer()).ok().startswith("https://localhost")


async def test_a_large_body_arrives_whole(authority: Authority) -> None:
    body = b'{"text": "%b"}' % (b"x" * 3_000_000)
    head = b"POST /notes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with serving(loaded(authority)) as url, connected(url, authority) as connection:
        await connection.send(head + body)
        assert (await connection.answer()).ok() == {"length": 3_000_000}


async def test_a_new_certificate_serves_new_connections_and_leaves_open_ones(authority: Authority) -> None:
    certificate = loaded(authority)
    async with serving(certificate) as url, connected(url, authority) as old:
        first = serial_of(old)
        second = authority.issue()
        assert certificate.reload() and not certificate.reload()
        async with connected(url, authority) as new:
            assert (serial_of(old), serial_of(new)) == (first, second)
            for connection in (old, new):
                await connection.send(GET)
                assert (await connection.answer()).status == 200


async def test_changed_files_are_noticed(authority: Authority) -> None:
    certificate = loaded(authority)
    watching = asyncio.create_task(certificate.watch(0.01))
    try:
        async with serving(certificate) as url:
            second = authority.issue()

            async def is_new() -> bool:
                async with connected(url, authority) as connection:
                    return serial_of(connection) == second

            await eventually(is_new)
    finally:
        watching.cancel()


async def test_an_unusable_pair_of_files_leaves_the_previous_certificate(authority: Authority) -> None:
    certificate = loaded(authority)
    async with serving(certificate) as url:
        authority.issue(files=("certificate",))
        with pytest.raises(CertificateInvalid):
            certificate.reload()
        authority.certificate.write_bytes(b"")
        with pytest.raises(CertificateInvalid):
            certificate.reload()
        async with connected(url, authority) as connection:
            await connection.send(GET)
            assert (await connection.answer()).status == 200
        last = authority.issue()
        assert certificate.reload()
        async with connected(url, authority) as connection:
            assert serial_of(connection) == last


@pytest.mark.parametrize("fault", ["missing", "passphrase", "other key", "no certificate"])
def test_an_unusable_certificate_is_refused_at_the_start(authority: Authority, fault: str) -> None:
    if fault == "missing":
        authority.key.unlink()
    elif fault == "passphrase":
        authority.issue(passphrase=b"secret")
    elif fault == "other key":
        authority.issue(files=("key",))
    else:
        authority.certificate.write_bytes(b"no PEM")
    with pytest.raises(CertificateInvalid, match=r"key\.pem"):
        loaded(authority)


def test_a_certificate_needs_its_key() -> None:
    for name, other in (("CERT", "KEY"), ("KEY", "CERT")):
        with pytest.raises(SettingsInvalid, match=f"POSTROAD_TLS_{name}: needs POSTROAD_TLS_{other}"):
            load_settings({f"POSTROAD_TLS_{name}": "x.pem"})


def test_old_versions_of_tls_are_not_offered(authority: Authority) -> None:
    assert loaded(authority).context.minimum_version is ssl.TLSVersion.TLSv1_2


# Clients that are not right


async def test_a_request_without_tls_closes_its_connection_only(authority: Authority) -> None:
    async with serving(loaded(authority)) as url, connected(url, authority) as right:
        where = urlsplit(url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(GET)
        async with asyncio.timeout(30):
            assert b"HTTP" not in await reader.read()
        writer.close()
        await right.send(GET)
        assert (await right.answer()).status == 200


async def test_a_client_that_does_not_shake_hands_is_disconnected(authority: Authority) -> None:
    async with serving(loaded(authority), header_seconds_max=0.2) as url:
        where = urlsplit(url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        async with asyncio.timeout(30):
            assert await reader.read() == b""
        writer.close()


async def test_unfinished_handshakes_count_as_connections(authority: Authority) -> None:
    async with serving(loaded(authority), connections_max=3) as url:
        where = urlsplit(url)
        silent = [socket.create_connection((where.hostname or "", where.port or 0)) for _ in range(3)]

        async def is_served() -> bool:
            try:
                async with connected(url, authority) as connection:
                    await connection.send(GET)
                    return (await connection.answer()).status == 200
            except OSError:
                return False

        async def is_refused() -> bool:
            return not await is_served()

        await eventually(is_refused)
        for one in silent:
            one.close()
        await eventually(is_served)


def test_failed_handshakes_stop_counting_at_once(authority: Authority) -> None:
    """On the event loop of the workers, without the garbage collector, which runs rarely there."""
    certificate = loaded(authority)

    async def fail_often() -> None:
        async with serving(certificate, connections_max=5) as url:
            where = urlsplit(url)
            for _ in range(20):
                reader, writer = await asyncio.open_connection(where.hostname, where.port)
                writer.write(GET)
                await reader.read()
                writer.close()
            async with connected(url, authority) as connection:
                await connection.send(GET)
                assert (await connection.answer()).status == 200

    gc.disable()
    try:
        uvloop.run(fail_often())
    finally:
        gc.enable()
