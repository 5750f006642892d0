"""A tenant that fills the store: its writes are refused, and all that releases storage or ends an access goes on."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from postroad.container import Role
from postroad.governance.capability import GovernanceCapability
from postroad.kernel.identity import Scope
from postroad.runtime.embedded_server import EmbeddedServerSettings
from tests.gateway import Answer, Client, Gateway, Tenant, gateway_settings, running_gateway
from tests.installation import Installation
from tests.servers import Server
from tests.waiting import eventually

pytestmark = pytest.mark.engine  # starts processes

MIB = 1024 * 1024
STORE = 32 * MIB
BLOB = "x" * 500_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    own = Server(EmbeddedServerSettings(tmp_path / "engine", sync="2s", store_bytes_max=STORE))
    try:
        yield own.start()
    finally:
        own.stop()


@asynccontextmanager
async def small_store(server: Server, **changes: Any) -> AsyncIterator[Gateway]:
    settings = gateway_settings(server.url, store_bytes_max=STORE, storage_sample_seconds=0.1, **changes)
    async with running_gateway(settings, Role.ALL) as gateway:
        yield gateway


async def fill(tenant: Tenant, queue: str, size: int = len(BLOB)) -> Answer:
    """Publish until a publish is refused."""
    for _ in range(500):
        answer = await tenant.client.post(f"{queue}/messages", {"payload": "x" * size})
        if answer.status != 201:
            return answer
    raise AssertionError("all publishes were accepted")


async def fill_store(gateway: Gateway, tenant: Tenant, queue: str) -> Answer:
    """Publish smaller messages, too, until no ordinary write is accepted."""
    monitor = gateway.node.platform.use(GovernanceCapability).storage
    while True:
        for size in (500_000, 20_000):
            refused = await fill(tenant, queue, size)
        await monitor.measure()
        if gateway.node.platform.committers.storage.store.is_reserved:
            return refused


async def published(tenant: Tenant, queue: str) -> bool:
    return (await tenant.client.post(f"{queue}/messages", {"payload": BLOB})).status == 201


async def storage_check(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/readyz")).ok()["checks"]["storage"]
    return found


async def shows_refused_writes(client: Client) -> bool:
    return "postroad_store_refuses_writes 1.0" in (await client.get("/metrics")).body.decode()


async def test_a_full_store_refuses_writes_and_can_be_emptied(server: Server) -> None:
    async with small_store(server, storage_percent_per_tenant_max=100) as gateway:
        attacker, other = await gateway.tenant(), await gateway.tenant()
        queue, others = await attacker.queue(), await other.queue()
        await other.publish(others, "kept")
        (await attacker.client.call("PUT", "/v1/stream/log", headers={"Content-Type": "text/plain"})).ok(201)
        victim_key = await attacker.another_key((Scope.PUBLISH,))

        problem = (await fill_store(gateway, attacker, queue)).problem(507, "storage-full")
        assert "reserve" in problem["detail"]
        (await attacker.client.call("POST", "/v1/stream/log", headers={"Content-Type": "text/plain"}, data=b"more")).problem(
            507, "storage-full"
        )
        (await attacker.client.put("/v1/queues/another")).problem(507, "storage-full")
        assert "writes are refused" in (await storage_check(gateway.anonymous))["detail"]
        await eventually(lambda: shows_refused_writes(gateway.anonymous))

        # Reads, acknowledgements, revocations and deletions use the reserve.
        platform = gateway.admin.with_headers(**{"X-Postroad-Tenant": attacker.id})
        (await platform.get("/v1/queues")).ok()
        (await platform.get("/api/control/keys")).ok()
        (await platform.delete(f"/api/control/keys/{victim_key.record.id}")).ok(204)
        [message] = await other.pull(others)
        (await other.ack(others, message["receiptId"])).ok()
        [message] = await attacker.pull(queue)
        nack = {"receiptId": message["receiptId"], "action": "dlq", "reason": "no space"}
        (await attacker.client.post(f"{queue}/nack", nack)).ok()
        (await attacker.client.delete("/v1/stream/log")).ok(204)

        (await platform.post(f"{queue}/purge", {})).ok()
        await eventually(lambda: published(other, others))
        await eventually(lambda: published(attacker, queue))
        assert "writable" in (await storage_check(gateway.anonymous))["detail"]


async def test_a_tenant_over_its_quota_is_refused_and_other_tenants_are_not(server: Server) -> None:
    async with small_store(server) as gateway:
        attacker, other = await gateway.tenant(), await gateway.tenant()
        queue, others = await attacker.queue(), await other.queue()
        refused = await fill(attacker, queue)
        problem = refused.problem(429, "storage-quota-exceeded")
        assert problem["retryable"] and int(refused.headers["retry-after"]) >= 1
        assert await published(other, others)
        [message] = await attacker.pull(queue)
        (await attacker.ack(queue, message["receiptId"])).ok()

        (await attacker.client.post("/v1/admin/settings", {"maxStorageBytes": 0})).problem(403, "forbidden")
        platform = gateway.admin.with_headers(**{"X-Postroad-Tenant": attacker.id})
        (await platform.post("/v1/admin/settings", {"maxStorageBytes": 15 * MIB})).ok()
        await eventually(lambda: published(attacker, queue))
        (await fill(attacker, queue)).problem(429, "storage-quota-exceeded")
        (await attacker.client.post(f"{queue}/purge", {})).ok()
        await eventually(lambda: published(attacker, queue))


async def test_a_repeated_publish_over_the_quota_returns_the_first_message(server: Server) -> None:
    async with small_store(server) as gateway:
        tenant = await gateway.tenant()
        queue = await tenant.queue()
        first = await tenant.publish(queue, "once", idempotencyKey="k")
        (await fill(tenant, queue)).problem(429, "storage-quota-exceeded")
        assert (await tenant.publish(queue, "once", idempotencyKey="k"))["messageId"] == first["messageId"]


# A disk that is really full


@contextlib.contextmanager
def small_disk(path: Path, size: int) -> Iterator[Path]:
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=False)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


async def post(session: aiohttp.ClientSession, url: str, body: object) -> int:
    async with session.post(url, json=body) as answer:
        return answer.status


@pytest.mark.slow
async def test_the_engine_serves_again_after_its_disk_was_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 * MIB) as disk:
        installation = Installation(
            disk,
            POSTROAD_STORE_BYTES_MAX=str(1024 * MIB),  # more than the disk has
            POSTROAD_STORE_RESERVE_BYTES=str(16 * MIB),
            POSTROAD_STORAGE_PERCENT_PER_TENANT_MAX="100",
            POSTROAD_ENGINE_TIMEOUT="2",
            POSTROAD_SYNC="2s",
        ).start()
        try:
            await installation.ready()
            async with aiohttp.ClientSession(headers=installation.headers) as session:
                await _fill_disk(installation, session, disk)
        finally:
            installation.end()


async def _fill_disk(installation: Installation, session: aiohttp.ClientSession, disk: Path) -> None:
    queue = f"{installation.url}/v1/queues/q"
    async with session.put(queue, json={}) as answer:
        assert answer.status == 201
    statuses = [201]
    while statuses[-1] == 201:
        statuses.append(await post(session, f"{queue}/messages", {"payload": BLOB}))
    assert statuses[-1] == 507, "the reserve keeps a distance from the end of the disk"
    assert os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize > 8 * MIB
    engine = installation.engine_pid

    await asyncio.to_thread(_write_until_full, disk / "of-another-program")
    await eventually(lambda: "disk_full" in installation.log())
    async with session.get(f"{installation.url}/healthz") as answer:
        assert answer.status == 200
    assert await post(session, f"{queue}/messages", {"payload": BLOB}) == 507
    await eventually(lambda: _is_refused(session, queue))

    (disk / "of-another-program").unlink()
    await eventually(lambda: "engine_restarted_after_full_disk" in installation.log())
    await eventually(lambda: [pid for pid in installation.children("nats-server") if pid != engine])

    async def is_purged() -> bool:
        return await post(session, f"{queue}/purge", {}) == 200

    async def is_published() -> bool:
        return await post(session, f"{queue}/messages", {"payload": "after"}) == 201

    await eventually(is_purged)
    await eventually(is_published)


async def _is_refused(session: aiohttp.ClientSession, queue: str) -> bool:
    """Whether a change is refused that must be audited. Until then, small entries fit into the last blocks of their files."""
    statuses = []
    for action in ("pause", "resume"):
        async with session.post(f"{queue}/{action}", json={}) as answer:
            statuses.append(answer.status)
            problem = await answer.json()
            if answer.status == 503:  # the engine did not answer
                assert "may or may not be stored" in problem["detail"], problem
            else:
                assert answer.status == 200 or (answer.status, problem["code"]) == (507, "storage-full"), problem
    return 507 in statuses


def _write_until_full(path: Path) -> None:
    with path.open("wb", buffering=0) as opened, contextlib.suppress(OSError):
        while True:
            opened.write(b"\0" * 65536)
