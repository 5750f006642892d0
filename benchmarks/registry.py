"""Cost of many tenants and keys: worker start and request latency, compared with an almost empty installation.

    .venv/bin/python -m benchmarks.registry [tenants] [keys per tenant]

Both installations run at the same time and are measured in turns, so that other load affects both.
"""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import msgspec
import uvloop

from benchmarks.harness import Server, postroad, table, wrk
from benchmarks.publish import script
from postroad.access.key_service import key_record
from postroad.access.keys import new_key
from postroad.access.records import KEYS_BUCKET, TENANTS_BUCKET, TenantRecord
from postroad.jetstream.commit import CommitPolicy, Committers, PendingMessage
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.clock import now_ms
from postroad.kernel.identity import ALL_SCOPES
from postroad.kernel.ids import new_id

ROUNDS = 5


async def fill(engine: ConnectionSettings, tenants: int, keys_each: int) -> None:
    """Write registry records in batches."""
    connection = Connection(engine)
    await connection.open()
    try:
        committers = Committers(connection, CommitPolicy(), WriteBufferLimit(1 << 30))
        for number in range(tenants):
            tenant = f"tenant-{number}"
            keys = [key_record(new_key(), tenant, f"key {index}", ALL_SCOPES, now_ms()) for index in range(keys_each)]
            pending_messages = [PendingMessage(f"$KV.{KEYS_BUCKET}.{key.id}", msgspec.json.encode(key), new_id()) for key in keys]
            await committers.of(f"KV_{KEYS_BUCKET}").append_together(pending_messages)
            record = TenantRecord(id=tenant, created_at_ms=now_ms(), updated_at_ms=now_ms())
            await committers.of(f"KV_{TENANTS_BUCKET}").append(
                PendingMessage(f"$KV.{TENANTS_BUCKET}.{tenant}", msgspec.json.encode(record), new_id())
            )
    finally:
        await connection.close()


def worker_of(server: Server) -> int:
    """The worker process, found by the port of its supervisor."""
    port = server.url.rsplit(":", 1)[1]
    found = subprocess.run(["pgrep", "-f", "postroad.runtime.worker"], capture_output=True, text=True, check=True).stdout.split()
    for pid in map(int, found):
        if f"POSTROAD_PORT={port}" in Path(f"/proc/{pid}/environ").read_text().split("\0"):
            return pid
    raise SystemExit("no worker found")


def restarted(server: Server) -> float:
    """Seconds from the end of a worker until the next one is ready, including interpreter start, imports and registry."""
    os.kill(worker_of(server), signal.SIGKILL)
    started = time.monotonic()
    while True:
        try:
            with urllib.request.urlopen(f"{server.url}/readyz", timeout=30) as answer:
                if answer.status == 200:
                    return time.monotonic() - started
        except OSError:
            time.sleep(0.01)


def main() -> None:
    tenants = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    keys_each = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    with ExitStack() as stack:
        few, many = stack.enter_context(postroad()), stack.enter_context(postroad())
        uvloop.run(fill(many.engine, tenants, keys_each))
        starts = {"few": restarted(few), "many": restarted(many)}
        rates: dict[str, list[float]] = {"few": [], "many": []}
        for _ in range(ROUNDS):
            for name, server in (("few", few), ("many", many)):
                load = wrk(f"{server.url}/v1/queues/bench/messages", 64, 3, script(server))
                if load.failed:
                    raise SystemExit(f"{load.failed} requests failed")
                rates[name].append(load.per_second)
    medians = {name: sorted(some)[len(some) // 2] for name, some in rates.items()}
    rows = [
        [
            "1 tenant, 2 keys",
            f"{starts['few']:.2f}",
            f"{medians['few']:,.0f}",
            f"{min(rates['few']):,.0f}-{max(rates['few']):,.0f}",
        ],
        [
            f"{tenants:,} tenants, {tenants * keys_each:,} keys",
            f"{starts['many']:.2f}",
            f"{medians['many']:,.0f}",
            f"{min(rates['many']):,.0f}-{max(rates['many']):,.0f}",
        ],
    ]
    print(table(["registry", "worker ready after s", "publish/s (median)", "range"], rows))


if __name__ == "__main__":
    main()
