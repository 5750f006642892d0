"""Fan-out of a topic to HTTP endpoints and to a queue, beside SNS servers: moto, ministack and fauxqs.

    .venv/bin/python -m benchmarks.sns [messages] [subscriptions]

Messages are published one after the other by 8 clients, with the same payload. `push`: deliveries per second at one receiver, to
all subscriptions (20). `to a queue`: messages per second until all are in the queue. The SNS servers keep everything in memory.
"""

import asyncio
import contextlib
import re
import sys
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

import aiohttp
import uvloop

from benchmarks.harness import Server, postroad, table
from benchmarks.peers import fauxqs, ministack, moto
from benchmarks.peers.peer import PAYLOAD, Peer, Unavailable, install
from benchmarks.peers.sqs import call
from benchmarks.push import Counted

CLIENTS = 8
DEADLINE_SECONDS = 20.0
_SIGNATURE = "AWS4-HMAC-SHA256 Credential=bench/20260101/us-east-1/sns/aws4_request, SignedHeaders=host, Signature=0"


class Sns:
    """The query protocol of SNS, with a signature header that these servers do not verify."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def call(self, action: str, **fields: str) -> str:
        headers = {"Authorization": _SIGNATURE, "Content-Type": "application/x-www-form-urlencoded"}
        body = urlencode({"Action": action, "Version": "2010-03-31", **fields})
        async with self._session.post(self._url, data=body, headers=headers) as answer:
            text = await answer.text()
            if answer.status >= 300:
                raise Unavailable(f"{action} was answered {answer.status}: {text[:150]}")
            return text

    async def topic(self, name: str) -> str:
        found = re.search(r"<TopicArn>([^<]+)</TopicArn>", await self.call("CreateTopic", Name=name))
        if found is None:
            raise Unavailable("CreateTopic returned no ARN")
        return found[1]

    async def queue_count(self, url: str) -> int:
        request = call("GetQueueAttributes", f'{{"QueueUrl":"{url}","AttributeNames":["ApproximateNumberOfMessages"]}}')
        async with self._session.post(self._url, data=request.body, headers=dict(request.headers)) as answer:
            found = re.search(r'"ApproximateNumberOfMessages": ?"(\d+)"', await answer.text())
            return 0 if found is None else int(found[1])


async def _published(publish: Callable[[], Awaitable[object]], messages: int) -> None:
    left = [messages]

    async def client() -> None:
        while left[0] > 0:
            left[0] -= 1
            await publish()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


async def _rate(
    publish: Callable[[], Awaitable[object]], messages: int, arrived: Callable[[], Awaitable[int]], total: int
) -> float:
    """Arrivals per second, from the first publish to the last arrival. Raises Unavailable if some are missing."""
    before, started = await arrived(), time.perf_counter()
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):  # moto delivers before it answers a publish
            await _published(publish, messages)
    except TimeoutError:
        raise Unavailable(f"{messages} publishes were not answered in {DEADLINE_SECONDS:.0f} s") from None
    while (count := await arrived() - before) < total:
        if time.perf_counter() - started > DEADLINE_SECONDS:
            raise Unavailable(f"{count} of {total} arrived in {DEADLINE_SECONDS:.0f} s")
        await asyncio.sleep(0.01)
    return total / (time.perf_counter() - started)


async def of_postroad(server: Server, messages: int, subscriptions: int) -> tuple[str, str]:
    receiver = Counted()
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    body = f'{{"subject":"a.b","payload":{PAYLOAD}}}'.encode()
    try:
        async with aiohttp.ClientSession(server.url, headers=headers, raise_for_status=True) as session:
            for topic in ("push", "queue"):
                await session.put(f"/v1/topics/{topic}", json={})
            await session.put("/v1/queues/bench", json={})
            for _ in range(subscriptions):
                new = {"delivery_type": "http_push", "url": f"http://127.0.0.1:{receiver.port}/"}
                await session.post("/v1/topics/push/subscriptions", json=new)
            await session.post("/v1/topics/queue/subscriptions", json={"delivery_type": "queue", "queue": "bench"})

            async def publish(topic: str) -> None:
                async with session.post(f"/v1/topics/{topic}/messages", data=body) as answer:
                    await answer.read()

            async def received() -> int:
                return receiver.count()

            async def queued() -> int:
                async with session.get("/v1/queues/bench") as answer:
                    return int((await answer.json())["stats"]["ready"])

            await _published(lambda: publish("push"), 10)
            await asyncio.sleep(1)
            push = await _rate(lambda: publish("push"), messages, received, messages * subscriptions)
            return f"{push:,.0f}", f"{await _rate(lambda: publish('queue'), messages * 5, queued, messages * 5):,.0f}"
    finally:
        receiver.end()


async def _of_peer(url: str, messages: int, subscriptions: int, *, has_push: bool) -> tuple[str, str]:
    receiver = Counted()
    try:
        async with aiohttp.ClientSession() as session:
            sns = Sns(session, url)
            push = "not supported"
            if has_push:
                arn = await sns.topic("push")
                for number in range(subscriptions):
                    endpoint = f"http://127.0.0.1:{receiver.port}/?{number}"
                    await sns.call("Subscribe", TopicArn=arn, Protocol="http", Endpoint=endpoint)

                async def received() -> int:
                    return receiver.count()

                with contextlib.suppress(Unavailable):
                    push = f"not delivered in {DEADLINE_SECONDS:.0f} s"
                    rate = await _rate(
                        lambda: sns.call("Publish", TopicArn=arn, Message=PAYLOAD), messages, received, messages * subscriptions
                    )
                    push = f"{rate:,.0f}"
            made = call("CreateQueue", '{"QueueName":"fed"}')
            async with session.post(url, data=made.body, headers=dict(made.headers)) as answer:
                found = re.search(r'"QueueUrl": ?"([^"]+)"', await answer.text())
            if found is None:
                raise Unavailable("CreateQueue returned no URL")
            to_queue = await sns.topic("queue")
            account = to_queue.split(":")[4]
            arn_of_queue = f"arn:aws:sqs:us-east-1:{account}:fed"
            await sns.call("Subscribe", TopicArn=to_queue, Protocol="sqs", Endpoint=arn_of_queue)
            queue_url = found[1]
            queued = await _rate(
                lambda: sns.call("Publish", TopicArn=to_queue, Message=PAYLOAD),
                messages * 5,
                lambda: sns.queue_count(queue_url),
                messages * 5,
            )
            return push, f"{queued:,.0f}"
    finally:
        receiver.end()


def of_peer(peer: Peer, messages: int, subscriptions: int, *, has_push: bool) -> tuple[str, str]:
    try:
        install(peer.setup)
        with peer.running() as queue:
            return uvloop.run(_of_peer(queue.url, messages, subscriptions, has_push=has_push))
    except Unavailable as problem:
        return str(problem), ""


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    subscriptions = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    with postroad(POSTROAD_OUTBOUND_ALLOW="127.0.0.0/8", POSTROAD_REQUESTS_PER_SECOND_PER_TENANT_MAX="0") as server:
        rows = [["Postroad, fsynced", *uvloop.run(of_postroad(server, messages, subscriptions))]]
    for peer, has_push in ((moto.PEER, True), (ministack.PEER, True), (fauxqs.PEER, False)):
        print(f"{peer.name} …", file=sys.stderr, flush=True)
        rows.append([peer.name.replace("SQS", "SNS"), *of_peer(peer, messages, subscriptions, has_push=has_push)])
    print(table(["", f"push to {subscriptions}, deliveries/s", "to a queue, messages/s"], rows))


if __name__ == "__main__":
    main()
