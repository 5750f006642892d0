"""FIFO queues through boto3: attributes, groups, deduplication, receipts, dead letters, errors by their names."""

import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from postroad.container import Role
from tests.aws.clients import AwsTenant, aws_tenant, boto, refused
from tests.gateway import Gateway, ShiftedClock, gateway_settings, running_gateway
from tests.servers import Server
from tests.waiting import eventually


@pytest.fixture
async def whole(own_server: Server) -> AsyncIterator[Gateway]:
    """A gateway that also has the control role, which runs tasks."""
    async with running_gateway(gateway_settings(own_server.url), Role.ALL) as running:
        yield running


async def fifo(aws: AwsTenant, name: str = "q", **attributes: str) -> str:
    return await aws.queue(f"{name}.fifo", FifoQueue="true", **attributes)


async def send(aws: AwsTenant, url: str, body: str, group: str = "g", dedupe: str | None = None, **more: Any) -> dict[str, Any]:
    given = {"MessageDeduplicationId": body if dedupe is None else dedupe, **more}
    sent: dict[str, Any] = await aws.sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group, **given)
    return sent


async def delete(aws: AwsTenant, url: str, message: dict[str, Any]) -> None:
    await aws.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


# Attributes


async def test_attributes_of_a_fifo_queue(aws: AwsTenant) -> None:
    url = await fifo(aws)
    assert url == f"{aws.gateway.url}/{aws.account}/q.fifo" and await fifo(aws) == url
    found = await aws.attributes(url)
    expected = {
        "FifoQueue": "true",
        "ContentBasedDeduplication": "false",
        "DeduplicationScope": "queue",
        "FifoThroughputLimit": "perQueue",
        "QueueArn": aws.arn("q.fifo"),
        "VisibilityTimeout": "30",
    }
    assert {name: found[name] for name in expected} == expected
    native = (await aws.tenant.client.get("/v1/queues/q.fifo")).ok()["settings"]
    assert native["ordered"] is True


async def test_a_standard_queue_has_no_fifo_attributes(aws: AwsTenant) -> None:
    url = await aws.queue("plain")
    assert not set(await aws.attributes(url)) & {"FifoQueue", "ContentBasedDeduplication", "DeduplicationScope"}


@pytest.mark.parametrize(
    ("name", "values", "setting"),
    [
        ("ContentBasedDeduplication", ("true", "false"), "dedupeByContent"),
        ("DeduplicationScope", ("messageGroup", "queue"), "dedupeScope"),
    ],
)
async def test_a_fifo_attribute_is_a_setting(aws: AwsTenant, name: str, values: tuple[str, str], setting: str) -> None:
    url = await fifo(aws)
    before = (await aws.tenant.client.get("/v1/queues/q.fifo")).ok()["settings"].get(setting)
    for value in values:
        await aws.sqs.set_queue_attributes(QueueUrl=url, Attributes={name: value})
        assert await aws.attributes(url, name) == {name: value}
    await aws.sqs.set_queue_attributes(QueueUrl=url, Attributes={name: values[0]})
    assert (await aws.tenant.client.get("/v1/queues/q.fifo")).ok()["settings"][setting] != before
    with refused("InvalidAttributeValue", 400, name):
        await aws.sqs.set_queue_attributes(QueueUrl=url, Attributes={name: "x"})


async def test_fifo_throughput_limit_needs_the_scope_message_group(aws: AwsTenant) -> None:
    url = await fifo(aws)
    with refused("InvalidAttributeValue", 400, "DeduplicationScope is messageGroup"):
        await aws.sqs.set_queue_attributes(QueueUrl=url, Attributes={"FifoThroughputLimit": "perMessageGroupId"})
    both = {"FifoThroughputLimit": "perMessageGroupId", "DeduplicationScope": "messageGroup"}
    await aws.sqs.set_queue_attributes(QueueUrl=url, Attributes=both)
    assert await aws.attributes(url, *both) == both
    with refused("InvalidAttributeValue", 400, "FifoThroughputLimit"):
        await aws.sqs.set_queue_attributes(QueueUrl=url, Attributes={"FifoThroughputLimit": "x"})


async def test_the_type_of_a_queue_cannot_be_changed(aws: AwsTenant) -> None:
    url, plain = await fifo(aws), await aws.queue("plain")
    await aws.sqs.set_queue_attributes(QueueUrl=url, Attributes={"FifoQueue": "true"})
    with refused("InvalidAttributeValue", 400, "Modifying queue type is not supported"):
        await aws.sqs.set_queue_attributes(QueueUrl=url, Attributes={"FifoQueue": "false"})
    for name in ("FifoQueue", "ContentBasedDeduplication"):
        with refused("InvalidAttributeName", 400, f"Unknown Attribute {name}."):
            await aws.sqs.set_queue_attributes(QueueUrl=plain, Attributes={name: "true"})
    for name in ("DeduplicationScope", "FifoThroughputLimit"):
        with refused("InvalidAttributeName", 400, "only when FifoQueue is set to true"):
            await aws.sqs.set_queue_attributes(QueueUrl=plain, Attributes={name: "queue"})


@pytest.mark.parametrize("name", ["x", ".fifo", "a b.fifo", "x" * 76 + ".fifo", "a.b.fifo"])
async def test_an_invalid_name_of_a_fifo_queue(aws: AwsTenant, name: str) -> None:
    with refused("InvalidParameterValue", 400, "must end with .fifo suffix"):
        await aws.sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})


async def test_a_name_with_fifo_needs_the_attribute(aws: AwsTenant) -> None:
    with refused("InvalidParameterValue", 400, "alphanumeric"):
        await aws.sqs.create_queue(QueueName="q.fifo")
    await fifo(aws, "x" * 75)


async def test_create_queue_with_other_fifo_attributes(aws: AwsTenant) -> None:
    await fifo(aws, ContentBasedDeduplication="true")
    with refused("QueueAlreadyExists", 400):
        await fifo(aws, ContentBasedDeduplication="false")


# Sending


async def test_messages_of_a_group_arrive_in_order(aws: AwsTenant) -> None:
    url = await fifo(aws)
    sent = [await send(aws, url, str(number)) for number in range(5)]
    numbers = [one["SequenceNumber"] for one in sent]
    assert all(len(one) == 20 and one.isdecimal() for one in numbers) and numbers == sorted(set(numbers))
    messages = await aws.receive(url, AttributeNames=["All"])
    assert [one["Body"] for one in messages] == [str(number) for number in range(5)]
    for number, one in enumerate(messages):
        found = one["Attributes"]
        assert (found["SequenceNumber"], found["MessageGroupId"]) == (numbers[number], "g")
        assert found["MessageDeduplicationId"] == str(number)


async def test_a_group_is_held_until_its_messages_are_deleted(aws: AwsTenant) -> None:
    url = await fifo(aws)
    for body in ("a1", "a2"):
        await send(aws, url, body, "a")
    [first] = await aws.receive(url, 1)
    await send(aws, url, "b1", "b")
    [other] = await aws.receive(url)
    assert (first["Body"], other["Body"]) == ("a1", "b1")
    await delete(aws, url, first)
    assert [one["Body"] for one in await aws.receive(url)] == ["a2"]


async def test_message_deduplication_id(aws: AwsTenant) -> None:
    url = await fifo(aws)
    first, again = await send(aws, url, "one", dedupe="d"), await send(aws, url, "two", "other", dedupe="d")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    assert again["MD5OfMessageBody"] == hashlib.md5(b"two").hexdigest()
    [message] = await aws.receive(url)
    await delete(aws, url, message)
    await send(aws, url, "three", dedupe="d")  # also after the delete
    assert await aws.attributes(url, "ApproximateNumberOfMessages") == {"ApproximateNumberOfMessages": "0"}


async def test_the_deduplication_scope_message_group(aws: AwsTenant) -> None:
    url = await fifo(aws, DeduplicationScope="messageGroup")
    sent = [await send(aws, url, "x", group, dedupe="d") for group in ("a", "b", "a")]
    assert len({one["MessageId"] for one in sent}) == 2 and sent[0]["MessageId"] == sent[2]["MessageId"]


async def test_content_based_deduplication(aws: AwsTenant) -> None:
    url = await fifo(aws, ContentBasedDeduplication="true")
    content = {"QueueUrl": url, "MessageBody": "ü", "MessageGroupId": "g"}
    first, again = await aws.sqs.send_message(**content), await aws.sqs.send_message(**content)
    assert first["MessageId"] == again["MessageId"]
    hashed = hashlib.sha256("ü".encode()).hexdigest()
    assert (await send(aws, url, "other", dedupe=hashed))["MessageId"] == first["MessageId"]
    assert (await send(aws, url, "ü", dedupe="own"))["MessageId"] != first["MessageId"]
    native = await aws.tenant.client.post("/v1/queues/q.fifo/messages", {"payload": "ü", "groupId": "g"})
    assert native.ok(201)["messageId"] == first["MessageId"]
    [message, _] = await aws.receive(url, MessageSystemAttributeNames=["MessageDeduplicationId"])
    assert message["Attributes"] == {"MessageDeduplicationId": hashed}


async def test_what_a_send_to_a_fifo_queue_needs(aws: AwsTenant) -> None:
    url = await fifo(aws)
    with refused("MissingParameter", 400, "MessageGroupId"):
        await aws.sqs.send_message(QueueUrl=url, MessageBody="x", MessageDeduplicationId="d")
    with refused("InvalidParameterValue", 400, "ContentBasedDeduplication enabled or MessageDeduplicationId"):
        await aws.sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g")
    with refused("InvalidParameterValue", 400, "DelaySeconds is invalid. Reason: The request include parameter"):
        await send(aws, url, "x", DelaySeconds=1)
    await send(aws, url, "x", DelaySeconds=0)


@pytest.mark.parametrize("name", ["MessageGroupId", "MessageDeduplicationId"])
@pytest.mark.parametrize("wrong", ["", "a b", "ä", "x" * 129])
async def test_an_invalid_fifo_id(aws: AwsTenant, name: str, wrong: str) -> None:
    url = await fifo(aws)
    given = {"MessageGroupId": "g", "MessageDeduplicationId": "d", name: wrong}
    with refused("InvalidParameterValue", 400, f"{name} can only include alphanumeric and punctuation characters"):
        await aws.sqs.send_message(QueueUrl=url, MessageBody="x", **given)
    given[name] = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~aZ9"
    await aws.sqs.send_message(QueueUrl=url, MessageBody="x", **given)


async def test_the_delay_of_the_queue_applies_to_stored_messages(aws: AwsTenant) -> None:
    url = await fifo(aws, DelaySeconds="900")
    await send(aws, url, "x")
    assert await aws.receive(url, WaitTimeSeconds=0) == []
    await aws.sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "0"})
    assert [one["Body"] for one in await aws.receive(url)] == ["x"]


async def test_a_batch_to_a_fifo_queue(aws: AwsTenant) -> None:
    url = await fifo(aws)
    entries = [
        {"Id": str(number), "MessageBody": str(number), "MessageGroupId": "g", "MessageDeduplicationId": str(number % 4)}
        for number in range(10)
    ]
    sent = (await aws.sqs.send_message_batch(QueueUrl=url, Entries=entries))["Successful"]
    assert len(sent) == 10 and len({one["SequenceNumber"] for one in sent}) == 4
    messages = await aws.receive(url)
    assert [one["Body"] for one in messages] == ["0", "1", "2", "3"]
    handles = [{"Id": str(number), "ReceiptHandle": one["ReceiptHandle"]} for number, one in enumerate(messages)]
    assert len((await aws.sqs.delete_message_batch(QueueUrl=url, Entries=handles))["Successful"]) == 4


async def test_errors_of_a_batch_to_a_fifo_queue(aws: AwsTenant) -> None:
    url = await fifo(aws)
    good: dict[str, Any] = {"Id": "a", "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "a"}
    for missing, code in (("MessageGroupId", "MissingParameter"), ("MessageDeduplicationId", "InvalidParameterValue")):
        bad = {name: value for name, value in good.items() if name != missing} | {"Id": "b"}
        with refused(code, 400, missing):
            await aws.sqs.send_message_batch(QueueUrl=url, Entries=[good, bad])
    bad = good | {"Id": "b", "DelaySeconds": 5}
    sent = await aws.sqs.send_message_batch(QueueUrl=url, Entries=[good, bad])
    assert [one["Id"] for one in sent["Successful"]] == ["a"]
    assert [(one["Id"], one["Code"]) for one in sent["Failed"]] == [("b", "InvalidParameterValue")]


# Receiving and receipts


async def test_receive_request_attempt_id(aws: AwsTenant, second_gateway: Gateway) -> None:
    url = await fifo(aws)
    for number in range(3):
        await send(aws, url, str(number))
    first = await aws.receive(url, 2, ReceiveRequestAttemptId="attempt")
    other = boto(second_gateway.url, aws.credentials)
    again = (await other.receive_message(QueueUrl=url, MaxNumberOfMessages=2, ReceiveRequestAttemptId="attempt"))["Messages"]
    assert [one["MessageId"] for one in again] == [one["MessageId"] for one in first]
    await delete(aws, url, again[0])
    await delete(aws, url, again[1])
    assert [one["Body"] for one in await aws.receive(url, ReceiveRequestAttemptId="attempt")] == ["2"]
    for wrong in ("", "a b", "x" * 129):
        with refused("InvalidParameterValue", 400, "ReceiveRequestAttemptId"):
            await aws.receive(url, ReceiveRequestAttemptId=wrong)
    with refused("InvalidParameterValue", 400, "not valid for this queue type"):
        await aws.receive(await aws.queue("plain"), ReceiveRequestAttemptId="a")


async def test_an_expired_receipt_of_a_fifo_queue_is_refused(aws: AwsTenant) -> None:
    url = await fifo(aws)
    await send(aws, url, "x")
    [first] = await aws.receive(url, VisibilityTimeout=0)
    [second] = await aws.receive(url, VisibilityTimeout=600)
    assert first["MessageId"] == second["MessageId"]
    with refused("InvalidParameterValue", 400, "The receipt handle has expired"):
        await delete(aws, url, first)
    entry = {"Id": "a", "ReceiptHandle": first["ReceiptHandle"]}
    failed = (await aws.sqs.delete_message_batch(QueueUrl=url, Entries=[entry]))["Failed"]
    assert [(one["Id"], one["Code"]) for one in failed] == [("a", "InvalidParameterValue")]
    with refused("AWS.SimpleQueueService.MessageNotInflight", 400):
        await aws.sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=60)
    await delete(aws, url, second)
    await delete(aws, url, second)  # deleted before: no error


async def test_a_receipt_lasts_as_long_as_its_visibility_is_extended(aws: AwsTenant, clock: ShiftedClock) -> None:
    url = await fifo(aws)
    await send(aws, url, "x")
    [message] = await aws.receive(url, VisibilityTimeout=60)
    change = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}
    await aws.sqs.change_message_visibility(**change, VisibilityTimeout=600)
    clock.ahead_ms = 120_000
    await delete(aws, url, message)
    counts = await aws.attributes(url, "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    assert set(counts.values()) == {"0"}


async def test_change_message_visibility_to_0_returns_the_group(aws: AwsTenant) -> None:
    url = await fifo(aws)
    for body in ("1", "2"):
        await send(aws, url, body)
    [first] = await aws.receive(url, 1)
    await aws.sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    found = await aws.receive(url, AttributeNames=["ApproximateReceiveCount"])
    assert [(one["Body"], one["Attributes"]["ApproximateReceiveCount"]) for one in found] == [("1", "2"), ("2", "1")]


async def test_a_receipt_of_one_api_settles_through_the_other(aws: AwsTenant) -> None:
    url = await fifo(aws)
    await send(aws, url, "x")
    pulled = (await aws.tenant.client.post("/v1/queues/q.fifo/pull", {"maxMessages": 1})).ok()["messages"][0]
    assert (pulled["payload"], pulled["groupId"], pulled["dedupeId"]) == ("x", "g", "x")
    await delete(aws, url, {"ReceiptHandle": pulled["receiptId"]})
    await aws.tenant.client.post("/v1/queues/q.fifo/messages", {"payload": {"a": 1}, "groupId": "n", "dedupeId": "d"})
    [message] = await aws.receive(url, AttributeNames=["All"])
    assert message["Body"] == '{"a":1}' and message["Attributes"]["MessageGroupId"] == "n"
    assert message["Attributes"]["MessageDeduplicationId"] == "d"
    acked = await aws.tenant.client.post("/v1/queues/q.fifo/ack", {"receiptIds": [message["ReceiptHandle"]]})
    assert acked.status == 200


async def test_counts_and_purge_of_a_fifo_queue(aws: AwsTenant) -> None:
    url = await fifo(aws)
    for group in "abc":
        await send(aws, url, group, group)
    await aws.receive(url, 1)
    found = await aws.attributes(url)
    assert [found[f"ApproximateNumberOfMessages{kind}"] for kind in ("", "NotVisible", "Delayed")] == ["2", "1", "0"]
    await aws.sqs.purge_queue(QueueUrl=url)
    found = await aws.attributes(url)
    assert [found[f"ApproximateNumberOfMessages{kind}"] for kind in ("", "NotVisible", "Delayed")] == ["0", "0", "0"]
    await send(aws, url, "d")
    assert [one["Body"] for one in await aws.receive(url)] == ["d"]


async def test_message_group_id_of_a_standard_queue_is_the_native_group(aws: AwsTenant) -> None:
    url = await aws.queue("plain")
    await aws.sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g")
    peeked = (await aws.tenant.client.get("/v1/queues/plain/messages")).ok()["messages"]
    assert [one["groupId"] for one in peeked] == ["g"]
    [message] = await aws.receive(url, AttributeNames=["All"])
    assert message["Attributes"]["MessageGroupId"] == "g" and "SequenceNumber" not in message["Attributes"]
    with refused("InvalidParameterValue", 400, "MessageGroupId"):
        await aws.sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="a b")


# Dead letters


def redrive(aws: AwsTenant, name: str, count: int = 1) -> str:
    return json.dumps({"deadLetterTargetArn": aws.arn(name), "maxReceiveCount": count})


async def test_a_dead_letter_queue_has_the_type_of_its_source(aws: AwsTenant) -> None:
    dead, plain = await fifo(aws, "dead"), await aws.queue("plain")
    with refused("InvalidParameterValue", 400, "Dead-letter queue must be same type of queue as the source."):
        await fifo(aws, "q", RedrivePolicy=redrive(aws, "plain"))
    with refused("InvalidParameterValue", 400, "Dead-letter queue must be same type of queue as the source."):
        await aws.sqs.set_queue_attributes(QueueUrl=plain, Attributes={"RedrivePolicy": redrive(aws, "dead.fifo")})
    url = await fifo(aws, "q", RedrivePolicy=redrive(aws, "dead.fifo"))
    assert (await aws.sqs.list_dead_letter_source_queues(QueueUrl=dead))["queueUrls"] == [url]


async def dead_letter(aws: AwsTenant, url: str, dead: str, *bodies: str) -> None:
    for body in bodies:
        await send(aws, url, body)
    for _ in bodies:
        await aws.receive(url, 1, VisibilityTimeout=0)

    async def are_there() -> bool:
        assert await aws.receive(url, WaitTimeSeconds=0) == []
        return await aws.attributes(dead, "ApproximateNumberOfMessages") == {"ApproximateNumberOfMessages": str(len(bodies))}

    await eventually(are_there, 60)


async def test_a_dead_letter_makes_way_for_its_group_and_returns(whole: Gateway) -> None:
    aws = await aws_tenant(whole)
    dead = await fifo(aws, "dead")
    url = await fifo(aws, "q", RedrivePolicy=redrive(aws, "dead.fifo"))
    await dead_letter(aws, url, dead, "1", "2", "3")
    [message, *_] = await aws.receive(dead, VisibilityTimeout=0, AttributeNames=["All"])
    found = message["Attributes"]
    assert (found["DeadLetterQueueSourceArn"], found["MessageGroupId"]) == (aws.arn("q.fifo"), "g")
    assert found["MessageDeduplicationId"] == "1" and len(found["SequenceNumber"]) == 20
    await aws.queue("plain")
    with refused("InvalidParameterValue", 400, "same type"):
        await aws.sqs.start_message_move_task(SourceArn=aws.arn("dead.fifo"), DestinationArn=aws.arn("plain"))
    await aws.sqs.start_message_move_task(SourceArn=aws.arn("dead.fifo"))

    async def is_done() -> bool:
        [task] = (await aws.sqs.list_message_move_tasks(SourceArn=aws.arn("dead.fifo")))["Results"]
        return bool(task["Status"] == "COMPLETED" and task["ApproximateNumberOfMessagesMoved"] == 3)

    await eventually(is_done, 60)
    assert [one["Body"] for one in await aws.receive(url)] == ["1", "2", "3"]
