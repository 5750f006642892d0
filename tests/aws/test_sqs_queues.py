"""Queues through boto3: each operation, attribute, limit and error by its name."""

import base64
import json
from urllib.parse import quote, urlencode

import pytest

from tests.aws.clients import AwsTenant, refused


async def test_create_queue_returns_the_url_of_an_equal_queue(aws: AwsTenant) -> None:
    url = await aws.queue("orders", VisibilityTimeout="60")
    assert url == f"{aws.gateway.url}/{aws.account}/orders"
    assert await aws.queue("orders", VisibilityTimeout="60") == url
    assert await aws.queue("orders") == url
    with refused("QueueAlreadyExists", 400):
        await aws.queue("orders", VisibilityTimeout="61")


async def test_defaults_are_those_of_sqs(aws: AwsTenant) -> None:
    url = await aws.queue()
    found = await aws.attributes(url)
    expected = {
        "VisibilityTimeout": "30",
        "DelaySeconds": "0",
        "MessageRetentionPeriod": "345600",
        "MaximumMessageSize": "1048576",
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "true",
        "QueueArn": aws.arn("q"),
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
    }
    assert {name: found.get(name) for name in expected} == expected
    assert set(found) - set(expected) == {"CreatedTimestamp", "LastModifiedTimestamp"}


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("VisibilityTimeout", 0, 43_200),
        ("DelaySeconds", 0, 900),
        ("MessageRetentionPeriod", 60, 1_209_600),
        ("MaximumMessageSize", 1024, 1_048_576),
        ("ReceiveMessageWaitTimeSeconds", 0, 20),
        ("KmsDataKeyReusePeriodSeconds", 60, 86_400),
    ],
)
async def test_an_attribute_has_the_range_of_sqs(aws: AwsTenant, name: str, low: int, high: int) -> None:
    url = await aws.queue(KmsMasterKeyId="alias/key")
    for value in (low, high):
        await aws.sqs.set_queue_attributes(QueueUrl=url, Attributes={name: str(value)})
        assert await aws.attributes(url, name) == {name: str(value)}
    for wrong in (str(low - 1), str(high + 1), "x", "1.5", "٣"):
        with refused("InvalidAttributeValue", 400, name):
            await aws.sqs.set_queue_attributes(QueueUrl=url, Attributes={name: wrong})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Policy", json.dumps({"Version": "2012-10-17", "Statement": [{"Sid": "a"}]})),
        ("KmsMasterKeyId", "alias/key"),
        ("SqsManagedSseEnabled", "false"),
        ("RedriveAllowPolicy", json.dumps({"redrivePermission": "denyAll"})),
    ],
)
async def test_an_attribute_is_stored_and_returned(aws: AwsTenant, name: str, value: str) -> None:
    url = await aws.queue(**{name: value})
    assert await aws.attributes(url, name) == {name: value}


async def test_an_empty_policy_removes_it(aws: AwsTenant) -> None:
    url = await aws.queue(Policy=json.dumps({"Statement": []}))
    await aws.sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": ""})
    assert await aws.attributes(url, "Policy") == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Policy", "no json"),
        ("Policy", "[]"),
        ("RedriveAllowPolicy", '{"redrivePermission": "x"}'),
        ("SqsManagedSseEnabled", "1"),
    ],
)
async def test_an_invalid_attribute_value(aws: AwsTenant, name: str, value: str) -> None:
    with refused("InvalidAttributeValue", 400, name):
        await aws.queue(**{name: value})


@pytest.mark.parametrize("name", ["Unknown", "QueueArn", "CreatedTimestamp", "ApproximateNumberOfMessages"])
async def test_an_attribute_that_cannot_be_set(aws: AwsTenant, name: str) -> None:
    with refused("InvalidAttributeName", 400, name):
        await aws.queue(**{name: "1"})


async def test_get_queue_attributes_without_names_returns_none(aws: AwsTenant) -> None:
    url = await aws.queue()
    assert "Attributes" not in await aws.sqs.get_queue_attributes(QueueUrl=url)
    with refused("InvalidAttributeName", 400, "Nothing"):
        await aws.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Nothing"])


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 81, "ä", "_reserved"])
async def test_create_queue_with_an_invalid_name(aws: AwsTenant, name: str) -> None:
    with refused("InvalidParameterValue", 400, "alphanumeric"):
        await aws.sqs.create_queue(QueueName=name)


async def test_get_queue_url(aws: AwsTenant) -> None:
    url = await aws.queue("orders")
    assert (await aws.sqs.get_queue_url(QueueName="orders"))["QueueUrl"] == url
    assert (await aws.sqs.get_queue_url(QueueName="orders", QueueOwnerAWSAccountId=aws.account))["QueueUrl"] == url
    with refused("AWS.SimpleQueueService.NonExistentQueue", 400):
        await aws.sqs.get_queue_url(QueueName="none")
    with refused("AWS.SimpleQueueService.NonExistentQueue", 400):
        await aws.sqs.get_queue_url(QueueName="orders", QueueOwnerAWSAccountId="123456789012")


async def test_list_queues_by_prefix_and_in_pages(aws: AwsTenant) -> None:
    assert "QueueUrls" not in await aws.sqs.list_queues()
    urls = [await aws.queue(f"a{number}") for number in range(5)]
    await aws.queue("b")
    assert len((await aws.sqs.list_queues())["QueueUrls"]) == 6
    first = await aws.sqs.list_queues(QueueNamePrefix="a", MaxResults=3)
    rest = await aws.sqs.list_queues(QueueNamePrefix="a", MaxResults=3, NextToken=first["NextToken"])
    assert first["QueueUrls"] + rest["QueueUrls"] == urls and "NextToken" not in rest
    for wrong in (0, 1001):
        with refused("InvalidParameterValue", 400, "MaxResults"):
            await aws.sqs.list_queues(MaxResults=wrong)
    with refused("InvalidParameterValue", 400, "next token"):
        await aws.sqs.list_queues(MaxResults=1, NextToken="ü")


async def test_delete_queue(aws: AwsTenant) -> None:
    url = await aws.queue()
    await aws.sqs.delete_queue(QueueUrl=url)
    with refused("AWS.SimpleQueueService.NonExistentQueue", 400):
        await aws.sqs.delete_queue(QueueUrl=url)


async def test_only_the_path_of_a_queue_url_counts(aws: AwsTenant) -> None:
    await aws.queue("orders")
    await aws.sqs.send_message(QueueUrl=f"https://sqs.example.com/{aws.account}/orders", MessageBody="x")
    with refused("InvalidAddress"):
        await aws.sqs.send_message(QueueUrl="orders", MessageBody="x")
    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        await aws.sqs.send_message(QueueUrl="http://x/123456789012/orders", MessageBody="x")


async def test_tags(aws: AwsTenant) -> None:
    url = (await aws.sqs.create_queue(QueueName="q", tags={"team": "a"}))["QueueUrl"]
    await aws.sqs.tag_queue(QueueUrl=url, Tags={"team": "b", "cost": ""})
    assert (await aws.sqs.list_queue_tags(QueueUrl=url))["Tags"] == {"team": "b", "cost": ""}
    await aws.sqs.untag_queue(QueueUrl=url, TagKeys=["team", "none"])
    assert (await aws.sqs.list_queue_tags(QueueUrl=url))["Tags"] == {"cost": ""}
    assert (await aws.tenant.client.get("/v1/queues/q")).ok()["settings"]["tags"] == {"cost": ""}
    with refused("InvalidParameterValue", 400, "tags"):
        await aws.sqs.tag_queue(QueueUrl=url, Tags={str(number): "" for number in range(50)})
    for wrong in ({"": "x"}, {"x" * 129: ""}, {"a": "x" * 257}, {"aws:x": ""}):
        with refused("InvalidParameterValue", 400, "tag"):
            await aws.sqs.tag_queue(QueueUrl=url, Tags=wrong)


async def test_permissions_are_stored_in_the_policy(aws: AwsTenant) -> None:
    url = await aws.queue()
    given = {"QueueUrl": url, "Label": "l", "AWSAccountIds": ["123456789012"], "Actions": ["SendMessage"]}
    await aws.sqs.add_permission(**given)
    policy = json.loads((await aws.attributes(url, "Policy"))["Policy"])
    assert [(one["Sid"], one["Action"]) for one in policy["Statement"]] == [("l", ["SQS:SendMessage"])]
    with refused("InvalidParameterValue", 400, "Already exists"):
        await aws.sqs.add_permission(**given)
    with refused("InvalidParameterValue", 400, "owner"):
        await aws.sqs.add_permission(**{**given, "Label": "m", "Actions": ["CreateQueue"]})
    with refused("InvalidParameterValue", 400, "PrincipalId"):
        await aws.sqs.add_permission(**{**given, "Label": "m", "AWSAccountIds": ["x"]})
    await aws.sqs.remove_permission(QueueUrl=url, Label="l")
    assert await aws.attributes(url, "Policy") == {}
    with refused("InvalidParameterValue", 400, "label"):
        await aws.sqs.remove_permission(QueueUrl=url, Label="l")


async def test_purge_queue_once_in_60_seconds(aws: AwsTenant) -> None:
    url = await aws.queue()
    for number in range(3):
        await aws.sqs.send_message(QueueUrl=url, MessageBody=str(number), DelaySeconds=0 if number else 900)
    await aws.sqs.purge_queue(QueueUrl=url)
    counts = await aws.attributes(url, "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed")
    assert set(counts.values()) == {"0"}
    with refused("AWS.SimpleQueueService.PurgeQueueInProgress", 403, "60 seconds"):
        await aws.sqs.purge_queue(QueueUrl=url)


async def test_approximate_counts_are_current(aws: AwsTenant) -> None:
    url = await aws.queue()
    for delay in (0, 0, 900):
        await aws.sqs.send_message(QueueUrl=url, MessageBody="x", DelaySeconds=delay)
    assert len(await aws.receive(url, 1)) == 1
    found = await aws.attributes(url)
    assert [found[f"ApproximateNumberOfMessages{kind}"] for kind in ("", "NotVisible", "Delayed")] == ["1", "1", "1"]


HALF_PAIR = "\\ud800"  # in JSON, a character that no encoding of text has


@pytest.mark.parametrize("is_json", [True, False], ids=["json", "query"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RedriveAllowPolicy", f'{{"redrivePermission": "byQueue", "sourceQueueArns": ["{HALF_PAIR}"]}}'),
        ("RedriveAllowPolicy", f'{{"redrivePermission": "{HALF_PAIR}"}}'),
        ("RedrivePolicy", f'{{"deadLetterTargetArn": "{HALF_PAIR}", "maxReceiveCount": 1}}'),
        ("RedrivePolicy", f'{{"deadLetterTargetArn": "arn:aws:sqs:x:ACCOUNT:{HALF_PAIR}", "maxReceiveCount": 1}}'),
        ("RedrivePolicy", f'{{"deadLetterTargetArn": "arn:aws:sqs:x:ACCOUNT:d", "maxReceiveCount": "{HALF_PAIR}"}}'),
        ("Policy", f'{{"Statement": ["{HALF_PAIR}", {{"Sid": "{HALF_PAIR}"}}], "{HALF_PAIR}": 1}}'),
    ],
)
async def test_half_a_surrogate_pair_is_no_server_error(aws: AwsTenant, name: str, value: str, is_json: bool) -> None:
    url, text = await aws.queue(), value.replace("ACCOUNT", aws.account)
    if is_json:
        body = {"QueueUrl": url, "Attributes": {name: text}}
        answer = await aws.tenant.client.post("/", body, headers={"X-Amz-Target": "AmazonSQS.SetQueueAttributes"})
    else:
        form = {"Action": "SetQueueAttributes", "QueueUrl": url, "Attribute.1.Name": name, "Attribute.1.Value": text}
        answer = await aws.tenant.client.post("/", data=urlencode(form).encode())
    assert answer.status == (200 if name == "Policy" else 400), answer.body
    if name == "Policy":
        assert await aws.attributes(url, "Policy") == {"Policy": text}
        await aws.sqs.add_permission(QueueUrl=url, Label="l", AWSAccountIds=[aws.account], Actions=["SendMessage"])


@pytest.mark.parametrize("name", ["a b", "*", ">", "a.*", "a.>", "ü", ".", "..", "a/b", "a" * 200, "\t", "$KV"])
async def test_an_odd_name_is_no_server_error(aws: AwsTenant, name: str) -> None:
    await aws.queue()
    url, arn = f"{aws.gateway.url}/{aws.account}/{quote(name, safe='')}", aws.arn(name)
    calls: list[tuple[str, dict[str, object]]] = [
        ("SendMessage", {"QueueUrl": url, "MessageBody": "x"}),
        ("ReceiveMessage", {"QueueUrl": url}),
        ("GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["All"]}),
        ("GetQueueUrl", {"QueueName": name}),
        ("CreateQueue", {"QueueName": name, "Attributes": {"RedrivePolicy": "{}"}}),
        ("ListQueues", {"QueueNamePrefix": name, "NextToken": base64.b64encode(name.encode()).decode()}),
        ("StartMessageMoveTask", {"SourceArn": arn}),
        ("ListMessageMoveTasks", {"SourceArn": arn}),
        ("CancelMessageMoveTask", {"TaskHandle": name}),
        ("SetQueueAttributes", {"QueueUrl": url.replace(quote(name, safe=""), "q"), "Attributes": redrive(arn)}),
    ]
    for operation, body in calls:
        answer = await aws.tenant.client.post("/", body, headers={"X-Amz-Target": f"AmazonSQS.{operation}"})
        assert answer.status < 500, (operation, answer.body)


def redrive(arn: str) -> dict[str, str]:
    return {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})}


async def test_a_queue_has_no_max_attempts_without_a_redrive_policy(aws: AwsTenant) -> None:
    url, dead = await aws.queue(VisibilityTimeout="0"), await aws.queue("dead")
    native = await aws.tenant.queue("native")
    assert (await aws.tenant.client.get(native)).ok()["settings"]["maxAttempts"] == 10
    assert (await aws.tenant.client.get("/v1/queues/q")).ok()["settings"]["maxAttempts"] == 0
    await aws.sqs.send_message(QueueUrl=url, MessageBody="x")
    for count in range(1, 13):
        [message] = await aws.receive(url, AttributeNames=["ApproximateReceiveCount"])
        assert message["Attributes"] == {"ApproximateReceiveCount": str(count)}
    await aws.sqs.set_queue_attributes(QueueUrl=url, Attributes=redrive(aws.arn("dead")))
    assert (await aws.tenant.client.get("/v1/queues/q")).ok()["settings"]["maxAttempts"] == 1
    await aws.sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert (await aws.tenant.client.get("/v1/queues/q")).ok()["settings"]["maxAttempts"] == 0
    assert await aws.receive(dead, WaitTimeSeconds=0) == []
