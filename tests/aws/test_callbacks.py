"""Busy operations of SQS are served with callbacks: the same results, errors and counts as by the handler, in a task."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from postroad.http.app import App
from postroad.http.request import ResponseCycle
from postroad.http.request import Scope as AsgiScope
from postroad.kernel.identity import Scope
from tests.aws.clients import AwsTenant, aws_key, refused
from tests.gateway import Gateway

_TARGET = b"x-amz-target"


class Calls:
    """Operations of AWS JSON, by the way in which they were served."""

    def __init__(self) -> None:
        self.taken, self.left = Counter[str](), Counter[str]()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found, start = Calls(), App.start_callback

    def started(self: App, scope: AsgiScope, body: bytes, cycle: ResponseCycle) -> bool:
        is_taken = start(self, scope, body, cycle)
        operation = scope["headers"].get(_TARGET, b"").decode().removeprefix("AmazonSQS.")
        (found.taken if is_taken else found.left)[operation] += 1
        return is_taken

    monkeypatch.setattr(App, "start_callback", started)
    return found


async def received(aws: AwsTenant, url: str, count: int, **more: Any) -> list[dict[str, Any]]:
    """Messages of receives that do not wait. (One that was just sent may not be visible yet.)"""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += await aws.receive(url, count - len(found), WaitTimeSeconds=0, **more)
    return found


async def test_busy_operations_are_served_with_callbacks(aws: AwsTenant, calls: Calls) -> None:
    url = await aws.queue()
    await aws.sqs.send_message(QueueUrl=url, MessageBody="first")  # by the handler: the caller is not in the cache yet
    calls.taken.clear()
    attributes = {"a": {"DataType": "Number", "StringValue": "1"}}
    sent = await aws.sqs.send_message(QueueUrl=url, MessageBody="ä", MessageAttributes=attributes)
    await aws.sqs.send_message(QueueUrl=url, MessageBody="third", DelaySeconds=0)
    messages = await received(aws, url, 3, MessageAttributeNames=["All"], AttributeNames=["All"])
    by_body = {one["Body"]: one for one in messages}
    assert by_body["ä"]["MessageId"] == sent["MessageId"] and by_body["ä"]["MessageAttributes"] == attributes
    assert by_body["ä"]["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    first, *others = [one["ReceiptHandle"] for one in messages]
    await aws.sqs.delete_message(QueueUrl=url, ReceiptHandle=first)
    entries = [{"Id": str(index), "ReceiptHandle": one} for index, one in enumerate(others)]
    deleted = await aws.sqs.delete_message_batch(QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in deleted["Successful"]] == ["0", "1"] and not deleted.get("Failed")
    taken = Counter(calls.taken)
    assert taken.pop("ReceiveMessage") >= 1
    assert taken == {"SendMessage": 2, "DeleteMessage": 1, "DeleteMessageBatch": 1}
    numbers = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    assert await aws.attributes(url, *numbers) == dict.fromkeys(numbers, "0")


async def test_what_is_not_ordinary_is_left_to_the_handler(aws: AwsTenant, gateway: Gateway, calls: Calls) -> None:
    url, fifo = await aws.queue(), await aws.queue("q.fifo", FifoQueue="true")
    await aws.sqs.send_message(QueueUrl=url, MessageBody="x")
    calls.taken.clear()
    await aws.sqs.send_message(QueueUrl=fifo, MessageBody="x", MessageGroupId="g", MessageDeduplicationId="1")
    [message] = await aws.receive(url, 1)  # it waits
    for wrong in ({"MessageBody": "\x00"}, {"MessageBody": "x", "DelaySeconds": 901}, {"MessageBody": "x" * 1_048_577}):
        with refused("InvalidMessageContents" if wrong["MessageBody"] == "\x00" else "InvalidParameterValue"):
            await aws.sqs.send_message(QueueUrl=url, **wrong)
    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        await aws.sqs.send_message(QueueUrl=f"{gateway.url}/{aws.account}/none", MessageBody="x")
    with refused("InvalidParameterValue"):
        await aws.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=11)
    for handle in ("x", message["ReceiptHandle"][:-2]):
        with refused("ReceiptHandleIsInvalid"):
            await aws.sqs.delete_message(QueueUrl=url, ReceiptHandle=handle)
    await aws.sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    await aws.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])  # the lease is over
    assert not calls.taken and calls.left["SendMessage"] >= 4  # a large body is not waited for


async def test_callbacks_refuse_the_same_callers(aws: AwsTenant, calls: Calls) -> None:
    url = await aws.queue()
    reader = await aws.tenant.another_key((Scope.CONSUME,))
    narrow = await aws.tenant.another_key(allowed_queues=("orders-*",))
    for other, code in ((reader, "AccessDenied"), (narrow, "AWS.SimpleQueueService.NonExistentQueue")):
        client = aws.client(credentials=await aws_key(aws.tenant, other.record.id))
        for _ in range(2):  # the caller is in the cache the second time
            with refused(code):
                await client.send_message(QueueUrl=url, MessageBody="x")
    assert not calls.taken
    for _ in range(2):
        await aws.sqs.send_message(QueueUrl=url, MessageBody="x")
    assert calls.taken["SendMessage"]
    calls.taken.clear()
    (await aws.tenant.client.delete(f"/api/control/keys/{aws.tenant.record.id}/aws")).ok(204)
    with refused("InvalidClientTokenId", 403):
        await aws.sqs.send_message(QueueUrl=url, MessageBody="x")
    assert not calls.taken
