"""Processor time of the SQS protocol beside the native API: SendMessage and publish, Receive and delete ten and pull and ack ten.

    .venv/bin/python -m benchmarks.sqs [pairs]

The calls take turns on one installation. SQS requests are signed by botocore. The table has the medians of the processor time of
the gateway and of nats-server per message, and the ratio of their sums, native to SQS.
"""

import asyncio
import statistics
import sys
from collections.abc import Awaitable, Callable

import msgspec
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from benchmarks.group_sync import HttpConnection
from benchmarks.harness import Server, postroad, table
from benchmarks.processor_time import Cost, Meter

_SENDS, _CONNECTIONS, _BATCHES = 2000, 8, 200
_TEXT = "x" * 200

Calls = Callable[[HttpConnection, int], Awaitable[None]]


class SqsConnection(HttpConnection):
    """Sends signed requests."""

    credentials: Credentials
    host: str

    def signed(self, operation: str, body: bytes) -> None:
        headers = {"Host": self.host, "X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0"}
        request = AWSRequest("POST", f"http://{self.host}/", headers, body)
        SigV4Auth(self.credentials, "sqs", "us-east-1").add_auth(request)
        self._head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())

    async def operate(self, operation: str, body: bytes) -> bytes:
        self.signed(operation, body)
        return await self.call("POST", "/", body)


async def publish(http: HttpConnection, count: int) -> None:
    body = msgspec.json.encode({"payload": _TEXT})
    for _ in range(count):
        await http.call("POST", "/v1/queues/bench/messages", body)


async def pull_and_ack(http: HttpConnection, count: int) -> None:
    for _ in range(count):
        answer = await http.call("POST", "/v1/queues/bench/pull", b'{"maxMessages":10,"waitMs":1000}')
        receipts = [one["receiptId"] for one in msgspec.json.decode(answer)["messages"]]
        await http.call("POST", "/v1/queues/bench/ack", msgspec.json.encode({"receiptIds": receipts}))


def send_message(url: str) -> Calls:
    body = msgspec.json.encode({"QueueUrl": url, "MessageBody": _TEXT})

    async def send(http: HttpConnection, count: int) -> None:
        assert isinstance(http, SqsConnection)
        http.signed("SendMessage", body)
        for _ in range(count):
            await http.call("POST", "/", body)

    return send


def receive_and_delete(url: str) -> Calls:
    receive = msgspec.json.encode({"QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 1})

    async def consume(http: HttpConnection, count: int) -> None:
        assert isinstance(http, SqsConnection)
        for _ in range(count):
            messages = msgspec.json.decode(await http.operate("ReceiveMessage", receive)).get("Messages", [])
            entries = [{"Id": str(index), "ReceiptHandle": one["ReceiptHandle"]} for index, one in enumerate(messages)]
            if entries:
                await http.operate("DeleteMessageBatch", msgspec.json.encode({"QueueUrl": url, "Entries": entries}))

    return consume


async def measure(server: Server, pairs: int) -> str:
    native = [await HttpConnection.open(server) for _ in range(_CONNECTIONS)]
    me = msgspec.json.decode(await native[0].call("GET", "/v1/whoami", b""))
    await native[0].call("PUT", "/v1/queues/bench", b'{"retentionMs": 345600000}')
    path = f"/api/control/keys/{me['keyId']}/aws"
    issued = msgspec.json.decode(await native[0].call("POST", path, b'{"graceSeconds": 0}'))
    signed = [await SqsConnection.open(server) for _ in range(_CONNECTIONS)]
    for one in signed:
        assert isinstance(one, SqsConnection)
        one.credentials = Credentials(issued["accessKeyId"], issued["secretAccessKey"])
        one.host = server.url.removeprefix("http://")
    url = f"{server.url}/{me['accountId']}/bench"
    meter = Meter(server)
    await meter.measure_idle(2)
    costs: dict[str, list[Cost]] = {}
    works: list[tuple[str, list[HttpConnection], Calls, int, int]] = [
        ("publish", native, publish, _SENDS, 1),
        ("SendMessage", signed, send_message(url), _SENDS, 1),
        ("pull and ack of 10", native, pull_and_ack, _BATCHES, 10),
        ("ReceiveMessage and DeleteMessageBatch of 10", signed, receive_and_delete(url), _BATCHES, 10),
    ]
    for _ in range(pairs):
        for name, connections, calls, count, messages in works:

            async def work(connections: list[HttpConnection] = connections, calls: Calls = calls, count: int = count) -> None:
                await asyncio.gather(*(calls(one, count // _CONNECTIONS) for one in connections))

            costs.setdefault(name, []).append(await meter.measure(count * messages, work))
    rows = []
    for name, found in costs.items():
        gateway, engine = (statistics.median(getattr(one, part) for one in found) * 1e6 for part in ("gateway", "engine"))
        rows.append((name, f"{gateway:.0f}", f"{engine:.0f}", gateway + engine))
    ratios = ["", f"{rows[0][3] / rows[1][3]:.2f}", "", f"{rows[2][3] / rows[3][3]:.2f}"]
    head = ("operation", "gateway µs", "nats-server µs", "native / SQS")
    return table(head, [(*row[:3], ratio) for row, ratio in zip(rows, ratios, strict=True)])


def main() -> None:
    with postroad() as server:
        print(asyncio.run(measure(server, int(sys.argv[1]) if len(sys.argv) > 1 else 5)))


if __name__ == "__main__":
    main()
