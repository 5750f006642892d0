"""Reading the last 10 of a million messages, compared with the last 10 of 100, over HTTP, in turns.

    .venv/bin/python -m benchmarks.tail [messages]

The long stream is written directly to JetStream, in the gateway's stored format: half a minute instead of five.
"""

import asyncio
import statistics
import sys
import time

import httpx

from benchmarks.harness import Server, postroad
from benchmarks.streams import BODY, JSON
from postroad.jetstream.commit import CommitPolicy, Committer, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.ids import new_id

ROUNDS = 400


async def fill(server: Server, messages: int) -> None:
    connection = Connection(server.engine)
    await connection.open()
    committer = Committer(connection, "S_default", CommitPolicy(), WriteBufferLimit(1 << 30))
    for _ in range(messages // 1000):
        await committer.append_together([PendingMessage("s.default.long.d", BODY.encode(), new_id()) for _ in range(1000)])
    await connection.close()


def timed(client: httpx.Client, stream: str, after: int) -> float:
    started = time.perf_counter()
    answer = client.get(f"/v1/stream/{stream}", params={"offset": f"0000000000000000_{after:016d}"})
    if len(answer.json()) != 10:
        raise SystemExit(f"{len(answer.json())} messages came where 10 were asked for")
    return time.perf_counter() - started


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with postroad() as server:
        headers = {**JSON, "Authorization": f"Bearer {server.key}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
            for stream in ("short", "long", "third"):
                client.put(f"/v1/stream/{stream}").raise_for_status()
            for _ in range(100):
                client.post("/v1/stream/short", content=BODY).raise_for_status()
            asyncio.run(fill(server, messages))
            ends = {name: client.head(f"/v1/stream/{name}").headers["Stream-Next-Offset"] for name in ("short", "long")}
            times: dict[str, list[float]] = {name: [] for name in ends}
            for number in range(ROUNDS):
                if number % 20 == 0:  # keep writing; streams.md describes reads without concurrent writes
                    client.post("/v1/stream/third", content=BODY).raise_for_status()
                for name, end in ends.items():
                    times[name].append(timed(client, name, int(end.split("_")[1]) - 10))
    short, long = (statistics.median(times[name]) * 1000 for name in ("short", "long"))
    print(f"last 10 of 100: {short:.2f} ms; of {messages:,}: {long:.2f} ms; ratio {long / short:.2f}")


if __name__ == "__main__":
    main()
