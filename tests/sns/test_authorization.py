"""Scopes of every operation of SNS, restrictions of keys, and session policies with `sns:` actions."""

import json
from dataclasses import replace

import pytest

from postroad.kernel.identity import Scope
from tests.aws.clients import REGION, AwsTenant, Credentials, aws_key, post_form, refused
from tests.sns.conftest import SnsTenant

_READ = ["read", "admin"]
NEEDS = {
    **{key: ["admin"] for key in ("CreateTopic", "DeleteTopic", "SetTopicAttributes", "TagResource", "UntagResource")},
    **{key: ["admin"] for key in ("AddPermission", "RemovePermission")},
    **dict.fromkeys(("ListTopics", "GetTopicAttributes", "ListTagsForResource", "GetSubscriptionAttributes"), _READ),
    **dict.fromkeys(("ListSubscriptions", "ListSubscriptionsByTopic"), _READ),
    **{key: ["publish"] for key in ("Publish", "PublishBatch")},
    **{key: ["write"] for key in ("Subscribe", "ConfirmSubscription", "Unsubscribe", "SetSubscriptionAttributes")},
}
_GIVEN = {
    "Name": "new",
    "Token": "x",
    "Protocol": "sqs",
    "Message": "x",
    "AttributeName": "DisplayName",
    "Tags.member.1.Key": "a",
    "Tags.member.1.Value": "b",
    "TagKeys.member.1": "a",
    "Label": "a",
    "AWSAccountId.member.1": "123456789012",
    "ActionName.member.1": "Publish",
    "PublishBatchRequestEntries.member.1.Id": "a",
    "PublishBatchRequestEntries.member.1.Message": "x",
}


def _form(action: str, topic: str) -> dict[str, str]:
    arns = {"TopicArn": topic, "ResourceArn": topic, "SubscriptionArn": f"{topic}:00000000-0000-7000-8000-000000000000"}
    return {"Action": action, "Version": "2010-03-31", **_GIVEN, **arns}


@pytest.mark.parametrize("scope", list(Scope))
async def test_every_operation_needs_the_scope_of_its_native_one(tenant: SnsTenant, scope: Scope) -> None:
    topic = f"arn:aws:sns:{REGION}:{tenant.account}:missing"
    key = await tenant.aws.tenant.another_key((scope,))
    limited = replace(tenant.aws, credentials=await aws_key(tenant.aws.tenant, key.record.id))
    for action, scopes in NEEDS.items():
        status, body = await post_form(limited, "sns", _form(action, topic))
        is_denied = status == 403 and "<Code>AuthorizationError</Code>" in body
        assert is_denied == (str(scope) not in scopes), (action, scope, status, body)
        assert status < 500


@pytest.mark.parametrize("action", ["PublishToPhone", "SetSMSAttributes", "CreatePlatformApplication", "PutDataProtectionPolicy"])
async def test_operations_that_are_not_served_are_refused_by_name(tenant: SnsTenant, action: str) -> None:
    status, body = await post_form(tenant.aws, "sns", {"Action": action, "Version": "2010-03-31"})
    assert status == 400 and "<Code>InvalidAction</Code>" in body


async def test_a_restricted_key_sees_its_topics_and_queues_only(tenant: SnsTenant) -> None:
    mine, other = await tenant.topic("mine-1"), await tenant.topic("other")
    (_, mine_queue), (_, other_queue) = await tenant.queue("mine-q"), await tenant.queue("other-q")
    hidden = await tenant.subscribe(other, other_queue)
    key = await tenant.aws.tenant.another_key(allowed_topics=("mine-*",), allowed_queues=("mine-*",))
    sns = tenant.aws.client("sns", await aws_key(tenant.aws.tenant, key.record.id))
    await sns.publish(TopicArn=mine, Message="x")
    await sns.subscribe(TopicArn=mine, Protocol="sqs", Endpoint=mine_queue)
    assert [one["TopicArn"] for one in (await sns.list_topics())["Topics"]] == [mine]
    assert [one["Endpoint"] for one in (await sns.list_subscriptions())["Subscriptions"]] == [mine_queue]
    for missing in (
        sns.publish(TopicArn=other, Message="x"),
        sns.get_topic_attributes(TopicArn=other),
        sns.list_subscriptions_by_topic(TopicArn=other),
        sns.unsubscribe(SubscriptionArn=hidden),
    ):
        with refused("NotFound", 404):
            await missing
    for denied in (
        sns.create_topic(Name="other-2"),
        sns.subscribe(TopicArn=mine, Protocol="sqs", Endpoint=other_queue),
        sns.subscribe(TopicArn=mine, Protocol="sqs", Endpoint=tenant.aws.arn("other-missing")),
    ):
        with refused("AuthorizationError", 403):
            await denied


async def _session(tenant: AwsTenant, actions: list[str], resource: str) -> Credentials:
    statement = {"Effect": "Allow", "Action": actions, "Resource": resource}
    found = await tenant.client("sts").assume_role(
        RoleArn=f"arn:aws:iam::{tenant.account}:role/worker",
        RoleSessionName="one",
        Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}),
    )
    given = found["Credentials"]
    return Credentials(given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"])


async def test_a_session_policy_with_actions_on_topics(tenant: SnsTenant) -> None:
    orders, other = await tenant.topic("orders-1"), await tenant.topic("other")
    _, queue = await tenant.queue()
    allowed = f"arn:aws:sns:*:{tenant.account}:orders-*"
    publisher = tenant.aws.client("sns", await _session(tenant.aws, ["sns:Publish"], allowed))
    await publisher.publish(TopicArn=orders, Message="x")
    await publisher.publish_batch(TopicArn=orders, PublishBatchRequestEntries=[{"Id": "a", "Message": "x"}])
    for denied in (
        publisher.publish(TopicArn=other, Message="x"),
        publisher.subscribe(TopicArn=orders, Protocol="sqs", Endpoint=queue),
        publisher.list_topics(),
        publisher.create_topic(Name="orders-2"),
    ):
        with refused("AccessDenied", 403):
            await denied


async def test_a_session_policy_allows_the_creation_of_topics_with_matching_names(tenant: SnsTenant) -> None:
    allowed = f"arn:aws:sns:*:{tenant.account}:orders-*"
    sns = tenant.aws.client("sns", await _session(tenant.aws, ["sns:*"], allowed))
    arn = (await sns.create_topic(Name="orders-1"))["TopicArn"]
    await sns.set_topic_attributes(TopicArn=arn, AttributeName="DisplayName", AttributeValue="x")
    await sns.delete_topic(TopicArn=arn)
    with refused("AccessDenied", 403):
        await sns.create_topic(Name="other")
