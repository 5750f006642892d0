"""A key is revoked while clients use it on four workers: with the key, with the cookie of a session, and for live state."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from postroad.kernel.clock import now_ms, rfc3339
from tests.faults.conftest import Install
from tests.installation import Installation
from tests.waiting import eventually

CLIENTS = 64
TABS = 16
WORKERS = 4

Revoke = Callable[[aiohttp.ClientSession, str], Awaitable[int]]


async def disable(admin: aiohttp.ClientSession, key_id: str) -> int:
    async with admin.patch(f"/api/control/keys/{key_id}", json={"enabled": False}) as answer:
        return answer.status


async def delete(admin: aiohttp.ClientSession, key_id: str) -> int:
    async with admin.delete(f"/api/control/keys/{key_id}") as answer:
        return answer.status


async def rotate(admin: aiohttp.ClientSession, key_id: str) -> int:
    async with admin.post(f"/api/control/keys/{key_id}/rotate", json={"graceSeconds": 0}) as answer:
        return answer.status


async def session_cookie(running: Installation, key: str) -> str:
    headers = {"Sec-Fetch-Site": "same-origin"}
    async with (
        aiohttp.ClientSession(running.url, headers=headers) as browser,
        browser.post("/v1/session", json={"key": key}) as answer,
    ):
        assert answer.status == 201, await answer.text()
        return answer.headers["Set-Cookie"].partition(";")[0]


class Users:
    """Clients with a connection each, so that all workers have some of them. They record the order of their responses."""

    def __init__(self, running: Installation, key: str, cookie: str) -> None:
        self._running, self._credentials = running, ({"Authorization": f"Bearer {key}"}, {"Cookie": cookie})
        self.statuses: dict[int, list[int]] = {}

    async def use(self, number: int, stop: asyncio.Event) -> None:
        headers = self._credentials[number % 2]
        async with aiohttp.ClientSession(self._running.url, headers=headers) as session:
            while not stop.is_set():
                async with session.get("/v1/queues") as answer:
                    seen = self.statuses.setdefault(number, [])
                    if not seen or seen[-1] != answer.status:
                        seen.append(answer.status)
                    if answer.status != 200:
                        await asyncio.sleep(0.02)


class Tabs:
    """Streams of the live state of a busy queue, which record the server's times of their messages: at most two a second."""

    def __init__(self, running: Installation, cookie: str) -> None:
        self._running, self._cookie = running, cookie
        self.times: dict[int, list[str]] = {}
        self.ended: set[int] = set()

    async def follow(self, number: int) -> None:
        endless = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(self._running.url, headers={"Cookie": self._cookie}, timeout=endless) as session,
            session.get("/v1/live?watch=queues:busy") as stream,
        ):
            assert stream.status == 200
            async for line in stream.content:
                if line.startswith(b"data: {"):
                    self.times.setdefault(number, []).append(json.loads(line[6:])["at"])
        self.ended.add(number)

    def after(self, time: str) -> int:
        """The most messages that a tab got after a time."""
        return max(sum(at > time for at in times) for times in self.times.values())


async def publish(session: aiohttp.ClientSession, stop: asyncio.Event) -> None:
    while not stop.is_set():
        async with session.post("/v1/queues/busy/messages", json={"payload": 1}) as answer:
            assert answer.status == 201


@pytest.mark.parametrize("revoke", [disable, delete, rotate])
async def test_a_revoked_key_stops_on_every_worker_and_is_not_accepted_again(install: Install, revoke: Revoke) -> None:
    running = await install(POSTROAD_WORKERS=str(WORKERS), POSTROAD_AUTH_FAILURES_BURST="1000000").start().ready(40)
    admin_headers = {"Authorization": f"Bearer {running.credentials['admin_key']}"}
    async with aiohttp.ClientSession(running.url, headers=admin_headers) as admin:
        async with admin.post("/api/control/keys", json={"name": "shared", "scopes": ["read"]}) as answer:
            made = await answer.json()
        async with admin.put("/v1/queues/busy", json={}) as answer:
            assert answer.status == 201
        cookie = await session_cookie(running, made["key"])
        users, tabs, stop = Users(running, made["key"], cookie), Tabs(running, cookie), asyncio.Event()
        async with asyncio.TaskGroup() as using:
            using.create_task(publish(admin, stop))
            for number in range(CLIENTS):
                using.create_task(users.use(number, stop))
            for number in range(TABS):
                using.create_task(tabs.follow(number))
            await eventually(lambda: len(users.statuses) == CLIENTS)
            await eventually(lambda: len(tabs.times) == TABS and min(map(len, tabs.times.values())) > 2)
            assert await revoke(admin, made["record"]["id"]) in (200, 204)
            revoked_at = rfc3339(now_ms())
            await eventually(lambda: all(len(seen) > 1 for seen in users.statuses.values()))
            await eventually(lambda: len(tabs.ended) == TABS)
            stop.set()
    assert all(seen == [200, 401] for seen in users.statuses.values())
    assert tabs.after(revoked_at) <= 2, "a tab ends before it could get what is sent in the second after the revocation"
