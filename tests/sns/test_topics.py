"""Topics through boto3: each operation, attribute, limit and error by its name."""

import json

import pytest

from tests.aws.clients import REGION, aws_key, aws_tenant, refused
from tests.sns.conftest import SnsTenant


async def test_create_topic_returns_the_arn_of_an_equal_topic(tenant: SnsTenant) -> None:
    arn = await tenant.topic("orders", DisplayName="Orders")
    assert arn == f"arn:aws:sns:{REGION}:{tenant.account}:orders"
    assert await tenant.topic("orders", DisplayName="Orders") == arn == await tenant.topic("orders")
    with refused("InvalidParameter", 400, "different attributes"):
        await tenant.topic("orders", DisplayName="Others")


@pytest.mark.parametrize("name", ["", "a b", "a.b", "ä", "x" * 257, "_x", "a.fifo"])
async def test_invalid_names(tenant: SnsTenant, name: str) -> None:
    with refused("InvalidParameter", 400):
        await tenant.topic(name)


async def test_delete_topic_is_idempotent_and_ends_its_subscriptions(tenant: SnsTenant) -> None:
    topic, (_, arn) = await tenant.topic(), await tenant.queue()
    await tenant.subscribe(topic, arn)
    await tenant.sns.delete_topic(TopicArn=topic)
    await tenant.sns.delete_topic(TopicArn=topic)
    assert (await tenant.sns.list_subscriptions())["Subscriptions"] == []
    with refused("NotFound", 404):
        await tenant.sns.publish(TopicArn=topic, Message="x")


async def test_list_topics_in_pages_of_a_hundred(tenant: SnsTenant) -> None:
    names = [f"t{n:03}" for n in range(103)]
    for name in names:
        await tenant.topic(name)
    first = await tenant.sns.list_topics()
    second = await tenant.sns.list_topics(NextToken=first["NextToken"])
    found = [one["TopicArn"].rpartition(":")[2] for one in (*first["Topics"], *second["Topics"])]
    assert (len(first["Topics"]), found, second.get("NextToken")) == (100, names, None)
    with refused("InvalidParameter", 400, "NextToken"):
        await tenant.sns.list_topics(NextToken="!")


async def test_topic_attributes(tenant: SnsTenant) -> None:
    topic, (_, arn) = await tenant.topic(DisplayName="Shop"), await tenant.queue()
    await tenant.subscribe(topic, arn)
    found = (await tenant.sns.get_topic_attributes(TopicArn=topic))["Attributes"]
    assert {name: found[name] for name in ("TopicArn", "Owner", "DisplayName")} == {
        "TopicArn": topic,
        "Owner": tenant.account,
        "DisplayName": "Shop",
    }
    counts = ("SubscriptionsConfirmed", "SubscriptionsPending", "SubscriptionsDeleted")
    assert [found[name] for name in counts] == ["1", "0", "0"]
    assert json.loads(found["Policy"])["Statement"][0]["Resource"] == topic
    assert json.loads(found["EffectiveDeliveryPolicy"])["http"]["defaultHealthyRetryPolicy"]["numRetries"] == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DisplayName", "x"),
        ("Policy", '{"Version": "2008-10-17", "Statement": []}'),
        ("DeliveryPolicy", '{"http": {"defaultHealthyRetryPolicy": {"numRetries": 5}}}'),
        ("SignatureVersion", "2"),
        ("TracingConfig", "Active"),
        ("KmsMasterKeyId", "alias/key"),
        ("MaximumMessageSize", "1048576"),
        ("SQSFailureFeedbackRoleArn", "arn:aws:iam::123456789012:role/x"),
    ],
)
async def test_set_topic_attributes(tenant: SnsTenant, name: str, value: str) -> None:
    topic = await tenant.topic()
    await tenant.sns.set_topic_attributes(TopicArn=topic, AttributeName=name, AttributeValue=value)
    assert (await tenant.sns.get_topic_attributes(TopicArn=topic))["Attributes"][name] == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DisplayName", "x" * 101),
        ("Policy", "{"),
        ("Policy", "[]"),
        ("DeliveryPolicy", "{}"),
        ("DeliveryPolicy", '{"http": {"defaultHealthyRetryPolicy": {"numRetries": 101}}}'),
        ("DeliveryPolicy", '{"http": {"defaultHealthyRetryPolicy": {"minDelayTarget": 30, "maxDelayTarget": 20}}}'),
        ("SignatureVersion", "3"),
        ("TracingConfig", "On"),
        ("MaximumMessageSize", "1023"),
        ("MaximumMessageSize", "1048577"),
        ("FifoTopic", "true"),
        ("ContentBasedDeduplication", "true"),
        ("ArchivePolicy", '{"MessageRetentionPeriod": "30"}'),
        ("Wrong", "x"),
    ],
)
async def test_invalid_topic_attributes(tenant: SnsTenant, name: str, value: str) -> None:
    topic = await tenant.topic()
    with refused("InvalidParameter", 400):
        await tenant.sns.set_topic_attributes(TopicArn=topic, AttributeName=name, AttributeValue=value)


async def test_tags(tenant: SnsTenant) -> None:
    topic = (await tenant.sns.create_topic(Name="t", Tags=[{"Key": "a", "Value": "1"}]))["TopicArn"]
    await tenant.sns.tag_resource(ResourceArn=topic, Tags=[{"Key": "b", "Value": "2"}])
    assert (await tenant.sns.list_tags_for_resource(ResourceArn=topic))["Tags"] == [
        {"Key": "a", "Value": "1"},
        {"Key": "b", "Value": "2"},
    ]
    assert (await tenant.aws.tenant.client.get("/v1/topics/t")).ok()["settings"]["tags"] == {"a": "1", "b": "2"}
    await tenant.sns.untag_resource(ResourceArn=topic, TagKeys=["a"])
    assert [one["Key"] for one in (await tenant.sns.list_tags_for_resource(ResourceArn=topic))["Tags"]] == ["b"]
    with refused("TagLimitExceeded", 400):
        await tenant.sns.tag_resource(ResourceArn=topic, Tags=[{"Key": f"k{n}", "Value": ""} for n in range(50)])
    with refused("ResourceNotFound", 404):
        await tenant.sns.list_tags_for_resource(ResourceArn=f"{topic}x")


async def test_permissions_of_sns_and_sqs_are_told_apart_by_the_signature(tenant: SnsTenant) -> None:
    topic, (url, _) = await tenant.topic(), await tenant.queue()
    await tenant.sns.add_permission(TopicArn=topic, Label="l", AWSAccountId=[tenant.account], ActionName=["Publish"])
    await tenant.aws.sqs.add_permission(QueueUrl=url, Label="l", AWSAccountIds=[tenant.account], Actions=["SendMessage"])
    policy = json.loads((await tenant.sns.get_topic_attributes(TopicArn=topic))["Attributes"]["Policy"])
    assert [one["Sid"] for one in policy["Statement"]] == ["__default_statement_ID", "l"]
    await tenant.sns.remove_permission(TopicArn=topic, Label="l")
    policy = json.loads((await tenant.sns.get_topic_attributes(TopicArn=topic))["Attributes"]["Policy"])
    assert [one["Sid"] for one in policy["Statement"]] == ["__default_statement_ID"]


async def test_topics_of_other_accounts_do_not_exist(tenant: SnsTenant) -> None:
    other = await aws_tenant(tenant.aws.gateway)
    theirs = (await other.client("sns").create_topic(Name="t"))["TopicArn"]
    with refused("NotFound", 404):
        await tenant.sns.get_topic_attributes(TopicArn=theirs)
    with refused("NotFound", 404):
        await tenant.sns.publish(TopicArn=theirs, Message="x")
    with refused("InvalidParameter", 400):
        await tenant.sns.publish(TopicArn="arn:aws:sqs:us-east-1:123456789012:t", Message="x")


@pytest.mark.parametrize("protocol", ["sms", "email", "email-json", "application", "lambda", "firehose"])
async def test_protocols_that_are_not_delivered_are_refused(tenant: SnsTenant, protocol: str) -> None:
    topic = await tenant.topic()
    with refused("InvalidParameter", 400, "Protocol"):
        await tenant.sns.subscribe(TopicArn=topic, Protocol=protocol, Endpoint="x")


async def test_operations_that_are_not_served_are_refused(tenant: SnsTenant) -> None:
    with refused("InvalidAction", 400):
        await tenant.sns.list_platform_applications()
    with refused("InvalidAction", 400):
        await tenant.sns.get_sms_attributes()


async def test_a_key_creates_topics_of_its_globs_only(tenant: SnsTenant) -> None:
    limited = await tenant.aws.tenant.another_key(allowed_topics=("mine-*",))
    sns = tenant.aws.client("sns", await aws_key(limited, limited.record.id))
    await sns.create_topic(Name="mine-1")
    with refused("AuthorizationError", 403):
        await sns.create_topic(Name="other")
