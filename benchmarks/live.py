"""Live readers of topics over server-sent events and WebSockets, beside nchan and pushpin.

    .venv/bin/python -m benchmarks.live [messages] [readers …]      default: 200 messages, 200 and 1000 readers
    .venv/bin/python -m benchmarks.live sockets [connections] [--sync 2s] [--rounds 5]
                                                                    10,000 open WebSockets: memory, and publishes beside them

One writer publishes as fast as it is answered; then 20 messages a second. Servers take turns. `processor` is the time of the
processes that serve readers, per delivered message, publishing included. nchan and pushpin keep messages in memory; those of
Postroad are fsynced.
"""

import argparse
import asyncio
import contextlib
import http.client
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import httpx
import uvloop

from benchmarks.harness import Server, postroad, table
from benchmarks.peers import nchan, pushpin
from benchmarks.peers.peer import Unavailable, install
from benchmarks.sse_readers import MARKER
from benchmarks.topics import processes, processor_seconds

ROUNDS = 2
PACED = 20
PUBLISHED_PER_SECOND = 100
SETTLE_SECONDS = 0.5
BODY = '{"order":"4711","customer":"c-0815","total":"129.90","note":"' + MARKER.decode() + "x" * 40 + '"}'


@dataclass(frozen=True, slots=True)
class Side:
    """A server and a kind of connection. `live` is a path for the name of a topic or channel, `publish` a URL."""

    name: str
    url: str
    pids: list[int]
    headers: dict[str, str]
    create: Callable[[str], None]
    publish: Callable[[str], str]
    live: Callable[[str], str]
    body: Callable[[str], bytes]


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
        return f"{server.url}/v1/topics/{name}/messages"

    yield Side(
        "Postroad, events",
        server.url,
        pids,
        headers,
        create,
        publish,
        lambda name: f"/v1/topics/{name}/stream",
        lambda _: body,
    )
    yield Side(
        "Postroad, WebSocket",
        server.url.replace("http", "ws"),
        pids,
        headers,
        create,
        publish,
        lambda name: f"/v1/ws?{name}",
        lambda _: body,
    )


def of_nchan() -> Iterator[Side]:
    with nchan.running() as peer:
        children = Path(f"/proc/{peer.pid}/task/{peer.pid}/children").read_text().split()
        pids = [int(pid) for pid in children] or [peer.pid]
        for name, url in (("nchan, events", peer.url), ("nchan, WebSocket", peer.url.replace("http", "ws"))):
            path = "/listen/" if url.startswith("http") else "/socket/"
            yield Side(
                name,
                url,
                pids,
                {},
                lambda _: None,
                lambda name: peer.url + peer.path(name),
                lambda name, path=path: path + name,  # type: ignore[misc]
                lambda _: BODY.encode(),
            )


def of_pushpin() -> Iterator[Side]:
    with pushpin.running() as peer:
        kinds = (
            ("pushpin, events", peer.url, "/events/", partial(pushpin.event_item, BODY)),
            ("pushpin, WebSocket", peer.url.replace("http", "ws"), "/socket/", partial(pushpin.socket_item, BODY)),
        )
        for name, url, path, body in kinds:
            yield Side(
                name,
                url,
                peer.pids(),
                {"Content-Type": "application/json"},
                lambda _: None,
                lambda _: peer.control,
                lambda name, path=path: path + name,  # type: ignore[misc]
                body,
            )


def write(side: Side, name: str, messages: int, per_second: float) -> list[float]:
    """The times at which the messages were sent."""
    parts = urlsplit(side.publish(name))
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port)
    body, sent = side.body(name), list[float]()
    started = time.monotonic()
    for number in range(messages):
        if per_second:
            time.sleep(max(0.0, started + number / per_second - time.monotonic()))
        sent.append(time.monotonic())
        connection.request("POST", parts.path, body, side.headers)
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
                raise Unavailable(f"{readers} readers could not connect")
            time.sleep(SETTLE_SECONDS)  # pushpin confirms a socket a little before it has subscribed it
            before = processor_seconds(side.pids)
            sent = write(side, name, messages, per_second)
            process.wait()
            used = processor_seconds(side.pids) - before
        arrivals = array("d", file.read_bytes())
    latencies = [1000 * (at - sent[place % messages]) for place, at in enumerate(arrivals) if at]
    elapsed = max(arrivals) - sent[0]
    return Result(len(latencies) / elapsed, p99(latencies), used / len(latencies) * 1e6, readers * messages - len(latencies))


@contextlib.contextmanager
def sides() -> Iterator[list[Side]]:
    with postroad() as server, contextlib.ExitStack() as stack:
        found = list(ours(server))
        for setup, peers in ((nchan.SETUP, of_nchan()), (pushpin.SETUP, of_pushpin())):
            stack.callback(peers.close)  # type: ignore[attr-defined]
            try:
                install(setup)
                found += [next(peers), next(peers)]
            except Unavailable as problem:
                print(f"without {setup}: {problem}", file=sys.stderr)
        yield found


def compare(messages: int, sizes: list[int]) -> str:
    rows: list[list[object]] = []
    with sides() as every:
        for readers in sizes:
            results: dict[str, list[Result]] = {}
            refused: dict[str, str] = {}
            for number in range(ROUNDS):
                for side in every if number % 2 == 0 else every[::-1]:
                    if side.name in refused:
                        continue
                    try:
                        results.setdefault(side.name, []).append(measure(side, f"f{readers}-{number}", readers, messages))
                    except Unavailable as problem:
                        refused[side.name] = str(problem)
            for side in every:
                if side.name in refused:
                    rows.append([readers, side.name, refused[side.name], "", "", ""])
                    continue
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


def p99(times: list[float]) -> float:
    return sorted(times)[len(times) * 99 // 100]


async def publish_times(session: aiohttp.ClientSession, seconds: float) -> list[float]:
    """Latencies in ms of publishes to a topic without readers, at a fixed rate."""
    times: list[float] = []
    started = time.monotonic()
    for number in range(int(PUBLISHED_PER_SECOND * seconds)):
        await asyncio.sleep(max(0.0, started + number / PUBLISHED_PER_SECOND - time.monotonic()))
        before = time.monotonic()
        async with session.post("/v1/topics/other/messages", json={"subject": "a", "payload": number}) as answer:
            assert answer.status == 201
        times.append(1000 * (time.monotonic() - before))
    return times


async def publish_to_all(session: aiohttp.ClientSession, messages: int) -> list[float]:
    """Publish to the readers once a second. Returns when each message was sent."""
    sent: list[float] = []
    for _ in range(messages):
        sent.append(time.monotonic())
        async with session.post("/v1/topics/held/messages", json={"subject": "a", "payload": MARKER.decode()}) as answer:
            assert answer.status == 201
        await asyncio.sleep(1)
    return sent


@dataclass(slots=True)
class Held:
    """Latencies of publishes to another topic, of all rounds: without sockets, beside idle ones, and beside ones that get a
    message a second; and how long those messages took."""

    alone: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    served: list[float] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    ratios: list[tuple[float, float]] = field(default_factory=list)  # of the p99 of each round: idle and served to alone
    kib_each: float = 0.0

    def end_round(self, alone: list[float], idle: list[float], served: list[float]) -> None:
        self.alone, self.idle, self.served = self.alone + alone, self.idle + idle, self.served + served
        self.ratios.append((p99(idle) / p99(alone), p99(served) / p99(alone)))


async def hold(server: Server, connections: int, rounds: int, messages: int = 10) -> str:
    """The phases take turns: alone, beside idle sockets, beside sockets that get a message a second, and alone again."""
    held = Held()
    headers = {"Authorization": f"Bearer {server.key}"}
    async with aiohttp.ClientSession(server.url, headers=headers) as session:
        for topic in ("held", "other"):
            async with session.put(f"/v1/topics/{topic}", json={}) as answer:
                answer.raise_for_status()
        await publish_times(session, 2)
        for _ in range(rounds):
            await hold_once(session, server, headers, connections, messages, held)
    return held_table(held, connections, rounds * messages)


async def hold_once(
    session: aiohttp.ClientSession, server: Server, headers: dict[str, str], connections: int, messages: int, held: Held
) -> None:
    pids = processes(server.pid)["worker"]
    alone, before = await publish_times(session, messages / 2), memory_kib(pids)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "arrivals"
        url = server.url.replace("http", "ws") + "/v1/ws?held"
        command = [sys.executable, "-m", "benchmarks.sse_readers", url, str(connections), str(messages), str(file)]
        readers = await asyncio.create_subprocess_exec(
            *command, f"Authorization: {headers['Authorization']}", stdout=subprocess.PIPE
        )
        assert readers.stdout is not None
        if await readers.stdout.readline() != b"connected\n":
            raise SystemExit("the sockets could not be opened")
        held.kib_each = held.kib_each or (memory_kib(pids) - before) / connections  # later rounds reuse the memory
        idle = await publish_times(session, messages)
        sent, served = await asyncio.gather(publish_to_all(session, messages), publish_times(session, messages))
        await readers.wait()
        arrivals = array("d", file.read_bytes())
    alone += await publish_times(session, messages / 2)
    held.delays += [1000 * (at - sent[place % messages]) for place, at in enumerate(arrivals) if at]
    held.end_round(alone, idle, served)


def held_table(held: Held, connections: int, messages: int) -> str:
    """Of all rounds; in brackets the lowest and the highest ratio of a round."""
    missing = connections * messages - len(held.delays)
    rows: list[list[object]] = [["none", "", *_quantiles(held.alone), "", "", ""]]
    for name, times, column in (("idle", held.idle, 0), ("one message a second", held.served, 1)):
        of_rounds = sorted(one[column] for one in held.ratios)
        ratio = f"{p99(times) / p99(held.alone):.2f} ({of_rounds[0]:.2f} to {of_rounds[-1]:.2f})"
        delivered = [f"{p99(held.delays):.0f}", missing] if column else ["", ""]
        rows.append([f"{connections:,}, {name}", f"{held.kib_each:.1f}", *_quantiles(times), ratio, *delivered])
    head = ["sockets", "KiB each", "samples", "publish p50 ms", "p99 ms", "ratio of p99", "delivered p99 ms", "missing"]
    return table(head, rows)


def _quantiles(times: list[float]) -> list[object]:
    return [len(times), f"{statistics.median(times):.1f}", f"{p99(times):.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("messages", nargs="?", default="200")
    parser.add_argument("readers", nargs="*", type=int)
    parser.add_argument("--sync", help="POSTROAD_SYNC of the server, such as 2s")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if chosen.messages == "sockets":
        count = chosen.readers[0] if chosen.readers else 10_000
        with postroad(**({} if chosen.sync is None else {"POSTROAD_SYNC": chosen.sync})) as server:
            print(uvloop.run(hold(server, count, chosen.rounds)))
        return
    print(compare(int(chosen.messages), chosen.readers or [200, 1000]))


if __name__ == "__main__":
    main()
