"""Clients of streams that record their requests and responses, for comparison with the streams."""

import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.gateway import EventReader

JSON = {"Content-Type": "application/json"}
ZERO = "-1"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]

    @property
    def next_offset(self) -> str:
        return self.headers["stream-next-offset"]


class Caller:
    """One connection to one stream. Returns responses of any status; connection errors are raised.

    Every `renews_every` calls it opens a new connection, possibly to another worker.
    """

    def __init__(self, url: str, headers: dict[str, str], name: str, renews_every: int = 0) -> None:
        self.name = name
        self._renews_every, self._calls = renews_every, 0
        self._url = f"{url}/v1/stream/{name}"
        connector = aiohttp.TCPConnector(limit=1)
        self._session = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=20), connector=connector)

    async def __aenter__(self) -> "Caller":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def create(self) -> Answer:
        return await self._call("PUT", JSON)

    async def delete(self) -> Answer:
        return await self._call("DELETE")

    async def close(self) -> Answer:
        return await self._call("POST", {"Stream-Closed": "true"})

    async def append(self, message: object, headers: dict[str, str] | None = None) -> Answer:
        return await self._call("POST", {**JSON, **(headers or {})}, message)

    async def _call(self, method: str, headers: dict[str, str] | None = None, message: object = None) -> Answer:
        self._calls += 1
        if self._renews_every and self._calls % self._renews_every == 0:
            headers = {**(headers or {}), "Connection": "close"}
        body = {} if message is None else {"json": [message]}  # an array that is sent is a list of messages
        async with self._session.request(method, self._url, headers=headers, **body) as answer:  # type: ignore[arg-type]
            await answer.read()
            return Answer(answer.status, {name.lower(): value for name, value in answer.headers.items()})

    async def read(self, offset: str = ZERO) -> tuple[list[Any], str]:
        """Data from the offset and the end of the stream. Raises AssertionError unless the status is 200."""
        found: list[Any] = []
        while True:
            async with self._session.get(self._url, params={"offset": offset}) as answer:
                assert answer.status == 200, (answer.status, await answer.text())
                found += await answer.json()
                offset = answer.headers["Stream-Next-Offset"]
                if answer.headers.get("Stream-Up-To-Date") == "true":
                    return found, offset

    async def events(self, offset: str, take: Callable[[str, Any], None]) -> None:
        """Pass live events to `take` until the connection ends."""
        timeout = aiohttp.ClientTimeout(total=None)
        parameters = {"offset": offset, "live": "sse"}
        async with self._session.get(self._url, params=parameters, timeout=timeout) as answer:
            if answer.status != 200:
                raise aiohttp.ClientError(f"answered {answer.status}")
            reader = EventReader(answer)
            while (event := await reader.next(60)) is not None:
                take(event.event, event.json)


def producer_headers(name: str, number: int, epoch: int = 0) -> dict[str, str]:
    return {"Producer-Id": name, "Producer-Epoch": str(epoch), "Producer-Seq": str(number)}


class Producer:
    """Appends 0, 1, 2 … with its name, repeating each until it succeeds: repetitions must not be stored."""

    def __init__(self, caller: Caller, name: str, refused: Counter[int]) -> None:
        self._caller, self.name, self._refused = caller, name, refused
        self.acknowledged = 0
        self.repeated = 0
        self.ends: dict[int, str] = {}

    async def run(self, count: int) -> None:
        for number in range(count):
            answer = await self._append(number)
            self.acknowledged += 1
            if answer.status == 200:
                self.ends[number] = answer.next_offset
            else:
                self.repeated += 1

    async def _append(self, number: int) -> Answer:
        while True:
            try:
                answer = await self._caller.append([self.name, number], producer_headers(self.name, number))
                if answer.status in (200, 204):
                    return answer
                self._refused[answer.status] += 1
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(0.02)


class Follower:
    """Follows a stream live and reconnects at the last received offset."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._offset = ZERO
        self._pending: list[Any] = []
        self.seen: list[Any] = []
        self.connections = 0

    async def run(self) -> None:
        while True:
            self._pending = []  # data without an offset is read again
            self.connections += 1
            try:
                await self._caller.events(self._offset, self._take)
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(0.02)

    def _take(self, event: str, data: Any) -> None:
        if event == "data":
            self._pending += data
        elif event == "control":
            self.seen += self._pending
            self._pending = []
            self._offset = data["streamNextOffset"]


class Watcher:
    """Reads in steps and records the number of messages before each offset."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.seen: list[Any] = []
        self.marks: list[tuple[str, int]] = [(ZERO, 0)]

    async def run(self) -> None:
        while True:
            try:
                found, offset = await self._caller.read(self.marks[-1][0])
            except (aiohttp.ClientError, TimeoutError, AssertionError):
                await asyncio.sleep(0.02)
                continue
            if found:
                self.seen += found
                self.marks.append((offset, len(self.seen)))
            await asyncio.sleep(0.1)


# Concurrent writers of one stream


Message = tuple[str, int]
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One append of a writer. A writer numbers its attempts across all incarnations of the stream."""

    message: Message
    asked: Span
    answer: Answer
    is_stored: bool


@dataclass(slots=True)
class Incarnation:
    """One incarnation of a stream: when its creation and deletion were requested and confirmed, and its final content."""

    created: Span
    closed: Span | None = None
    deleted: Span | None = None
    found: list[Message] | None = None


class SharedStream:
    """A stream that is deleted and created again while several writers append, each over its own connections.

    No process is killed here, so every append has a response and the stored messages are known exactly.
    """

    def __init__(self, url: str, headers: dict[str, str], name: str, *, is_steady: bool) -> None:
        self._url, self._headers, self.name, self._is_steady = url, headers, name, is_steady
        self.incarnations: list[Incarnation] = []
        self.attempts: list[Attempt] = []
        self.has_ended = False

    def caller(self) -> Caller:
        return Caller(self._url, self._headers, self.name, renews_every=10)

    # Incarnations

    async def begin(self, caller: Caller) -> None:
        asked, _ = await _timed(caller.create(), 201)
        self.incarnations.append(Incarnation(asked))

    async def end(self, caller: Caller, *, is_closed_first: bool) -> None:
        """Close the stream, read it and delete it; or delete it open."""
        incarnation = self.incarnations[-1]
        if is_closed_first:
            incarnation.closed, answer = await _timed(caller.close(), 204)
            await self.read(caller)
            assert await caller.read(answer.next_offset) == ([], answer.next_offset), (
                "the end is the offset in the response of the close"
            )
        incarnation.deleted, _ = await _timed(caller.delete(), 204)

    async def read(self, caller: Caller) -> None:
        found, _ = await caller.read()
        self.incarnations[-1].found = [(writer, number) for writer, number in found]

    # Writers

    async def write_unguarded(self, writer: str) -> None:
        async with self.caller() as caller:
            for number in itertools.count():
                if self.has_ended:
                    return
                await self._attempt(caller, (writer, number), {}, stored=204)

    async def write_concurrently(self, writer: str) -> None:
        """Two connections send each append of one producer at the same time, like a client that retries too early."""
        await self._race(writer, lambda seq: producer_headers(writer, seq), stored=200, expected=[200, 204])

    async def write_with_seq(self, writer: str) -> None:
        """Two connections send the same Stream-Seq at the same time: one of them is refused."""
        await self._race(writer, lambda seq: {"Stream-Seq": f"{seq:08}"}, stored=204, expected=[204, 409])

    async def _race(self, writer: str, headers: Callable[[int], dict[str, str]], *, stored: int, expected: list[int]) -> None:
        """Append one after the other; the sequence starts at 0 in each incarnation."""
        seq, incarnation = 0, 1
        async with self.caller() as one, self.caller() as other:
            for number in itertools.count():
                if self.has_ended:
                    return
                if len(self.incarnations) != incarnation:
                    seq, incarnation = 0, len(self.incarnations)
                statuses = await asyncio.gather(
                    self._attempt(one, (f"{writer}.one", number), headers(seq), stored),
                    self._attempt(other, (f"{writer}.other", number), headers(seq), stored),
                )
                assert not self._is_steady or sorted(statuses) == expected, (self.name, writer, number, statuses)
                seq += 1

    async def write_in_flight(self, writer: str, width: int = 4) -> None:
        """A producer with several appends in flight: one that arrives before its predecessor is refused and repeated."""
        numbers = itertools.count()

        async def send() -> None:
            async with self.caller() as caller:
                while not self.has_ended:
                    message = writer, next(numbers)
                    while await self._attempt(caller, message, producer_headers(*message), stored=200) != 200:
                        pass

        async with asyncio.TaskGroup() as senders:
            for _ in range(width):
                senders.create_task(send())

    async def _attempt(self, caller: Caller, message: Message, headers: dict[str, str], stored: int) -> int:
        asked, answer = await _timed(caller.append(message, headers), 200, 204, 404, 409)
        self.attempts.append(Attempt(message, asked, answer, answer.status == stored))
        if answer.status == 404 or "stream-closed" in answer.headers:
            assert not self._is_steady, (self.name, message, answer)
            await asyncio.sleep(0.005)
        return answer.status

    # Checks

    def check(self) -> None:
        for incarnation in self.incarnations:
            self._check_refusals(incarnation)
            if incarnation.found is not None:
                self._check_content(incarnation, incarnation.found)
        stored = [attempt.message for attempt in self.attempts if attempt.is_stored]
        assert len(set(stored)) == len(stored)
        if all(incarnation.found is not None for incarnation in self.incarnations):
            everything = [message for incarnation in self.incarnations for message in incarnation.found or ()]
            assert sorted(everything) == sorted(stored), "exactly the acknowledged appends are stored, each in one incarnation"

    def _check_content(self, incarnation: Incarnation, found: list[Message]) -> None:
        sent = {attempt.message: attempt for attempt in self.attempts if attempt.is_stored}
        begins, begun = incarnation.created
        ends, ended = incarnation.closed or incarnation.deleted or (math.inf, math.inf)
        messages = set(found)
        assert len(messages) == len(found), "nothing is stored twice"
        for message in found:
            asked, answered = sent[message].asked
            assert answered > begins and asked < ended, f"{message} belongs to another incarnation"
        for attempt in sent.values():
            if begun < attempt.asked[0] and attempt.asked[1] < ends:
                assert attempt.message in messages, f"{attempt.message} is missing"
        for writer in {writer_of(message) for message in messages}:
            numbers = [message[1] for message in found if writer_of(message) == writer]
            assert all(before < after for before, after in itertools.pairwise(numbers)), f"the order of {writer}"

    def _check_refusals(self, incarnation: Incarnation) -> None:
        following = self.incarnations[self.incarnations.index(incarnation) + 1 :]
        for attempt in self.attempts:
            asked, answered = attempt.asked
            if incarnation.closed and incarnation.deleted and incarnation.closed[1] < asked and answered < incarnation.deleted[0]:
                assert attempt.answer.status == 409 and attempt.answer.headers["stream-closed"] == "true", attempt
            if incarnation.deleted and following and incarnation.deleted[1] < asked and answered < following[0].created[0]:
                assert attempt.answer.status == 404, attempt


def writer_of(message: Message) -> str:
    """Both connections of a race count as one writer: one append of each number is stored."""
    return message[0].partition(".")[0]


async def _timed(work: Awaitable[Answer], *statuses: int) -> tuple[Span, Answer]:
    asked = time.monotonic()
    answer = await work
    assert answer.status in statuses, answer
    return (asked, time.monotonic()), answer
