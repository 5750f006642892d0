"""Processor time per durable operation with one sync per write and with group sync (decision 0043).

TMPDIR=<folder on ext4 with a journal> .venv/bin/python -m benchmarks.group_sync [pairs]

Two installations take turns: the same number of operations on one, then on the other. The table has the medians of the processor
times of gateway, nats-server and the process of the control role, and of the rate, which is of use on an idle machine only.
"""

import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import uvloop

from benchmarks.harness import Server, postroad, table
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import CommitPolicy, Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.store_sync import StoreSync
from postroad.jetstream.write_buffer_limit import WriteBufferLimit

SYNCS = ("always", "group")
PAYLOAD = "x" * 200
_TICKS = os.sysconf("SC_CLK_TCK")


class HttpConnection:
    """A kept-alive connection that sends one request after the other."""

    def __init__(self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._head = f"Host: bench\r\nAuthorization: Bearer {server.key}\r\nContent-Type: application/json\r\n"

    @classmethod
    async def open(cls, server: Server) -> "HttpConnection":
        host, _, port = server.url.removeprefix("http://").partition(":")
        return cls(server, *await asyncio.open_connection(host, int(port)))

    async def call(self, method: str, path: str, body: bytes) -> bytes:
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        received = await self._reader.readuntil(b"\r\n\r\n")
        status = int(received.split(b" ", 2)[1])
        found = received.lower().partition(b"content-length: ")[2]
        answer = await self._reader.readexactly(int(found.split(b"\r\n")[0]) if found else 0)
        if status >= 300:
            raise SystemExit(f"{method} {path}: {status} {answer.decode()}")
        return answer

    def close(self) -> None:
        self._writer.close()


Operation = Callable[[HttpConnection], Awaitable[None]]


async def publish(http: HttpConnection) -> None:
    await http.call("POST", "/v1/queues/bench/messages", msgspec.json.encode({"payload": PAYLOAD}))


async def pull_and_ack(http: HttpConnection) -> None:
    answer = await http.call("POST", "/v1/queues/bench/pull", b'{"maxMessages":1,"waitMs":1000}')
    receipts = [one["receiptId"] for one in msgspec.json.decode(answer)["messages"]]
    if receipts:
        await http.call("POST", "/v1/queues/bench/ack", msgspec.json.encode({"receiptIds": receipts}))


async def append(http: HttpConnection) -> None:
    await http.call("POST", "/v1/stream/bench", msgspec.json.encode(PAYLOAD))


@dataclass
class Measured:
    gateway: list[float] = field(default_factory=list)
    engine: list[float] = field(default_factory=list)
    background: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)


def processes(server: Server) -> dict[str, int]:
    """The pids of the installation's processes by kind."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if f"{server.home}/nats/nats.conf" in command:
                found["engine"] = int(folder.name)
            elif f"POSTROAD_DATA_DIR={server.home}\0" in (folder / "environ").read_text():
                for kind, role in (("gateway", "gateway"), ("background", "control")):
                    if f"runtime.worker {role}" in command:
                        found[kind] = int(folder.name)
    return found


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Installation:
    def __init__(self, sync: str, server: Server) -> None:
        self.sync, self.server = sync, server
        self.pids = processes(server)

    async def measure(self, operation: Operation, connections: int, count: int, into: Measured) -> None:
        opened = [await HttpConnection.open(self.server) for _ in range(connections)]
        left = count

        async def repeat(http: HttpConnection) -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await operation(http)

        before = {kind: processor_seconds(pid) for kind, pid in self.pids.items()}
        began = time.perf_counter()
        await asyncio.gather(*map(repeat, opened))
        into.rate.append(count / (time.perf_counter() - began))
        await asyncio.sleep(0.3)  # the rest of the work for these operations
        for kind, pid in self.pids.items():
            getattr(into, kind).append((processor_seconds(pid) - before[kind]) / count * 1e6)
        for http in opened:
            http.close()

    async def measure_puts(self, concurrency: int, count: int, into: Measured) -> None:
        """Writes of a bucket from this process, whose processor time takes the gateway's place."""
        connection = Connection(self.server.engine)
        await connection.open()
        store_sync = StoreSync(self.server.home / "nats" / "jetstream")
        if self.sync == "group":
            connection.store_sync = store_sync
        policy = CommitPolicy(batch_min_pending=16 if self.sync == "always" else 256)
        bucket = Bucket(connection, "bench", Committers(connection, policy, WriteBufferLimit(2**26)))
        await bucket.ensure()
        left = count

        async def repeat(number: int) -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await bucket.put(f"key-{number}", PAYLOAD.encode())

        before, own = processor_seconds(self.pids["engine"]), time.process_time()
        began = time.perf_counter()
        await asyncio.gather(*map(repeat, range(concurrency)))
        into.rate.append(count / (time.perf_counter() - began))
        into.gateway.append((time.process_time() - own) / count * 1e6)
        into.engine.append((processor_seconds(self.pids["engine"]) - before) / count * 1e6)
        into.background.append(0.0)
        store_sync.close()
        await connection.close()


async def measure(servers: dict[str, Server], pairs: int) -> None:
    installations = [Installation(sync, server) for sync, server in servers.items()]
    for one in installations:
        http = await HttpConnection.open(one.server)
        await http.call("PUT", "/v1/queues/bench", b"{}")
        await http.call("PUT", "/v1/stream/bench", b"")
        http.close()
    loads: list[tuple[str, Callable[[Installation, Measured], Awaitable[None]]]] = [
        ("publish, 64 connections", lambda one, into: one.measure(publish, 64, 4000, into)),
        ("publish, 256 connections", lambda one, into: one.measure(publish, 256, 4000, into)),
        ("pull(1) + ack, 64 connections", lambda one, into: one.measure(pull_and_ack, 64, 1500, into)),
        ("append, 64 connections", lambda one, into: one.measure(append, 64, 4000, into)),
        ("publish, 1 connection", lambda one, into: one.measure(publish, 1, 300, into)),
        ("KV put, 64 at once", lambda one, into: one.measure_puts(64, 4000, into)),
    ]
    rows: list[list[object]] = []
    for name, run in loads:
        found = {one.sync: Measured() for one in installations}
        for number in range(pairs + 1):
            for one in installations if number % 2 else reversed(installations):
                await run(one, Measured() if number == 0 else found[one.sync])  # the first pair warms up
        for kind in ("gateway", "engine", "background", "rate"):
            values = {sync: getattr(measured, kind) for sync, measured in found.items()}
            medians = [statistics.median(values[sync]) for sync in SYNCS]
            ratios = [group / always for always, group in zip(*(values[sync] for sync in SYNCS), strict=True) if always]
            unit = "per second" if kind == "rate" else f"{kind}, µs"
            rows.append([name, unit, *(f"{value:,.0f}" for value in medians), f"{statistics.median(ratios or [1]):.2f}"])
        print(table(("load", "", *SYNCS, "ratio"), rows[-4:]), flush=True)
    print(table(("load", "", *SYNCS, "ratio"), rows))


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    with postroad(POSTROAD_SYNC="always") as always, postroad(POSTROAD_SYNC="group") as group:
        uvloop.run(measure({"always": always, "group": group}, pairs))


if __name__ == "__main__":
    main()
