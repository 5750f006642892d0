"""HTTPS of a whole installation: several workers, the SDK and the command line with an own authority, and a rotation."""

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509

from postroad.client import AsyncPostroad, Postroad
from postroad.client.errors import Unreachable
from tests.certificates import Authority
from tests.cli.shell import Shell
from tests.faults.conftest import Install
from tests.installation import Installation
from tests.waiting import eventually


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path)
    made.issue()
    return made


@pytest.fixture
async def running(install: Install, authority: Authority) -> Installation:
    return (
        await install(
            POSTROAD_TLS_CERT=str(authority.certificate),
            POSTROAD_TLS_KEY=str(authority.key),
            POSTROAD_TLS_RELOAD_SECONDS="0.1",
            POSTROAD_WORKERS="2",
        )
        .start()
        .ready()
    )


async def test_clients_with_the_authority_use_tls(running: Installation, authority: Authority, tmp_path: Path) -> None:
    assert f"API     {running.url}" in running.output() and running.url.startswith("https://")
    key = running.credentials["tenant_key"]

    def synchronously() -> None:
        with Postroad(running.url, key, ca_file=authority.ca_file) as client:
            client.queues.put("orders")
            client.queues.publish("orders", {"n": 1})

    await asyncio.to_thread(synchronously)
    async with AsyncPostroad(running.url, key, ca_file=authority.ca_file) as client:
        assert [message.payload for message in (await client.queues.pull("orders")).messages] == [{"n": 1}]

    shell = Shell(tmp_path / "config", {"POSTROAD_URL": running.url, "POSTROAD_KEY": key})
    refused = await asyncio.to_thread(shell.invoke, "queues", "list")
    assert refused.code == 5 and "certificate" in refused.stderr and "POSTROAD_CA_FILE" in refused.stderr
    trusting = shell.with_environment(POSTROAD_CA_FILE=str(authority.ca_file))
    assert "orders" in (await asyncio.to_thread(trusting.run, "queues", "list")).stdout
    await asyncio.to_thread(shell.run, "profiles", "add", "tls", "--ca-file", str(authority.ca_file))
    assert "orders" in (await asyncio.to_thread(shell.run, "--profile", "tls", "queues", "list")).stdout


async def test_an_untrusted_server_is_an_error_at_once(running: Installation) -> None:
    async with AsyncPostroad(running.url, running.credentials["tenant_key"], deadline=600) as client:
        async with asyncio.timeout(60):
            with pytest.raises(Unreachable, match="certificate"):
                await client.queues.get("orders")


async def test_a_rotation_reaches_every_worker_and_drops_no_connection(running: Installation, authority: Authority) -> None:
    tls = ssl.create_default_context(cafile=authority.ca_file)
    connector = aiohttp.TCPConnector(ssl=tls)
    async with (
        aiohttp.ClientSession(running.url, headers=running.headers, connector=connector) as session,
        session.get("/v1/telemetry/stream") as live,
    ):
        second = authority.issue()

        async def all_are_new() -> bool:
            return {await serial(running, tls) for _ in range(20)} == {second}

        await eventually(all_are_new)
        async with session.put("/v1/queues/made-after-it", json={}) as answer:
            assert answer.status == 201
        async with asyncio.timeout(30):
            while b"made-after-it" not in await live.content.readline():
                pass
    code, _ = await running.stop()
    assert code == 0


async def test_an_unusable_certificate_ends_the_start(install: Install, authority: Authority) -> None:
    authority.issue(files=("key",))
    failing = install(POSTROAD_TLS_CERT=str(authority.certificate), POSTROAD_TLS_KEY=str(authority.key)).start()
    assert failing.process is not None
    assert await asyncio.to_thread(failing.process.wait, 60) == 1
    assert "cannot load the certificate" in failing.log() and "Traceback" not in failing.log()


async def serial(running: Installation, tls: ssl.SSLContext) -> int:
    _, writer = await asyncio.open_connection(running.host.address, running.port, ssl=tls)
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return x509.load_der_x509_certificate(shown).serial_number
    finally:
        writer.transport.abort()
