"""Topic to queue through the AWS SDK for JavaScript and the AWS CLI; envelopes as the npm package `sns-validator` judges them."""

import json
from pathlib import Path

import pytest

from tests.aws.programs import aws_cli, run_javascript
from tests.sns.conftest import SnsTenant

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def certificate(tenant: SnsTenant) -> bytes:
    """The certificate that envelopes name."""
    topic, (url, arn) = await tenant.topic("first"), await tenant.queue("first")
    await tenant.subscribe(topic, arn)
    await tenant.sns.publish(TopicArn=topic, Message="x")
    [message] = await tenant.receive(url)
    address = json.loads(message["Body"])["SigningCertURL"]
    response = await tenant.aws.tenant.client.get(address.removeprefix(tenant.aws.gateway.url))
    assert response.status == 200
    return response.body


async def test_the_javascript_sdk_and_a_published_validator(tenant: SnsTenant, tmp_path: Path) -> None:
    pem = tmp_path / "certificate.pem"
    pem.write_bytes(await certificate(tenant))
    found = await run_javascript(tenant.aws, "sns.mjs", SNS_CERTIFICATE=str(pem), SNS_HOST="https://postroad.example")
    assert found.pop("batch") == 10
    assert set(found) == {"1", "2"}
    for one in found.values():
        assert one["isSame"] and one["message"] == "grüße"
        assert one["attributes"] == {"kind": {"Type": "String", "Value": "new"}}
        assert one["verdict"] == "valid"
        assert "signature" in one["altered"] and "invalid" in one["altered"]
        assert one["foreign"] != "valid"


async def test_the_aws_cli(tenant: SnsTenant) -> None:
    url, arn = await tenant.queue("cli")
    topic = (await aws_cli(tenant.aws, "sns", "create-topic", "--name", "cli"))["TopicArn"]
    subscribe = ("sns", "subscribe", "--topic-arn", topic, "--protocol", "sqs", "--notification-endpoint", arn)
    subscribed = await aws_cli(tenant.aws, *subscribe)
    assert subscribed["SubscriptionArn"].startswith(f"{topic}:")
    published = await aws_cli(tenant.aws, "sns", "publish", "--topic-arn", topic, "--message", "hello", "--subject", "s")
    [message] = await tenant.receive(url)
    envelope = json.loads(message["Body"])
    assert (envelope["MessageId"], envelope["Message"]) == (published["MessageId"], "hello")
    listed = await aws_cli(tenant.aws, "sns", "list-subscriptions-by-topic", "--topic-arn", topic)
    assert [one["Endpoint"] for one in listed["Subscriptions"]] == [arn]
