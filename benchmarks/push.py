"""Delivery of a topic's messages to HTTP endpoints: rate and processor time, beside the bare outbound client.

    .venv/bin/python -m benchmarks.push [messages] [subscriptions]

Each message is delivered to all subscriptions (100), signed, to a receiver in a process of its own. `bare` makes the same number
of requests to the same receiver with the outbound client and nothing else, 64 at a time. The two take turns.
"""

import asyncio
import contextlib
import multiprocessing
import statistics
import sys
import time
from collections.abc import AsyncIterator
from ipaddress import ip_network
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import aiohttp
import uvloop

from benchmarks.harness import Server, postroad, table
from benchmarks.peers.peer import PAYLOAD
from benchmarks.processor_time import process_seconds
from postroad.outbound.client import Outbound, OutboundLimits
from postroad.outbound.rules import Destinations

ROUNDS = 3
_RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Receiver(asyncio.Protocol):
    """Answers each request; its body follows the headers in the same write, as the client sends it."""

    received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        count = data.count(b"POST / HTTP/1.1\r\n")
        Receiver.received += count
        self._transport.write(_RESPONSE * count)  # type: ignore[attr-defined]


async def _receive(pipe: Pipe) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Receiver, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    while await loop.run_in_executor(None, pipe.recv):
        pipe.send(Receiver.received)


def _run_receiver(pipe: Pipe) -> None:
    with contextlib.suppress(EOFError):
        uvloop.run(_receive(pipe))


class Counted:
    """The receiver's process, and the number of requests that it has received."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_run_receiver, args=(other,), daemon=True)
        self._process.start()
        self.port: int = self._pipe.recv()

    def count(self) -> int:
        self._pipe.send(True)
        received: int = self._pipe.recv()
        return received

    async def wait_for(self, total: int) -> None:
        while self.count() < total:  # noqa: ASYNC110  # another process counts
            await asyncio.sleep(0.02)

    def end(self) -> None:
        self._process.terminate()


@contextlib.asynccontextmanager
async def _outbound() -> AsyncIterator[Outbound]:
    made = Outbound(Destinations((ip_network("127.0.0.0/8"),)), OutboundLimits(connections_per_host_max=64))
    try:
        yield made
    finally:
        await made.close()


async def bare(url: str, count: int) -> tuple[float, float]:
    """Requests per second and processor µs of each."""
    body, left = PAYLOAD.encode(), [count]
    headers = {"Content-Type": "application/json", "X-MQ-Id": "1"}
    async with _outbound() as outbound:

        async def client() -> None:
            while left[0] > 0:
                left[0] -= 1
                await outbound.post("t", url, body, headers, seconds=10)

        started, used = time.perf_counter(), time.process_time()
        await asyncio.gather(*(client() for _ in range(64)))
        return count / (time.perf_counter() - started), (time.process_time() - used) / count * 1e6


def _pid(server: Server, role: str) -> int:
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return next(int(pid) for pid in children if role in Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " "))


async def pushed(
    session: aiohttp.ClientSession, server: Server, receiver: Counted, messages: int, subscriptions: int
) -> list[float]:
    """Deliveries per second, and processor µs of each in the delivery process and in the engine."""
    delivery, engine = _pid(server, "postroad.runtime.worker delivery"), _pid(server, "nats-server")
    before = receiver.count()
    started, used = time.perf_counter(), [process_seconds(delivery), process_seconds(engine)]
    for start in range(0, messages, 500):
        batch = [{"subject": "a.b", "payload": 1} for _ in range(min(500, messages - start))]
        async with session.post("/v1/topics/bench/messages/batch", json={"messages": batch}) as answer:
            answer.raise_for_status()
    count = messages * subscriptions
    await receiver.wait_for(before + count)
    seconds = time.perf_counter() - started
    costs = [(process_seconds(pid) - one) / count * 1e6 for pid, one in zip((delivery, engine), used, strict=True)]
    return [count / seconds, *costs]


async def measure(server: Server, messages: int, subscriptions: int) -> list[list[object]]:
    receiver = Counted()
    url = f"http://127.0.0.1:{receiver.port}/"
    headers = {"Authorization": f"Bearer {server.key}"}
    try:
        async with aiohttp.ClientSession(server.url, headers=headers) as session:
            async with session.put("/v1/topics/bench", json={}) as answer:
                answer.raise_for_status()
            for _ in range(subscriptions):
                new = {"delivery_type": "http_push", "url": url}
                async with session.post("/v1/topics/bench/subscriptions", json=new) as answer:
                    answer.raise_for_status()
            await pushed(session, server, receiver, 20, subscriptions)  # warm: windows have grown, connections are open
            rows = [
                (await bare(url, messages * subscriptions), await pushed(session, server, receiver, messages, subscriptions))
                for _ in range(ROUNDS)
            ]
    finally:
        receiver.end()
    bare_rate, bare_cost = (statistics.median(one[0][index] for one in rows) for index in (0, 1))
    rate, cost, engine = (statistics.median(one[1][index] for one in rows) for index in (0, 1, 2))
    ratio = statistics.median(one[1][0] / one[0][0] for one in rows)
    return [
        ["bare client", f"{bare_rate:,.0f}", f"{bare_cost:.0f}", "", ""],
        [f"push, {subscriptions} subscriptions", f"{rate:,.0f}", f"{cost:.0f}", f"{engine:.0f}", f"{ratio:.2f}"],
    ]


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    subscriptions = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    with postroad(POSTROAD_OUTBOUND_ALLOW="127.0.0.0/8", POSTROAD_REQUESTS_PER_SECOND_PER_TENANT_MAX="0") as server:
        rows = uvloop.run(measure(server, messages, subscriptions))
    print(table(["", "per second", "process µs", "engine µs", "ratio of rates"], rows))


if __name__ == "__main__":
    main()
