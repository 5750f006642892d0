"""SQS and SNS beside servers that keep everything in memory: moto, ministack and fauxqs. Identical signed requests, in one run.

    .venv/bin/python -m benchmarks.aws_peers [rounds]

Postroad syncs at an interval of two seconds and verifies signatures; the others do neither. The servers take turns. Each row has
the calls per second and the processor time per call, medians of all rounds. SNS: a topic with one raw and one enveloped queue;
the time ends when both queues have all messages. The last table has the cost of a signature.
"""

import asyncio
import contextlib
import os
import re
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import msgspec
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from benchmarks.harness import Server, postroad, table
from benchmarks.peers import fauxqs, ministack, moto
from benchmarks.peers.peer import PAYLOAD, Peer, Unavailable, install
from benchmarks.peers.postroad import INTERVAL_SECONDS
from benchmarks.processor_time import process_seconds

CONNECTIONS = 8
SENDS, RECEIVES, PUBLISHES, BATCHES = 800, 80, 400, 40
DEADLINE_SECONDS = 60.0
_SETTLE_SECONDS = 0.3


class AwsConnection:
    """A kept-alive connection with signed requests. A signature is made once per body, for all servers alike."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        self._host, self._credentials = url.removeprefix("http://"), credentials
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def call(self, service: str, operation: str, body: bytes) -> bytes:
        return await self.send(self.prepare(service, operation, body))

    def prepare(self, service: str, operation: str, body: bytes) -> bytes:
        headers = {"Host": self._host}
        if service == "sqs":
            headers |= {"X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0"}
        else:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        request = AWSRequest("POST", f"http://{self._host}/", headers, body)
        SigV4Auth(self._credentials, service, "us-east-1").add_auth(request)
        lines = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        return f"POST / HTTP/1.1\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def send(self, request: bytes) -> bytes:
        while True:
            is_new = self._reader is None
            if self._reader is None or self._writer is None:
                host, _, port = self._host.partition(":")
                self._reader, self._writer = await asyncio.open_connection(host, int(port))
            self._writer.write(request)
            try:
                head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
                break
            except (asyncio.IncompleteReadError, ConnectionError) as problem:  # some servers close connections without a word
                self._writer.close()
                self._reader = None
                if is_new:
                    raise Unavailable("a new connection was closed without an answer") from problem
        status = int(head.split(b" ", 2)[1])
        length = re.search(rb"content-length: (\d+)", head)
        if length is not None:
            body = await self._reader.readexactly(int(length[1]))
        else:
            body = b""
            while size := int(await self._reader.readline(), 16):
                body += await self._reader.readexactly(size)
                await self._reader.readline()
            await self._reader.readline()
        if b"connection: close" in head or head.startswith(b"http/1.0"):
            self._writer.close()
            self._reader = None
        if status >= 300:
            raise Unavailable(f"a call was answered {status}: {body[:200].decode(errors='replace')}")
        return body


class Target:
    """A running server: its name, address, credentials and processes."""

    def __init__(self, name: str, url: str, credentials: Credentials, pids: list[int]) -> None:
        self.name, self.url, self._pids = name, url, pids
        self.connections = [AwsConnection(url, credentials) for _ in range(CONNECTIONS)]
        self.queues: dict[str, str] = {}
        self.topic = ""

    def seconds(self) -> float:
        return sum(process_seconds(pid) for pid in self._pids if Path(f"/proc/{pid}").exists())

    async def sqs(self, operation: str, **fields: object) -> dict[str, object]:
        found: dict[str, object] = msgspec.json.decode(
            await self.connections[0].call("sqs", operation, msgspec.json.encode(fields)) or b"{}"
        )
        return found

    async def sns(self, operation: str, **fields: str) -> str:
        form = urlencode({"Action": operation, "Version": "2010-03-31", **fields}).encode()
        return (await self.connections[0].call("sns", operation, form)).decode()

    async def set_up(self) -> None:
        for name in ("bench", "raw", "enveloped"):
            made = await self.sqs("CreateQueue", QueueName=name, Attributes={"VisibilityTimeout": "600"})
            self.queues[name] = str(made["QueueUrl"])
        found = re.search(r"<TopicArn>([^<]+)</TopicArn>", await self.sns("CreateTopic", Name="bench"))
        if found is None:
            raise Unavailable("CreateTopic returned no ARN")
        self.topic = found[1]
        prefix = self.topic.replace(":sns:", ":sqs:").rpartition(":")[0]
        for name in ("raw", "enveloped"):
            more = {"Attributes.entry.1.key": "RawMessageDelivery", "Attributes.entry.1.value": "true"} if name == "raw" else {}
            await self.sns("Subscribe", TopicArn=self.topic, Protocol="sqs", Endpoint=f"{prefix}:{name}", **more)

    async def count(self, name: str) -> int:
        found = await self.sqs("GetQueueAttributes", QueueUrl=self.queues[name], AttributeNames=["ApproximateNumberOfMessages"])
        attributes = found["Attributes"]
        return int(attributes["ApproximateNumberOfMessages"]) if isinstance(attributes, dict) else 0


Work = Callable[[Target], Awaitable[int]]  # returns the number of calls


async def _each(target: Target, count: int, request: Callable[[AwsConnection], bytes]) -> None:
    async def client(connection: AwsConnection) -> None:
        prepared = request(connection)
        for _ in range(count // CONNECTIONS):
            await connection.send(prepared)

    await asyncio.gather(*(client(one) for one in target.connections))


async def send_messages(target: Target) -> int:
    body = msgspec.json.encode({"QueueUrl": target.queues["bench"], "MessageBody": PAYLOAD})
    await _each(target, SENDS, lambda connection: connection.prepare("sqs", "SendMessage", body))
    return SENDS


async def receive_and_delete(target: Target) -> int:
    url = target.queues["bench"]
    receive = msgspec.json.encode({"QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 0})

    async def client(connection: AwsConnection) -> int:
        prepared, done = connection.prepare("sqs", "ReceiveMessage", receive), 0
        for _ in range(RECEIVES // CONNECTIONS):
            messages = msgspec.json.decode(await connection.send(prepared)).get("Messages", [])
            entries = [{"Id": str(index), "ReceiptHandle": one["ReceiptHandle"]} for index, one in enumerate(messages)]
            if entries:
                await connection.call("sqs", "DeleteMessageBatch", msgspec.json.encode({"QueueUrl": url, "Entries": entries}))
                done += 1
        return done

    return sum(await asyncio.gather(*(client(one) for one in target.connections)))


async def _published(target: Target, count: int, messages: int, fields: dict[str, str]) -> int:
    expected = [await target.count(name) + count * messages for name in ("raw", "enveloped")]
    name = "PublishBatch" if messages > 1 else "Publish"
    form = urlencode({"Action": name, "Version": "2010-03-31", "TopicArn": target.topic, **fields}).encode()
    await _each(target, count, lambda connection: connection.prepare("sns", name, form))
    until = time.monotonic() + DEADLINE_SECONDS
    while [await target.count(one) for one in ("raw", "enveloped")] != expected:
        if time.monotonic() > until:
            raise Unavailable(f"not all messages arrived in {DEADLINE_SECONDS:.0f} s")
        await asyncio.sleep(0.02)
    return count


async def publish(target: Target) -> int:
    return await _published(target, PUBLISHES, 1, {"Message": PAYLOAD})


async def publish_batches(target: Target) -> int:
    fields: dict[str, str] = {}
    for number in range(1, 11):
        start = f"PublishBatchRequestEntries.member.{number}"
        fields |= {f"{start}.Id": str(number), f"{start}.Message": PAYLOAD}
    return await _published(target, BATCHES, 10, fields)


WORKS: dict[str, Work] = {
    "SendMessage": send_messages,
    "ReceiveMessage and DeleteMessageBatch of 10": receive_and_delete,
    "Publish to two queues": publish,
    "PublishBatch of 10 to two queues": publish_batches,
}


async def _measure(target: Target, work: Work) -> tuple[float, float]:
    """Calls per second, and processor seconds per call."""
    before, started = target.seconds(), time.perf_counter()
    calls = await work(target)
    seconds = time.perf_counter() - started
    await asyncio.sleep(_SETTLE_SECONDS)
    return calls / seconds, (target.seconds() - before) / calls


async def compare(targets: list[Target], rounds: int) -> str:
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    problems: dict[tuple[str, str], str] = {}
    for target in targets:
        await target.set_up()
    for _ in range(rounds):
        for name, work in WORKS.items():
            for target in targets:
                try:
                    found.setdefault((name, target.name), []).append(await _measure(target, work))
                except Unavailable as problem:
                    problems[name, target.name] = str(problem)[:60]
    rows = []
    for name in WORKS:
        for target in targets:
            results = found.get((name, target.name))
            if not results:
                rows.append([name, target.name, problems.get((name, target.name), "?"), ""])
                continue
            rate, cost = (statistics.median(one[part] for one in results) for part in (0, 1))
            rows.append([name, target.name, f"{rate:,.0f}", f"{cost * 1e6:,.0f}"])
    return table(["call", "server", "calls/s", "processor µs per call"], rows)


def signature_cost() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    rows = []
    for version, algorithm in (("1, SHA1withRSA", hashes.SHA1()), ("2, SHA256withRSA", hashes.SHA256())):
        started, count = time.process_time(), 200
        for _ in range(count):
            key.sign(PAYLOAD.encode(), padding.PKCS1v15(), algorithm)
        rows.append([version, f"{(time.process_time() - started) / count * 1e6:.0f}"])
    return table(["signature version", "µs per message, once for all subscribers, not for raw delivery"], rows)


def _credentials(server: Server) -> Credentials:
    text = (server.home / "credentials.toml").read_text()
    found = dict(re.findall(r'^(aws_\w+) = "([^"]+)"', text, re.MULTILINE))
    return Credentials(found["aws_access_key_id"], found["aws_secret_access_key"])


def _processes(word: str) -> list[int]:
    """Processes with this word in their command line or environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (
                int(process.name) != os.getpid()
                and word.encode() in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            ):
                found.append(int(process.name))
    return found


@contextlib.contextmanager
def running_targets() -> Iterator[list[Target]]:
    limits = {"POSTROAD_REQUESTS_PER_SECOND_PER_TENANT_MAX": "0", "POSTROAD_SYNC": INTERVAL_SECONDS}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(postroad(**limits))
        targets = [Target("Postroad, interval sync", server.url, _credentials(server), _processes(str(server.home)))]
        peers: list[Peer] = [moto.PEER, ministack.PEER, fauxqs.PEER]
        for peer in peers:
            try:
                install(peer.setup)
                url = stack.enter_context(peer.running()).url
            except Unavailable as problem:
                print(f"{peer.name}: {problem}", file=sys.stderr)
                continue
            targets.append(
                Target(peer.name.removesuffix(", SQS"), url, Credentials("bench", "bench"), _processes(url.rpartition(":")[2]))
            )
        yield targets


def main() -> None:
    with running_targets() as targets:
        print(asyncio.run(compare(targets, int(sys.argv[1]) if len(sys.argv) > 1 else 3)))
    print()
    print(signature_cost())


if __name__ == "__main__":
    main()
