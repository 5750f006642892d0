"""A replay with kill -9 of its task, a gateway, the engine and the pipeline: each selected command is delivered once for it.

The pipeline is the real one: archive, selection, replay. COMMANDS=10000 for the full size (docs/faults.md).
"""

import os
import signal
from collections import Counter
from typing import Any

import aiohttp
import msgspec
import pytest

from postroad.client.command_signer import NewCommand, envelope
from postroad.jetstream.connection import Connection
from tests.faults.conftest import Install
from tests.faults.test_commands import register
from tests.gateway import events_of
from tests.installation import Installation
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pipeline"), pytest.mark.timeout(1500)]

COMMANDS = int(os.environ.get("COMMANDS", "600"))
REASONS = ("acl-deny", "route-missing", "delivery-failure")


class Operator:
    """A client of an installation that may lose its connection at any time."""

    def __init__(self, running: Installation) -> None:
        self._running = running

    async def call(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        """The response, once there is one that is not an error of the server."""

        async def attempt() -> tuple[int, Any] | None:
            timeout = aiohttp.ClientTimeout(total=20)
            try:
                async with (
                    aiohttp.ClientSession(
                        self._running.url, headers={**self._running.headers, **headers}, timeout=timeout
                    ) as one,
                    one.request(method, path, json=body) as answer,
                ):
                    text = await answer.read()
                    return (answer.status, msgspec.json.decode(text) if text else None) if answer.status < 500 else None
            except (aiohttp.ClientError, TimeoutError):
                return None

        status, found = await eventually(attempt, 120) or (0, None)
        assert status < 300, (method, path, status, found)
        return found

    async def send(self, secret: str, name: str, numbers: range) -> dict[str, int]:
        """Send a command for each number; return the numbers by command id."""
        commands = [NewCommand(target="bot", name=name, payload=number) for number in numbers]
        for start in range(0, len(commands), 100):
            bodies = [msgspec.Raw(envelope(one, secret, "hmac-v1")) for one in commands[start : start + 100]]
            body = msgspec.json.decode(msgspec.json.encode({"commands": bodies}))
            await self.call("POST", "/v1/commands/batch", body, **{"X-Postroad-Service": "sender"})
        return {one.id: int(one.payload) for one in commands}

    async def replayed(self, queue: str, replay: str) -> list[dict[str, Any]]:
        """The messages of the replay in a queue."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = await self.call("GET", f"/v1/queues/{queue}/messages?limit=1000&header=Snavio-Replay-Id={replay}{cursor}")
            found += page["messages"]
            if page["nextCursor"] is None:
                return found
            cursor = f"&cursor={page['nextCursor']}"

    async def reached(self, replay: str, *states: str, sent: int = 0, seconds: float = 300) -> dict[str, Any]:
        async def check() -> dict[str, Any] | None:
            found = await self.call("GET", f"/v1/replays/{replay}")
            return found if found["state"] in states and found["counts"]["sent"] >= sent else None

        return await eventually(check, seconds) or {}


async def _events(running: Installation) -> list[dict[str, Any]]:
    connection = Connection(running.engine)
    await connection.open()
    try:
        return await events_of(connection, "COMMANDS", "default")
    finally:
        await connection.close()


async def _prepare(operator: Operator, secret: str) -> dict[str, int]:
    """Commands of which a third fails, for three reasons; then the causes are removed. Returns those that failed."""
    failing = COMMANDS // 9
    await operator.call("PUT", "/v1/queues/late", {"maxAttempts": 5})
    await operator.call("PUT", "/v1/queues/gone", {"maxAttempts": 5})
    await operator.call("PUT", "/v1/routes/bot/denied", {"queue": "late"})
    await operator.call("PUT", "/v1/routes/bot/lost", {"queue": "gone"})
    await operator.call("PUT", "/v1/grants/bot/lost/sender", {})
    await operator.call("DELETE", "/v1/queues/gone")
    await operator.send(secret, "post", range(COMMANDS - 3 * failing))
    failed: dict[str, int] = {}
    for number, name in enumerate(("denied", "missing", "lost")):
        failed |= await operator.send(secret, name, range(number * failing, (number + 1) * failing))
    await operator.call("PUT", "/v1/grants/bot/denied/sender", {})
    await operator.call("PUT", "/v1/routes/bot/missing", {"queue": "late"})
    await operator.call("PUT", "/v1/grants/bot/missing/sender", {})
    await operator.call("PUT", "/v1/queues/gone", {"maxAttempts": 5})
    return failed


def _kill(pids: list[int]) -> None:
    for pid in pids[:1]:
        os.kill(pid, signal.SIGKILL)


async def test_each_selected_command_is_delivered_once_whatever_is_killed(install: Install) -> None:
    """Requirements 4, 21, 233, 235, 237"""
    running = await install(POSTROAD_PIPELINE="true", POSTROAD_PIPELINE_SECONDS="2").start().ready(120)
    operator = Operator(running)
    failed = await _prepare(operator, await register(running))

    selection = {"from": "2020-01-01T00:00:00Z", "outcomes": ["failed"], "reasons": list(REASONS)}
    body = {"selection": selection, "reason": "the bot was moved", "ratePerSecond": max(20, len(failed) // 10), "dryRun": True}
    replay = (await operator.call("POST", "/v1/replays", body))["id"]
    _kill(running.children("pipeline"))  # 1
    selected = await operator.reached(replay, "selected")
    assert selected["counts"]["selected"] == len(failed)

    await operator.call("POST", f"/v1/replays/{replay}/resume")
    control = "postroad.runtime.worker control"
    for step, word in enumerate((control, "postroad.runtime.worker gateway", "nats-server", control), 1):
        await operator.reached(replay, "running", "done", sent=len(failed) * step // 6)
        _kill(running.children(word))
    done = await operator.reached(replay, "done")

    counts = done["counts"]
    assert (counts["delivered"], counts["refused"], counts["duplicates"]) == (len(failed), {}, 0)
    assert (counts["selected"], counts["sent"], counts["remaining"]) == (len(failed), len(failed), 0)
    delivered = [*await operator.replayed("late", replay), *await operator.replayed("gone", replay)]
    assert {one["headers"]["Snavio-Command-Id"]: one["payload"] for one in delivered} == failed
    assert len(delivered) == len(failed), "each of them once"

    events = await _events(running)
    mine = [one for one in events if one["event"] == "snavio.command.delivered" and one["replay"]]
    assert {(one["replay_id"], one["replay_reason"]) for one in mine} == {(replay, "the bot was moved")}
    by_command: dict[str, set[str]] = {}
    for one in mine:
        by_command.setdefault(one["command_id"], set()).add(one["event_id"])
    assert Counter(len(ids) for ids in by_command.values()) == {1: len(failed)}, "one event, however often it is stored"
    assert "snavio.command.replayed" not in {one["event"] for one in events}
