"""The connections of a load test: publishers, which follow a schedule, and consumers."""

import asyncio
import contextlib
import ssl
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import msgspec

from postroad.api.loadtests import NewLoadTest
from postroad.loadtests.rules import Measurement, Schedule, publish_body, pull_size
from postroad.outbound.http_connection import HttpConnection, HttpResult
from postroad.outbound.rules import OutboundFailed

_REQUEST_SECONDS = 10.0
_PULL_WAIT_MS = 500
_RETRY_SECONDS = 0.2
_RETRY_SECONDS_MAX = 2.0
_PORTS = {"http": 80, "https": 443}


class _PulledMessage(msgspec.Struct, frozen=True, rename="camel"):
    receipt_id: str


class _Pulled(msgspec.Struct, frozen=True):
    messages: list[_PulledMessage]


class _ProblemCode(msgspec.Struct, frozen=True):
    code: str = "unexpected"


_decode_pulled = msgspec.json.Decoder(_Pulled).decode
_decode_problem = msgspec.json.Decoder(_ProblemCode).decode


@dataclass(frozen=True, slots=True)
class Target:
    """The HTTP port that a test calls, and how its requests begin."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    prefix: str
    headers: bytes

    @staticmethod
    def of(base_url: str, key: str) -> "Target":
        parts = urlsplit(base_url)
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        headers = f"Host: {parts.netloc}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        return Target(host, port, tls, parts.path.rstrip("/"), headers.encode("ascii"))

    def request(self, path: str, body: bytes) -> bytes:
        line = f"POST {self.prefix}{path} HTTP/1.1\r\n".encode("ascii")
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (line, self.headers, len(body), body)


class _Client:
    """One connection, opened again when it broke."""

    def __init__(self, target: Target, measurement: Measurement) -> None:
        self._target, self._measurement = target, measurement
        self._connection: HttpConnection | None = None

    async def send(self, request: bytes) -> HttpResult | None:
        """The response if it is a success; None after a failure, which is counted, and a pause."""
        result: HttpResult | None = None
        try:
            if self._connection is None or not self._connection.is_idle:
                self._connection = await self._connect()  # `is_idle` is true from the first response on
            deadline = asyncio.get_running_loop().time() + _REQUEST_SECONDS
            result = await self._connection.exchange(request, deadline)
        except OutboundFailed as failure:
            self._measurement.add_error(failure.reason)
        except (OSError, TimeoutError):
            self._measurement.add_error("connect")
        if result is not None and result.is_success and not result.is_truncated:
            return result
        if result is not None:
            self._measurement.add_error(_code_of(result))
        await asyncio.sleep(_pause(result))
        return None

    async def _connect(self) -> HttpConnection:
        self.close()
        async with asyncio.timeout(_REQUEST_SECONDS):
            _transport, connection = await asyncio.get_running_loop().create_connection(
                HttpConnection, self._target.host, self._target.port, ssl=self._target.tls
            )
        return connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _code_of(result: HttpResult) -> str:
    if result.is_truncated:
        return "response-too-large"
    with contextlib.suppress(msgspec.MsgspecError):
        return _decode_problem(result.body).code[:64]
    return f"http-{result.status}"


def _pause(result: HttpResult | None) -> float:
    with contextlib.suppress(ValueError):
        wanted = float(result.headers.get("retry-after", "")) if result is not None else _RETRY_SECONDS
        return min(max(wanted, 0.0), _RETRY_SECONDS_MAX)
    return _RETRY_SECONDS


class HttpLoad:
    """The traffic of one test. `start` is the time at which it begins."""

    def __init__(self, target: Target, test: str, queue: str, wanted: NewLoadTest, rate: int, measurement: Measurement) -> None:
        path = f"/v1/queues/{quote(queue, safe='')}"
        self._target, self._path, self._wanted, self._measurement = target, path, wanted, measurement
        self._schedule = Schedule(rate, wanted.seconds)
        self._publish = target.request(f"{path}/messages", publish_body(test, wanted.payload_bytes))
        pull = {"maxMessages": pull_size(wanted.payload_bytes), "waitMs": _PULL_WAIT_MS}
        self._pull = target.request(f"{path}/pull", msgspec.json.encode(pull))
        self._clients: list[_Client] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._publishing = 0

    def start(self) -> None:
        started = asyncio.get_running_loop().time()
        self._publishing = self._wanted.publishers
        for _ in range(self._wanted.publishers):
            self._tasks.append(asyncio.create_task(self._publish_all(self._client(), started)))
        for _ in range(self._wanted.consumers):
            self._tasks.append(asyncio.create_task(self._consume_all(self._client())))

    def _client(self) -> _Client:
        self._clients.append(_Client(self._target, self._measurement))
        return self._clients[-1]

    @property
    def is_publishing(self) -> bool:
        return self._publishing > 0

    def check(self) -> None:
        """Raises what ended a connection unexpectedly."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients:
            client.close()

    async def _publish_all(self, client: _Client, started: float) -> None:
        loop, has_rate = asyncio.get_running_loop(), self._wanted.rate_per_second is not None
        end = started + self._wanted.seconds
        while (due := self._schedule.take()) is not None:
            now = loop.time()
            if started + due > now:
                await asyncio.sleep(started + due - now)
            elif now > end:  # what could not be sent in time is missing in the achieved rate
                break
            begun = started + due if has_rate else loop.time()
            if await client.send(self._publish) is not None:
                self._measurement.add_published((loop.time() - begun) * 1000)
        self._publishing -= 1

    async def _consume_all(self, client: _Client) -> None:
        while True:
            response = await client.send(self._pull)
            messages = _decode_pulled(response.body).messages if response is not None else []
            if messages:
                body = msgspec.json.encode({"receiptIds": [one.receipt_id for one in messages]})
                if await client.send(self._target.request(f"{self._path}/ack", body)) is not None:
                    self._measurement.add_consumed(len(messages))
