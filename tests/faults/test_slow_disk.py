"""A disk that takes its time to sync: answers take longer, and stay true."""

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator

import pytest

from postroad.container import Role
from tests.gateway import Answer, Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import Server
from tests.waiting import eventually

pytestmark = pytest.mark.slow

DEADLINE = 3.0


@contextlib.contextmanager
def slow_disk(server: Server, milliseconds: int) -> Iterator[None]:
    """Each fsync of the server takes so much longer. A kernel's tracer does it, as a slow device would."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    assert server.process is not None
    calls = "fsync,fdatasync"
    command = [
        "strace",
        "-f",
        "-o",
        "/dev/null",
        "-e",
        f"trace={calls}",
        "-e",
        f"inject={calls}:delay_exit={milliseconds * 1000}",
    ]
    tracer = subprocess.Popen([*command, "-p", str(server.process.pid)], stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    said = tracer.stderr.readline()
    try:
        if "attached" not in said:
            pytest.skip(f"strace may not look at other processes here: {said}")
        yield
    finally:
        tracer.terminate()
        tracer.wait(10)
        tracer.stderr.close()


@pytest.fixture
async def gateway(own_server: Server) -> AsyncIterator[Gateway]:
    async with running_gateway(gateway_settings(own_server.url, engine_timeout=DEADLINE), Role.ALL) as running:
        yield running


async def publish(tenant: Tenant, queue: str, number: int) -> Answer:
    return await tenant.client.post(f"{queue}/messages", {"payload": number, "idempotencyKey": f"n-{number}"})


async def all_of(tenant: Tenant, queue: str, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        pulled = await tenant.pull(queue, maxMessages=100, waitMs=2000, visibilityTimeoutMs=600_000)
        if not pulled:
            break
        found += [message["payload"] for message in pulled]
    return sorted(found)


async def test_what_a_slow_disk_acknowledged_survives_the_engines_death(gateway: Gateway, own_server: Server) -> None:
    tenant = await gateway.tenant()
    queue = await tenant.queue()
    with slow_disk(own_server, 100):
        answers = await asyncio.gather(*(publish(tenant, queue, number) for number in range(100)))
        assert {answer.status for answer in answers} == {201}
        headers = {"Content-Type": "text/plain"}
        (await tenant.client.call("PUT", "/v1/stream/log", headers=headers)).ok(201)
        appends = [tenant.client.call("POST", "/v1/stream/log", headers=headers, data=b"%03d " % one) for one in range(30)]
        assert {answer.status for answer in await asyncio.gather(*appends)} == {204}
        own_server.kill()
    own_server.start()
    await eventually(lambda: gateway.node.platform.connection.is_up)
    assert await all_of(tenant, queue, 100) == list(range(100))
    read = await tenant.client.call("GET", "/v1/stream/log?offset=-1")
    assert sorted(read.body.split()) == [b"%03d" % number for number in range(30)]


async def test_a_disk_that_stands_still_is_a_503_and_all_is_well_when_it_goes_on(gateway: Gateway, own_server: Server) -> None:
    """Who is told 503 does not know whether its message is there; with its key it may ask again, and it is there once."""
    tenant = await gateway.tenant()
    queue = await tenant.queue()
    with slow_disk(own_server, 1500):
        answers = await asyncio.gather(*(publish(tenant, queue, number) for number in range(20)))
    for answer in answers:
        if answer.status != 201:
            answer.problem(503, "engine-unavailable")
            assert int(answer.headers["retry-after"]) >= 1
    assert any(answer.status == 503 for answer in answers)

    async def are_all_taken() -> bool:
        again = [await publish(tenant, queue, number) for number in range(20)]
        return {answer.status for answer in again} == {201}

    await eventually(are_all_taken, seconds=30)
    assert await all_of(tenant, queue, 21) == list(range(20))
