"""`postroad snapshot`: look at the snapshots of the registry, compare the newest with the registry, write one now."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import msgspec

from postroad.commands.capability import cache_policy
from postroad.commands.events import SnapshotFailed, SnapshotTooLarge
from postroad.commands.settings import CommandsSettings
from postroad.commands.snapshot_format import RegistryState, SnapshotHead
from postroad.commands.snapshot_store import SNAPSHOTS_BUCKET, SnapshotStore
from postroad.commands.snapshots import RegistryTables, SnapshotSeal, SnapshotWriter, decoded, registry_tables
from postroad.container import running_platform
from postroad.jetstream.object_store import ObjectStore
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.errors import PostroadError
from postroad.kernel.event import Event
from postroad.platform import Platform
from postroad.runtime.embedded_server import with_running_engine
from postroad.settings import Secret, Settings

_LOAD_SECONDS = 60.0
_DIFFERENCES_MAX = 20


class StoredSnapshot(msgspec.Struct, frozen=True, rename="camel"):
    """`latest`: workers start from it."""

    name: str
    bytes: int
    latest: bool


class SnapshotSummary(msgspec.Struct, frozen=True, rename="camel"):
    """The newest snapshot, checked as a worker checks it."""

    version_id: str
    generated_at: str
    expires_in_seconds: float
    routes: int
    grants: int
    services: int
    routes_revision: int
    services_revision: int
    stored: list[StoredSnapshot]


class SnapshotVerification(msgspec.Struct, frozen=True, rename="camel"):
    """`changed`: records that were changed or deleted after the snapshot, which workers read after it."""

    version_id: str
    routes: int
    services: int
    changed: int
    differences: list[str]


@dataclass(frozen=True, slots=True)
class _Tools:
    platform: Platform
    tables: RegistryTables
    store: SnapshotStore
    seal: SnapshotSeal
    settings: CommandsSettings

    async def newest(self) -> RegistryState:
        """Raises SnapshotRefused."""
        content = await self.store.read_latest(self.settings.snapshot_bytes_max)
        return await decoded(content, self.seal, self.settings.snapshot_bytes_max)


@asynccontextmanager
async def _tools(settings: Settings) -> AsyncIterator[_Tools]:
    async with running_platform(_with_key(with_running_engine(settings)), "postroad-snapshot") as platform:
        chosen = platform.settings.section(CommandsSettings)
        objects = ObjectStore(platform.connection, SNAPSHOTS_BUCKET, platform.committers)
        store, seal = SnapshotStore(objects, chosen.snapshot_path), SnapshotSeal(platform.signer("registry snapshot"))
        yield _Tools(platform, registry_tables(platform), store, seal, chosen)


def _with_key(settings: Settings) -> Settings:
    path = settings.data_dir / "platform.key"
    if settings.platform_key is not None or not path.exists():
        return settings
    return replace(settings, platform_key=Secret(path.read_text().strip()))


@asynccontextmanager
async def _followed(tables: RegistryTables) -> AsyncIterator[None]:
    """The tables, read as a whole."""
    running = [asyncio.create_task(table.run()) for table in (tables.routes, tables.services)]
    try:
        async with asyncio.timeout(_LOAD_SECONDS):
            await tables.routes.wait_loaded()
            await tables.services.wait_loaded()
        yield
    except TimeoutError as exc:
        raise PostroadError(f"the registry could not be read within {_LOAD_SECONDS:g} s") from exc
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def show_snapshots(settings: Settings) -> SnapshotSummary:
    """Raises SnapshotRefused, PostroadError."""
    async with _tools(settings) as tools:
        state, pointer = await tools.newest(), await tools.store.pointer()
        head = state.head
        return SnapshotSummary(
            version_id=head.version_id,
            generated_at=head.generated_at,
            expires_in_seconds=round((head.expires_at_ms - tools.platform.clock()) / 1000, 1),
            routes=len(state.routes),
            grants=sum(len(state.routes.packed(key)) for key in state.route_revisions if key in state.routes),
            services=len(state.services),
            routes_revision=head.routes.revision,
            services_revision=head.services.revision,
            stored=[StoredSnapshot(one.name, one.size, one.name == pointer.target) for one in await tools.store.list()],
        )


async def verify_snapshot(settings: Settings) -> SnapshotVerification:
    """Compare the newest snapshot with the registry as the engine has it. Raises SnapshotRefused, PostroadError."""
    async with _tools(settings) as tools, _followed(tools.tables):
        state = await tools.newest()
        restored = registry_tables(tools.platform)
        restored.restore(state)
        changed, differences = 0, list[str]()
        for now, then, last in (
            (tools.tables.routes, restored.routes, state.head.routes.revision),
            (tools.tables.services, restored.services, state.head.services.revision),
        ):
            found = _compared(now, then, last)
            changed += found[0]
            differences += found[1]
        return SnapshotVerification(
            version_id=state.head.version_id,
            routes=len(state.routes),
            services=len(state.services),
            changed=changed,
            differences=differences[:_DIFFERENCES_MAX],
        )


def _compared(now: ReplicatedTable, then: ReplicatedTable, last: int) -> tuple[int, list[str]]:  # type: ignore[type-arg]
    """How many keys have changed after the revision `last`, and what differs although they have not."""
    changed, differences = 0, []
    for key in sorted({*now.keys_under(), *then.keys_under()}):
        if now.revision(key) > last:
            changed += 1
        elif now.revision(key) != then.revision(key) or now.get(key) != then.get(key):
            differences.append(f"{now.stream}: {key}")
    return changed, differences


async def write_snapshot(settings: Settings) -> SnapshotHead:
    """Read the registry as a whole, write a snapshot of it and publish it. Raises PostroadError."""
    reported: list[Event] = []
    async with _tools(settings) as tools, _followed(tools.tables):
        chosen = tools.settings
        writer = SnapshotWriter(
            tools.store,
            tools.tables,
            tools.platform.connection,
            tools.seal,
            cache_policy(chosen),
            reported.append,
            tools.platform.clock,
            seconds=chosen.snapshot_seconds,
            bytes_max=chosen.snapshot_bytes_max,
        )
        head = await writer.write()
    if head is not None:
        return head
    match reported:
        case [SnapshotTooLarge(size_bytes=size, max_bytes=limit)]:
            raise PostroadError(f"the snapshot has {size} bytes; POSTROAD_SNAPSHOT_BYTES_MAX is {limit}")
        case [SnapshotFailed(detail=detail)]:
            raise PostroadError(f"the snapshot was not published: {detail}")
    raise PostroadError("another process published a snapshot at the same time")
