"""The main calls through the AWS SDK for JavaScript, which verifies MD5s, and through the AWS CLI."""

import json
from pathlib import Path

import pytest

from tests.aws.clients import AwsTenant
from tests.aws.programs import aws_cli, run_javascript, run_old_boto3

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def test_the_javascript_sdk(aws: AwsTenant) -> None:
    found = await run_javascript(aws, "sqs.mjs")
    numbers = found.pop("numbers")
    assert numbers[0] == numbers[1] < numbers[2] and len(numbers[2]) == 20
    assert found == {
        "isFound": True,
        "isSame": True,
        "body": "grüße ✓",
        "attributes": ["bytes", "number", "text"],
        "bytes": [0, 255],
        "trace": "Root=1-5759e988-bd862e3fe1be46a994272793",
        "sent": 10,
        "bodies": [str(number) for number in range(10)],
        "visibility": "60",
        "ordered": ["1", "2"],
        "queues": 2,
        "missing": "QueueDoesNotExist",
    }


async def test_boto3_1_28_with_the_query_protocol(aws: AwsTenant, tmp_path: Path) -> None:
    assert await run_old_boto3(aws, tmp_path / "packages") == {
        "version": "1.28.57",
        "is_same": True,
        "body": "grüße\r\n<&>",
        "is_typed": True,
        "batch": 10,
        "bodies": [str(number) for number in range(10)],
        "numbers": True,
        "ordered": ["1", "2"],
        "tags": {"team": "a"},
        "visibility": "60",
        "queues": 2,
        "missing": "AWS.SimpleQueueService.NonExistentQueue",
    }


async def test_the_aws_cli(aws: AwsTenant) -> None:
    url = (await aws_cli(aws, "sqs", "create-queue", "--queue-name", "cli"))["QueueUrl"]
    attributes = json.dumps({"kind": {"DataType": "String", "StringValue": "new"}})
    send = ("sqs", "send-message", "--queue-url", url, "--message-body", "hello ✓", "--message-attributes", attributes)
    sent = await aws_cli(aws, *send)
    received = await aws_cli(aws, "sqs", "receive-message", "--queue-url", url, "--message-attribute-names", "All")
    [message] = received["Messages"]
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "hello ✓")
    assert message["MessageAttributes"]["kind"]["StringValue"] == "new"
    await aws_cli(aws, "sqs", "delete-message", "--queue-url", url, "--receipt-handle", message["ReceiptHandle"])
    found = await aws_cli(aws, "sqs", "get-queue-attributes", "--queue-url", url, "--attribute-names", "All")
    assert found["Attributes"]["ApproximateNumberOfMessagesNotVisible"] == "0"
    fifo = json.dumps({"FifoQueue": "true"})
    ordered = (await aws_cli(aws, "sqs", "create-queue", "--queue-name", "cli.fifo", "--attributes", fifo))["QueueUrl"]
    ids = ("--message-group-id", "g", "--message-deduplication-id", "d")
    first = await aws_cli(aws, "sqs", "send-message", "--queue-url", ordered, "--message-body", "x", *ids)
    assert len(first["SequenceNumber"]) == 20
    assert len((await aws_cli(aws, "sqs", "list-queues"))["QueueUrls"]) == 2
    assert (await aws_cli(aws, "sts", "get-caller-identity"))["Account"] == aws.account
