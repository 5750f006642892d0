"""A long backlog of an ordered queue: how fast a new dispatcher delivers, and what remains of groups that became empty.

python -m benchmarks.group_backlog [--messages 1000000] [--groups 10000] [--empty-groups 100000] [--seconds 5]

The gateway that dispatches the queue is killed; the time until another one has delivered a message, which reads all groups first.
Then pull(10)+ack with the backlog and with 10,000 messages in as many groups, in turns. At last, groups with one message each,
all acknowledged: what the stream still has after the dedupe window (of a second).
"""

import argparse
import asyncio
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

import aiohttp
from tests.faults.ordered_load import dispatcher_pid
from tests.installation import Installation

from benchmarks.groups import consume, fill
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info

_SMALL = 10_000  # messages of the queue to compare with; its rate counts until they are gone
_DEDUPE_WINDOW_MS = 1000
_ROUNDS = 3


async def create(session: aiohttp.ClientSession, queue: str, **settings: object) -> None:
    async with session.put(f"/v1/queues/{queue}", json={"ordered": True, **settings}) as answer:
        assert answer.status == 201, await answer.text()


async def first_pull(session: aiohttp.ClientSession, queue: str) -> float:
    """Seconds until a pull has a message, which is returned to the queue."""
    started = time.monotonic()
    while True:
        try:
            async with session.post(f"/v1/queues/{queue}/pull", json={"maxMessages": 1, "waitMs": 1000}) as answer:
                messages = (await answer.json()).get("messages") if answer.status == 200 else None
        except aiohttp.ClientError:
            messages = None
        if messages:
            seconds = time.monotonic() - started
            await session.post(f"/v1/queues/{queue}/nack", json={"receiptId": messages[0]["receiptId"], "delayMs": 0})
            return seconds
        await asyncio.sleep(0.01)


async def takeover(session: aiohttp.ClientSession, running: Installation, queue: str) -> None:
    found = []
    for _ in range(_ROUNDS):
        await first_pull(session, queue)
        owner = await dispatcher_pid(running, running.engine, f"Q_default__{queue}")
        if owner is not None:
            os.kill(owner, signal.SIGKILL)
            found.append(await first_pull(session, queue))
        await running.ready(120)
    print(f"first message after the death of the dispatcher: {', '.join(f'{one:.2f}' for one in found)} s", flush=True)


async def throughput(session: aiohttp.ClientSession, queue: str, groups: int, seconds: float) -> None:
    ratios = []
    for number in range(_ROUNDS):
        small = f"small-{number}"
        await create(session, small)
        await fill(session, small, _SMALL, groups)
        few, _ = await consume(session, small, 10, seconds)
        many, _ = await consume(session, queue, 10, seconds)
        ratios.append(many / few)
        print(f"pull(10)+ack: {many:.0f}/s with the backlog, {few:.0f}/s with {_SMALL} messages", flush=True)
    print(f"median ratio {statistics.median(ratios):.2f}", flush=True)


async def empty_groups(session: aiohttp.ClientSession, running: Installation, count: int) -> None:
    await create(session, "once", dedupeWindowMs=_DEDUPE_WINDOW_MS)
    await fill(session, "once", count, count)
    done = 0
    while done < count:
        done += (await consume(session, "once", 100, 5))[1]
        print(f"{done} of {count} groups are empty", flush=True)
    connection = Connection(running.engine)
    await connection.open()
    started = time.monotonic()
    try:
        while (info := await stream_info(connection, "Q_default__once")) is not None and info.state.messages:
            print(f"after {time.monotonic() - started:.0f} s: {info.state.messages} messages and records", flush=True)
            await asyncio.sleep(20)
        print(f"after {time.monotonic() - started:.0f} s: nothing is left", flush=True)
    finally:
        await connection.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--empty-groups", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        running = Installation(Path(home), POSTROAD_WORKERS="4", POSTROAD_REQUESTS_PER_SECOND_PER_TENANT_MAX="0")
        try:
            await running.start().ready(300)
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(running.url, headers=running.headers, connector=connector) as session:
                if chosen.messages:
                    await create(session, "long")
                    started = time.monotonic()
                    await fill(session, "long", chosen.messages, chosen.groups)
                    seconds = time.monotonic() - started
                    print(f"{chosen.messages} messages in {chosen.groups} groups after {seconds:.0f} s", flush=True)
                    await takeover(session, running, "long")
                    await throughput(session, "long", chosen.groups, chosen.seconds)
                if chosen.empty_groups:
                    await empty_groups(session, running, chosen.empty_groups)
        finally:
            running.end()


if __name__ == "__main__":
    asyncio.run(main())
