"""Subscriptions through boto3: attributes, lists, and errors."""

import asyncio
import json

import pytest

from tests.aws.clients import refused
from tests.sns.conftest import SnsTenant


async def test_the_same_endpoint_has_one_subscription(tenant: SnsTenant) -> None:
    topic, (_, arn) = await tenant.topic(), await tenant.queue()
    first = await tenant.subscribe(topic, arn, RawMessageDelivery="true")
    assert await tenant.subscribe(topic, arn, RawMessageDelivery="true") == first == await tenant.subscribe(topic, arn)
    with refused("InvalidParameter", 400, "different attributes"):
        await tenant.subscribe(topic, arn, RawMessageDelivery="false")


async def test_raw_message_delivery_in_any_case(tenant: SnsTenant) -> None:
    topic, (url, arn) = await tenant.topic(), await tenant.queue()
    subscription = await tenant.subscribe(topic, arn, RawMessageDelivery="True")
    assert await tenant.subscribe(topic, arn, RawMessageDelivery="true") == subscription
    assert (await tenant.attributes(subscription))["RawMessageDelivery"] == "true"
    await tenant.sns.publish(TopicArn=topic, Message="raw")
    assert [one["Body"] for one in await tenant.receive(url, WaitTimeSeconds=10)] == ["raw"]
    change = {"SubscriptionArn": subscription, "AttributeName": "RawMessageDelivery", "AttributeValue": "FALSE"}
    await tenant.sns.set_subscription_attributes(**change)
    assert (await tenant.attributes(subscription))["RawMessageDelivery"] == "false"


async def test_attributes_of_a_queue_subscription(tenant: SnsTenant) -> None:
    topic, (_, arn) = await tenant.topic(), await tenant.queue()
    subscription = await tenant.subscribe(topic, arn)
    found = await tenant.attributes(subscription)
    expected = {
        "SubscriptionArn": subscription,
        "TopicArn": topic,
        "Owner": tenant.account,
        "Protocol": "sqs",
        "Endpoint": arn,
        "PendingConfirmation": "false",
        "ConfirmationWasAuthenticated": "true",
        "SubscriptionPrincipal": f"arn:aws:iam::{tenant.account}:root",
        "RawMessageDelivery": "false",
    }
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RawMessageDelivery", "true"),
        ("FilterPolicy", '{"a": ["x"]}'),
        ("FilterPolicyScope", "MessageBody"),
        ("DeliveryPolicy", '{"healthyRetryPolicy": {"numRetries": 2}}'),
    ],
)
async def test_set_and_remove_an_attribute(tenant: SnsTenant, name: str, value: str) -> None:
    topic, (_, arn) = await tenant.topic(), await tenant.queue()
    subscription = await tenant.subscribe(topic, arn)
    await tenant.sns.set_subscription_attributes(SubscriptionArn=subscription, AttributeName=name, AttributeValue=value)
    assert (await tenant.attributes(subscription))[name] == value
    await tenant.sns.set_subscription_attributes(SubscriptionArn=subscription, AttributeName=name, AttributeValue="")
    assert (await tenant.attributes(subscription)).get(name, "false") == "false"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RawMessageDelivery", "yes", "RawMessageDelivery"),
        ("FilterPolicy", "{", "FilterPolicy: failed to parse JSON"),
        ("FilterPolicy", '{"a": {"b": ["x"]}}', "does not support nested"),
        ("FilterPolicyScope", "Body", "FilterPolicyScope"),
        ("DeliveryPolicy", '{"healthyRetryPolicy": {"numRetries": -1}}', "DeliveryPolicy"),
        ("RedrivePolicy", "{}", "RedrivePolicy"),
        ("RedrivePolicy", '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:x"}', "RedrivePolicy"),
        ("ReplayPolicy", "{}", "ReplayPolicy"),
        ("Wrong", "x", "AttributeName"),
    ],
)
async def test_invalid_attributes(tenant: SnsTenant, name: str, value: str, message: str) -> None:
    topic, (_, arn) = await tenant.topic(), await tenant.queue()
    subscription = await tenant.subscribe(topic, arn)
    with refused("InvalidParameter", 400, message):
        await tenant.sns.set_subscription_attributes(SubscriptionArn=subscription, AttributeName=name, AttributeValue=value)


async def test_the_dead_letter_queue_must_exist(tenant: SnsTenant) -> None:
    topic, (_, arn) = await tenant.topic(), await tenant.queue()
    with refused("InvalidParameter", 400):
        await tenant.subscribe(topic, arn, RedrivePolicy=json.dumps({"deadLetterTargetArn": f"{arn}-missing"}))


async def test_lists_and_unsubscribe(tenant: SnsTenant) -> None:
    one, other = await tenant.topic("one"), await tenant.topic("other")
    arns = [(await tenant.queue(name))[1] for name in ("a", "b")]
    subscriptions = [await tenant.subscribe(one, arns[0]), await tenant.subscribe(other, arns[1])]
    listed = (await tenant.sns.list_subscriptions())["Subscriptions"]
    assert sorted(item["SubscriptionArn"] for item in listed) == sorted(subscriptions)
    [found] = (await tenant.sns.list_subscriptions_by_topic(TopicArn=one))["Subscriptions"]
    assert (found["Protocol"], found["Endpoint"], found["TopicArn"], found["Owner"]) == ("sqs", arns[0], one, tenant.account)
    await tenant.sns.unsubscribe(SubscriptionArn=subscriptions[0])
    assert (await tenant.sns.list_subscriptions_by_topic(TopicArn=one))["Subscriptions"] == []
    with refused("NotFound", 404):
        await tenant.sns.get_subscription_attributes(SubscriptionArn=subscriptions[0])
    with refused("NotFound", 404):
        await tenant.sns.list_subscriptions_by_topic(TopicArn=f"{one}x")


async def test_an_endpoint_must_be_one_of_its_protocol(tenant: SnsTenant) -> None:
    topic = await tenant.topic()
    for protocol, endpoint in (("sqs", "q"), ("http", "https://example.com"), ("https", "example.com")):
        with refused("InvalidParameter", 400):
            await tenant.sns.subscribe(TopicArn=topic, Protocol=protocol, Endpoint=endpoint)
    for url in ("http://10.0.0.1/x", "http://169.254.169.254/latest", "https://[::1]:80/"):
        with refused("InvalidParameter", 400, "Endpoint"):
            await tenant.sns.subscribe(TopicArn=topic, Protocol=url.partition(":")[0], Endpoint=url)


async def test_two_hundred_filter_policies_of_a_topic(tenant: SnsTenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.aws.sns_subscriptions.FILTERS_MAX", 1)
    topic, arns = await tenant.topic(), [(await tenant.queue(name))[1] for name in ("a", "b")]
    await tenant.subscribe(topic, arns[0], FilterPolicy='{"a": ["x"]}')
    with refused("FilterPolicyLimitExceeded", 403):
        await tenant.subscribe(topic, arns[1], FilterPolicy='{"a": ["x"]}')


@pytest.mark.parametrize("name", ["missing", "missing.fifo"])
async def test_a_queue_that_does_not_exist_is_not_created(creating_tenant: SnsTenant, name: str) -> None:
    tenant = creating_tenant
    topic = await tenant.topic()
    with refused("InvalidParameter", 400, "does not exist"):
        await tenant.subscribe(topic, tenant.aws.arn(name))
    assert (await tenant.aws.sqs.list_queues()).get("QueueUrls", []) == []
    assert (await tenant.sns.list_subscriptions())["Subscriptions"] == []


async def test_a_deleted_queue_ends_its_deliveries(creating_tenant: SnsTenant) -> None:
    """The message is a dead letter at once, and the queue is not created again."""
    tenant = creating_tenant
    topic, (url, arn), (dead_url, dead_arn) = await tenant.topic(), await tenant.queue(), await tenant.queue("dead")
    await tenant.subscribe(topic, arn, RawMessageDelivery="true", RedrivePolicy=json.dumps({"deadLetterTargetArn": dead_arn}))
    await tenant.aws.sqs.delete_queue(QueueUrl=url)
    await tenant.sns.publish(TopicArn=topic, Message="late")
    [dead] = await tenant.receive(dead_url)
    assert dead["Body"] == "late"
    assert "queue-not-found" in dead["MessageAttributes"]["X-MQ-Dead-Reason"]["StringValue"]
    assert (await tenant.aws.sqs.list_queues())["QueueUrls"] == [dead_url]


async def test_a_deleted_topic_ends_its_subscriptions(tenant: SnsTenant) -> None:
    topic, (_, arn) = await tenant.topic(), await tenant.queue()
    await tenant.subscribe(topic, arn)
    await tenant.sns.delete_topic(TopicArn=topic)
    assert (await tenant.sns.list_subscriptions())["Subscriptions"] == []


async def test_attributes_that_are_set_at_the_same_time_all_hold(tenant: SnsTenant) -> None:
    topic, (_, arn), (_, dead_arn) = await tenant.topic(), await tenant.queue(), await tenant.queue("dead")
    subscription = await tenant.subscribe(topic, arn)
    for index in range(3):
        wanted = {
            "RawMessageDelivery": ("true", "false")[index % 2],
            "FilterPolicy": json.dumps({"a": [str(index)]}),
            "DeliveryPolicy": json.dumps({"healthyRetryPolicy": {"numRetries": index}}),
            "RedrivePolicy": json.dumps({"deadLetterTargetArn": dead_arn, "n": index}),
        }
        await asyncio.gather(
            *(
                tenant.sns.set_subscription_attributes(SubscriptionArn=subscription, AttributeName=name, AttributeValue=value)
                for name, value in wanted.items()
            )
        )
        found = await tenant.attributes(subscription)
        assert {name: found[name] for name in wanted} == wanted


async def test_the_policy_of_a_topic_reaches_all_subscriptions_though_a_dead_letter_queue_is_gone(tenant: SnsTenant) -> None:
    topic, (dead_url, dead_arn) = await tenant.topic(), await tenant.queue("dead")
    redrive = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": dead_arn})}
    arns = []
    for index, attributes in enumerate((redrive, {}, redrive)):
        found = await tenant.sns.subscribe(
            TopicArn=topic,
            Protocol="https",
            Endpoint=f"https://endpoint.example/{index}",
            Attributes=attributes,
            ReturnSubscriptionArn=True,
        )
        arns.append(found["SubscriptionArn"])
    await tenant.aws.sqs.delete_queue(QueueUrl=dead_url)
    policy = {"http": {"defaultHealthyRetryPolicy": {"numRetries": 1, "minDelayTarget": 7, "maxDelayTarget": 7}}}
    await tenant.sns.set_topic_attributes(TopicArn=topic, AttributeName="DeliveryPolicy", AttributeValue=json.dumps(policy))
    for arn in arns:
        shown = (await tenant.aws.tenant.client.get(f"/v1/subscriptions/{arn.rpartition(':')[2]}")).ok()
        assert (shown["maxDeliver"], shown["retryDelaysMs"]) == (2, [7000])
    await tenant.sns.set_subscription_attributes(
        SubscriptionArn=arns[0], AttributeName="RawMessageDelivery", AttributeValue="true"
    )
    assert (await tenant.attributes(arns[0]))["RawMessageDelivery"] == "true"
