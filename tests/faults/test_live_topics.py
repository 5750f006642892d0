"""kill -9 of workers and of the engine while 200 clients read a topic live, over server-sent events and WebSockets: each
receives each message once, in order."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.faults.conftest import Install
from tests.faults.test_topics import TOPIC, Publishers, kill_engine, kill_worker
from tests.installation import Installation
from tests.waiting import eventually

READERS = 100  # of each kind


class Reader:
    """Reads live, and resumes after the last event when a connection breaks, as EventSource does."""

    def __init__(self, running: Installation) -> None:
        self._running = running
        self._last_event_id: str | None = None
        self.messages: list[tuple[int, int]] = []  # sequence and number
        self.others: list[str] = []  # other events than `ready`
        self.connections = 0

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=45)
        while True:
            try:
                async with aiohttp.ClientSession(self._running.url, headers=self._running.headers, timeout=timeout) as session:
                    await self._read(session)
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(0.05)

    async def _read(self, session: aiohttp.ClientSession) -> None:
        headers = {} if self._last_event_id is None else {"Last-Event-ID": self._last_event_id}
        async with session.get(f"{TOPIC}/stream?fromSequence=1", headers=headers) as answer:
            if answer.status != 200:
                return
            self.connections += 1
            fields: dict[str, str] = {}
            while line := await answer.content.readline():
                if line != b"\n":
                    name, _, value = line.decode().rstrip("\n").partition(": ")
                    fields[name] = value
                    continue
                self._on_event(fields)
                fields = {}

    def _on_event(self, fields: dict[str, str]) -> None:
        self._last_event_id = fields.get("id", self._last_event_id)
        if fields.get("event") == "message":
            data: dict[str, Any] = msgspec.json.decode(fields["data"])
            self.messages.append((data["sequence"], data["payload"]))
        elif fields.get("event") not in (None, "ready"):
            self.others.append(fields["event"])


class SocketReader(Reader):
    """Reads over a WebSocket, and resumes after the last `id`."""

    async def _read(self, session: aiohttp.ClientSession) -> None:
        start = {"fromSequence": 1} if self._last_event_id is None else {"after": self._last_event_id}
        async with session.ws_connect("/v1/ws", protocols=["postroad.v1"]) as socket:
            self.connections += 1
            await socket.send_json({"op": "subscribe", "ref": "a", "topic": "orders", **start})
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    self._on_message(msgspec.json.decode(message.data))

    def _on_message(self, message: dict[str, Any]) -> None:
        if message["op"] == "error":
            assert message["problem"]["retryable"], message
            raise aiohttp.ClientError("refused for now")
        if message["op"] != "subscribed":
            self._last_event_id = message["id"]
        if message["op"] == "message":
            self.messages.append((message["sequence"], message["payload"]))
        elif message["op"] not in ("subscribed", "ready", "position"):
            self.others.append(message["op"])


@pytest.mark.parametrize("kill", [kill_engine, kill_worker])
async def test_live_readers_receive_each_message_once_across_kills(
    install: Install, kill: Callable[[Installation], None]
) -> None:
    running = await install().start().ready()
    async with (
        aiohttp.ClientSession(running.url, headers=running.headers) as session,
        session.put(TOPIC, json={}) as made,
    ):
        assert made.status == 201
    readers = [kind(running) for kind in (Reader, SocketReader) for _ in range(READERS)]
    reading = [asyncio.create_task(reader.run()) for reader in readers]
    publishers, stop = Publishers(running), asyncio.Event()
    publishing = [asyncio.create_task(publishers.publish(stop)) for _ in range(4)]
    try:
        await eventually(lambda: min(len(reader.messages) for reader in readers) > 20, 60)
        for _ in range(2):
            kill(running)
            more = len(publishers.acknowledged) + 50
            await eventually(partial(lambda count: len(publishers.acknowledged) > count, more), 60)
        stop.set()
        await asyncio.gather(*publishing)
        last = max(publishers.acknowledged.values())
        await eventually(lambda: all(reader.messages[-1][0] >= last for reader in readers), 60)
    finally:
        stop.set()
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)

    for reader in readers:
        assert [sequence for sequence, _ in reader.messages] == list(range(1, len(reader.messages) + 1)), "once and in order"
        assert reader.others == []
        numbers = {number: sequence for sequence, number in reader.messages}
        assert {number: numbers.get(number) for number in publishers.acknowledged} == publishers.acknowledged
    assert max(reader.connections for reader in readers) > 1 or kill is kill_engine
