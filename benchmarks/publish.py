"""Publishing over HTTP, compared with a loop that sends the same batches directly to the same nats-server.

    .venv/bin/python -m benchmarks.publish [seconds per measurement]

Both sides store the same bytes with an fsync before the response. The direct loop has no HTTP, no authentication, no events: it
encodes a batch of as many messages as there are connections, sends it, waits for the commit, and starts again. It runs before
and after each measurement of the gateway, on the same server, and the gateway is compared with its mean.
"""

import sys
import time

import msgspec
import uvloop

from benchmarks.harness import Load, Server, postroad, table, wrk
from postroad.jetstream.commit import CommitPolicy, Committer, PendingMessage
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.management import StreamSpec, ensure_stream
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.ids import new_id
from postroad.queues.records import StoredMessage, encode_message

BODY = (
    '{"payload":{"orderId":10003,"customer":"cust-3","lines":[{"sku":"a-1","n":2},{"sku":"b-7","n":1}],'
    '"total":"129.90","note":"leave at the door"}}'
)
CONNECTIONS = (1, 64, 256)


async def bare_loop(engine: ConnectionSettings, size: int, seconds: float) -> float:
    """Messages per second of batches of `size`, one after the other."""
    connection = Connection(engine)
    await connection.open()
    try:
        options = {"retention": "workqueue", "allow_atomic": True, "duplicate_window": 60_000_000_000}
        await ensure_stream(connection, StreamSpec("BARE", ("bare.>",), options))
        committer = Committer(connection, "BARE", CommitPolicy(batch_min_pending=2), WriteBufferLimit(1 << 30))
        message = StoredMessage(v=1, id=new_id(), job=new_id(), at=time.time_ns() // 1_000_000, payload=_payload())
        payload = encode_message(message)
        stored, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            await committer.append_together([PendingMessage("bare.ready", payload, new_id()) for _ in range(size)])
            stored += size
        return stored / (time.perf_counter() - started)
    finally:
        await connection.close()


def _payload() -> msgspec.Raw:
    return msgspec.Raw(BODY[len('{"payload":') : -1].encode())


def bare(server: Server, size: int, seconds: float) -> float:
    return uvloop.run(bare_loop(server.engine, size, seconds))


def script(server: Server) -> str:
    return (
        'wrk.method = "POST"\n'
        f'wrk.headers["Authorization"] = "Bearer {server.key}"\n'
        'wrk.headers["Content-Type"] = "application/json"\n'
        f"wrk.body = '{BODY}'\n"
    )


def measure(seconds: float, sync: str) -> list[list[object]]:
    rows: list[list[object]] = []
    with postroad(POSTROAD_SYNC=sync) as server:
        url = f"{server.url}/v1/queues/bench/messages"
        wrk(url, 8, 1, script(server))  # creates the queue and warms up
        for connections in CONNECTIONS:
            before = bare(server, connections, seconds / 2)
            load: Load = wrk(url, connections, seconds, script(server))
            mean = (before + bare(server, connections, seconds / 2)) / 2
            if load.failed:
                raise SystemExit(f"{load.failed} requests failed")
            ratio = f"{load.per_second / mean:.2f}"
            rows.append(
                [sync, connections, f"{load.per_second:,.0f}", f"{load.p50_ms:.2f}", f"{load.p99_ms:.2f}", f"{mean:,.0f}", ratio]
            )
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
    rows = [row for sync in ("always", "2s") for row in measure(seconds, sync)]
    head = ["sync", "connections", "publish/s", "p50 ms", "p99 ms", "bare loop/s", "ratio"]
    print()
    print(table(head, rows))


if __name__ == "__main__":
    main()
