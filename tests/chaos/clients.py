"""Clients that work through whatever happens and tell the model what they asked for and what they were told."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from tests.chaos.model import Answers, Message, QueueModel, StreamModel
from tests.gateway import EventReader

LEASE_MS = 10_000
START = "-1"
_PAUSE = 0.05  # after a call that failed
_PACE = 0.01  # between calls: the machine has other work, and checking costs by what there is
_FAILURES = (aiohttp.ClientError, TimeoutError, OSError)
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the gateways answer, whose key is sent, and where it is noted what they said."""

    urls: tuple[str, ...]
    headers: dict[str, str]
    answers: Answers
    is_partitioned: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def end(self) -> str:
        return self.headers["stream-next-offset"]


class Line:
    """One client's connection. It goes to another gateway when one fails it, and now and then without a reason."""

    def __init__(self, endpoints: Endpoints, first: int = 0, *, moves_every: int = 25) -> None:
        self.endpoints, self._at, self._moves_every = endpoints, first % len(endpoints.urls), moves_every
        self._calls = 0
        connector = aiohttp.TCPConnector(limit=2)
        self._session = aiohttp.ClientSession(
            headers=endpoints.headers, timeout=aiohttp.ClientTimeout(total=30), connector=connector
        )

    async def close(self) -> None:
        await self._session.close()

    @property
    def url(self) -> str:
        return self.endpoints.urls[self._at]

    def move(self) -> None:
        self._at = (self._at + 1) % len(self.endpoints.urls)

    async def call(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer | None:
        """None if no answer came: it may have been carried out."""
        self._calls += 1
        sent = dict(headers or {})
        if self._calls % self._moves_every == 0:
            self.move()
            sent["Connection"] = "close"  # another worker may take the next one
        data = None if body is None else msgspec.json.encode(body)
        if data is not None:
            sent |= _JSON
        try:
            async with self._session.request(method, self.url + path, data=data, headers=sent) as answer:
                found = Answer(
                    answer.status, {name.lower(): value for name, value in answer.headers.items()}, await answer.read()
                )
        except _FAILURES as failure:
            self.endpoints.answers.unanswered[type(failure).__name__] += 1
            self.move()
            await asyncio.sleep(_PAUSE)
            return None
        self.endpoints.answers.record_response(f"{method} {path}", found.status, found.headers, _problem(found))
        if found.status in (502, 503, 507):
            self.move()
            await asyncio.sleep(_PAUSE)
        return found

    @asynccontextmanager
    async def events(self, path: str) -> AsyncIterator[EventReader]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        async with self._session.get(self.url + path, timeout=timeout) as answer:
            if answer.status != 200:
                raise aiohttp.ClientError(f"answered {answer.status}")
            yield EventReader(answer)


def _problem(answer: Answer) -> dict[str, Any]:
    if answer.status < 400:
        return {}
    try:
        found: dict[str, Any] = answer.json
    except msgspec.DecodeError:
        return {}
    return found


@dataclass(slots=True)
class Client:
    """Does one thing over and over until it is told to stop. `done` counts what was answered with a yes."""

    line: Line
    name: str
    done: int = 0
    is_stopping: bool = False

    async def run(self) -> None:
        while not self.is_stopping:
            await self.step()
            await asyncio.sleep(_PACE)

    async def step(self) -> None:
        raise NotImplementedError


@dataclass(slots=True)
class Publisher(Client):
    """With a key a message is sent until it is acknowledged; without one it is sent once."""

    queue: str = ""
    model: QueueModel = field(default_factory=QueueModel)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    has_key: bool = True

    async def step(self) -> None:
        number = next(self.numbers)
        self.model.sent(number, has_key=self.has_key)
        body: dict[str, object] = {"payload": number} | ({"idempotencyKey": f"{self.name}-{number}"} if self.has_key else {})
        while True:
            answer = await self.line.call("POST", f"/v1/queues/{self.queue}/messages", body)
            if answer is not None and answer.status == 201:
                self.model.stored(number)
                self.done += 1
            elif self.has_key and not self.is_stopping:
                continue
            return


@dataclass(slots=True)
class Worker(Client):
    """Pulls and acknowledges; an ack without an answer is repeated while the lease lasts, as the SDK does."""

    queue: str = ""
    model: QueueModel = field(default_factory=QueueModel)
    most: int = 20
    wait_ms: int = 500

    async def step(self) -> None:
        await self.work()

    async def work(self) -> int:
        """How many messages came."""
        known = set(self.model.acked)
        body = {"maxMessages": self.most, "visibilityTimeoutMs": LEASE_MS, "waitMs": self.wait_ms}
        answer = await self.line.call("POST", f"/v1/queues/{self.queue}/pull", body)
        messages = answer.json["messages"] if answer is not None and answer.status == 200 else []
        for message in messages:
            self.model.delivered(message["payload"], message["messageId"], known)
        if messages:
            await self._ack({message["receiptId"]: message["messageId"] for message in messages})
        return len(messages)

    async def _ack(self, leased: dict[str, str]) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + LEASE_MS / 1000
        while loop.time() < until:
            answer = await self.line.call("POST", f"/v1/queues/{self.queue}/ack", {"receiptIds": list(leased)})
            if answer is not None and answer.status == 200:
                for result in answer.json["results"]:
                    if result["ok"]:
                        self.model.settled(leased[result["receiptId"]])
                        self.done += 1
                return


@dataclass(slots=True)
class Appender(Client):
    """Numbered as a producer, an append is sent until it is acknowledged; plain, it is sent once."""

    path: str = ""  # of the stream, or of publishing to it
    model: StreamModel = field(default_factory=lambda: StreamModel(""))
    is_numbered: bool = True
    following: int = 0
    looks_every: int = 10
    last_end: str = START

    async def step(self) -> None:
        message, self.following = (self.name, self.following), self.following + 1
        self.model.sent(message)
        while True:
            answer = await self.line.call("POST", self.path, [message], self._headers(message))
            if answer is not None and answer.status in (200, 204):
                is_repeated = self.is_numbered and answer.status == 204
                self.model.stored(message, None if is_repeated else answer.end, is_numbered=self.is_numbered)
                self.done += 1
                if not is_repeated:
                    await self._inspect(message, answer.end)
            elif answer is not None and answer.status not in (502, 503, 507):
                self.model.refusals.append(f"{message} was answered {answer.status}: {answer.body.decode()}")
                self.is_stopping = True
            elif self.is_numbered and not self.is_stopping:
                continue
            return

    def _headers(self, message: Message) -> dict[str, str]:
        if not self.is_numbered:
            return {}
        return {"Producer-Id": self.name, "Producer-Epoch": "0", "Producer-Seq": str(message[1])}

    async def _inspect(self, message: Message, end: str) -> None:
        """Whoever was told that it is stored reads it, whichever gateway is asked, unless that one may be cut off."""
        before, self.last_end = self.last_end, end
        if self.following % self.looks_every or self.line.endpoints.is_partitioned():
            return
        answer = await self.line.call("GET", f"{self.path.replace('/publish/', '/stream/')}?offset={before}")
        if answer is None or answer.status != 200 or self.line.endpoints.is_partitioned():
            return
        if list(message) not in answer.json and "stream-up-to-date" in answer.headers:
            self.model.stale.append(message)


@dataclass(slots=True)
class Follower(Client):
    """Follows a stream live through whatever happens, resuming at the last offset it was told."""

    path: str = ""
    offset: str = START
    seen: list[Any] = field(default_factory=list)
    pending: list[Any] = field(default_factory=list)

    async def run(self) -> None:
        while not self.is_stopping:
            self.pending = []  # what came without an offset comes again
            try:
                async with self.line.events(f"{self.path}?offset={self.offset}&live=sse") as reader:
                    while (event := await reader.next(60)) is not None:
                        self._take(event.event, event.json)
            except _FAILURES:
                self.line.move()
                await asyncio.sleep(_PAUSE)

    def _take(self, event: str, data: Any) -> None:
        if event == "data":
            self.pending += data
        elif event == "control":
            self.seen += self.pending
            self.done += len(self.pending)
            self.pending = []
            self.offset = data["streamNextOffset"]


async def read_all(line: Line, path: str, seconds: float = 60) -> list[Any]:
    """Everything that is in a stream."""
    found: list[Any] = []
    offset = START
    async with asyncio.timeout(seconds):
        while True:
            answer = await line.call("GET", f"{path}?offset={offset}")
            if answer is None or answer.status != 200:
                continue
            found += answer.json
            offset = answer.end
            if answer.headers.get("stream-up-to-date") == "true":
                return found
