"""Amazon SNS and SQS on Postroad: a FIFO topic with an archive, two FIFO queues behind it, and a replay to one of them.

export AWS_ENDPOINT_URL=http://127.0.0.1:8080 AWS_DEFAULT_REGION=us-east-1
export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=…      # `postroad keys aws <key id>`, or var/credentials.toml
python sns_fifo.py
"""

import json
import time
from typing import Any

import boto3

ORDERS = [(account, step) for step in ("opened", "paid", "closed") for account in ("a-1", "a-2")]

sns, sqs = boto3.client("sns"), boto3.client("sqs")


def make_queue(name: str) -> tuple[str, str]:
    """The URL and the ARN of a FIFO queue."""
    url = sqs.create_queue(QueueName=f"{name}.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    return url, sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]


def receive(url: str, count: int) -> list[Any]:
    """Receive and delete this many messages; their bodies."""
    bodies: list[Any] = []
    while len(bodies) < count:
        for one in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=10).get("Messages", []):
            bodies.append(json.loads(one["Body"]))
            sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
    return bodies


def main() -> None:
    archive = json.dumps({"MessageRetentionPeriod": "30"})
    topic = sns.create_topic(Name="accounts.fifo", Attributes={"FifoTopic": "true", "ArchivePolicy": archive})["TopicArn"]
    queues = [make_queue(name) for name in ("ledger", "mail")]
    subscriptions = [
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"})["SubscriptionArn"]
        for _, arn in queues
    ]
    run = str(time.time_ns())  # so that another run publishes new messages
    for account, step in ORDERS:
        sns.publish(
            TopicArn=topic,
            Message=json.dumps({"account": account, "step": step}),
            MessageGroupId=account,
            MessageDeduplicationId=f"{run}-{account}-{step}",
        )
    for url, _ in queues:
        found = receive(url, len(ORDERS))
        for account in ("a-1", "a-2"):
            assert [one["step"] for one in found if one["account"] == account] == ["opened", "paid", "closed"]
    print("both queues have every account in order")

    begins = sns.get_topic_attributes(TopicArn=topic)["Attributes"]["BeginningArchiveTime"]
    policy = json.dumps({"PointType": "Timestamp", "StartingPoint": begins})
    sns.set_subscription_attributes(SubscriptionArn=subscriptions[0], AttributeName="ReplayPolicy", AttributeValue=policy)
    print(f"replayed {len(receive(queues[0][0], len(ORDERS)))} messages to the ledger")
    sns.set_subscription_attributes(SubscriptionArn=subscriptions[0], AttributeName="ReplayPolicy", AttributeValue="")


if __name__ == "__main__":
    main()
