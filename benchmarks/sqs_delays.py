"""How late messages of SQS become visible: after a delay, and after a visibility timeout, both of a second.

    .venv/bin/python -m benchmarks.sqs_delays [messages]

Batches of ten messages (200 in all) become due together; four receivers poll for them. A message is due a second after the start
of the request that sent or received it, so the milliseconds contain that request. The target is 50 ms; an early message is an
error.
"""

import asyncio
import statistics
import sys
import time
from typing import Any

import aiohttp
import uvloop

from benchmarks.harness import Server, postroad, table
from benchmarks.sns_latency import Aws

_SECONDS = 1
_BATCH, _RECEIVERS = 10, 4
_DEADLINE_SECONDS = 60.0


async def send(aws: Aws, url: str, first: int, **more: object) -> dict[str, float]:
    """The start of the request by body."""
    is_fifo = url.endswith(".fifo")
    entries: list[dict[str, object]] = []
    for number in map(str, range(first, first + _BATCH)):
        fifo = {"MessageGroupId": number, "MessageDeduplicationId": number} if is_fifo else {}
        entries.append({"Id": number, "MessageBody": number, **fifo, **more})
    start = time.perf_counter()
    await aws.sqs("SendMessageBatch", QueueUrl=url, Entries=entries)
    return {str(entry["MessageBody"]): start for entry in entries}


async def receive(aws: Aws, url: str, **more: object) -> tuple[float, float, list[Any]]:
    """Start and end of the request, and the messages."""
    start = time.perf_counter()
    found = await aws.sqs("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=_BATCH, **more)
    messages = found.get("Messages", [])
    assert isinstance(messages, list)
    return start, time.perf_counter(), messages


async def lateness(aws: Aws, url: str, starts: dict[str, float]) -> list[float]:
    """Receive and delete the messages; how many milliseconds late each was."""
    late: list[float] = []

    async def poll() -> None:
        while len(late) < len(starts):
            _, end, messages = await receive(aws, url, WaitTimeSeconds=2, VisibilityTimeout=60)
            late.extend((end - starts[one["Body"]] - _SECONDS) * 1000 for one in messages)
            for one in messages:
                await aws.sqs("DeleteMessage", QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])

    await asyncio.wait_for(asyncio.gather(*(poll() for _ in range(_RECEIVERS))), _DEADLINE_SECONDS)
    assert min(late) >= -1, f"a message was {-min(late):.1f} ms early"
    return late


async def after_a_delay(aws: Aws, url: str, first: int) -> list[float]:
    return await lateness(aws, url, await send(aws, url, first, **({} if url.endswith(".fifo") else {"DelaySeconds": _SECONDS})))


async def after_a_timeout(aws: Aws, url: str, first: int) -> list[float]:
    await send(aws, url, first)
    starts: dict[str, float] = {}
    while len(starts) < _BATCH:
        start, _, messages = await receive(aws, url, VisibilityTimeout=_SECONDS)
        starts |= {one["Body"]: start for one in messages}
    return await lateness(aws, url, starts)


async def measure(server: Server, count: int) -> list[list[object]]:
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Authorization": f"Bearer {server.key}"}
    async with aiohttp.ClientSession(server.url, headers=headers, connector=connector, raise_for_status=True) as session:
        async with session.get("/v1/whoami") as answer:
            aws = Aws(session, (await answer.json())["accountId"])
        rows: list[list[object]] = []
        for kind, suffix, more in (("standard", "", {}), ("FIFO", ".fifo", {"FifoQueue": "true"})):
            for name, run in (("delay", after_a_delay), ("visibility timeout", after_a_timeout)):
                of_queue = {"DelaySeconds": str(_SECONDS)} if suffix and name == "delay" else {}
                queue = f"{name.split()[0]}{suffix}"
                await aws.sqs("CreateQueue", QueueName=queue, Attributes={**more, **of_queue})
                url = f"{server.url}/{aws.account}/{queue}"
                found = [one for first in range(0, count, _BATCH) for one in await run(aws, url, first)]
                p99 = statistics.quantiles(found, n=100, method="inclusive")[98]
                rows.append([f"{kind}, {name}", *(f"{one:.1f}" for one in (statistics.median(found), p99, max(found)))])
        return rows


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with postroad(POSTROAD_REQUESTS_PER_SECOND_PER_TENANT_MAX="0") as server:
        rows = uvloop.run(measure(server, count))
    print(table(["message", "median ms late", "p99", "max"], rows))


if __name__ == "__main__":
    main()
