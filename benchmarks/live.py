"""Live readers of topics over server-sent events and WebSockets, beside nchan.

    .venv/bin/python -m benchmarks.live [messages] [readers …]      default: 200 messages, 200 and 1000 readers
    .venv/bin/python -m benchmarks.live sockets [connections]       memory of idle WebSockets, 10,000 by default

One writer publishes as fast as it is answered; then 20 messages a second. Servers take turns. `processor` is the time of the
process that serves readers, per delivered message, publishing included. nchan keeps messages in memory; Postroad's are fsynced.
"""

import argparse
import asyncio
import contextlib
import http.client
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import httpx
import uvloop

from benchmarks.harness import Server, postroad, table
from benchmarks.peers import nchan
from benchmarks.peers.peer import Unavailable
from benchmarks.sse_readers import MARKER
from benchmarks.topics import processes, processor_seconds

ROUNDS = 2
PACED = 20
BODY = '{"order":"4711","customer":"c-0815","total":"129.90","note":"' + MARKER.decode() + "x" * 40 + '"}'


@dataclass(frozen=True, slots=True)
class Side:
    """A server and a kind of connection. `live` and `publish` are paths for the name of a topic or channel."""

    name: str
    url: str
    pids: list[int]
    headers: dict[str, str]
    create: Callable[[str], None]
    publish: Callable[[str], str]
    live: Callable[[str], str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Result:
    per_second: float
    p99_ms: float
    processor_us: float
    missing: int


def ours(server: Server) -> Iterator[Side]:
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    body = f'{{"subject":"a.b","payload":{BODY}}}'.encode()
    pids = processes(server.pid)["worker"]

    def create(name: str) -> None:
        httpx.put(f"{server.url}/v1/topics/{name}", headers=headers, json={}).raise_for_status()

    def publish(name: str) -> str:
        return f"/v1/topics/{name}/messages"

    yield Side("Postroad, events", server.url, pids, headers, create, publish, lambda name: f"/v1/topics/{name}/stream", body)
    yield Side(
        "Postroad, WebSocket",
        server.url.replace("http", "ws"),
        pids,
        headers,
        create,
        publish,
        lambda name: f"/v1/ws?{name}",
        body,
    )


def of_nchan() -> Iterator[Side]:
    with nchan.running() as peer:
        children = Path(f"/proc/{peer.pid}/task/{peer.pid}/children").read_text().split()
        pids = [int(pid) for pid in children] or [peer.pid]
        for name, url in (("nchan, events", peer.url), ("nchan, WebSocket", peer.url.replace("http", "ws"))):
            path = "/listen/" if url.startswith("http") else "/socket/"
            yield Side(name, url, pids, {}, lambda _: None, peer.path, lambda name, path=path: path + name, BODY.encode())  # type: ignore[misc]


def write(side: Side, name: str, messages: int, per_second: float) -> list[float]:
    """The times at which the messages were sent."""
    parts = urlsplit(side.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port)
    sent: list[float] = []
    started = time.monotonic()
    for number in range(messages):
        if per_second:
            time.sleep(max(0.0, started + number / per_second - time.monotonic()))
        sent.append(time.monotonic())
        connection.request("POST", side.publish(name), side.body, side.headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{side.name}: {answer.status}")
    return sent


def measure(side: Side, name: str, readers: int, messages: int, per_second: float = 0) -> Result:
    name += "-socket" if side.url.startswith("ws") else "-events"
    side.create(name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "arrivals"
        headers = [f"{header}: {value}" for header, value in side.headers.items() if header == "Authorization"]
        command = [sys.executable, "-m", "benchmarks.sse_readers", side.url + side.live(name), str(readers), str(messages)]
        with subprocess.Popen([*command, str(file), *headers], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            if process.stdout.readline() != "connected\n":
                raise SystemExit(f"{side.name}: the readers could not connect")
            before = processor_seconds(side.pids)
            sent = write(side, name, messages, per_second)
            process.wait()
            used = processor_seconds(side.pids) - before
        arrivals = array("d", file.read_bytes())
    latencies = sorted(1000 * (at - sent[place % messages]) for place, at in enumerate(arrivals) if at)
    elapsed = max(arrivals) - sent[0]
    p99 = latencies[len(latencies) * 99 // 100]
    return Result(len(latencies) / elapsed, p99, used / len(latencies) * 1e6, readers * messages - len(latencies))


@contextlib.contextmanager
def sides() -> Iterator[list[Side]]:
    with postroad() as server, contextlib.ExitStack() as stack:
        found = list(ours(server))
        peers = of_nchan()
        stack.callback(peers.close)  # type: ignore[attr-defined]
        try:
            found += [next(peers), next(peers)]
        except Unavailable as problem:
            print(f"without nchan: {problem}", file=sys.stderr)
        yield found


def compare(messages: int, sizes: list[int]) -> str:
    rows: list[list[object]] = []
    with sides() as every:
        for readers in sizes:
            results: dict[str, list[Result]] = {}
            for number in range(ROUNDS):
                for side in every if number % 2 == 0 else every[::-1]:
                    results.setdefault(side.name, []).append(measure(side, f"f{readers}-{number}", readers, messages))
            for side in every:
                calm = measure(side, f"c{readers}", readers, 3 * PACED, PACED)
                best = results[side.name]
                rate = sum(one.per_second for one in best) / len(best)
                cost = sum(one.processor_us for one in best) / len(best)
                missing = sum(one.missing for one in best) + calm.missing
                rows.append([readers, side.name, f"{rate:,.0f}", f"{cost:.1f}", f"{calm.p99_ms:.1f}", missing])
    return table(["readers", "server", "delivered/s", "processor µs each", f"p99 ms at {PACED}/s", "missing"], rows)


def memory_kib(pids: list[int]) -> int:
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


async def hold(server: Server, connections: int) -> str:
    """Open sockets with one subscription each, leave them idle, then publish one message a second."""
    pids = processes(server.pid)["worker"]
    headers = {"Authorization": f"Bearer {server.key}"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(server.url, headers=headers, connector=connector) as session:
        await session.put("/v1/topics/held", json={})
        before, slots = memory_kib(pids), asyncio.Semaphore(100)

        async def open_one() -> aiohttp.ClientWebSocketResponse:
            async with slots:
                socket = await session.ws_connect("/v1/ws", protocols=["postroad.v1"], autoping=True)
                await socket.send_json({"op": "subscribe", "ref": "a", "topic": "held"})
                while '"ready"' not in (await socket.receive_str()):
                    pass
                return socket

        sockets = await asyncio.gather(*[open_one() for _ in range(connections)])
        each = (memory_kib(pids) - before) / connections
        latencies: list[float] = []
        for number in range(10):
            started = time.monotonic()
            async with session.post("/v1/topics/held/messages", json={"subject": "a", "payload": number}) as answer:
                assert answer.status == 201
            latencies.append(1000 * (time.monotonic() - started))
            await asyncio.sleep(1)
        seen = await asyncio.gather(*[_count(socket) for socket in sockets])
        rows: list[list[object]] = [[connections, f"{each:.1f}", f"{max(latencies):.1f}", sum(10 - one for one in seen)]]
    return table(["sockets", "KiB each", "slowest publish, ms", "missing"], rows)


async def _count(socket: aiohttp.ClientWebSocketResponse) -> int:
    count = 0
    with contextlib.suppress(TimeoutError):
        while count < 10:
            count += '"message"' in await socket.receive_str(timeout=10)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("messages", nargs="?", default="200")
    parser.add_argument("readers", nargs="*", type=int)
    chosen = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if chosen.messages == "sockets":
        count = chosen.readers[0] if chosen.readers else 10_000
        with postroad() as server:
            print(uvloop.run(hold(server, count)))
        return
    print(compare(int(chosen.messages), chosen.readers or [200, 1000]))


if __name__ == "__main__":
    main()
