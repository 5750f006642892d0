"""The JavaScript module for live reading in Node.js, with the WebSocket client `ws`, against a whole installation."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.conftest import Project
from tests.node import NODE

HERE = Path(__file__).parent
SIZE_MAX = 6 * 1024


class NodeReader:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(120):
            return (await self._process.stdout.readline()).decode().strip()

    async def result(self) -> dict[str, Any]:
        text = await self.line()
        while text == "ready":
            text = await self.line()
        await self._process.wait()
        found: dict[str, Any] = json.loads(text)
        return found


async def start(project: Project, topic: str, count: int, mode: str, from_sequence: int | None = None) -> NodeReader:
    key = project.client.headers["Authorization"].split()[1]
    given = (project.client.url, key, topic, str(count), mode, "" if from_sequence is None else str(from_sequence))
    return NodeReader(
        await asyncio.create_subprocess_exec(NODE, str(HERE / "live_client.mjs"), *given, stdout=asyncio.subprocess.PIPE)
    )


async def fill(project: Project, count: int) -> None:
    messages = [{"subject": "a.b", "payload": number} for number in range(count)]
    (await project.client.post("/v1/topics/orders/messages/batch", {"messages": messages})).ok()


@pytest.fixture
async def topic(project: Project) -> str:
    (await project.client.put("/v1/topics/orders", {})).ok(201)
    return "orders"


async def test_the_module_is_small_and_has_types(project: Project) -> None:
    script = await project.client.get("/postroad-live.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert len(gzip.compress(script.body)) < SIZE_MAX
    assert b"export class Live" in (await project.client.get("/postroad-live.d.ts")).body


@pytest.mark.parametrize("mode", ["socket", "flaky", "events", "slow"])
async def test_each_message_arrives_once_and_in_order(project: Project, topic: str, mode: str) -> None:
    await fill(project, 30)
    reader = await start(project, topic, 100, mode, from_sequence=1)
    assert await reader.line() == "ready"
    for _ in range(7):
        await fill(project, 10)
    found = await reader.result()
    assert found["sequences"] == list(range(1, 101))
    assert set(found["transports"]) == {"events" if mode == "events" else "websocket"}
    assert mode != "flaky" or found["sockets"] >= 2, "it connected again"
    assert {"gap", "reset"}.isdisjoint(found["notices"])


async def test_after_an_outage_a_reader_connects_by_websocket_again(project: Project, topic: str) -> None:
    """However long it was: requests fail, too, while the server is away."""
    await fill(project, 30)
    reader = await start(project, topic, 100, "outage", from_sequence=1)
    assert await reader.line() == "ready"
    for _ in range(7):
        await fill(project, 10)
    found = await reader.result()
    assert found["sequences"] == list(range(1, 101))
    assert found["transports"] == ["websocket", "websocket"] and found["sockets"] >= 7


async def test_a_reader_returns_to_websocket_when_that_gets_through(project: Project, topic: str) -> None:
    await fill(project, 30)
    reader = await start(project, topic, 100, "returned", from_sequence=1)
    assert await reader.line() == "ready"
    await fill(project, 30)
    assert await reader.line() == "returned"
    await fill(project, 40)
    found = await reader.result()
    assert found["sequences"] == list(range(1, 101))
    assert found["transports"] == ["events", "websocket"]


async def test_a_subscription_after_the_last_one_connects_at_once(project: Project, topic: str) -> None:
    """The socket that is closing is not used, and its end is no failure."""
    await fill(project, 3)
    found = await (await start(project, topic, 3, "again", from_sequence=1)).result()
    assert found["sequences"] == [1, 2, 3, 1]
    assert found["sockets"] == 2 and found["disconnected"] == 0


async def test_a_subscription_that_was_to_be_repeated_is_not_repeated_on_the_next_connection(
    project: Project, topic: str
) -> None:
    await fill(project, 10)
    reader = await start(project, topic, 20, "retried", from_sequence=1)
    assert await reader.line() == "ready"
    await fill(project, 10)
    found = await reader.result()
    assert "problem" not in found and found["sequences"] == list(range(1, 21)) and found["sockets"] == 2


async def test_a_token_is_renewed_before_it_expires(project: Project, topic: str) -> None:
    reader = await start(project, topic, 1, "renewed")
    assert await reader.line() == "ready"
    await asyncio.sleep(4)  # longer than the first token is valid
    await fill(project, 1)
    found = await reader.result()
    assert (found["sequences"], found["sockets"], found["tokens"]) == ([1], 1, 2)


async def test_gaps_resets_and_refusals_are_reported(project: Project, topic: str) -> None:
    (await project.client.patch("/v1/topics/orders", {"maxMessages": 5})).ok()
    await fill(project, 20)
    found = await (await start(project, topic, 5, "socket", from_sequence=1)).result()
    assert (found["sequences"], found["notices"][0]) == ([16, 17, 18, 19, 20], "gap")
    found = await (await start(project, topic, 5, "socket", from_sequence=99)).result()
    assert (found["sequences"], found["notices"][0]) == ([16, 17, 18, 19, 20], "reset")
    assert (await (await start(project, "missing", 1, "socket")).result())["problem"] == "topic-not-found"
    assert (await (await start(project, "missing", 1, "events")).result())["problem"] == "topic-not-found"
