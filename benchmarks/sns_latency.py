"""From the start of Publish to the answer of ReceiveMessage of a subscribed queue, with the default processes.

    .venv/bin/python -m benchmarks.sns_latency [messages]

One message every 20 ms (500) to a topic with two queues, one raw and one with envelopes; each queue has a receiver that polls
for 20 seconds and deletes what it got. The target is a median below 50 ms and a 99th percentile below 250 ms. The third row has
a FIFO topic with a FIFO queue.
"""

import asyncio
import json
import statistics
import sys
import time
from urllib.parse import urlencode

import aiohttp
import uvloop

from benchmarks.harness import Server, postroad, table

_PACE_SECONDS = 0.02
_DEADLINE_SECONDS = 60.0
_REGION = "us-east-1"


class Aws:
    """SNS and SQS with a key instead of a signature."""

    def __init__(self, session: aiohttp.ClientSession, account: str) -> None:
        self._session, self.account = session, account

    async def sns(self, action: str, **fields: str) -> None:
        body = urlencode({"Action": action, "Version": "2010-03-31", **fields})
        async with self._session.post("/", data=body, headers={"Content-Type": "application/x-www-form-urlencoded"}) as answer:
            await answer.read()

    async def sqs(self, action: str, **values: object) -> dict[str, object]:
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
        async with self._session.post("/", data=json.dumps(values), headers=headers) as answer:
            found: dict[str, object] = json.loads(await answer.read() or b"{}")
            return found


async def receive(aws: Aws, url: str, count: int, sent: dict[int, float]) -> list[float]:
    """The latency of each message in milliseconds."""
    latencies: list[float] = []
    while len(latencies) < count:
        found = await aws.sqs("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=20)
        now = time.perf_counter()
        messages = found.get("Messages") or []
        assert isinstance(messages, list)
        for one in messages:
            body = json.loads(one["Body"])
            number = int(body["Message"]) if isinstance(body, dict) else int(body)
            latencies.append((now - sent[number]) * 1000)
        if messages:
            entries = [{"Id": str(index), "ReceiptHandle": one["ReceiptHandle"]} for index, one in enumerate(messages)]
            await aws.sqs("DeleteMessageBatch", QueueUrl=url, Entries=entries)
    return latencies


async def run(aws: Aws, url: str, topic: str, queues: dict[str, str], count: int) -> list[list[float]]:
    suffix = ".fifo" if topic.endswith(".fifo") else ""
    fifo = {"Attributes.entry.1.key": "FifoTopic", "Attributes.entry.1.value": "true"} if suffix else {}
    topic_arn = f"arn:aws:sns:{_REGION}:{aws.account}:{topic}"
    await aws.sns("CreateTopic", Name=topic, **fifo)
    for queue, raw in queues.items():
        await aws.sqs("CreateQueue", QueueName=queue, Attributes={"FifoQueue": "true"} if suffix else {})
        attribute = {"Attributes.entry.1.key": "RawMessageDelivery", "Attributes.entry.1.value": raw}
        endpoint = f"arn:aws:sqs:{_REGION}:{aws.account}:{queue}"
        await aws.sns("Subscribe", TopicArn=topic_arn, Protocol="sqs", Endpoint=endpoint, **attribute)
    await asyncio.sleep(3)  # a delivery process takes the subscriptions over
    sent: dict[int, float] = {}
    receivers = [asyncio.create_task(receive(aws, f"{url}/{aws.account}/{queue}", count, sent)) for queue in queues]
    for number in range(count):
        sent[number] = time.perf_counter()
        more = {"MessageGroupId": f"g{number % 10}", "MessageDeduplicationId": str(number)} if suffix else {}
        await aws.sns("Publish", TopicArn=topic_arn, Message=str(number), **more)
        await asyncio.sleep(_PACE_SECONDS)
    return await asyncio.wait_for(asyncio.gather(*receivers), _DEADLINE_SECONDS)


async def measure(server: Server, count: int) -> list[list[object]]:
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Authorization": f"Bearer {server.key}"}
    async with aiohttp.ClientSession(server.url, headers=headers, connector=connector, raise_for_status=True) as session:
        async with session.get("/v1/whoami") as answer:
            aws = Aws(session, (await answer.json())["accountId"])
        standard = await run(aws, server.url, "bench", {"raw": "true", "enveloped": "false"}, count)
        [fifo] = await run(aws, server.url, "bench.fifo", {"raw.fifo": "true"}, count)
    names = ("raw", "in an envelope", "FIFO, raw")
    return [[name, *map(_ms, _percentiles(found))] for name, found in zip(names, [*standard, fifo], strict=True)]


def _percentiles(found: list[float]) -> tuple[float, float, float]:
    return statistics.median(found), statistics.quantiles(found, n=100, method="inclusive")[98], max(found)


def _ms(value: float) -> str:
    return f"{value:.1f}"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with postroad(POSTROAD_REQUESTS_PER_SECOND_PER_TENANT_MAX="0") as server:
        rows = uvloop.run(measure(server, count))
    print(table(["queue", "median ms", "p99 ms", "max ms"], rows))


if __name__ == "__main__":
    main()
