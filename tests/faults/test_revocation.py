"""A key is revoked while 64 clients use it on four workers: each of them has stopped within a second."""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from tests.faults.conftest import Install
from tests.installation import Installation
from tests.waiting import eventually

CLIENTS = 64
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


class Users:
    """Clients with a connection each, so that all workers have some of them. They record the order of their responses."""

    def __init__(self, running: Installation, key: str) -> None:
        self._running, self._key = running, key
        self.statuses: dict[int, list[int]] = {}

    async def use(self, number: int, stop: asyncio.Event) -> None:
        headers = {"Authorization": f"Bearer {self._key}"}
        async with aiohttp.ClientSession(self._running.url, headers=headers) as session:
            while not stop.is_set():
                async with session.get("/v1/queues") as answer:
                    seen = self.statuses.setdefault(number, [])
                    if not seen or seen[-1] != answer.status:
                        seen.append(answer.status)
                    if answer.status != 200:
                        await asyncio.sleep(0.02)


@pytest.mark.parametrize("revoke", [disable, delete, rotate])
async def test_a_revoked_key_stops_on_every_worker_and_is_not_accepted_again(install: Install, revoke: Revoke) -> None:
    running = await install(POSTROAD_WORKERS=str(WORKERS), POSTROAD_AUTH_FAILURES_BURST="1000000").start().ready(40)
    admin_headers = {"Authorization": f"Bearer {running.credentials['admin_key']}"}
    async with aiohttp.ClientSession(running.url, headers=admin_headers) as admin:
        async with admin.post("/api/control/keys", json={"name": "shared", "scopes": ["read"]}) as answer:
            made = await answer.json()
        users, stop = Users(running, made["key"]), asyncio.Event()
        async with asyncio.TaskGroup() as using:
            for number in range(CLIENTS):
                using.create_task(users.use(number, stop))
            await eventually(lambda: len(users.statuses) == CLIENTS)
            assert await revoke(admin, made["record"]["id"]) in (200, 204)
            await eventually(lambda: all(len(seen) > 1 for seen in users.statuses.values()))
            stop.set()
    assert all(seen == [200, 401] for seen in users.statuses.values())
