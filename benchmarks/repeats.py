"""Cost of idempotent publishing when a share of the keys is repeated, on the engine alone.

.venv/bin/python -m benchmarks.repeats [writes per measurement]

256 concurrent writers store a marker and a message each, as publishing with an idempotency key does; a repeated key's marker
exists, so its write is refused. The shares are measured in turns on one server. Each key must be stored once.
"""

import asyncio
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.harness import table
from postroad.jetstream.commit import CommitPolicy, Committer, PendingMessage
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.management import StreamSpec, ensure_stream, stream_info
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.errors import Conflict
from postroad.kernel.ids import new_id
from postroad.runtime.embedded_server import EmbeddedServer, EmbeddedServerSettings

SHARES = (0.0, 0.01, 0.10, 0.50)
WRITERS = 256
ROUNDS = 5
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    seconds: float
    client_cpu: float
    server_cpu: float


def server_cpu(pid: int) -> float:
    """Processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def measured(pid: int, work: Callable[[], Awaitable[None]]) -> Cost:
    started, client, server = time.perf_counter(), _own_cpu(), server_cpu(pid)
    await work()
    return Cost(time.perf_counter() - started, _own_cpu() - client, server_cpu(pid) - server)


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Publisher:
    """Publishes with keys, of which a share was used before."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._random = random.Random(1)
        self._used: list[str] = []
        self.stored = 0

    async def run(self, writes: int, share: float) -> None:
        left = [writes]

        async def writer() -> None:
            while left[0] > 0:
                left[0] -= 1
                await self._publish(share)

        await asyncio.gather(*[writer() for _ in range(WRITERS)])

    async def _publish(self, share: float) -> None:
        is_repeated = self._random.random() < share
        key = self._random.choice(self._used) if is_repeated else new_id()
        headers = "Nats-Expected-Last-Subject-Sequence: 0\r\n"
        marker = PendingMessage(f"repeats.idem.{key}", b"x" * 100, new_id(), headers, is_conditional=True)
        try:
            await self._committer.append_together((marker, PendingMessage("repeats.ready", b"x" * 200, new_id())))
        except Conflict:
            assert is_repeated, "a new key was refused"
            return
        assert not is_repeated, "a key was stored twice"
        self.stored += 1
        self._used.append(key)


async def rows_of(engine: ConnectionSettings, pid: int, writes: int) -> list[list[object]]:
    connection = Connection(engine)
    await connection.open()
    try:
        await ensure_stream(connection, StreamSpec("REPEATS", ("repeats.>",), {"allow_atomic": True}))
        publisher = Publisher(Committer(connection, "REPEATS", CommitPolicy(), WriteBufferLimit(1 << 30)))
        await publisher.run(2 * WRITERS, 0)
        costs: dict[float, list[Cost]] = {share: [] for share in SHARES}
        for _ in range(ROUNDS):
            for share in SHARES:
                costs[share].append(await measured(pid, lambda share=share: publisher.run(writes, share)))  # type: ignore[misc]
        info = await stream_info(connection, "REPEATS")
        assert info is not None and info.state.messages == 2 * publisher.stored, "each key is stored once"
        return [_row(share, costs[share], writes) for share in SHARES]
    finally:
        await connection.close()


def _row(share: float, costs: list[Cost], writes: int) -> list[object]:
    def microseconds(name: str) -> str:
        return f"{statistics.median(getattr(cost, name) for cost in costs) / writes * 1e6:,.0f}"

    rate = writes / statistics.median(cost.seconds for cost in costs)
    return [f"{share:.0%}", f"{rate:,.0f}", microseconds("client_cpu"), microseconds("server_cpu")]


def main() -> None:
    writes = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    with tempfile.TemporaryDirectory() as home:
        child = EmbeddedServer(EmbeddedServerSettings(Path(home), sync="always"))
        server = subprocess.Popen(child.prepare().argv)
        try:
            rows = uvloop.run(rows_of(ConnectionSettings((child.url,), nkey_file=child.nkey_file), server.pid, writes))
        finally:
            server.terminate()
            server.wait()
    print(table(["repeated keys", "writes/s", "client µs", "server µs"], rows))


if __name__ == "__main__":
    main()
