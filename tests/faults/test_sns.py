"""kill -9 of gateways and delivery processes while boto3 publishes to topics: three queues and an endpoint get everything; FIFO
queues get each message once, in order.

`POSTROAD_TEST_SNS=20000 POSTROAD_TEST_KILLS=50` runs it with that many messages and kills.
"""

import asyncio
import base64
import json
import os
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest

from tests.faults.aws_clients import UNCERTAIN, client, killing, persistently
from tests.faults.conftest import Install
from tests.installation import Installation
from tests.subscriptions.receiver import Receiver, receiving
from tests.waiting import eventually

MESSAGES = int(os.environ.get("POSTROAD_TEST_SNS", "800"))
WINDOW = int(os.environ.get("POSTROAD_TEST_SNS_WINDOW", "600"))
PUBLISHERS, GROUPS = 4, 8
DEADLINE_SECONDS = 400 + MESSAGES / 10
KILLED = ("postroad.runtime.worker gateway", "postroad.runtime.worker delivery")
RAW = {"RawMessageDelivery": "true"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + MESSAGES // 4)]


def drain(running: Installation, url: str, total: int, deadline: float) -> list[str]:
    """Bodies in the order in which they were received, until this many different ones were."""
    sqs, found, different = client(running, "sqs"), list[str](), set[str]()
    while len(different) < total and time.monotonic() < deadline:
        try:
            messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages", [])
            if messages:
                handles = [{"Id": str(index), "ReceiptHandle": one["ReceiptHandle"]} for index, one in enumerate(messages)]
                persistently(sqs.delete_message_batch, deadline, QueueUrl=url, Entries=handles)
        except UNCERTAIN:
            continue
        found += [one["Body"] for one in messages]
        different.update(one["Body"] for one in messages)
    return found


def publish_all(
    running: Installation, topic: str, publisher: int, published: list[int], deadline: float, *, is_fifo: bool
) -> None:
    sns = client(running, "sns")
    for number in range(publisher, MESSAGES, PUBLISHERS):
        group = f"g{number % GROUPS}"
        ids = {"MessageGroupId": group, "MessageDeduplicationId": str(number)} if is_fifo else {}
        persistently(sns.publish, deadline, TopicArn=topic, Message=f"{group} {number}", **ids)
        published.append(number)


def make(running: Installation, *, is_fifo: bool) -> tuple[str, list[str]]:
    """A topic with three queues; its ARN, and their URLs."""
    sns, sqs = client(running, "sns"), client(running, "sqs")
    end = ".fifo" if is_fifo else ""
    topic = sns.create_topic(Name=f"t{end}", Attributes={"FifoTopic": "true"} if is_fifo else {})["TopicArn"]
    urls = []
    for number in range(3):
        kind = {"FifoQueue": "true"} if is_fifo else {}
        urls.append(sqs.create_queue(QueueName=f"q{number}{end}", Attributes=kind)["QueueUrl"])
        found = sqs.get_queue_attributes(QueueUrl=urls[-1], AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=found, Attributes=RAW)
    return topic, urls


async def confirmed(running: Installation, topic: str, receiver: Receiver) -> None:
    """Subscribe an endpoint, and confirm it."""
    sns = client(running, "sns")
    await asyncio.to_thread(sns.subscribe, TopicArn=topic, Protocol="http", Endpoint=receiver.url)

    def token() -> str | None:
        for one in receiver.received:
            found = json.loads(one.body)
            if found["Type"] == "SubscriptionConfirmation":
                return str(found["Token"])
        return None

    await asyncio.to_thread(sns.confirm_subscription, TopicArn=topic, Token=await eventually(token, 60))


def run(running: Installation, topic: str, urls: list[str], *, is_fifo: bool) -> tuple[list[list[str]], list[str]]:
    """Publish everything while processes are killed; what each queue got, and what was killed."""
    deadline, published = time.monotonic() + DEADLINE_SECONDS, list[int]()
    kills = killing(running, seed=29, words=KILLED, progress=lambda: len(published) / MESSAGES)
    with kills as killed, ThreadPoolExecutor(PUBLISHERS + 3) as pool:
        publishing = [
            pool.submit(publish_all, running, topic, one, published, deadline, is_fifo=is_fifo) for one in range(PUBLISHERS)
        ]
        draining = [pool.submit(drain, running, url, MESSAGES, deadline) for url in urls]
        for one in publishing:
            one.result()
    return [one.result() for one in draining], killed


async def test_queues_and_an_endpoint_get_everything(install: Install) -> None:
    running = await install(POSTROAD_WORKERS="2", POSTROAD_OUTBOUND_ALLOW="127.0.0.0/8").start().ready(120)
    expected = {f"g{number % GROUPS} {number}" for number in range(MESSAGES)}
    async with receiving() as receiver:
        topic, urls = await asyncio.to_thread(make, running, is_fifo=False)
        await confirmed(running, topic, receiver)
        found, killed = await asyncio.to_thread(run, running, topic, urls, is_fifo=False)
        assert killed
        for one in found:
            assert set(one) == expected

        def pushed() -> bool:
            bodies = [json.loads(one.body) for one in receiver.received]
            return {one["Message"] for one in bodies if one["Type"] == "Notification"} == expected

        await eventually(pushed, 120)


async def test_fifo_queues_get_each_message_once_and_in_order(install: Install) -> None:
    running = await install(POSTROAD_WORKERS="2").start().ready(120)
    topic, urls = await asyncio.to_thread(make, running, is_fifo=True)
    found, killed = await asyncio.to_thread(run, running, topic, urls, is_fifo=True)
    assert killed
    for one in found:
        assert len(one) == MESSAGES, f"{len(one)} messages, {len(set(one))} different ones"
        for group in range(GROUPS):
            numbers = [int(body.split()[1]) for body in one if body.startswith(f"g{group} ")]
            assert numbers == sorted(numbers)  # one publisher has all numbers of a group
            assert numbers == list(range(group, MESSAGES, GROUPS))


async def test_a_replay_of_a_window_continues_after_a_restart(install: Install) -> None:
    """`POSTROAD_TEST_SNS_WINDOW=10000` runs it with a window of that many messages."""
    running = await install(POSTROAD_WORKERS="2").start().ready(120)
    policy = json.dumps({"MessageRetentionPeriod": "7"})
    before, after = 50, 50
    total = before + WINDOW + after

    def prepare() -> tuple[Any, str, str, str]:
        sns, sqs = client(running, "sns"), client(running, "sqs")
        topic = sns.create_topic(Name="t.fifo", Attributes={"FifoTopic": "true", "ArchivePolicy": policy})["TopicArn"]
        url = sqs.create_queue(QueueName="q.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        for start in range(0, total, 10):
            entries = [
                {"Id": str(one), "Message": str(one), "MessageGroupId": f"g{one % 4}", "MessageDeduplicationId": str(one)}
                for one in range(start, min(start + 10, total))
            ]
            assert len(sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries)["Successful"]) == len(entries)
        return sns, topic, url, arn

    sns, topic, url, arn = await asyncio.to_thread(prepare)
    times = await asyncio.to_thread(published_times, running, (before, before + WINDOW))
    points = {"PointType": "Timestamp", "StartingPoint": times[0], "EndingPoint": times[1]}
    chosen = {**RAW, "ReplayPolicy": json.dumps(points)}
    await asyncio.to_thread(sns.subscribe, TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes=chosen)
    deadline = time.monotonic() + DEADLINE_SECONDS + WINDOW / 20
    first = await asyncio.to_thread(drain, running, url, WINDOW // 4, deadline)
    await running.stop()
    await running.start().ready(120)
    rest = await asyncio.to_thread(drain, running, url, WINDOW - len(first), deadline)
    numbers = [int(body) for body in first + rest]
    # Messages that have the time of the first or the last one belong to the window or not, as their times say.
    low, high = await asyncio.to_thread(window_of, running, times)
    assert sorted(numbers) == list(range(low, high)) and high - low >= WINDOW - 20
    for group in range(4):
        ordered = [one for one in numbers if one % 4 == group]
        assert ordered == sorted(ordered)
    assert await asyncio.to_thread(drain, running, url, 1, time.monotonic() + 3) == []


def _archive(running: Installation) -> list[datetime]:
    """The times of the messages of the topic, by number."""
    found, cursor = dict[int, datetime](), ""
    while True:
        address = f"{running.url}/v1/topics/t.fifo/messages?limit=1000{cursor}"
        with urllib.request.urlopen(urllib.request.Request(address, headers=running.headers)) as response:
            page = json.load(response)
        for one in page["messages"]:
            found[int(base64.b64decode(one["body_b64"]))] = datetime.fromisoformat(one["timestamp"])
        if not page.get("nextCursor") or not page["messages"]:
            return [found[number] for number in sorted(found)]
        cursor = f"&cursor={page['nextCursor']}"


def published_times(running: Installation, numbers: tuple[int, int]) -> list[str]:
    times = _archive(running)
    return [times[number].isoformat() for number in numbers]


def window_of(running: Installation, points: list[str]) -> tuple[int, int]:
    """The first number of the window, and the first behind it."""
    times, (start, end) = _archive(running), [datetime.fromisoformat(one) for one in points]
    chosen = [number for number, at in enumerate(times) if start <= at < end]
    return chosen[0], chosen[-1] + 1
