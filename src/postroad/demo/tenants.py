"""The demo's tenants: created when missing, each with a key for one run."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from postroad.client import AsyncPostroad
from postroad.client.errors import AlreadyExists, KeyNotFound, PostroadError, TenantNotFound
from postroad.demo.scenarios import TenantScenario

DEADLINE_SECONDS = 10.0  # for each call with its retries
_KEY_NAME = "postroad demo"
_SCOPES = ("publish", "consume", "read", "write")
_NUMBER_MAX = 100
_DELETE_KEY_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class DemoTenant:
    """A tenant with its queues and streams, and a client with its key."""

    scenario: TenantScenario
    id: str
    client: AsyncPostroad


@asynccontextmanager
async def prepared_tenant(
    platform: AsyncPostroad, url: str, admin_key: str, scenario: TenantScenario, seconds: float, ca_file: str | None = None
) -> AsyncIterator[DemoTenant]:
    """The tenant with its queues and streams. Its key is deleted at the end; otherwise it expires an hour after the run, and the
    next run deletes it."""
    tenant = await _ensure_tenant(platform, scenario)
    async with AsyncPostroad(url, admin_key, tenant=tenant, deadline=DEADLINE_SECONDS, ca_file=ca_file) as admin:
        await _delete_expired_keys(admin)
        expires_at = datetime.now(UTC) + timedelta(seconds=seconds + 3600)
        created = await admin.keys.create(_KEY_NAME, scopes=_SCOPES, expires_at=expires_at)
        try:
            await _create_resources(admin, scenario)
            async with AsyncPostroad(url, created.key, deadline=DEADLINE_SECONDS, ca_file=ca_file) as client:
                yield DemoTenant(scenario, tenant, client)
        finally:
            with contextlib.suppress(PostroadError, TimeoutError):
                async with asyncio.timeout(_DELETE_KEY_SECONDS):
                    await admin.keys.delete(created.record.id)


async def _ensure_tenant(platform: AsyncPostroad, scenario: TenantScenario) -> str:
    """The scenario's tenant, or the first numbered one that is usable: the id of a deleted tenant cannot be used again."""
    for number in range(1, _NUMBER_MAX):
        name = scenario.name if number == 1 else f"{scenario.name}-{number}"
        try:
            found = await platform.tenants.get(name)
        except TenantNotFound:
            with contextlib.suppress(AlreadyExists):
                return (await platform.tenants.create(name, description=scenario.description)).id
        else:
            if found.state == "ready":
                return name
    raise AlreadyExists(f"{scenario.name} and its numbered successors up to {_NUMBER_MAX} are deleted or disabled")


async def _delete_expired_keys(admin: AsyncPostroad) -> None:
    now = datetime.now(UTC)
    async for key in admin.keys.list():
        if key.name == _KEY_NAME and key.expires_at and datetime.fromisoformat(key.expires_at) < now:
            with contextlib.suppress(KeyNotFound):
                await admin.keys.delete(key.id)


async def _create_resources(admin: AsyncPostroad, scenario: TenantScenario) -> None:
    for queue in scenario.queues:
        await admin.queues.put(queue.name, **queue.settings)
    for stream in (scenario.feed, *scenario.session_streams):
        await admin.streams.create(stream)
