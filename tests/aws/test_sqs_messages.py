"""Messages through boto3: send, receive, delete, visibility, batches."""

import asyncio
from typing import Any

import pytest

from postroad.kernel.clock import now_ms
from tests.aws.clients import AwsTenant, boto, refused
from tests.gateway import Gateway, ShiftedClock
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("both_paths")  # busy operations are served with callbacks, and by the handler


async def test_a_message_is_sent_received_and_deleted(aws: AwsTenant) -> None:
    url = await aws.queue()
    sent = await aws.sqs.send_message(QueueUrl=url, MessageBody="hello ✓")
    [message] = await aws.receive(url)
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "hello ✓")
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"]
    await aws.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert (await aws.attributes(url, "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")) == {
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
    }


async def test_send_message_to_a_missing_queue(aws: AwsTenant) -> None:
    url = (await aws.queue()).replace("/q", "/missing")
    with refused("AWS.SimpleQueueService.NonExistentQueue", 400, "does not exist"):
        await aws.sqs.send_message(QueueUrl=url, MessageBody="x")


async def test_each_attribute_type_keeps_its_value_and_type(aws: AwsTenant) -> None:
    url = await aws.queue()
    attributes = {
        "text": {"DataType": "String", "StringValue": "ü ✓"},
        "text.label": {"DataType": "String.json", "StringValue": "{}"},
        "number": {"DataType": "Number", "StringValue": "-1.5e10"},
        "whole": {"DataType": "Number.int", "StringValue": "7"},
        "bytes": {"DataType": "Binary", "BinaryValue": bytes(range(256))},
        "image": {"DataType": "Binary.png", "BinaryValue": b"\x89"},
    }
    sent = await aws.sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=attributes)
    [message] = await aws.receive(url, MessageAttributeNames=["All"])
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([".*"], {"foo.a", "foo.b", "bar"}),
        (["foo.*"], {"foo.a", "foo.b"}),
        (["bar", "none"], {"bar"}),
        ([], set()),
    ],
)
async def test_message_attribute_names_select(aws: AwsTenant, names: list[str], expected: set[str]) -> None:
    url = await aws.queue()
    value = {"DataType": "String", "StringValue": "x"}
    await aws.sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=dict.fromkeys(("foo.a", "foo.b", "bar"), value))
    [message] = await aws.receive(url, MessageAttributeNames=names)  # boto3 verifies the MD5 of those returned
    assert set(message.get("MessageAttributes", {})) == expected


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("AWS.x", {"DataType": "String", "StringValue": "x"}, "name"),
        ("amazon.x", {"DataType": "String", "StringValue": "x"}, "name"),
        (".x", {"DataType": "String", "StringValue": "x"}, "name"),
        ("a..b", {"DataType": "String", "StringValue": "x"}, "name"),
        ("ä", {"DataType": "String", "StringValue": "x"}, "name"),
        ("x", {"DataType": "Text", "StringValue": "x"}, "type"),
        ("x", {"DataType": "", "StringValue": "x"}, "type"),
        ("x", {"DataType": "String", "StringValue": ""}, "value"),
        ("x", {"DataType": "String"}, "value"),
        ("x", {"DataType": "Number", "StringValue": "one"}, "number"),
        ("x", {"DataType": "Binary", "StringValue": "x"}, "value"),
        ("x", {"DataType": "String", "StringValue": "x", "BinaryValue": b"x"}, "field"),
    ],
)
async def test_an_invalid_message_attribute(aws: AwsTenant, name: str, value: dict[str, Any], message: str) -> None:
    url = await aws.queue()
    with refused("InvalidParameterValue", 400, message):
        await aws.sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes={name: value})


async def test_more_than_ten_message_attributes(aws: AwsTenant) -> None:
    url = await aws.queue()
    value = {"DataType": "String", "StringValue": "x"}
    with refused("InvalidParameterValue", 400, "11"):
        await aws.sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes={f"a{number}": value for number in range(11)})


async def test_system_attributes(aws: AwsTenant) -> None:
    url = await aws.queue()
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}
    sent = await aws.sqs.send_message(QueueUrl=url, MessageBody="x", MessageSystemAttributes=trace, MessageGroupId="g")
    assert sent["MD5OfMessageSystemAttributes"]
    [message] = await aws.receive(url, AttributeNames=["All"], MessageAttributeNames=["All"])
    found = message["Attributes"]
    assert found["SenderId"] == aws.tenant.record.id
    assert found["ApproximateReceiveCount"] == "1"
    assert int(found["SentTimestamp"]) <= int(found["ApproximateFirstReceiveTimestamp"])
    assert found["AWSTraceHeader"] == trace["AWSTraceHeader"]["StringValue"]
    assert found["MessageGroupId"] == "g"
    assert "MessageAttributes" not in message
    with refused("InvalidParameterValue", 400, "system attribute"):
        await aws.sqs.send_message(
            QueueUrl=url,
            MessageBody="x",
            MessageSystemAttributes={"AWSTraceHeader": {"DataType": "Binary", "BinaryValue": b"x"}},
        )


async def test_message_system_attribute_names_select(aws: AwsTenant) -> None:
    url = await aws.queue()
    await aws.sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = await aws.receive(url, MessageSystemAttributeNames=["SentTimestamp"], VisibilityTimeout=0)
    assert set(message["Attributes"]) == {"SentTimestamp"}
    with refused("InvalidAttributeName", 400, "Nothing"):
        await aws.receive(url, MessageSystemAttributeNames=["Nothing"])


async def test_the_first_receive_is_equal_on_every_gateway(aws: AwsTenant, second_gateway: Gateway) -> None:
    url = await aws.queue()
    await aws.sqs.send_message(QueueUrl=url, MessageBody="x")
    [first] = await aws.receive(url, AttributeNames=["All"], VisibilityTimeout=1)
    other = boto(second_gateway.url, aws.credentials)
    [second] = (await other.receive_message(QueueUrl=url, WaitTimeSeconds=20, AttributeNames=["All"]))["Messages"]
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    name = "ApproximateFirstReceiveTimestamp"
    assert second["Attributes"][name] == first["Attributes"][name]


@pytest.mark.parametrize("body", ["\x00", "a\x0bb", "\ufffe", "\uffff"])
async def test_invalid_message_contents(aws: AwsTenant, body: str) -> None:
    url = await aws.queue()
    with refused("InvalidMessageContents", 400, "Invalid characters"):
        await aws.sqs.send_message(QueueUrl=url, MessageBody=body)


async def test_every_valid_character_arrives(aws: AwsTenant) -> None:
    url = await aws.queue()
    body = "\t\n\r \ud7ff\ue000\ufffd\U00010000\U0010ffff&<>\"'\x7f\x85"
    await aws.sqs.send_message(QueueUrl=url, MessageBody=body)
    assert [one["Body"] for one in await aws.receive(url)] == [body]


async def test_the_size_of_body_and_attributes_is_limited(aws: AwsTenant) -> None:
    url = await aws.queue(MaximumMessageSize="1024")
    attributes = {"ab": {"DataType": "Binary", "BinaryValue": b"x" * 10}}  # 2 + 6 + 10 bytes
    await aws.sqs.send_message(QueueUrl=url, MessageBody="ü" * 503, MessageAttributes=attributes)
    with refused("InvalidParameterValue", 400, "shorter than 1024 bytes"):
        await aws.sqs.send_message(QueueUrl=url, MessageBody="ü" * 503 + "x", MessageAttributes=attributes)


async def test_a_message_of_one_mebibyte(aws: AwsTenant) -> None:
    url = await aws.queue()
    await aws.sqs.send_message(QueueUrl=url, MessageBody="x" * 1_048_576)
    [message] = await aws.receive(url)
    assert len(message["Body"]) == 1_048_576
    with refused("InvalidParameterValue", 400, "shorter than 1048576 bytes"):
        await aws.sqs.send_message(QueueUrl=url, MessageBody="x" * 1_048_577)


async def test_delay_seconds(aws: AwsTenant) -> None:
    url = await aws.queue(DelaySeconds="900")
    await aws.sqs.send_message(QueueUrl=url, MessageBody="later")
    await aws.sqs.send_message(QueueUrl=url, MessageBody="now", DelaySeconds=0)
    assert [one["Body"] for one in await aws.receive(url)] == ["now"]
    assert (await aws.attributes(url, "ApproximateNumberOfMessagesDelayed")) == {"ApproximateNumberOfMessagesDelayed": "1"}
    for wrong in (-1, 901):
        with refused("InvalidParameterValue", 400, "DelaySeconds"):
            await aws.sqs.send_message(QueueUrl=url, MessageBody="x", DelaySeconds=wrong)


async def test_message_deduplication_id_needs_a_fifo_queue(aws: AwsTenant) -> None:
    url = await aws.queue()
    with refused("InvalidParameterValue", 400, "MessageDeduplicationId"):
        await aws.sqs.send_message(QueueUrl=url, MessageBody="x", MessageDeduplicationId="d")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("MaxNumberOfMessages", 0), ("MaxNumberOfMessages", 11), ("WaitTimeSeconds", -1), ("WaitTimeSeconds", 21)),
        *(("VisibilityTimeout", -1), ("VisibilityTimeout", 43_201)),
    ],
)
async def test_receive_message_outside_its_range(aws: AwsTenant, name: str, wrong: int) -> None:
    url = await aws.queue()
    with refused("InvalidParameterValue", 400, name):
        await aws.sqs.receive_message(QueueUrl=url, **{name: wrong})


async def test_an_empty_receive_has_no_messages(aws: AwsTenant) -> None:
    url = await aws.queue()
    assert "Messages" not in await aws.sqs.receive_message(QueueUrl=url)


async def test_a_long_poll_returns_a_message_that_arrives(aws: AwsTenant) -> None:
    url = await aws.queue(ReceiveMessageWaitTimeSeconds="20")
    waiting = asyncio.create_task(aws.sqs.receive_message(QueueUrl=url))
    await eventually(lambda: aws.gateway.node.app._usage.open_requests > 0)
    await aws.sqs.send_message(QueueUrl=url, MessageBody="x")
    assert [one["Body"] for one in (await waiting)["Messages"]] == ["x"]


async def test_delete_message_with_any_receipt(aws: AwsTenant) -> None:
    url = await aws.queue()
    await aws.sqs.send_message(QueueUrl=url, MessageBody="x")
    [first] = await aws.receive(url, VisibilityTimeout=0)
    [second] = await aws.receive(url, VisibilityTimeout=600)
    assert second["MessageId"] == first["MessageId"] and second["ReceiptHandle"] != first["ReceiptHandle"]
    await aws.sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    found = await aws.attributes(url, "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    assert set(found.values()) == {"0"}
    await aws.sqs.delete_message(QueueUrl=url, ReceiptHandle=second["ReceiptHandle"])


@pytest.mark.parametrize("handle", ["", "x", "ä", "AAAA", "A" * 2000])
async def test_an_invalid_receipt_handle(aws: AwsTenant, handle: str) -> None:
    url = await aws.queue()
    with refused("ReceiptHandleIsInvalid", 400):
        await aws.sqs.delete_message(QueueUrl=url, ReceiptHandle=handle)
    with refused("ReceiptHandleIsInvalid", 400):
        await aws.sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=1)


async def test_a_receipt_of_another_queue_is_invalid(aws: AwsTenant) -> None:
    url, other = await aws.queue("a"), await aws.queue("b")
    await aws.sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = await aws.receive(url)
    with refused("ReceiptHandleIsInvalid", 400):
        await aws.sqs.delete_message(QueueUrl=other, ReceiptHandle=message["ReceiptHandle"])


async def test_change_message_visibility(aws: AwsTenant) -> None:
    url = await aws.queue()
    await aws.sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = await aws.receive(url, VisibilityTimeout=600)
    change = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}
    await aws.sqs.change_message_visibility(**change, VisibilityTimeout=0)
    [again] = await aws.receive(url, VisibilityTimeout=600)
    assert again["MessageId"] == message["MessageId"]
    with refused("AWS.SimpleQueueService.MessageNotInflight", 400):
        await aws.sqs.change_message_visibility(**change, VisibilityTimeout=60)
    for wrong in (-1, 43_201):
        with refused("InvalidParameterValue", 400, "VisibilityTimeout"):
            await aws.sqs.change_message_visibility(**change, VisibilityTimeout=wrong)


async def test_a_handle_stays_valid_as_long_as_its_lease_is_extended(aws: AwsTenant, clock: ShiftedClock) -> None:
    url = await aws.queue()
    await aws.sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = await aws.receive(url, VisibilityTimeout=60)
    change = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}
    await aws.sqs.change_message_visibility(**change, VisibilityTimeout=600)
    clock.ahead_ms = 120_000
    await aws.sqs.change_message_visibility(**change, VisibilityTimeout=600)
    await aws.sqs.delete_message(**change)
    assert await aws.attributes(url, "ApproximateNumberOfMessagesNotVisible") == {"ApproximateNumberOfMessagesNotVisible": "0"}


async def test_visibility_ends_12_hours_after_the_receive(aws: AwsTenant, clock: ShiftedClock) -> None:
    url = await aws.queue()
    await aws.sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = await aws.receive(url, VisibilityTimeout=600)
    clock.ahead_ms = 300_000
    with refused("InvalidParameterValue", 400, "43200 seconds"):
        await aws.sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=43_000)


async def test_batches_report_each_entry(aws: AwsTenant) -> None:
    url = await aws.queue(MaximumMessageSize="1024")
    entries = [{"Id": "a", "MessageBody": "1"}, {"Id": "b", "MessageBody": "\x00"}, {"Id": "c", "MessageBody": "x" * 1025}]
    sent = await aws.sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in sent["Successful"]] == ["a"]
    assert [(one["Id"], one["Code"], one["SenderFault"]) for one in sent["Failed"]] == [
        ("b", "InvalidMessageContents", True),
        ("c", "InvalidParameterValue", True),
    ]
    [message] = await aws.receive(url)
    handles = [{"Id": "a", "ReceiptHandle": message["ReceiptHandle"]}, {"Id": "b", "ReceiptHandle": "x"}]
    changes = [{**one, "VisibilityTimeout": 60} for one in handles]
    for result in (
        await aws.sqs.change_message_visibility_batch(QueueUrl=url, Entries=changes),
        await aws.sqs.delete_message_batch(QueueUrl=url, Entries=handles),
    ):
        assert [one["Id"] for one in result["Successful"]] == ["a"]
        assert [(one["Id"], one["Code"]) for one in result["Failed"]] == [("b", "ReceiptHandleIsInvalid")]


@pytest.mark.parametrize("value", [{}, {"DataType": "String"}, {"StringValue": "x"}, {"DataType": "", "BinaryValue": b"x"}])
async def test_an_incomplete_attribute_fails_its_entry_only(aws: AwsTenant, value: dict[str, Any]) -> None:
    url, client = await aws.queue(), aws.client(parameter_validation=False)
    wrong = {"Id": "a", "MessageBody": "1", "MessageAttributes": {"kind": value}}
    sent = await client.send_message_batch(QueueUrl=url, Entries=[wrong, {"Id": "b", "MessageBody": "2"}])
    assert [one["Id"] for one in sent["Successful"]] == ["b"]
    assert [(one["Id"], one["Code"], one["SenderFault"]) for one in sent["Failed"]] == [("a", "InvalidParameterValue", True)]
    with refused("InvalidParameterValue", 400, "kind"):
        await client.send_message(QueueUrl=url, MessageBody="1", MessageAttributes={"kind": value})


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([], "EmptyBatchRequest"),
        ([{"Id": str(number), "MessageBody": "x"} for number in range(11)], "TooManyEntriesInBatchRequest"),
        ([{"Id": "a", "MessageBody": "x"}] * 2, "BatchEntryIdsNotDistinct"),
        ([{"Id": "a b", "MessageBody": "x"}], "InvalidBatchEntryId"),
        ([{"Id": "x" * 81, "MessageBody": "x"}], "InvalidBatchEntryId"),
        ([{"Id": str(number), "MessageBody": "x" * 262_145} for number in range(4)], "BatchRequestTooLong"),
    ],
)
async def test_an_invalid_batch(aws: AwsTenant, entries: list[dict[str, str]], code: str) -> None:
    url = await aws.queue()
    with refused(f"AWS.SimpleQueueService.{code}", 400):
        await aws.sqs.send_message_batch(QueueUrl=url, Entries=entries)


async def test_ten_messages_at_once(aws: AwsTenant) -> None:
    url = await aws.queue()
    entries = [{"Id": str(number), "MessageBody": str(number)} for number in range(10)]
    assert len((await aws.sqs.send_message_batch(QueueUrl=url, Entries=entries))["Successful"]) == 10
    messages = await aws.receive(url)
    assert sorted(one["Body"] for one in messages) == sorted(one["MessageBody"] for one in entries)
    handles = [{"Id": str(number), "ReceiptHandle": one["ReceiptHandle"]} for number, one in enumerate(messages)]
    assert len((await aws.sqs.delete_message_batch(QueueUrl=url, Entries=handles))["Successful"]) == 10


async def test_a_shorter_retention_expires_messages(aws: AwsTenant, clock: ShiftedClock) -> None:
    url = await aws.queue()
    await aws.sqs.send_message(QueueUrl=url, MessageBody="x")
    clock.ahead_ms = 120_000
    await aws.sqs.set_queue_attributes(QueueUrl=url, Attributes={"MessageRetentionPeriod": "60"})
    assert await aws.attributes(url, "ApproximateNumberOfMessages") == {"ApproximateNumberOfMessages": "0"}


async def test_a_full_queue_is_over_its_limit(aws: AwsTenant) -> None:
    url = await aws.queue("full")
    changed = await aws.tenant.client.put("/v1/queues/full", {"maxMessages": 1})
    assert changed.status in (200, 201)
    await aws.sqs.send_message(QueueUrl=url, MessageBody="1")
    with refused("OverLimit"):
        await aws.sqs.send_message(QueueUrl=url, MessageBody="2")


@pytest.mark.parametrize("kind", ["standard", "fifo"])
async def test_no_message_is_visible_early(aws: AwsTenant, kind: str) -> None:
    """After a delay, after a visibility timeout, and after a changed one, each of a second from the start of the request."""
    is_fifo = kind == "fifo"
    url = await aws.queue("q.fifo" if is_fifo else "q", DelaySeconds="1", **({"FifoQueue": "true"} if is_fifo else {}))
    more = {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if is_fifo else {}

    async def arrival(**receive: Any) -> tuple[int, int, str]:
        """Start and end of the receive that got the message, and its handle."""
        while True:
            start = now_ms()
            if messages := await aws.receive(url, **receive):
                return start, now_ms(), messages[0]["ReceiptHandle"]

    due = now_ms() + 1000
    await aws.sqs.send_message(QueueUrl=url, MessageBody="x", **more)
    assert await aws.receive(url, WaitTimeSeconds=0) == [] or now_ms() >= due
    _, end, handle = await arrival(VisibilityTimeout=600)
    assert end >= due - 2, "the clocks of the gateway and of the engine differ by less"
    due = now_ms() + 1000
    await aws.sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=1)
    _, end, handle = await arrival(VisibilityTimeout=600)
    assert end >= due - 2
    await aws.sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
    start, _, _ = await arrival(VisibilityTimeout=1, WaitTimeSeconds=0)
    _, end, _ = await arrival(VisibilityTimeout=1)
    assert end >= start + 1000 - 2
