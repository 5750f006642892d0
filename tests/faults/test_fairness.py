"""A noisy sender beside two quiet ones: from its events to a ban on every gateway, and to its end, also if processes die."""

import asyncio
import os
import signal
import time
from typing import Any

import aiohttp
import pytest

from postroad.client.command_signer import NewCommand, envelope
from postroad.jetstream.connection import Connection
from tests.faults.conftest import Install
from tests.gateway import events_of
from tests.installation import Installation
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pipeline"), pytest.mark.timeout(1500)]

NOISY, QUIET = "noisy", ("calm", "silent")
BAN_SECONDS = 150
SETTINGS = {
    "POSTROAD_PIPELINE": "true",
    "POSTROAD_PIPELINE_SECONDS": "3",
    "POSTROAD_WORKERS": "2",
    "POSTROAD_AUDITOR_BAN_SECONDS": str(BAN_SECONDS),
}


class Senders:
    """Services of one tenant that send the same command."""

    def __init__(self, running: Installation, secrets: dict[str, str]) -> None:
        self._running, self._secrets = running, secrets

    async def send(self, service: str, count: int = 1) -> list[str]:
        """Paths of commands, each over a connection of its own, so that both workers get some."""
        return [await self._send(service) for _ in range(count)]

    async def _send(self, service: str) -> str:
        headers = {**self._running.headers, "X-Postroad-Service": service, "Content-Type": "application/json"}
        body = envelope(NewCommand(target="bot", name="post", payload=1), self._secrets[service], "hmac-v1")
        async with (
            aiohttp.ClientSession(self._running.url, headers=headers) as session,
            session.post("/v1/commands", data=body) as answer,
        ):
            assert answer.status == 202, await answer.text()
            path: str = (await answer.json())["path"]
            return path


async def register(running: Installation) -> Senders:
    async with aiohttp.ClientSession(running.url, headers=running.headers) as session:

        async def put(path: str, **body: object) -> None:
            async with session.put(path, json=body) as answer:
                assert answer.status in (200, 201), await answer.text()

        async with session.get("/v1/whoami") as answer:
            key_id = (await answer.json())["keyId"]
        await put("/v1/services/bot")
        await put("/v1/queues/bot", maxAttempts=5)
        await put("/v1/routes/bot/post", queue="bot")
        for service in (NOISY, *QUIET):
            await put(f"/v1/services/{service}", trustedKeys=[key_id])
            await put(f"/v1/grants/bot/post/{service}")
        async with session.get("/v1/tenant-config") as answer:
            services = (await answer.json())["services"]
    return Senders(running, {one["name"]: one["secrets"][0]["secret"] for one in services})


async def command_events(running: Installation) -> list[dict[str, Any]]:
    connection = Connection(running.engine)
    await connection.open()
    try:
        return await events_of(connection, "COMMANDS", "default")
    finally:
        await connection.close()


async def bans(running: Installation) -> list[dict[str, Any]]:
    async with aiohttp.ClientSession(running.url, headers=running.headers) as session, session.get("/v1/bans") as answer:
        if answer.status != 200:  # the engine is away
            return []
        found: list[dict[str, Any]] = (await answer.json())["bans"]
        return found


async def dominate_a_minute(senders: Senders) -> None:
    """All commands in one minute: nine of ten by the noisy sender."""
    if time.time() % 60 > 25:
        await asyncio.sleep(60 - time.time() % 60)  # not for a fixed time: until the next minute
    await asyncio.gather(*(senders.send(NOISY, 15) for _ in range(6)), *(senders.send(service, 5) for service in QUIET))


@pytest.mark.parametrize("has_kills", [False, True], ids=["undisturbed", "kills"])
async def test_a_noisy_sender_is_banned_on_all_gateways_and_readmitted(install: Install, has_kills: bool) -> None:
    """Requirements 119, 120, 121, 122, 208"""
    running = await install(**SETTINGS).start().ready(300)
    senders = await register(running)
    assert len(running.worker_pids) == 2
    await dominate_a_minute(senders)
    minute_ended = (time.time() // 60 + 1) * 60
    if has_kills:
        for pid in (running.engine_pid, *running.background_pids, *running.children("pipeline run")):
            os.kill(pid, signal.SIGKILL)

    async def is_banned() -> bool:
        return [one["source"] for one in await bans(running)] == ["default/noisy"]

    await eventually(is_banned, 300)
    print(f"banned {time.time() - minute_ended:.1f} s after the end of the minute")
    [ban] = await bans(running)
    assert (ban["creator"], ban["kind"], ban["target"]) == ("auditor", "warm", None)

    async def is_slow() -> bool:
        return set(await senders.send(NOISY, 10)) == {"slow"}

    await eventually(is_slow, 60)
    assert set(await senders.send(QUIET[0], 10)) == {"fast"}
    detected = [one for one in await command_events(running) if one["event"] == "snavio.fairness.abuse_detected"]
    assert {one["event_id"] for one in detected} == {detected[0]["event_id"]}
    assert (detected[0]["source"], detected[0]["ban_applied_until"]) == ("default/noisy", ban["expires_at"])

    async def is_fast() -> bool:
        return set(await senders.send(NOISY, 5)) == {"fast"}

    await eventually(is_fast, BAN_SECONDS + 60)
    detected = [one for one in await command_events(running) if one["event"] == "snavio.fairness.abuse_detected"]
    assert len({one["event_id"] for one in detected}) == 1


async def test_in_shadow_it_is_reported_and_not_banned(install: Install) -> None:
    running = await install(**SETTINGS, POSTROAD_AUDITOR="shadow").start().ready(300)
    senders = await register(running)
    await dominate_a_minute(senders)

    async def flagged() -> list[str]:
        return [one["result"] for one in await command_events(running) if one["event"] == "fairness.flagged"]

    async def is_flagged() -> bool:
        return bool(await flagged())

    await eventually(is_flagged, 300)
    assert set(await flagged()) == {"shadow"}
    assert await bans(running) == []
    assert set(await senders.send(NOISY, 10)) == {"fast"}
