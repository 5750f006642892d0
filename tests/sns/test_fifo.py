"""FIFO topics through boto3: attributes, groups, deduplication, order to FIFO and standard queues, errors by their names."""

import asyncio
import hashlib
import json
from typing import Any

import pytest

from tests.aws.clients import refused
from tests.sns.conftest import SnsTenant
from tests.sns.verifying import verify
from tests.waiting import eventually

RAW = {"RawMessageDelivery": "true"}


async def fifo(tenant: SnsTenant, name: str = "t", **attributes: str) -> str:
    return await tenant.topic(f"{name}.fifo", FifoTopic="true", **attributes)


async def fifo_queue(tenant: SnsTenant, name: str = "q", **attributes: str) -> tuple[str, str]:
    return await tenant.aws.queue(f"{name}.fifo", FifoQueue="true", **attributes), tenant.aws.arn(f"{name}.fifo")


async def publish(tenant: SnsTenant, topic: str, text: str, group: str = "g", **more: Any) -> dict[str, Any]:
    given = {"MessageDeduplicationId": text, **more}
    sent: dict[str, Any] = await tenant.sns.publish(TopicArn=topic, Message=text, MessageGroupId=group, **given)
    return sent


async def received(tenant: SnsTenant, url: str, count: int) -> list[dict[str, Any]]:
    """Receive and delete this many messages."""
    found: list[dict[str, Any]] = []

    async def are_there() -> bool:
        for one in await tenant.receive(url, WaitTimeSeconds=1):
            found.append(one)
            await tenant.aws.sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
        return len(found) >= count

    await eventually(are_there, 60)
    return found


async def test_attributes_of_a_fifo_topic(tenant: SnsTenant) -> None:
    arn = await fifo(tenant)
    assert await fifo(tenant) == arn and arn.endswith(":t.fifo")
    found = (await tenant.sns.get_topic_attributes(TopicArn=arn))["Attributes"]
    assert (found["FifoTopic"], found["ContentBasedDeduplication"], found["FifoThroughputScope"]) == ("true", "false", "Topic")
    for name, value, setting, expected in (
        ("ContentBasedDeduplication", "true", "dedupeByContent", True),
        ("FifoThroughputScope", "MessageGroup", "dedupeScope", "group"),
    ):
        await tenant.sns.set_topic_attributes(TopicArn=arn, AttributeName=name, AttributeValue=value)
        assert (await tenant.sns.get_topic_attributes(TopicArn=arn))["Attributes"][name] == value
        assert (await tenant.aws.tenant.client.get("/v1/topics/t.fifo")).ok()["settings"][setting] == expected
        with refused("InvalidParameter", 400, name):
            await tenant.sns.set_topic_attributes(TopicArn=arn, AttributeName=name, AttributeValue="x")
    with refused("InvalidParameter", 400, "AttributeName"):
        await tenant.sns.set_topic_attributes(TopicArn=arn, AttributeName="FifoTopic", AttributeValue="false")
    with refused("InvalidParameter", 400, "different attributes"):
        await fifo(tenant, ContentBasedDeduplication="false")


@pytest.mark.parametrize("name", ["ContentBasedDeduplication", "FifoThroughputScope", "ArchivePolicy"])
async def test_a_standard_topic_has_no_fifo_attributes(tenant: SnsTenant, name: str) -> None:
    with refused("InvalidParameter", 400, f"{name} can only be set for FIFO topics"):
        await tenant.topic("plain", **{name: "true"})
    arn = await tenant.topic("plain", FifoTopic="false")
    assert "FifoTopic" not in (await tenant.sns.get_topic_attributes(TopicArn=arn))["Attributes"]
    with refused("InvalidParameter", 400, f"{name} can only be set for FIFO topics"):
        await tenant.sns.set_topic_attributes(TopicArn=arn, AttributeName=name, AttributeValue="true")


@pytest.mark.parametrize("name", ["x", "a.b.fifo", ".fifo", "x" * 252 + ".fifo"])
async def test_an_invalid_name_of_a_fifo_topic(tenant: SnsTenant, name: str) -> None:
    with refused("InvalidParameter", 400, "Topic Name"):
        await tenant.topic(name, FifoTopic="true")


@pytest.mark.parametrize("name", ["x" * 256, "_".join("ab" * 64), "-" * 255 + "a", "y" * 251 + ".fifo"])
async def test_names_up_to_256_characters_round_trip(tenant: SnsTenant, name: str) -> None:
    is_fifo = name.endswith(".fifo")
    topic = await tenant.topic(name, **({"FifoTopic": "true", "ContentBasedDeduplication": "true"} if is_fifo else {}))
    other = await tenant.topic(("z" + name)[:251] + ".fifo", FifoTopic="true") if is_fifo else await tenant.topic("z" + name[1:])
    assert topic.rpartition(":")[2] == name
    url, arn = await tenant.queue()
    await tenant.subscribe(topic, arn)
    group = {"MessageGroupId": "g"} if is_fifo else {}
    await tenant.sns.publish(TopicArn=topic, Message="x", **group)
    [message] = await tenant.receive(url)
    assert json.loads(message["Body"])["TopicArn"] == topic
    listed = {one["TopicArn"] for one in (await tenant.sns.list_topics())["Topics"]}
    assert listed == {topic, other}
    assert (await tenant.aws.tenant.client.get(f"/v1/topics/{name}")).ok()["name"] == name
    await tenant.sns.delete_topic(TopicArn=topic)
    assert [one["TopicArn"] for one in (await tenant.sns.list_topics())["Topics"]] == [other]


async def test_messages_of_a_group_arrive_in_order(tenant: SnsTenant) -> None:
    topic, (url, arn) = await fifo(tenant), await fifo_queue(tenant)
    await tenant.subscribe(topic, arn)
    sent = [await publish(tenant, topic, f"{group}{number}", group) for number in range(10) for group in "ab"]
    numbers = [one["SequenceNumber"] for one in sent]
    assert all(len(one) == 20 and one.isdecimal() for one in numbers) and numbers == sorted(set(numbers))
    messages = await received(tenant, url, 20)
    assert len(messages) == 20
    by_group: dict[str, list[str]] = {}
    for one in messages:
        envelope = json.loads(one["Body"])
        await verify(tenant, envelope)
        by_group.setdefault(one["Attributes"]["MessageGroupId"], []).append(envelope["Message"])
        assert one["Attributes"]["MessageDeduplicationId"] == envelope["Message"]
        [published] = [each for each in sent if each["MessageId"] == envelope["MessageId"]]
        assert envelope["SequenceNumber"] == published["SequenceNumber"]
    assert by_group == {group: [f"{group}{number}" for number in range(10)] for group in "ab"}


async def test_message_deduplication_id_of_a_topic(tenant: SnsTenant) -> None:
    topic, (url, arn) = await fifo(tenant), await fifo_queue(tenant)
    await tenant.subscribe(topic, arn, **RAW)
    first = await publish(tenant, topic, "one", MessageDeduplicationId="d")
    again = await publish(tenant, topic, "two", "other", MessageDeduplicationId="d")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    await publish(tenant, topic, "three")
    assert [one["Body"] for one in await received(tenant, url, 2)] == ["one", "three"]


async def test_content_based_deduplication_of_a_topic(tenant: SnsTenant) -> None:
    topic, (url, arn) = await fifo(tenant, ContentBasedDeduplication="true"), await fifo_queue(tenant)
    await tenant.subscribe(topic, arn, **RAW)
    given = {"TopicArn": topic, "Message": "ü", "MessageGroupId": "g"}
    first, again = await tenant.sns.publish(**given), await tenant.sns.publish(**given)
    assert first["MessageId"] == again["MessageId"]
    await tenant.sns.publish(**{**given, "Message": "other"})
    one, two = await received(tenant, url, 2)
    assert (one["Body"], two["Body"]) == ("ü", "other")
    assert one["Attributes"]["MessageDeduplicationId"] == hashlib.sha256("ü".encode()).hexdigest()


async def test_fifo_throughput_scope_message_group(tenant: SnsTenant) -> None:
    topic = await fifo(tenant, FifoThroughputScope="MessageGroup")
    sent = [await publish(tenant, topic, "x", group, MessageDeduplicationId="d") for group in ("a", "b", "a")]
    assert len({one["MessageId"] for one in sent}) == 2 and sent[0] != sent[1]


async def test_what_a_publish_to_a_fifo_topic_needs(tenant: SnsTenant) -> None:
    topic, plain = await fifo(tenant), await tenant.topic("plain")
    with refused("InvalidParameter", 400, "The MessageGroupId parameter is required for FIFO topics"):
        await tenant.sns.publish(TopicArn=topic, Message="x", MessageDeduplicationId="d")
    with refused("InvalidParameter", 400, "either have ContentBasedDeduplication enabled or MessageDeduplicationId"):
        await tenant.sns.publish(TopicArn=topic, Message="x", MessageGroupId="g")
    with refused("InvalidParameter", 400, "not valid for this topic type"):
        await tenant.sns.publish(TopicArn=plain, Message="x", MessageDeduplicationId="d")
    for wrong in ("a b", "ä", "x" * 129):
        for name in ("MessageGroupId", "MessageDeduplicationId"):
            given = {"MessageGroupId": "g", "MessageDeduplicationId": "d", name: wrong}
            with refused("InvalidParameter", 400, name):
                await tenant.sns.publish(TopicArn=topic, Message="x", **given)


async def test_a_batch_to_a_fifo_topic(tenant: SnsTenant) -> None:
    topic, (url, arn) = await fifo(tenant), await fifo_queue(tenant)
    await tenant.subscribe(topic, arn, **RAW)
    entries = [
        {"Id": str(number), "Message": str(number), "MessageGroupId": "g", "MessageDeduplicationId": str(number % 6)}
        for number in range(10)
    ]
    sent = (await tenant.sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries))["Successful"]
    assert len(sent) == 10 and len({one["SequenceNumber"] for one in sent}) == 6
    assert [one["Body"] for one in await received(tenant, url, 6)] == [str(number) for number in range(6)]
    for missing in ("MessageGroupId", "MessageDeduplicationId"):
        bad = {name: value for name, value in entries[0].items() if name != missing}
        with refused("InvalidParameter", 400, missing):
            await tenant.sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=[bad])


async def test_a_standard_queue_behind_a_fifo_topic(tenant: SnsTenant) -> None:
    topic, (url, arn) = await fifo(tenant), await tenant.queue("plain")
    await tenant.subscribe(topic, arn, **RAW)
    await asyncio.gather(*(publish(tenant, topic, str(number), str(number)) for number in range(5)))
    messages = await received(tenant, url, 5)
    assert sorted(one["Body"] for one in messages) == [str(number) for number in range(5)]
    assert {one["Attributes"]["MessageGroupId"] for one in messages} == {str(number) for number in range(5)}


async def test_what_a_topic_may_be_subscribed_to(tenant: SnsTenant) -> None:
    topic, (_, arn) = await tenant.topic("plain"), await fifo_queue(tenant)
    with refused("InvalidParameter", 400, "FIFO SQS Queues can not be subscribed to standard SNS topics"):
        await tenant.subscribe(topic, arn)
    with refused("InvalidParameter", 400, "Invalid protocol type"):
        await tenant.sns.subscribe(TopicArn=await fifo(tenant), Protocol="https", Endpoint="https://example.com/")


async def test_the_filter_policy_of_a_fifo_subscription_keeps_the_order(tenant: SnsTenant) -> None:
    topic, (url, arn) = await fifo(tenant), await fifo_queue(tenant)
    await tenant.subscribe(topic, arn, **RAW, FilterPolicy=json.dumps({"kind": ["yes"]}))
    for number in range(6):
        kind = {"kind": {"DataType": "String", "StringValue": "yes" if number % 2 else "no"}}
        await publish(tenant, topic, str(number), MessageAttributes=kind)
    assert [one["Body"] for one in await received(tenant, url, 3)] == ["1", "3", "5"]


async def test_a_fair_queue_behind_a_standard_topic_gets_the_group(tenant: SnsTenant) -> None:
    topic, (url, arn) = await tenant.topic(), await tenant.queue()
    await tenant.subscribe(topic, arn, **RAW)
    await tenant.sns.publish(TopicArn=topic, Message="x", MessageGroupId="tenant-7")
    peeked = await eventually(lambda: _peek(tenant))
    assert [one["groupId"] for one in peeked] == ["tenant-7"]
    [message] = await tenant.receive(url)
    assert message["Attributes"]["MessageGroupId"] == "tenant-7"


async def _peek(tenant: SnsTenant) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await tenant.aws.tenant.client.get("/v1/queues/q/messages")).ok()["messages"]
    return found
