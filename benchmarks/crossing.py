"""Batch size from which a batch is faster than pipelined writes: the basis of `POSTROAD_BATCH_MIN_PENDING` (decision 0003).

.venv/bin/python -m benchmarks.crossing

Measures the time until k concurrent writes are durable, as pipelined single writes and as one atomic batch. Both use
`postroad.jetstream` on a fresh child server, interleaved; the result is the median of the rounds.
"""

import asyncio
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import uvloop

from benchmarks.harness import table
from postroad.jetstream.commit import CommitPolicy, Committer, PendingMessage
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.management import StreamSpec, ensure_stream
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.ids import new_id
from postroad.runtime.embedded_server import EmbeddedServer, EmbeddedServerSettings

SIZES = (2, 4, 8, 12, 16, 24, 32, 64, 128, 192, 256)
ROUNDS = 15
PAYLOAD = b"x" * 200


def measure(sync: str) -> list[list[object]]:
    with tempfile.TemporaryDirectory() as home:
        child = EmbeddedServer(EmbeddedServerSettings(Path(home), sync=sync))
        server = subprocess.Popen(child.prepare().argv)
        try:
            return [[sync, *row] for row in uvloop.run(rows_of(ConnectionSettings((child.url,), nkey_file=child.nkey_file)))]
        finally:
            server.terminate()
            server.wait()


async def rows_of(engine: ConnectionSettings) -> list[list[object]]:
    connection = Connection(engine)
    await connection.open()
    try:
        await ensure_stream(connection, StreamSpec("CROSSING", ("crossing.>",), {"allow_atomic": True, "retention": "workqueue"}))
        committer = Committer(connection, "CROSSING", CommitPolicy(batch_min_pending=10_000), WriteBufferLimit(1 << 30))
        rows: list[list[object]] = []
        for size in SIZES:
            singly, run_together = await compare(committer, size)
            rows.append(
                [size, f"{singly * 1e3:.2f}", f"{run_together * 1e3:.2f}", "batch" if run_together < singly else "singles"]
            )
        return rows
    finally:
        await connection.close()


async def compare(committer: Committer, size: int) -> tuple[float, float]:
    """Seconds until `size` writes are durable: as single writes, and as one batch."""
    singly, run_together = [], []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        await asyncio.gather(*[committer.append(draft) for draft in pending_messages(size)])
        singly.append(time.perf_counter() - started)
        started = time.perf_counter()
        await committer.append_together(pending_messages(size))
        run_together.append(time.perf_counter() - started)
    return statistics.median(singly), statistics.median(run_together)


def pending_messages(count: int) -> list[PendingMessage]:
    return [PendingMessage("crossing.ready", PAYLOAD, new_id()) for _ in range(count)]


def main() -> None:
    rows = [row for sync in ("always", "2s") for row in measure(sync)]
    print(table(["sync", "waiting", "singly ms", "as a batch ms", "cheaper"], rows))


if __name__ == "__main__":
    main()
