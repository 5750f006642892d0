"""The demo's tenants: made when they are missing, with a key for this run alone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from postroad.client import AsyncPostroad
from postroad.client.errors import AlreadyExists, KeyNotFound, PostroadError, TenantNotFound
from postroad.demo.scenarios import TenantStory

_KEY_NAME = "postroad demo"
_SCOPES = ("publish", "consume", "read", "write")
_TRIES_MAX = 100
DEADLINE_SECONDS = 10.0  # for each call: then the server is taken to be gone
_FAREWELL_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Guest:
    """A tenant that is ready to play its story."""

    story: TenantStory
    tenant: str
    client: AsyncPostroad


@asynccontextmanager
async def guest(platform: AsyncPostroad, url: str, admin_key: str, story: TenantStory, seconds: float) -> AsyncIterator[Guest]:
    """The tenant with its queues and streams. The key is deleted at the end; if that cannot be, it expires within the hour, and
    the next run clears it away."""
    tenant = await _tenant(platform, story)
    async with AsyncPostroad(url, admin_key, tenant=tenant, deadline=DEADLINE_SECONDS) as admin:
        await _clear_keys(admin)
        expires_at = datetime.now(UTC) + timedelta(seconds=seconds + 3600)
        made = await admin.keys.create(_KEY_NAME, scopes=_SCOPES, expires_at=expires_at)
        try:
            await _furnish(admin, story)
            async with AsyncPostroad(url, made.key, deadline=DEADLINE_SECONDS) as client:
                yield Guest(story, tenant, client)
        finally:
            with contextlib.suppress(PostroadError, TimeoutError):
                async with asyncio.timeout(_FAREWELL_SECONDS):
                    await admin.keys.delete(made.record.id)


async def _tenant(platform: AsyncPostroad, story: TenantStory) -> str:
    """The tenant of this name, or the next number: an id that was deleted is never used again."""
    for number in range(1, _TRIES_MAX):
        name = story.name if number == 1 else f"{story.name}-{number}"
        try:
            found = await platform.tenants.get(name)
        except TenantNotFound:
            with contextlib.suppress(AlreadyExists):
                return (await platform.tenants.create(name, description=story.description)).id
        else:
            if found.state == "ready":
                return name
    raise AlreadyExists(f"{story.name} and its first {_TRIES_MAX} followers are all deleted or disabled")


async def _clear_keys(admin: AsyncPostroad) -> None:
    now = datetime.now(UTC)
    async for key in admin.keys.list():
        if key.name == _KEY_NAME and key.expires_at and datetime.fromisoformat(key.expires_at) < now:
            with contextlib.suppress(KeyNotFound):
                await admin.keys.delete(key.id)


async def _furnish(admin: AsyncPostroad, story: TenantStory) -> None:
    for queue in story.queues:
        await admin.queues.put(queue.name, **queue.settings)
    for stream in (story.feed, *story.rooms):
        await admin.streams.create(stream)
