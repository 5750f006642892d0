"""Dead-letter queues and message move tasks through boto3."""

import json
from collections.abc import AsyncIterator

import pytest

from postroad.container import Role
from tests.aws.clients import AwsTenant, aws_tenant, refused
from tests.gateway import Gateway, gateway_settings, running_gateway
from tests.waiting import eventually


@pytest.fixture(scope="module")
async def whole(engine_url: str) -> AsyncIterator[Gateway]:
    """A gateway that also has the control role, which runs tasks."""
    async with running_gateway(gateway_settings(engine_url), Role.ALL) as running:
        yield running


def redrive(aws: AwsTenant, name: str, count: object = 1) -> str:
    return json.dumps({"deadLetterTargetArn": aws.arn(name), "maxReceiveCount": count})


async def dead_letter(aws: AwsTenant, url: str, dead: str, *bodies: str) -> list[dict[str, object]]:
    """Send messages and receive them until they are in the dead-letter queue; those messages."""
    for body in bodies:
        await aws.sqs.send_message(QueueUrl=url, MessageBody=body)
    for _ in bodies:
        await aws.receive(url, 1, VisibilityTimeout=0)
    found: list[dict[str, object]] = []

    async def are_there() -> bool:
        assert await aws.receive(url, WaitTimeSeconds=0) == []
        found.extend(await aws.receive(dead, WaitTimeSeconds=1, VisibilityTimeout=0, AttributeNames=["All"]))
        return len({one["MessageId"] for one in found}) == len(bodies)

    await eventually(are_there, 60)
    return found


async def test_a_message_moves_after_max_receive_count(aws: AwsTenant) -> None:
    dead = await aws.queue("dead")
    url = await aws.queue("orders", RedrivePolicy=redrive(aws, "dead", "1"))
    assert json.loads((await aws.attributes(url, "RedrivePolicy"))["RedrivePolicy"]) == json.loads(redrive(aws, "dead"))
    [message, *_] = await dead_letter(aws, url, dead, "x")
    attributes = message["Attributes"]
    assert isinstance(attributes, dict)
    assert attributes["DeadLetterQueueSourceArn"] == aws.arn("orders") and message["Body"] == "x"


async def test_list_dead_letter_source_queues(aws: AwsTenant) -> None:
    dead = await aws.queue("dead")
    assert (await aws.sqs.list_dead_letter_source_queues(QueueUrl=dead))["queueUrls"] == []
    urls = [await aws.queue(f"q{number}", RedrivePolicy=redrive(aws, "dead")) for number in range(3)]
    first = await aws.sqs.list_dead_letter_source_queues(QueueUrl=dead, MaxResults=2)
    rest = await aws.sqs.list_dead_letter_source_queues(QueueUrl=dead, MaxResults=2, NextToken=first["NextToken"])
    assert first["queueUrls"] + rest["queueUrls"] == urls


async def test_an_empty_redrive_policy_removes_it(aws: AwsTenant) -> None:
    await aws.queue("dead")
    url = await aws.queue("orders", RedrivePolicy=redrive(aws, "dead", 1000))
    await aws.sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert await aws.attributes(url, "RedrivePolicy") == {}


@pytest.mark.parametrize("count", [0, 1001, "x", None, True])
async def test_max_receive_count_out_of_range(aws: AwsTenant, count: object) -> None:
    await aws.queue("dead")
    with refused("InvalidParameterValue", 400, "maxReceiveCount"):
        await aws.queue("orders", RedrivePolicy=redrive(aws, "dead", count))


async def test_a_redrive_policy_with_a_missing_target(aws: AwsTenant) -> None:
    for name in ("none", "orders"):
        with refused("InvalidParameterValue", 400, "Dead letter target"):
            await aws.queue("orders", RedrivePolicy=redrive(aws, name))
    foreign = json.dumps({"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:dead", "maxReceiveCount": 1})
    with refused("InvalidParameterValue", 400, "Dead letter target"):
        await aws.queue("orders", RedrivePolicy=foreign)


async def test_redrive_allow_policy(aws: AwsTenant) -> None:
    allowed = {"redrivePermission": "byQueue", "sourceQueueArns": [aws.arn("good")]}
    dead = await aws.queue("dead", RedriveAllowPolicy=json.dumps(allowed))
    await aws.queue("good", RedrivePolicy=redrive(aws, "dead"))
    with refused("InvalidParameterValue", 400, "does not allow"):
        await aws.queue("bad", RedrivePolicy=redrive(aws, "dead"))
    await aws.sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": '{"redrivePermission":"denyAll"}'})
    with refused("InvalidParameterValue", 400, "does not allow"):
        await aws.queue("other", RedrivePolicy=redrive(aws, "dead"))


async def test_a_move_task_returns_messages_to_their_source(whole: Gateway) -> None:
    aws = await aws_tenant(whole)
    dead = await aws.queue("dead")
    url = await aws.queue("orders", RedrivePolicy=redrive(aws, "dead"))
    await dead_letter(aws, url, dead, "x", "y")
    handle = (await aws.sqs.start_message_move_task(SourceArn=aws.arn("dead"), MaxNumberOfMessagesPerSecond=500))["TaskHandle"]
    assert handle

    async def is_done() -> bool:
        [task] = (await aws.sqs.list_message_move_tasks(SourceArn=aws.arn("dead")))["Results"]
        assert task["SourceArn"] == aws.arn("dead") and "DestinationArn" not in task
        return bool(task["Status"] == "COMPLETED" and task["ApproximateNumberOfMessagesMoved"] == 2)

    await eventually(is_done, 60)
    assert sorted(one["Body"] for one in [*await aws.receive(url, 1), *await aws.receive(url, 1)]) == ["x", "y"]
    with refused("AWS.SimpleQueueService.UnsupportedOperation", 400, "active"):
        await aws.sqs.cancel_message_move_task(TaskHandle=handle)


async def test_a_move_task_is_cancelled(whole: Gateway) -> None:
    aws = await aws_tenant(whole)
    dead, _ = await aws.queue("dead"), await aws.queue("target")
    await aws.queue("orders", RedrivePolicy=redrive(aws, "dead"))
    for number in range(10):
        await aws.sqs.send_message(QueueUrl=dead, MessageBody=str(number))
    start = {"SourceArn": aws.arn("dead"), "DestinationArn": aws.arn("target"), "MaxNumberOfMessagesPerSecond": 1}
    handle = (await aws.sqs.start_message_move_task(**start))["TaskHandle"]
    with refused("InvalidParameterValue", 400, "already a task running"):
        await aws.sqs.start_message_move_task(**start)
    assert (await aws.sqs.cancel_message_move_task(TaskHandle=handle))["ApproximateNumberOfMessagesMoved"] < 10

    async def is_cancelled() -> bool:
        [task] = (await aws.sqs.list_message_move_tasks(SourceArn=aws.arn("dead")))["Results"]
        assert task["DestinationArn"] == aws.arn("target")
        return bool(task["Status"] == "CANCELLED")

    await eventually(is_cancelled, 60)


async def test_errors_of_move_tasks(aws: AwsTenant) -> None:
    await aws.queue("plain")
    with refused("InvalidParameterValue", 400, "Dead Letter Queue"):
        await aws.sqs.start_message_move_task(SourceArn=aws.arn("plain"))
    with refused("ResourceNotFoundException", 404):
        await aws.sqs.start_message_move_task(SourceArn=aws.arn("none"))
    with refused("InvalidParameterValue", 400, "ARN"):
        await aws.sqs.start_message_move_task(SourceArn="x")
    with refused("ResourceNotFoundException", 404):
        await aws.sqs.list_message_move_tasks(SourceArn=aws.arn("none"))
    with refused("ResourceNotFoundException", 404):
        await aws.sqs.cancel_message_move_task(TaskHandle="x")
    for wrong in (0, 11):
        with refused("InvalidParameterValue", 400, "MaxResults"):
            await aws.sqs.list_message_move_tasks(SourceArn=aws.arn("plain"), MaxResults=wrong)
    await aws.queue("dead")
    await aws.queue("orders", RedrivePolicy=redrive(aws, "dead"))
    for wrong in (0, 501):
        with refused("InvalidParameterValue", 400, "500"):
            await aws.sqs.start_message_move_task(SourceArn=aws.arn("dead"), MaxNumberOfMessagesPerSecond=wrong)
