"""Shared by the SQS-compatible servers: the JSON protocol, with a signature header that they do not verify."""

import re

from benchmarks.peers.peer import PAYLOAD, Queue, Request, encoded, settled, text_of

ONE_PULL = "ReceiveMessage(1) + DeleteMessage"
SAYS = "in the memory of the process; lost when it stops"
_SIGNATURE = "AWS4-HMAC-SHA256 Credential=bench/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=0"


def call(action: str, body: str) -> Request:
    headers = {
        "Content-Type": "application/x-amz-json-1.0",
        "X-Amz-Target": f"AmazonSQS.{action}",
        "X-Amz-Date": "20260101T000000Z",
        "Authorization": _SIGNATURE,
    }
    return Request("POST", "/", body, headers)


def queue(url: str) -> Queue:
    """Create the queue `bench`."""
    made = settled(url, call("CreateQueue", '{"QueueName":"bench","Attributes":{"VisibilityTimeout":"600"}}'))
    address = text_of(rb'"QueueUrl": ?"([^"]+)"', made)

    def ack(pulled: bytes) -> Request:
        handle = text_of(rb'"ReceiptHandle": ?"([^"]+)"', pulled)
        return call("DeleteMessage", f'{{"QueueUrl":"{address}","ReceiptHandle":"{handle}"}}')

    return Queue(
        url,
        publish=call("SendMessage", f'{{"QueueUrl":"{address}","MessageBody":{encoded(PAYLOAD)}}}'),
        pull=call("ReceiveMessage", f'{{"QueueUrl":"{address}","MaxNumberOfMessages":1,"WaitTimeSeconds":0}}'),
        taken=lambda pulled: re.search(rb'"ReceiptHandle"', pulled) is not None,
        ack=ack,
    )
