"""Queues over HTTP, compared with the same operations on nats-server through nats-py, in one run.

    .venv/bin/python -m benchmarks.queues [seconds per measurement, an even number: wrk takes whole seconds]

Each row is measured on an installation of its own with one worker: first the bare engine, then the gateway, then the bare engine
again; the ratio is to the mean of the two. The bare side is one Python process with as many tasks as there are connections; it
stores the same bytes, acknowledges with confirmation, and has no HTTP, no authentication, no receipts, no events.
"""

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

import httpx
import nats
import uvloop
from nats.js import JetStreamContext

from benchmarks.harness import Load, Server, postroad, table, wrk
from benchmarks.publish import BODY, script
from postroad.jetstream.connection import ConnectionSettings

PAYLOAD = BODY[len('{"payload":') : -1].encode()
CONNECTIONS = 64
BATCH = 100

# The receipts of one response are acknowledged by the next requests, on any free connection.
PULL_ACK = """
local receipts, queue, turn = {}, 0, 0
local pull = '{"maxMessages":%(size)d,"visibilityTimeoutMs":600000}'
local names = {%(names)s}
function request()
  if #receipts > 0 then
    local ack = table.remove(receipts)
    return wrk.format("POST", "/v1/queues/" .. ack[1] .. "/ack", wrk.headers, ack[2])
  end
  turn = turn %% #names + 1
  return wrk.format("POST", "/v1/queues/" .. names[turn] .. "/pull", wrk.headers, pull)
end
function response(status, headers, body)
  local found, owner = {}, nil
  if not body:find('"messages":', 1, true) then return end  -- the answer to an ack names its receipts too
  for receipt in body:gmatch('"receiptId":"([^"]+)"') do found[#found + 1] = receipt end
  owner = #names > 1 and body:match('"queue":"([^"]+)"') or names[1]
  if #found == 1 then receipts[#receipts + 1] = {owner, '{"receiptId":"' .. found[1] .. '"}'}
  elseif #found > 1 then receipts[#receipts + 1] = {owner, '{"receiptIds":["' .. table.concat(found, '","') .. '"]}'} end
end
"""


async def bare_streams(js: JetStreamContext, count: int) -> list[str]:
    names = [f"BARE{number}" for number in range(count)]
    for name in names:
        await js.add_stream(name=name, subjects=[f"{name}.>"], retention="workqueue", allow_atomic=True)
        await js.add_consumer(name, durable_name="work", ack_policy="explicit", max_ack_pending=-1, max_waiting=10_000)
    return names


async def publish_batch(js: JetStreamContext, name: str, batch: str, size: int) -> None:
    """Publish one atomic batch: only the last message is sent as a request."""
    for number in range(1, size):
        headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
        await js._nc.publish(f"{name}.ready", PAYLOAD, headers=headers)
    headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(size), "Nats-Batch-Commit": "1"}
    answer = await js._nc.request(f"{name}.ready", PAYLOAD, headers=headers, timeout=10)
    if b'"error"' in answer.data:
        raise SystemExit(answer.data.decode())


async def fill(js: JetStreamContext, names: list[str], each: int) -> None:
    for name in names:
        for number in range(each // 500):
            await publish_batch(js, name, f"fill-{name}-{number}", 500)


async def many(tasks: int, seconds: float, work: Callable[[int], Awaitable[int]]) -> float:
    """Operations per second of all tasks together."""
    until = time.perf_counter() + seconds
    started, done = time.perf_counter(), 0

    async def one(number: int) -> None:
        nonlocal done
        while time.perf_counter() < until:
            count = await work(number)  # not `done += await …`: that adds to what `done` was before the wait
            done += count

    await asyncio.gather(*(one(number) for number in range(tasks)))
    return done / (time.perf_counter() - started)


async def bare_pull_ack(engine: ConnectionSettings, seconds: float, size: int, streams: int, tasks: int) -> float:
    connection = await nats.connect(list(engine.urls), nkeys_seed=str(engine.nkey_file))
    js = connection.jetstream(timeout=10)
    try:
        names = await bare_streams(js, streams)
        await fill(js, names, int(seconds * 8000 * max(1, size // 10)) // streams + 1000)
        pulls = [await js.pull_subscribe_bind(durable="work", stream=names[number % streams]) for number in range(tasks)]

        async def work(number: int) -> int:
            messages = await pulls[number].fetch(size, timeout=5)
            await asyncio.gather(*(message.ack_sync(timeout=10) for message in messages))
            return len(messages)

        return await many(tasks, seconds, work)
    finally:
        for name in [f"BARE{number}" for number in range(streams)]:
            await js.delete_stream(name)
        await connection.close()


async def bare_batches(engine: ConnectionSettings, seconds: float, tasks: int) -> float:
    connection = await nats.connect(list(engine.urls), nkeys_seed=str(engine.nkey_file))
    js = connection.jetstream(timeout=10)
    numbers = itertools.count()
    try:
        names = await bare_streams(js, 1)

        async def work(_number: int) -> int:
            await publish_batch(js, names[0], f"batch-{next(numbers)}", BATCH)
            return BATCH

        return await many(tasks, seconds, work)
    finally:
        await js.delete_stream("BARE0")
        await connection.close()


def prefill(server: Server, names: list[str], each: int) -> None:
    """Payloads name their queue, so that the load script can acknowledge them there."""
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
        for name in names:
            message = '{"payload":{"queue":"' + name + '",' + PAYLOAD.decode()[1:] + "}"
            body = '{"messages":[' + ",".join([message] * 1000) + "]}"
            for _ in range(max(1, each // 1000)):
                client.post(f"/v1/queues/{name}/messages/batch", content=body).raise_for_status()


def headers_script(server: Server) -> str:
    return (
        f'wrk.headers["Authorization"] = "Bearer {server.key}"\nwrk.headers["Content-Type"] = "application/json"\n'
        'wrk.method = "POST"\n'
    )


def around(bare: Callable[[], float], ours: Callable[[], float]) -> tuple[float, float]:
    before = bare()
    rate = ours()
    return rate, (before + bare()) / 2


def settle_audit(server: Server, mode: str) -> None:
    httpx.post(
        f"{server.url}/v1/admin/settings", json={"auditMode": mode}, headers={"Authorization": f"Bearer {server.key}"}
    ).raise_for_status()


def audit_row(seconds: float, sync: str) -> list[object]:
    """Compare publishing with and without events, in interleaved rounds."""
    rates: dict[str, list[float]] = {"full": [], "off": []}
    with postroad(POSTROAD_SYNC=sync) as server:
        url = f"{server.url}/v1/queues/bench/messages"
        wrk(url, 8, 1, script(server))
        for mode in ("off", "full", "off", "full"):
            settle_audit(server, mode)
            rates[mode].append(checked(wrk(url, CONNECTIONS, seconds / 2, script(server))).per_second)
    full, off = sum(rates["full"]) / 2, sum(rates["off"]) / 2
    return ["publish, audit full (beside: audit off)", sync, f"{full:,.0f}", f"{off:,.0f}", f"{full / off:.2f}"]


def batch_row(seconds: float, sync: str) -> list[object]:
    message = '{"payload":' + PAYLOAD.decode() + "}"
    body = '{"messages":[' + ",".join([message] * BATCH) + "]}"
    with postroad(POSTROAD_SYNC=sync) as server:
        lua = headers_script(server) + f"wrk.body = '{body}'\n"
        url = f"{server.url}/v1/queues/bench/messages/batch"
        wrk(url, 4, 1, lua)
        rate, bare = around(
            lambda: uvloop.run(bare_batches(server.engine, seconds / 2, 8)),
            lambda: checked(wrk(url, 8, seconds, lua)).per_second * BATCH,
        )
    return [f"publish in batches of {BATCH}", sync, f"{rate:,.0f}", f"{bare:,.0f}", f"{rate / bare:.2f}"]


def pull_row(seconds: float, sync: str, size: int, queues: int, connections: int) -> list[object]:
    names = [f"bench-{number}" for number in range(queues)]
    with postroad(POSTROAD_SYNC=sync) as server:
        prefill(server, names, int(seconds * (8000 if size == 1 else 20_000)) // queues)
        quoted = ",".join(f'"{name}"' for name in names)
        lua = headers_script(server) + PULL_ACK % {"size": size, "names": quoted}
        rate, bare = around(
            lambda: uvloop.run(bare_pull_ack(server.engine, seconds / 2, size, queues, connections)),
            lambda: drained(server, names, connections, seconds, lua),
        )
    what = f"pull({size}) + ack, {queues} queue{'s' if queues > 1 else ''}, {connections} connections"
    return [what, sync, f"{rate:,.0f}", f"{bare:,.0f}", f"{rate / bare:.2f}"]


def drained(server: Server, names: list[str], connections: int, seconds: float, lua: str) -> float:
    """Acknowledged messages per second. Empty pulls and refused receipts do not count."""
    before, started = waiting(server, names), time.perf_counter()
    checked(wrk(f"{server.url}/v1/queues/{names[0]}/pull", connections, seconds, lua))
    elapsed, after = time.perf_counter() - started, waiting(server, names)
    if not after:
        raise SystemExit("the queues ran empty: fill in more")
    return (before - after) / elapsed


def waiting(server: Server, names: list[str]) -> int:
    headers = {"Authorization": f"Bearer {server.key}"}
    stats = [httpx.get(f"{server.url}/v1/queues/{name}", headers=headers).json()["stats"] for name in names]
    return sum(one["ready"] + one["leased"] for one in stats)


def checked(load: Load) -> Load:
    if load.failed:
        raise SystemExit(f"{load.failed} requests failed")
    return load


def measured(seconds: float, sync: str) -> Iterator[list[object]]:
    yield audit_row(seconds, sync)
    yield pull_row(seconds, sync, 1, 1, CONNECTIONS)
    yield batch_row(seconds, sync)
    yield pull_row(seconds, sync, BATCH, 1, 8)
    yield pull_row(seconds, sync, BATCH, 4, 8)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 6.0
    rows = []
    for sync in ("always", "2s"):
        for row in measured(seconds, sync):
            rows.append(row)
            print(row, flush=True)
    print()
    print(table(["what", "sync", "messages/s", "bare engine/s", "ratio"], rows))


if __name__ == "__main__":
    main()
