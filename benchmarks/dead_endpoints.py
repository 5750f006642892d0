"""A healthy endpoint alone, and beside 100 endpoints that never respond and 100 names without addresses: time to its delivery.

    .venv/bin/python -m benchmarks.dead_endpoints [messages]

From the start of a publish to the arrival at the receiver, one message at a time. The dead subscriptions are paused for the
rounds without them, so both kinds of rounds alternate in one run.
"""

import asyncio
import contextlib
import statistics
import sys
import time

import aiohttp
import uvloop

from benchmarks.harness import Server, postroad, table
from benchmarks.peers.peer import PAYLOAD
from benchmarks.push import Counted

HUNG, UNKNOWN, ROUNDS = 100, 100, 3


async def _call(session: aiohttp.ClientSession, method: str, path: str, body: object = None) -> dict[str, object]:
    async with session.request(method, path, json=body) as answer:
        answer.raise_for_status()
        return dict(await answer.json()) if answer.content_length else {}


async def _hang(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.CancelledError):  # at the end of the run
        await reader.read()


async def _times_ms(session: aiohttp.ClientSession, receiver: Counted, count: int) -> list[float]:
    times, body = [], f'{{"subject":"a.b","payload":{PAYLOAD}}}'.encode()
    for _ in range(count):
        before, started = receiver.count(), time.perf_counter()
        async with session.post("/v1/topics/bench/messages", data=body) as answer:
            answer.raise_for_status()
        while receiver.count() == before:  # noqa: ASYNC110  # another process counts
            await asyncio.sleep(0.0002)
        times.append((time.perf_counter() - started) * 1000)
    return times


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


async def measure(server: Server, messages: int) -> list[list[object]]:
    receiver = Counted()
    hung = await asyncio.start_server(_hang, "127.0.0.1", 0)
    port = hung.sockets[0].getsockname()[1]
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    found: dict[str, list[float]] = {"alone": [], "beside dead ones": []}
    try:
        async with aiohttp.ClientSession(server.url, headers=headers) as session:
            await _call(session, "PUT", "/v1/topics/bench", {})
            urls = [f"http://127.0.0.1:{port}/{number}" for number in range(HUNG)]
            urls += [f"https://no-such-name-{number}.invalid/" for number in range(UNKNOWN)]
            new = "/v1/topics/bench/subscriptions"
            await _call(session, "POST", new, {"delivery_type": "http_push", "url": f"http://127.0.0.1:{receiver.port}/"})
            dead = [(await _call(session, "POST", new, {"delivery_type": "http_push", "url": url}))["id"] for url in urls]
            await _times_ms(session, receiver, 50)
            for _ in range(ROUNDS):
                for kind, action in (("beside dead ones", "resume"), ("alone", "pause")):
                    await asyncio.gather(*(_call(session, "POST", f"/v1/subscriptions/{one}/{action}") for one in dead))
                    await _times_ms(session, receiver, 20)
                    found[kind] += await _times_ms(session, receiver, messages)
    finally:
        hung.close()
        receiver.end()
    ratio = _p99(found["beside dead ones"]) / _p99(found["alone"])
    rows: list[list[object]] = [[kind, f"{statistics.median(times):.1f}", f"{_p99(times):.1f}"] for kind, times in found.items()]
    return [*rows, ["ratio", "", f"{ratio:.2f}"]]


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with postroad(POSTROAD_OUTBOUND_ALLOW="127.0.0.0/8", POSTROAD_REQUESTS_PER_SECOND_PER_TENANT_MAX="0") as server:
        print(table(["healthy endpoint", "p50 ms", "p99 ms"], uvloop.run(measure(server, messages))))


if __name__ == "__main__":
    main()
