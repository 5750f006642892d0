"""What uses queues, over queues of both backends: commands, schedules, topics, SQS, manifests, the SDK and the commands."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from postroad.api.queues import RABBITMQ
from postroad.client import Postroad
from postroad.declarations.application import execute, export, make_plan
from postroad.declarations.documents import parse, written
from postroad.kernel.configuration import Secret
from tests.aws.clients import AwsTenant, aws_key, aws_tenant, boto, refused
from tests.commands.senders import grant, register_sender
from tests.gateway import Gateway, gateway_settings, running_gateway
from tests.queues.conformance.conftest import PREFIX, Case
from tests.queues.conformance.test_messages import job
from tests.queues.conformance.test_queues import drained
from tests.queues.test_deliver import deliver, marker
from tests.rabbitmq_server import RabbitServer, needs_rabbitmq
from tests.subscriptions.topic_client import TopicClient
from tests.waiting import eventually


async def test_a_command_reaches_its_queue(case: Case) -> None:
    queue = await case.queue("bot-post")
    (await case.tenant.client.put("/v1/services/bot", {})).ok(201)
    (await case.tenant.client.put("/v1/routes/bot/post", {"queue": "bot-post"})).ok(201)
    await grant(case.tenant, "billing")
    sender = await register_sender(case.tenant)
    for number in range(2):  # the second finds its key in the cache
        (await sender.send(payload=b'{"text":"%d"}' % number)).ok(202)
    assert len(await drained(case, queue, 2)) == 2


async def test_a_delivery_with_a_marker_is_stored_once(case: Case) -> None:
    queue = await case.queue()
    first = await deliver(case.tenant.gateway, case.tenant, marker())
    second = await deliver(case.elsewhere.gateway, case.elsewhere, marker())
    assert (first.is_duplicate, second.is_duplicate) == (False, True) and first.message_id == second.message_id
    [message] = await drained(case, queue, 1)
    assert message["messageId"] == first.message_id
    assert await case.tenant.pull(queue, waitMs=300) == []


async def test_a_schedule_publishes_to_its_queue(case: Case) -> None:
    queue = await case.queue()
    (await case.tenant.client.put("/v1/schedules/often", {"queue": "q", "everyMs": 1000, "payload": "tick"})).ok(201)
    [message] = await drained(case, queue, 1)
    assert message["payload"] == "tick"
    (await case.tenant.client.delete("/v1/schedules/often")).ok(204)


async def test_a_topic_delivers_to_its_queue(case: Case) -> None:
    queue, topic = await case.queue(), TopicClient(case.tenant)
    await topic.create()
    await topic.subscribe(delivery_type="queue", queue="q")
    await topic.publish(payload={"n": 1})
    [message] = await drained(case, queue, 1)
    assert message["payload"] == {"n": 1}


async def test_a_dead_job_is_retried(case: Case) -> None:
    queue = await case.queue()
    published = await case.tenant.publish(queue, 1)
    [message] = await drained(case, queue, 1)
    await case.nack(queue, message, "dlq", reason="no")

    async def is_dead() -> bool:
        return bool((await job(case, published))["status"] == "dead")

    await eventually(is_dead)
    (await case.tenant.client.post(f"/v1/jobs/{published['jobId']}/retry", {})).ok()
    [again] = await drained(case, queue, 1)
    assert (again["messageId"], again["attempt"]) == (published["messageId"], 1)


async def test_a_queue_is_declared_and_exported_with_its_backend(case: Case) -> None:
    await case.queue("other")
    declared = {"name": "shop", "queues": {"q": {"backend": case.backend, "maxAttempts": 3}}}

    def apply() -> str:
        with Postroad(case.tenant.gateway.url, case.tenant.key) as client:
            wanted = parse(declared, "shop", "file").resources
            execute(client, make_plan(client, "shop", wanted, prune=False), lambda _change: None, lambda _resource, _text: None)
            assert not make_plan(client, "shop", wanted, prune=False).changes
            exported = parse(written(export(client)), "exported", "file").resources
            assert not make_plan(client, "exported", exported, prune=False).changes
            assert client.queues.get("q").features
            return client.queues.get("q").settings.backend or ""

    assert await asyncio.to_thread(apply) == case.backend
    case.created.append("/v1/queues/q")


async def test_sqs_sends_receives_and_deletes(case: Case) -> None:
    await case.queue(retryDelaysMs=[0])
    credentials = await aws_key(case.tenant)
    account = (await case.tenant.client.get("/v1/whoami")).ok()["accountId"]
    aws = AwsTenant(case.tenant, credentials, account, boto(case.tenant.gateway.url, credentials))
    url = (await aws.sqs.get_queue_url(QueueName="q"))["QueueUrl"]
    sent = await aws.sqs.send_message(QueueUrl=url, MessageBody="hello", MessageAttributes=_ATTRIBUTE)
    await aws.sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=900)
    [message] = await aws.receive(url, MessageAttributeNames=["All"])
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "hello")
    assert message["MessageAttributes"]["kind"]["StringValue"] == "x"
    handle = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}
    await aws.sqs.change_message_visibility(**handle, VisibilityTimeout=0)
    [again] = await aws.receive(url, MessageSystemAttributeNames=["ApproximateReceiveCount"])
    assert (again["MessageId"], again["Attributes"]["ApproximateReceiveCount"]) == (sent["MessageId"], "2")
    await aws.sqs.delete_message(QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
    assert (await aws.attributes(url, "ApproximateNumberOfMessagesDelayed")) == {"ApproximateNumberOfMessagesDelayed": "1"}
    assert await aws.receive(url, WaitTimeSeconds=0) == []
    group = {"QueueUrl": url, "MessageBody": "x", "MessageGroupId": "g"}
    if case.supports("fairness"):
        await aws.sqs.send_message(**group)
    else:
        with refused("InvalidParameterValue", 400, "RabbitMQ"):
            await aws.sqs.send_message(**group)


_ATTRIBUTE = {"kind": {"DataType": "String", "StringValue": "x"}}


@pytest.fixture
async def default_gateway(engine_url: str, rabbit_server: RabbitServer) -> AsyncIterator[Gateway]:
    """One whose new queues are in RabbitMQ, unless they say otherwise."""
    chosen = {"rabbitmq_url": Secret(rabbit_server.url), "rabbitmq_prefix": PREFIX, "queue_backend": RABBITMQ}
    async with running_gateway(gateway_settings(engine_url, **chosen)) as running:
        yield running


@needs_rabbitmq
async def test_queues_of_sqs_are_in_the_default_backend_and_its_limits_are_named(default_gateway: Gateway) -> None:
    aws = await aws_tenant(default_gateway)
    dead = await aws.queue("dead")
    url = await aws.queue("q", VisibilityTimeout="60")
    assert (await aws.tenant.client.get("/v1/queues/q")).ok()["settings"]["backend"] == RABBITMQ
    for attributes in (
        {"VisibilityTimeout": "3600"},
        {"RedrivePolicy": json.dumps({"deadLetterTargetArn": aws.arn("dead"), "maxReceiveCount": 3})},
    ):
        with refused("InvalidParameterValue", 400, "RabbitMQ"):
            await aws.sqs.set_queue_attributes(QueueUrl=url, Attributes=attributes)
        with refused("InvalidParameterValue", 400, "RabbitMQ"):
            await aws.queue("another", **attributes)
    fifo = await aws.queue("ordered.fifo", FifoQueue="true")
    shown = (await aws.tenant.client.get("/v1/queues/ordered.fifo")).ok()
    assert shown["settings"]["backend"] == "engine", "a queue that needs the engine is there"
    for one in (url, dead, fifo):
        await aws.sqs.delete_queue(QueueUrl=one)
