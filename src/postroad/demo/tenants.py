"""The demo's tenants: created when missing, with a key per actor for one run, so that flows have names."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from postroad.client import AsyncPostroad
from postroad.client.errors import AlreadyExists, KeyNotFound, PostroadError, TenantNotFound
from postroad.demo.scenarios import TenantScenario
from postroad.demo.topic_actors import create_events

DEADLINE_SECONDS = 10.0  # for each call with its retries
_KEY_NAME = "postroad demo"
_ACTOR_PREFIX = "demo: "
_SCOPES = ("publish", "consume", "read", "write")
_NUMBER_MAX = 100
_DELETE_KEY_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class DemoTenant:
    """A tenant with its queues and streams: clients by queue for its publishers and consumers, one for its services, with the id
    of its key, one for the rest, and one for its administrator."""

    scenario: TenantScenario
    id: str
    admin: AsyncPostroad
    client: AsyncPostroad
    services: AsyncPostroad
    service_key_id: str
    publishers: Mapping[str, AsyncPostroad]
    consumers: Mapping[str, AsyncPostroad]


@asynccontextmanager
async def prepared_tenant(
    platform: AsyncPostroad, url: str, admin_key: str, scenario: TenantScenario, seconds: float, ca_file: str | None = None
) -> AsyncIterator[DemoTenant]:
    """The tenant with its queues and streams. Its keys are deleted at the end; otherwise they expire an hour after the run,
    and the next run deletes them."""
    tenant = await _ensure_tenant(platform, scenario)
    async with AsyncPostroad(url, admin_key, tenant=tenant, deadline=DEADLINE_SECONDS, ca_file=ca_file) as admin:
        await _delete_expired_keys(admin)
        expires_at = datetime.now(UTC) + timedelta(seconds=seconds + 3600)
        key_ids: list[str] = []
        async with AsyncExitStack() as opened:

            async def client(name: str, scopes: Sequence[str]) -> AsyncPostroad:
                created = await admin.keys.create(name, scopes=scopes, expires_at=expires_at)
                key_ids.append(created.record.id)
                return await opened.enter_async_context(
                    AsyncPostroad(url, created.key, deadline=DEADLINE_SECONDS, ca_file=ca_file)
                )

            try:
                await _create_resources(admin, scenario)
                names = [queue.name for queue in scenario.queues]
                publishers = {name: await client(f"{_ACTOR_PREFIX}{name} publisher", ("publish", "read")) for name in names}
                consumers = {name: await client(f"{_ACTOR_PREFIX}{name} consumer", ("consume", "read")) for name in names}
                services = await client(f"{_ACTOR_PREFIX}services", ("publish", "read"))
                service_key_id = key_ids[-1]
                rest = await client(_KEY_NAME, _SCOPES)
                yield DemoTenant(scenario, tenant, admin, rest, services, service_key_id, publishers, consumers)
            finally:
                with contextlib.suppress(PostroadError, TimeoutError):
                    async with asyncio.timeout(_DELETE_KEY_SECONDS):
                        await asyncio.gather(*(admin.keys.delete(key_id) for key_id in key_ids))


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
        is_ours = key.name == _KEY_NAME or key.name.startswith(_ACTOR_PREFIX)
        if is_ours and key.expires_at and datetime.fromisoformat(key.expires_at) < now:
            with contextlib.suppress(KeyNotFound):
                await admin.keys.delete(key.id)


async def _create_resources(admin: AsyncPostroad, scenario: TenantScenario) -> None:
    for queue in scenario.queues:
        await admin.queues.put(queue.name, **queue.settings)
    for stream in (scenario.feed, *scenario.session_streams):
        await admin.streams.create(stream)
    if scenario.events is not None:
        await create_events(admin, scenario.events)
