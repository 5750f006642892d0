"""The archive is complete: with kill -9 of gateway, engine and pipeline, the lake has each answered command, byte for byte.

The pipeline is the real one. COMMANDS=10000 for the full size (docs/faults.md).
"""

import asyncio
import os
import random
import signal
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from postroad.jetstream.connection import Connection
from postroad.telemetry.frames import unpack_archived
from tests.commands.senders import envelope
from tests.faults.conftest import Install
from tests.faults.test_commands import register
from tests.gateway import frames_of
from tests.installation import Installation
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pipeline"), pytest.mark.timeout(900)]

COMMANDS = int(os.environ.get("COMMANDS", "500"))
CLIENTS = 8
OUTCOMES = {202: ("delivered", None), 403: ("failed", "acl-deny"), 404: ("failed", "route-missing")}


@dataclass(frozen=True, slots=True)
class Answered:
    """A command that got its response, as the client knows it."""

    outcome: str
    reason: str | None
    payload: str
    attempts: int


class Traffic:
    """Seeded commands of which some are refused; each is signed again and sent until it has its response."""

    def __init__(self, running: Installation, secret: str, seed: int) -> None:
        self._running, self._secret, self._chance = running, secret, random.Random(seed)
        self.answered: dict[str, Answered] = {}
        self._left = iter(range(COMMANDS))

    async def send(self) -> None:
        headers = {**self._running.headers, "X-Postroad-Service": "sender", "Content-Type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=20)
        async with aiohttp.ClientSession(self._running.url, headers=headers, timeout=timeout) as session:
            for number in self._left:
                name = self._chance.choice(["post", "post", "post", "denied", "missing"])
                await self._send_one(session, str(uuid.UUID(int=self._chance.getrandbits(128), version=4)), name, number)

    async def _send_one(self, session: aiohttp.ClientSession, command_id: str, name: str, number: int) -> None:
        spaces = self._chance.choice(["", " ", "\n\t", "  \r\n"])
        payload = f'{{{spaces}"n":{spaces}{number}, "f": 1.50e1,{spaces}"t": "é\\u00e9\\n{"x" * self._chance.randrange(300)}"}}'
        for attempt in range(1, 1000):
            body = msgspec.json.encode(envelope(self._secret, name=name, payload=payload.encode(), command_id=command_id))
            try:
                async with session.post("/v1/commands", data=body) as answer:
                    if answer.status in OUTCOMES:
                        self.answered[command_id] = Answered(*OUTCOMES[answer.status], payload, attempt)
                        return
                    assert answer.status in (500, 502, 503), await answer.text()
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(0.05)


async def _archived_ids(running: Installation) -> set[str]:
    """The ids of the archived lines on the stream."""
    connection = Connection(running.engine)
    await connection.open()
    try:
        frames = await frames_of(connection, "COMMANDS", "default")
    finally:
        await connection.close()
    lines = [line for frame in frames for _, line in unpack_archived(frame) if line is not None]
    return {msgspec.json.decode(line)["event_id"] for line in lines}


def _rows(lake: Path) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = DeltaTable(str(lake / "commands")).to_pyarrow_table().to_pylist()
    except TableNotFoundError:
        return []
    return found


def _kill(pids: list[int]) -> None:
    for pid in pids[:1]:
        os.kill(pid, signal.SIGKILL)


async def test_the_lake_has_each_answered_command_with_its_payload(install: Install, tmp_path: Path) -> None:
    """Requirements 4, 21"""
    lake = tmp_path / "lake"
    running = await install(POSTROAD_PIPELINE="true", POSTROAD_PIPELINE_SECONDS="2", POSTROAD_LAKE=str(lake)).start().ready(120)
    secret = await register(running)
    async with aiohttp.ClientSession(running.url, headers=running.headers) as session:
        for path, body in (("/v1/queues/other", {"maxAttempts": 3}), ("/v1/routes/bot/denied", {"queue": "other"})):
            async with session.put(path, json=body) as answer:
                assert answer.status == 201, await answer.text()
    traffic = Traffic(running, secret, 24)
    sending = [asyncio.create_task(traffic.send()) for _ in range(CLIENTS)]
    gateway, pipeline = "postroad.runtime.worker gateway", "pipeline"
    for step, word in enumerate((gateway, "nats-server", pipeline, gateway, pipeline), 1):
        await eventually(lambda: len(traffic.answered) >= COMMANDS * step // 6, 300)  # noqa: B023
        if word == pipeline:  # while it works, not while it starts
            await eventually(lambda: len(_rows(lake)) > 0, 300)
        _kill(running.children(word))
    await asyncio.gather(*sending)
    assert len(traffic.answered) == COMMANDS

    stored = await _archived_ids(running)
    await eventually(lambda: len(_rows(lake)) >= len(stored), 300)
    rows = _rows(lake)
    assert Counter(row["event_id"] for row in rows) == Counter(stored), "each line of the stream is one row"
    by_id: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_id.setdefault(row["command_id"], []).append(row)
    assert by_id.keys() == traffic.answered.keys()
    for command_id, answered in traffic.answered.items():
        found = by_id[command_id]
        assert {(one["outcome"], one["reason"]) for one in found} == {(answered.outcome, answered.reason)}
        assert {one["payload"] for one in found} == {answered.payload}, "byte for byte"
        assert 1 <= len(found) <= answered.attempts, "one for each attempt that the installation answered"
    single = [one for one in traffic.answered.values() if one.attempts == 1]
    assert len(single) > COMMANDS // 2 and len(rows) >= COMMANDS
