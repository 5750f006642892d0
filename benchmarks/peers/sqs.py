"""Shared by the SQS-compatible servers: the JSON protocol, with a signature header that they do not verify."""

import re
from dataclasses import replace

from benchmarks.peers.peer import PAYLOAD, Queue, Request, encoded, settled, text_of, texts_of

ONE_PULL = "ReceiveMessage, then DeleteMessage or DeleteMessageBatch"
SAYS = "in the memory of the process; lost when it stops"
_HANDLE = rb'"ReceiptHandle": ?"([^"]+)"'
_BATCH_MAX = 10  # of the protocol
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
        handle = text_of(_HANDLE, pulled)
        return call("DeleteMessage", f'{{"QueueUrl":"{address}","ReceiptHandle":"{handle}"}}')

    def pull(count: int) -> Request:
        return call("ReceiveMessage", f'{{"QueueUrl":"{address}","MaxNumberOfMessages":{count},"WaitTimeSeconds":0}}')

    def ack_all(pulled: bytes) -> Request:
        handles = enumerate(texts_of(_HANDLE, pulled))
        entries = [f'{{"Id":"{number}","ReceiptHandle":"{handle}"}}' for number, handle in handles]
        return call("DeleteMessageBatch", f'{{"QueueUrl":"{address}","Entries":[{",".join(entries)}]}}')

    single = Queue(
        url,
        publish=call("SendMessage", f'{{"QueueUrl":"{address}","MessageBody":{encoded(PAYLOAD)}}}'),
        pull=pull(1),
        taken=lambda pulled: len(re.findall(_HANDLE, pulled)),
        ack=ack,
        of_batches=lambda size: replace(single, pull=pull(size), ack=ack_all) if size <= _BATCH_MAX else None,
    )
    return single
