"""Topic to queue: envelopes, raw messages, attributes, filters, dead letters."""

import json
import re
import uuid
from typing import Any
from unittest.mock import patch

import pytest

from postroad.aws import sns_publishing
from postroad.aws.sns_envelope import string_to_sign
from tests.aws.clients import REGION, post_form, refused
from tests.sns.conftest import SnsTenant
from tests.sns.verifying import verify
from tests.waiting import eventually


async def test_a_subscribed_queue_gets_an_envelope(tenant: SnsTenant) -> None:
    topic, (url, arn) = await tenant.topic("orders"), await tenant.queue()
    subscription = await tenant.subscribe(topic, arn)
    published = await tenant.sns.publish(
        TopicArn=topic,
        Message="hello",
        Subject="greeting",
        MessageAttributes={
            "kind": {"DataType": "String", "StringValue": "new"},
            "size": {"DataType": "Number", "StringValue": "5"},
            "blob": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        },
    )
    [message] = await tenant.receive(url)
    envelope = json.loads(message["Body"])
    assert envelope["Type"] == "Notification"
    assert envelope["MessageId"] == published["MessageId"]
    assert envelope["TopicArn"] == topic == f"arn:aws:sns:{REGION}:{tenant.account}:orders"
    assert (envelope["Subject"], envelope["Message"]) == ("greeting", "hello")
    assert envelope["MessageAttributes"] == {
        "kind": {"Type": "String", "Value": "new"},
        "size": {"Type": "Number", "Value": "5"},
        "blob": {"Type": "Binary", "Value": "AP8="},
    }
    assert subscription.startswith(f"{topic}:")
    assert f"SubscriptionArn={subscription.replace(':', '%3A')}" in envelope["UnsubscribeURL"]
    assert "MessageAttributes" not in message
    await verify(tenant, envelope)


@pytest.mark.parametrize("version", ["1", "2"])
async def test_envelopes_are_signed_with_the_version_of_the_topic(tenant: SnsTenant, version: str) -> None:
    topic, (url, arn) = await tenant.topic(SignatureVersion=version), await tenant.queue()
    await tenant.subscribe(topic, arn)
    await tenant.sns.publish(TopicArn=topic, Message="häß\nlich")
    [message] = await tenant.receive(url)
    envelope = json.loads(message["Body"])
    assert envelope["SignatureVersion"] == version
    await verify(tenant, envelope)
    for field in ("Message", "MessageId", "Timestamp", "TopicArn"):
        with pytest.raises(AssertionError):
            await verify(tenant, {**envelope, field: envelope[field] + "x"})
    assert string_to_sign(envelope).startswith(b"Message\n")


async def test_raw_delivery_has_the_message_and_its_attributes(tenant: SnsTenant) -> None:
    topic, (url, arn) = await tenant.topic(), await tenant.queue()
    await tenant.subscribe(topic, arn, RawMessageDelivery="true")
    attributes: dict[str, Any] = {
        "a": {"DataType": "String", "StringValue": "x"},
        "b": {"DataType": "Number.int", "StringValue": "1"},
        "c": {"DataType": "Binary", "BinaryValue": b"\x01"},
        "d": {"DataType": "String.Array", "StringValue": '["x", 1, null]'},
    }
    await tenant.sns.publish(TopicArn=topic, Message='{"a": 1}', MessageAttributes=attributes, MessageGroupId="g")
    [message] = await tenant.receive(url)
    assert message["Body"] == '{"a": 1}'
    assert message["MessageAttributes"] == attributes
    assert message["Attributes"]["MessageGroupId"] == "g"


async def test_a_raw_message_with_more_than_ten_attributes_is_a_dead_letter(tenant: SnsTenant) -> None:
    topic, (url, arn), (_, dead_arn) = await tenant.topic(), await tenant.queue(), await tenant.queue("dead")
    policy = json.dumps({"deadLetterTargetArn": dead_arn})
    raw = await tenant.subscribe(topic, arn, RawMessageDelivery="true")
    attributes = {f"a{n}": {"DataType": "String", "StringValue": "x"} for n in range(11)}
    await tenant.sns.publish(TopicArn=topic, Message="many", MessageAttributes=attributes)
    await tenant.sns.publish(TopicArn=topic, Message="few")
    assert [one["Body"] for one in await tenant.receive(url)] == ["few"]
    dead = (await tenant.aws.tenant.client.get(f"/v1/subscriptions/{raw.rpartition(':')[2]}/dlq")).ok()["messages"]
    assert "at most 10 attributes" in dead[0]["reason"]
    await tenant.sns.set_subscription_attributes(SubscriptionArn=raw, AttributeName="RedrivePolicy", AttributeValue=policy)
    assert json.loads((await tenant.attributes(raw))["RedrivePolicy"]) == {"deadLetterTargetArn": dead_arn}


async def test_the_message_of_each_protocol(tenant: SnsTenant) -> None:
    topic, (url, arn) = await tenant.topic(), await tenant.queue()
    await tenant.subscribe(topic, arn, RawMessageDelivery="true")
    for message in ({"default": "all", "sqs": "queues"}, {"default": "all", "http": "web"}):
        await tenant.sns.publish(TopicArn=topic, Message=json.dumps(message), MessageStructure="json")
    found: list[str] = []

    async def both() -> bool:
        found.extend(one["Body"] for one in await tenant.receive(url))
        return sorted(found) == ["all", "queues"]

    await eventually(both)
    with refused("InvalidParameter", 400, "No default entry"):
        await tenant.sns.publish(TopicArn=topic, Message='{"sqs": "x"}', MessageStructure="json")
    with refused("InvalidParameter", 400, "failed to parse"):
        await tenant.sns.publish(TopicArn=topic, Message="{", MessageStructure="json")
    with refused("InvalidParameter", 400, "half of a surrogate pair"):
        await tenant.sns.publish(TopicArn=topic, Message='{"default": "\\ud800"}', MessageStructure="json")


async def test_publish_batch(tenant: SnsTenant) -> None:
    topic, (url, arn) = await tenant.topic(), await tenant.queue()
    await tenant.subscribe(topic, arn, RawMessageDelivery="true")
    entries = [{"Id": "a", "Message": "1"}, {"Id": "b", "Message": "2", "Subject": "\n"}, {"Id": "c", "Message": "3"}]
    found = await tenant.sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries)
    assert [one["Id"] for one in found["Successful"]] == ["a", "c"]
    assert all(uuid.UUID(one["MessageId"]) for one in found["Successful"])
    [failed] = found["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("b", "InvalidParameter", True)
    bodies: list[str] = []

    async def all_bodies() -> bool:
        bodies.extend(one["Body"] for one in await tenant.receive(url))
        return sorted(bodies) == ["1", "3"]

    await eventually(all_bodies)


async def test_an_entry_without_a_data_type_fails_alone(tenant: SnsTenant) -> None:
    topic = await tenant.topic()
    form = {"Action": "PublishBatch", "Version": "2010-03-31", "TopicArn": topic}
    for index, (entry_id, data_type) in enumerate((("bad", ""), ("good", "String")), 1):
        entry = f"PublishBatchRequestEntries.member.{index}"
        attribute = f"{entry}.MessageAttributes.entry.1"
        form |= {f"{entry}.Id": entry_id, f"{entry}.Message": "x", f"{attribute}.Name": "a"}
        form |= {f"{attribute}.Value.StringValue": "x"} | ({f"{attribute}.Value.DataType": data_type} if data_type else {})
    status, body = await post_form(tenant.aws, "sns", form)
    assert status == 200, body
    assert "<Id>good</Id>" in body.partition("</Successful>")[0] and "<Id>bad</Id>" in body.partition("<Failed>")[2]


async def test_a_message_that_cannot_be_encoded_is_a_dead_letter_and_blocks_no_group(tenant: SnsTenant) -> None:
    """One that was stored before such messages were refused."""
    native, url = tenant.aws.tenant.client, await tenant.aws.queue("q.fifo", FifoQueue="true")
    arn = tenant.aws.arn("q.fifo")
    topic = await tenant.topic("t.fifo", FifoTopic="true", ContentBasedDeduplication="true")
    subscription = await tenant.subscribe(topic, arn, RawMessageDelivery="true")
    with patch.object(sns_publishing, "_HALF_PAIR", re.compile("(?!)")):
        text = '{"default": "\\ud800"}'
        await tenant.sns.publish(TopicArn=topic, Message=text, MessageStructure="json", MessageGroupId="g")
    await tenant.sns.publish(TopicArn=topic, Message="after", MessageGroupId="g")
    assert [one["Body"] for one in await tenant.receive(url)] == ["after"]
    [dead] = (await native.get(f"/v1/subscriptions/{subscription.rpartition(':')[2]}/dlq")).ok()["messages"]
    assert "the message cannot be sent: UnicodeEncodeError" in dead["reason"]


async def test_a_message_that_the_filter_policy_could_not_be_compared_with(tenant: SnsTenant) -> None:
    topic, (url, arn) = await tenant.topic(), await tenant.queue()
    policy = {"FilterPolicy": '{"a": [{"numeric": [">", 1]}]}', "FilterPolicyScope": "MessageBody"}
    await tenant.subscribe(topic, arn, RawMessageDelivery="true", **policy)
    large = f'{{"a": 1{"0" * 400}}}'
    for text in (large, '{"a": 0}', '{"a": 2}'):
        await tenant.sns.publish(TopicArn=topic, Message=text)
    found: set[str] = set()

    async def both() -> bool:
        found.update(one["Body"] for one in await tenant.receive(url, WaitTimeSeconds=1))
        return found == {large, '{"a": 2}'}

    await eventually(both)


async def test_a_trace_header_is_forwarded(tenant: SnsTenant) -> None:
    topic, (url, arn) = await tenant.topic(), await tenant.queue()
    await tenant.subscribe(topic, arn, RawMessageDelivery="true")
    trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1"
    await tenant.sns.publish(
        TopicArn=topic, Message="x", MessageAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": trace}}
    )
    [message] = await tenant.receive(url)
    assert message["Attributes"]["AWSTraceHeader"] == trace and "MessageAttributes" not in message


async def test_a_redriven_dead_letter_is_the_same_message(tenant: SnsTenant) -> None:
    """Native redrive of a message with subject and attributes, after its queue exists again."""
    native, topic, (url, arn) = tenant.aws.tenant.client, await tenant.topic(), await tenant.queue()
    subscription = (await tenant.subscribe(topic, arn)).rpartition(":")[2]
    await tenant.aws.sqs.delete_queue(QueueUrl=url)
    attributes = {"n": {"DataType": "Number", "StringValue": "5"}}
    await tenant.sns.publish(TopicArn=topic, Message="x", Subject="s", MessageAttributes=attributes)

    async def dead() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await native.get(f"/v1/subscriptions/{subscription}/dlq")).ok()["messages"]
        return found

    await eventually(dead)
    assert "queue-not-found" in (await dead())[0]["reason"]
    await tenant.queue()
    (await native.post(f"/v1/subscriptions/{subscription}/dlq/redrive", {})).ok(202)
    [message] = await tenant.receive(url)
    envelope = json.loads(message["Body"])
    assert (envelope["Subject"], envelope["MessageAttributes"]) == ("s", {"n": {"Type": "Number", "Value": "5"}})


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([{"Id": "a", "Message": "1"}] * 2, "BatchEntryIdsNotDistinct"),
        ([{"Id": "a b", "Message": "1"}], "InvalidBatchEntryId"),
        ([{"Id": f"i{n}", "Message": "1"} for n in range(11)], "TooManyEntriesInBatchRequest"),
        ([{"Id": f"i{n}", "Message": "x" * 200_000} for n in range(2)], "BatchRequestTooLong"),
    ],
)
async def test_limits_of_a_batch(tenant: SnsTenant, entries: list[dict[str, str]], code: str) -> None:
    topic = await tenant.topic()
    with refused(code, 400):
        await tenant.sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"Message": ""}, "InvalidParameter"),
        ({"Message": "x" * 262_145}, "InvalidParameter"),
        ({"Message": "x", "Subject": "s" * 101}, "InvalidParameter"),
        ({"Message": "x", "MessageStructure": "xml"}, "InvalidParameter"),
        ({"Message": "x", "MessageDeduplicationId": "d"}, "InvalidParameter"),
        ({"Message": "x", "PhoneNumber": "+49123456"}, "InvalidParameter"),
        ({"Message": "x", "MessageAttributes": {"a": {"DataType": "String", "StringValue": ""}}}, "ParameterValueInvalid"),
        ({"Message": "x", "MessageAttributes": {"a": {"DataType": "Wrong", "StringValue": "x"}}}, "ParameterValueInvalid"),
        ({"Message": "x", "MessageAttributes": {"a": {"DataType": "String.Array", "StringValue": "x"}}}, "ParameterValueInvalid"),
    ],
)
async def test_invalid_messages(tenant: SnsTenant, arguments: dict[str, Any], code: str) -> None:
    topic = await tenant.topic()
    with refused(code, 400):
        await tenant.sns.publish(TopicArn=topic, **arguments)


async def test_target_arn_may_name_the_topic(tenant: SnsTenant) -> None:
    topic, (url, arn) = await tenant.topic(), await tenant.queue()
    await tenant.subscribe(topic, arn, RawMessageDelivery="true")
    await tenant.sns.publish(TargetArn=topic, Message="x")
    assert [one["Body"] for one in await tenant.receive(url)] == ["x"]


async def test_filter_policies_select_by_attributes_and_by_body(tenant: SnsTenant) -> None:
    topic = await tenant.topic()
    urls = {}
    policies = {
        "attributes": {"FilterPolicy": '{"kind": ["a", {"prefix": "b"}]}'},
        "body": {"FilterPolicy": '{"order": {"amount": [{"numeric": [">=", 10]}]}}', "FilterPolicyScope": "MessageBody"},
    }
    for name, attributes in policies.items():
        urls[name], arn = await tenant.queue(name)
        await tenant.subscribe(topic, arn, RawMessageDelivery="true", **attributes)
    for kind, body in (("a", "1"), ("c", '{"order": {"amount": 10}}'), ("bb", '{"order": {"amount": 9}}'), ("c", "last")):
        await tenant.sns.publish(
            TopicArn=topic, Message=body, MessageAttributes={"kind": {"DataType": "String", "StringValue": kind}}
        )
    found: dict[str, list[str]] = {"attributes": [], "body": []}

    async def complete() -> bool:
        for name, url in urls.items():
            found[name].extend(one["Body"] for one in await tenant.receive(url, WaitTimeSeconds=1))
        return [len(one) for one in found.values()] == [2, 1]

    await eventually(complete)
    assert sorted(found["attributes"]) == ["1", '{"order": {"amount": 9}}']
    assert found["body"] == ['{"order": {"amount": 10}}']


async def test_native_messages_reach_queues_of_sns_and_the_other_way(tenant: SnsTenant) -> None:
    native, topic, (url, arn) = tenant.aws.tenant.client, await tenant.topic("both"), await tenant.queue()
    await tenant.subscribe(topic, arn)
    await native.post("/v1/topics/both/messages", {"subject": "a.b", "payload": {"n": 1}, "headers": {"kind": "x"}})
    [message] = await tenant.receive(url)
    envelope = json.loads(message["Body"])
    assert json.loads(envelope["Message"]) == {"n": 1}
    assert envelope["MessageAttributes"] == {"kind": {"Type": "String", "Value": "x"}}
    attributes = {"kind": {"DataType": "String", "StringValue": "y"}}
    await tenant.sns.publish(TopicArn=topic, Message='{"n": 2}', MessageAttributes=attributes)
    stored = (await native.get("/v1/topics/both/messages")).ok()["messages"][-1]
    assert (stored["payload"], stored["headers"]) == ({"n": 2}, {"kind": "y"})
    [shown] = (await native.get("/v1/subscriptions?topic=both")).ok()["subscriptions"]
    assert (shown["format"], shown["sns"]["protocol"]) == ("sns", "sqs")
