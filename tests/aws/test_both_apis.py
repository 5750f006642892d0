"""Messages pass between the native API and SQS, and receipts of either settle through the other."""

import pytest

from tests.aws.clients import AwsTenant

pytestmark = pytest.mark.usefixtures("both_paths")  # busy operations are served with callbacks, and by the handler


async def test_a_native_message_is_received_through_sqs(aws: AwsTenant) -> None:
    queue = await aws.tenant.queue("orders")
    url = f"{aws.gateway.url}/{aws.account}/orders"
    for payload, body in (({"n": 1}, '{"n":1}'), ("text ✓", "text ✓"), (None, "null"), ("", "")):
        await aws.tenant.publish(queue, payload, headers={"kind": "new"})
        [message] = await aws.receive(url, MessageAttributeNames=["All"])
        assert message["Body"] == body
        assert message["MessageAttributes"] == {"kind": {"DataType": "String", "StringValue": "new"}}
        (await aws.tenant.ack(queue, message["ReceiptHandle"])).ok()
    assert await aws.tenant.stats(queue) == {"ready": 0, "leased": 0, "delayed": 0}


async def test_an_sqs_message_is_pulled_natively(aws: AwsTenant) -> None:
    url = await aws.queue("orders")
    attributes = {"n": {"DataType": "Number", "StringValue": "1"}, "b": {"DataType": "Binary", "BinaryValue": b"\xff"}}
    await aws.sqs.send_message(QueueUrl=url, MessageBody='{"json": 1}', MessageAttributes=attributes)
    [message] = await aws.tenant.pull("/v1/queues/orders", waitMs=10_000)
    assert message["payload"] == '{"json": 1}'
    assert (message["headers"], message["headerTypes"]) == ({"n": "1", "b": "/w=="}, {"n": "Number", "b": "Binary"})
    await aws.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["receiptId"])
    assert await aws.tenant.stats("/v1/queues/orders") == {"ready": 0, "leased": 0, "delayed": 0}


async def test_types_of_native_headers_reach_sqs(aws: AwsTenant) -> None:
    queue = await aws.tenant.queue("orders")
    headers, types = {"n": "1", "b": "/w==", "wrong": "no base64"}, {"n": "Number.int", "b": "Binary", "wrong": "Binary"}
    await aws.tenant.publish(queue, "x", headers=headers, headerTypes=types)
    [message] = await aws.receive(f"{aws.gateway.url}/{aws.account}/orders", MessageAttributeNames=["All"])
    assert message["MessageAttributes"] == {
        "n": {"DataType": "Number.int", "StringValue": "1"},
        "b": {"DataType": "Binary", "BinaryValue": b"\xff"},
        "wrong": {"DataType": "String", "StringValue": "no base64"},
    }


async def test_calls_of_sqs_produce_jobs_and_audit_entries(aws: AwsTenant) -> None:
    url = await aws.queue("orders")
    sent = await aws.sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = await aws.receive(url)
    await aws.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    kinds = [one["event"] for one in await aws.tenant.events() if one.get("message_id") == sent["MessageId"]]
    assert kinds[0] == "job.queued" and kinds[-1] == "job.done"
    entries = (await aws.tenant.client.get("/api/control/audit")).ok()["entries"]
    assert ("queue.create", "orders") in {(one["action"], one["target"]) for one in entries}
