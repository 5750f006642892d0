"""Buckets: put and get beside a publish to a queue and beside Redis, change streams, and the effect of many keys.

    .venv/bin/python -m benchmarks.buckets [--seconds 5] [--rounds 2] [--keys 1000 1000000] [--changes 20000]

- put, get: wrk with 64 connections and 200 bytes of JSON, beside a publish to a queue with audit `off`, and beside SET and GET of
  Redis behind webdis, where it is installed. The kinds take turns.
- bridge: how fast a bridge copies changes that wait for it.
- push: from the call of a write to the arrival of its change at a push subscriber, one after the other.
- keys: put and get in buckets with few and with many keys, and a list of 100 of them.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Sequence

import aiohttp
from aiohttp import web

from benchmarks.harness import Load, Server, mean, postroad, table, wrk
from benchmarks.peers import webdis
from benchmarks.peers.peer import PAYLOAD, Unavailable

CONNECTIONS = 64
KEYS = 1000
PUSHES = 200
_BATCH = 100  # writes of one request, with which buckets are filled
_FILLERS = 8


def _script(method: str, key: str, path: str, body: str, keys: int) -> str:
    """A request per call, to one of so many keys in turn if the path has `%d`."""
    return f"""
local headers = {{["Authorization"] = "Bearer {key}", ["Content-Type"] = "application/json"}}
local number = 0
request = function()
  number = (number * 5 + 1) % {keys}
  return wrk.format("{method}", ({path!r}):format(number), headers, {body!r})
end
"""


async def _call(session: aiohttp.ClientSession, method: str, path: str, body: object = None) -> dict[str, object]:
    async with session.request(method, path, json=body) as answer:
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.status} {await answer.text()}")
        return dict(await answer.json()) if answer.content_length else {}


def _session(server: Server) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(server.url, headers={"Authorization": f"Bearer {server.key}"})


async def fill(server: Server, bucket: str, keys: int, **settings: object) -> None:
    """A bucket with so many keys, written in batches."""
    async with _session(server) as session:
        await _call(session, "POST", "/v1/buckets", {"name": bucket, **settings})
        starts = iter(range(0, keys, _BATCH))

        async def write() -> None:
            for start in starts:
                writes = [{"key": f"k.{number}", "value": {"n": number}} for number in range(start, min(keys, start + _BATCH))]
                await _call(session, "POST", f"/v1/buckets/{bucket}/batch", {"writes": writes})

        await asyncio.gather(*(write() for _ in range(_FILLERS)))


# Put and get


def _load(
    server: Server, method: str, path: str, seconds: float, keys: int = KEYS, body: str = "", connections: int = CONNECTIONS
) -> Load:
    return wrk(server.url, connections, seconds, _script(method, server.key, path, body, keys))


def _alternated(kinds: Sequence[tuple[str, Callable[[], Load]]], rounds: int) -> dict[str, Load]:
    found: dict[str, list[Load]] = {name: [] for name, _ in kinds}
    for number in range(rounds):
        for name, measure in kinds if number % 2 == 0 else kinds[::-1]:
            found[name].append(measure())
    return {name: mean(loads) for name, loads in found.items()}


def put_and_get(server: Server, seconds: float, rounds: int) -> list[list[object]]:
    async def prepare() -> None:
        async with _session(server) as session:
            await _call(session, "POST", "/v1/admin/settings", {"auditMode": "off"})
            await _call(session, "PUT", "/v1/queues/bench", {})
        await fill(server, "bench", KEYS)

    asyncio.run(prepare())
    publish = f'{{"payload":{PAYLOAD}}}'
    kinds: list[tuple[str, Callable[[], Load]]] = [
        ("queue publish, audit off", lambda: _load(server, "POST", "/v1/queues/bench/messages", seconds, body=publish)),
        ("bucket put", lambda: _load(server, "PUT", "/v1/buckets/bench/keys/k.%d", seconds, body=PAYLOAD)),
        ("bucket get", lambda: _load(server, "GET", "/v1/buckets/bench/keys/k.%d", seconds)),
    ]
    loads = _alternated(kinds, rounds)
    base = loads["queue publish, audit off"].per_second
    return [_row(name, load, base) for name, load in loads.items()] + _redis(seconds, base)


def _redis(seconds: float, base: float) -> list[list[object]]:
    rows: list[list[object]] = []
    for fsync in ("always", "everysec"):
        try:
            with webdis.running(fsync) as redis:
                for name, method, path, body in (("SET", "PUT", "/SET/k.%d", PAYLOAD), ("GET", "GET", "/GET/k.%d", "")):
                    load = wrk(redis.url, CONNECTIONS, seconds, _script(method, "", path, body, KEYS))
                    rows.append(_row(f"Redis {fsync}, webdis {name}", load, base))
        except Unavailable as problem:
            rows.append([f"Redis {fsync}, webdis", str(problem), "", "", ""])
    return rows


def _row(name: str, load: Load, base: float) -> list[object]:
    return [
        name,
        f"{load.per_second:,.0f}",
        f"{load.p50_ms:.1f}",
        f"{load.p99_ms:.1f}",
        f"{load.per_second / base if base else 0:.2f}",
    ]


# Change streams


async def bridge(server: Server, changes: int) -> list[list[object]]:
    """Copy the content of a bucket that exists already, so that all changes wait for the bridge."""
    await fill(server, "mapped", changes)
    async with _session(server) as session:
        started = time.perf_counter()
        await _call(
            session, "PATCH", "/v1/buckets/mapped", {"change_stream_topic": "mapped-changes", "change_stream_from": "all"}
        )
        while True:
            async with session.get("/v1/topics/mapped-changes") as answer:
                if (await answer.json())["stats"]["messages"] >= changes:
                    break
            await asyncio.sleep(0.05)
        seconds = time.perf_counter() - started
    return [["bridge", f"{changes:,} changes", f"{changes / seconds:,.0f} changes/s"]]


async def push(server: Server, count: int) -> list[list[object]]:
    arrived: dict[str, asyncio.Future[float]] = {}

    async def receive(request: web.Request) -> web.Response:
        arrived[(await request.read()).decode()].set_result(time.perf_counter())
        return web.Response()

    app = web.Application()
    app.router.add_post("/", receive)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    seconds: list[float] = []
    try:
        async with _session(server) as session:
            await _call(session, "POST", "/v1/buckets", {"name": "pushed", "change_stream_topic": "pushed-changes"})
            await _call(session, "POST", "/v1/topics/pushed-changes/subscriptions", {"delivery_type": "http_push", "url": url})
            for number in range(count):
                text = str(number)
                arrived[text] = asyncio.get_running_loop().create_future()
                started = time.perf_counter()
                async with session.put("/v1/buckets/pushed/keys/k", data=text) as answer:
                    await answer.read()
                seconds.append(await asyncio.wait_for(arrived[text], 30) - started)
    finally:
        await runner.cleanup()
    cuts = statistics.quantiles(seconds, n=100)
    return [["write to push", f"{count} writes", f"p50 {cuts[49] * 1000:.1f} ms, p99 {cuts[98] * 1000:.1f} ms"]]


# Many keys


def many_keys(server: Server, sizes: Sequence[int], seconds: float, rounds: int) -> list[list[object]]:
    for size in sizes:
        asyncio.run(fill(server, f"keys-{size}", size))
    rows: list[list[object]] = []
    for name, method, path, body in (
        ("put", "PUT", "/v1/buckets/keys-{}/keys/k.%d", PAYLOAD),
        ("get", "GET", "/v1/buckets/keys-{}/keys/k.%d", ""),
        ("list of 100", "GET", "/v1/buckets/keys-{}/keys?limit=100", ""),
    ):

        def measured(size: int, method: str = method, path: str = path, body: str = body) -> Callable[[], Load]:
            connections = 8 if "limit" in path else CONNECTIONS
            return lambda: _load(server, method, path.format(size), seconds, size, body, connections)

        loads = _alternated([(f"{size:,} keys", measured(size)) for size in sizes], rounds)
        base = next(iter(loads.values())).per_second
        rows += [_row(f"{name}, {size}", load, base) for size, load in loads.items()]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5, help="for each number that wrk measures")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--keys", type=int, nargs="+", default=[1000, 1_000_000], help="sizes of the compared buckets")
    parser.add_argument("--changes", type=int, default=20_000, help="changes that wait for the bridge")
    parser.add_argument("--pushes", type=int, default=PUSHES)
    chosen = parser.parse_args()
    head = ["operation", "per second", "p50 ms", "p99 ms", "ratio"]
    with postroad(POSTROAD_OUTBOUND_ALLOW="127.0.0.0/8") as server:
        print(table(head, put_and_get(server, chosen.seconds, chosen.rounds)), flush=True)
        rows = asyncio.run(bridge(server, chosen.changes)) + asyncio.run(push(server, chosen.pushes))
        print(table(["measurement", "load", "result"], rows), flush=True)
        print(table(head, many_keys(server, chosen.keys, chosen.seconds, chosen.rounds)), flush=True)


if __name__ == "__main__":
    main()
