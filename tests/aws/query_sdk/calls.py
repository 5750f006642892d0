"""The main calls of SQS through boto3 1.28, which uses the query protocol and verifies MD5s. Prints JSON."""

import json
import os

import boto3

sqs = boto3.client("sqs", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
assert sqs.meta.service_model.metadata["protocol"] == "query"
url = sqs.create_queue(QueueName="old", Attributes={"VisibilityTimeout": "60"}, tags={"team": "a"})["QueueUrl"]
attributes = {
    "text": {"DataType": "String", "StringValue": "ü <&>"},
    "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
}
sent = sqs.send_message(QueueUrl=url, MessageBody="grüße\r\n<&>", MessageAttributes=attributes)
receive = {"QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 10, "MessageAttributeNames": ["All"]}
[message] = sqs.receive_message(**receive, AttributeNames=["All"])["Messages"]
sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
[again] = sqs.receive_message(**receive)["Messages"]
sqs.delete_message(QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
entries = [{"Id": str(number), "MessageBody": str(number)} for number in range(10)]
batch = sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]
bodies: list[str] = []
while len(bodies) < 10:
    found = sqs.receive_message(**receive).get("Messages", [])
    bodies += [one["Body"] for one in found]
    handles = [{"Id": str(index), "ReceiptHandle": one["ReceiptHandle"]} for index, one in enumerate(found)]
    if handles:
        sqs.delete_message_batch(QueueUrl=url, Entries=handles)
fifo = sqs.create_queue(QueueName="old.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
numbers = [
    sqs.send_message(QueueUrl=fifo, MessageBody=one, MessageGroupId="g", MessageDeduplicationId=one)["SequenceNumber"]
    for one in ("1", "2")
]
ordered = sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=10, AttributeNames=["All"], WaitTimeSeconds=5)["Messages"]
tags = sqs.list_queue_tags(QueueUrl=url)["Tags"]
visibility = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]["VisibilityTimeout"]
queues = len(sqs.list_queues(QueueNamePrefix="old")["QueueUrls"])
sqs.delete_queue(QueueUrl=url)
try:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    missing = ""
except sqs.exceptions.QueueDoesNotExist as error:
    missing = error.response["Error"]["Code"]
print(
    json.dumps(
        {
            "version": boto3.__version__,
            "is_same": sent["MessageId"] == message["MessageId"] == again["MessageId"],
            "body": message["Body"],
            "is_typed": message["MessageAttributes"] == attributes,
            "batch": len(batch),
            "bodies": sorted(bodies),
            "numbers": [one["Attributes"]["SequenceNumber"] for one in ordered] == numbers,
            "ordered": [one["Body"] for one in ordered],
            "tags": tags,
            "visibility": visibility,
            "queues": queues,
            "missing": missing,
        }
    )
)
