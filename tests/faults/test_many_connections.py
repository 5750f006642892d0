"""Thousands of connections to one worker, and more than it has descriptors for: others are served, and the worker recovers."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from postroad.runtime.embedded_server import raise_descriptor_limit
from tests.faults.conftest import Install
from tests.installation import Installation
from tests.network import Host
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("connections")]

IDLE, LIVE = 2000, 3000
STEP = 500  # live readers that begin at the same time: until then they are open requests, which have a lower limit
QUEUE = "/v1/queues/q/messages"
FEW_DESCRIPTORS = Host("127.0.0.1", ("prlimit", "--nofile=256:256", "--"))


@contextlib.asynccontextmanager
async def client(running: Installation) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(running.url, headers=running.headers, connector=connector) as session:
        yield session


async def publish(session: aiohttp.ClientSession, count: int) -> None:
    for number in range(count):
        async with session.post(QUEUE, json={"payload": number}) as answer:
            assert answer.status == 201, await answer.text()


@contextlib.contextmanager
def connections(running: Installation, count: int) -> Iterator[list[socket.socket]]:
    raise_descriptor_limit()
    with contextlib.ExitStack() as opened:
        found = []
        for _ in range(count):
            one = opened.enter_context(socket.create_connection((running.host.address, running.port), 10))
            one.setblocking(False)
            found.append(one)
        yield found


def descriptors(running: Installation) -> int:
    [pid] = running.worker_pids
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def test_idle_connections_and_live_readers_leave_other_requests_served(install: Install) -> None:
    running = await install(POSTROAD_LIVE_CONNECTIONS_PER_TENANT_MAX="10000").start().ready()
    request = "\r\n".join([f"{name}: {value}" for name, value in running.headers.items()])
    head = f"GET /v1/stream/s?offset=now&live=sse HTTP/1.1\r\nHost: x\r\n{request}\r\n\r\n".encode()
    async with client(running) as session:
        async with session.put("/v1/stream/s", headers={"Content-Type": "text/plain"}) as answer:
            assert answer.status == 201
        loop = asyncio.get_running_loop()
        with connections(running, IDLE), connections(running, LIVE) as live:
            for first in range(0, LIVE, STEP):
                for one in live[first : first + STEP]:
                    await loop.sock_sendall(one, head)
                for one in live[first : first + STEP]:
                    assert (await asyncio.wait_for(loop.sock_recv(one, 1000), 30)).startswith(b"HTTP/1.1 200 ")
            await asyncio.wait_for(publish(session, 50), 30)
            async with session.post("/v1/stream/s", data=b"to all", headers={"Content-Type": "text/plain"}) as answer:
                assert answer.status in (200, 204)
            for one in live:
                assert b"to all" in await asyncio.wait_for(_until(one, b"to all"), 30)
        await eventually(lambda: descriptors(running) < 100)
        await publish(session, 1)


async def _until(one: socket.socket, text: bytes) -> bytes:
    received = b""
    while text not in received:
        chunk = await asyncio.get_running_loop().sock_recv(one, 4096)
        assert chunk, received
        received += chunk
    return received


async def test_a_worker_without_descriptors_refuses_connections_and_recovers(install: Install) -> None:
    running = install()
    running.host = FEW_DESCRIPTORS
    await running.start().ready()
    [pid] = running.worker_pids
    async with client(running) as session:
        await publish(session, 1)
        with connections(running, 1000) as opened:
            refusal = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(opened[-1], 1000), 10)
            assert refusal.startswith(b"HTTP/1.1 503 ") and b'"overloaded"' in refusal
            await publish(session, 20)  # on a connection that is open
            os.kill(running.engine_pid, signal.SIGKILL)
            await publish(session, 20)  # a descriptor was left to connect to the engine again
        await eventually(lambda: descriptors(running) < 100)
    async with client(running) as session:  # on a new connection
        await publish(session, 20)
    assert running.worker_pids == [pid], "the worker was not restarted"
