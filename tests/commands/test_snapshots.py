"""Snapshots of the registry on a real engine: written in two phases, loaded at a start, each reason not to use one."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from postroad.commands import metrics
from postroad.commands.capability import CommandsCapability
from postroad.commands.records import ROUTES_BUCKET
from postroad.commands.settings import CommandsSettings
from postroad.commands.snapshot_format import SnapshotHead
from postroad.commands.snapshot_store import SNAPSHOTS_BUCKET
from postroad.commands.snapshots import SeenVersion, SnapshotLoader, SnapshotSeal, registry_tables
from postroad.container import Role, described_routes
from postroad.crypto.signing import Signer
from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.management import delete_stream, purge_stream, stream_info
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.event import Event
from postroad.kernel.ids import new_id
from tests.commands.senders import Sender, grant, register_sender, register_target
from tests.gateway import Gateway, gateway_settings, running_gateway
from tests.servers import Server
from tests.waiting import eventually

# These tests have an engine and gateways of their own: snapshots are of the whole registry.


def commands_of(gateway: Gateway) -> CommandsCapability:
    return gateway.node.platform.use(CommandsCapability)


def failures(why: str) -> float:
    return float(metrics.snapshot_failures.labels(why)._value.get())


def stream_of(gateway: Gateway) -> str:
    return commands_of(gateway).snapshot_writer._store._objects.stream


@asynccontextmanager
async def registered(server: Server, **settings: Any) -> AsyncIterator[tuple[Gateway, Sender]]:
    """A gateway without background jobs of a leader, with a route and a sender."""
    async with running_gateway(gateway_settings(server.url, **settings)) as gateway:
        tenant = await gateway.tenant()
        await register_target(tenant)
        await grant(tenant, "billing")
        yield gateway, await register_sender(tenant)


async def written(gateway: Gateway) -> SnapshotHead:
    head = await commands_of(gateway).snapshot_writer.write()
    assert head is not None
    return head


async def loaded(gateway: Gateway, keys: tuple[str, ...] = (), bytes_max: int = 10_000_000) -> SnapshotHead | None:
    """What another process would start from."""
    platform = gateway.node.platform
    loader = SnapshotLoader(
        commands_of(gateway).snapshot_writer._store,
        registry_tables(platform),
        platform.connection,
        SnapshotSeal(Signer(keys or platform.platform_keys, "registry snapshot")),
        SeenVersion(gateway.settings.data_dir),
        gateway.clock,
        bytes_max,
    )
    return await loader.load()


async def test_a_worker_starts_from_a_snapshot_and_follows_from_its_revision(own_server: Server) -> None:
    """Requirements 53, 79, 224: what has changed since the snapshot counts from the first request on."""
    async with registered(own_server) as (gateway, sender):
        await register_target(sender.tenant, command="pay")
        await grant(sender.tenant, "billing", command="pay")
        head = await written(gateway)
        (await sender.tenant.client.delete("/v1/grants/bot/pay/billing")).ok(204)
        (await sender.tenant.client.delete("/v1/routes/bot/post")).ok(204)
        await register_target(sender.tenant, command="new")
        await grant(sender.tenant, "billing", command="new")
        before = metrics.snapshot_load_seconds._sum.get()
        async with running_gateway(gateway_settings(own_server.url, data_dir=gateway.settings.data_dir)) as second:
            assert metrics.snapshot_load_seconds._sum.get() > before
            moved = sender.at(second)
            (await moved.send(name="post")).problem(404, "route-missing")
            (await moved.send(name="pay")).problem(403, "acl-deny")
            (await moved.send(name="new")).ok(202)
            routes = commands_of(second).route_table
            assert routes.revision(f"{sender.tenant.id}.bot.pay") > head.routes.revision
            assert [*routes.keys_under(f"{sender.tenant.id}.")] == [f"{sender.tenant.id}.bot.{one}" for one in ("new", "pay")]


async def test_the_leader_writes_when_something_changed_or_the_last_one_expires(own_server: Server) -> None:
    """Requirements 80, 84"""
    async with registered(own_server) as (gateway, sender):
        writer, clock = commands_of(gateway).snapshot_writer, gateway.clock
        first = await writer.run_once()
        assert first is not None and await writer.run_once() is None
        await register_target(sender.tenant, command="pay")
        await eventually(lambda: commands_of(gateway).route_table.checkpoint())
        second = await writer.run_once()
        assert second is not None and second.routes.revision > first.routes.revision and await writer.run_once() is None
        clock.ahead_ms = 100_000
        third = await writer.run_once()
        assert third is not None and third.routes == second.routes and third.number > second.number
        assert float(metrics.snapshots.labels("published")._value.get()) >= 3
        assert float(metrics.snapshot_bytes.labels("json")._value.get()) > 0


async def test_nothing_is_written_without_a_registry(own_server: Server) -> None:
    async with running_gateway(gateway_settings(own_server.url)) as gateway:
        assert await commands_of(gateway).snapshot_writer.run_once() is None


async def test_the_control_role_writes_them(own_server: Server) -> None:
    """Requirements 80, 88: and the settings are checked."""
    async with registered(own_server) as (gateway, _), running_gateway(gateway_settings(own_server.url), Role.CONTROL):
        store = commands_of(gateway).snapshot_writer._store

        async def is_published() -> bool:
            return (await store.pointer()).target is not None

        await eventually(is_published)
    check = next(one for one in CommandsSettings.__dataclass_fields__.values() if one.name == "snapshot_seconds").metadata[
        "check"
    ]
    assert [check(value) for value in (29, 30, 45, 60, 61)] == [False, True, True, True, False]


async def test_two_older_ones_are_kept_and_the_rest_is_removed(own_server: Server) -> None:
    """Requirements 76, 83"""
    async with registered(own_server) as (gateway, _):
        store = commands_of(gateway).snapshot_writer._store
        heads = [await written(gateway) for _ in range(5)]
        assert [one.name for one in await store.list()] == [store.name(one.version_id) for one in heads[-3:]]
        pointer = await store.pointer()
        assert (pointer.target, pointer.number) == (store.name(heads[-1].version_id), heads[-1].number)
        assert store.name("v").startswith("snavio/registry/snapshot/") and store.latest == "snavio/registry/snapshot/latest"


async def test_of_two_writers_one_wins_and_nothing_is_left_over(own_server: Server) -> None:
    """Requirements 83"""
    async with registered(own_server) as (gateway, _):
        writer = commands_of(gateway).snapshot_writer
        store, original = writer._store, writer._store.publish
        await written(gateway)

        async def publish_late(head: SnapshotHead, pointer: Any) -> None:
            store.publish = original  # type: ignore[method-assign]
            await written(gateway)  # another writer, meanwhile
            await original(head, pointer)

        store.publish = publish_late  # type: ignore[method-assign]
        assert await writer.write() is None
        assert len(await store.list()) == 2


@pytest.mark.parametrize("phase", ["put", "read", "publish"])
async def test_an_interrupted_writer_leaves_the_last_snapshot(own_server: Server, phase: str) -> None:
    """Requirements 83, 85: and the failure is reported once."""
    async with registered(own_server) as (gateway, _):
        writer = commands_of(gateway).snapshot_writer
        first = await written(gateway)
        events: list[Event] = []
        writer._record = events.append

        async def fails(*_: object) -> Any:
            raise EngineUnavailable("gone")

        original = getattr(writer._store, phase)
        setattr(writer._store, phase, fails)
        assert await writer.write() is None and await writer.write() is None
        [event] = events
        assert type(event).__struct_config__.tag == "snapshot.failed" and "gone" in event.detail  # type: ignore[attr-defined]
        setattr(writer._store, phase, original)
        found = await loaded(gateway)
        assert found is not None and found.version_id == first.version_id
        await written(gateway)
        assert len(await writer._store.list()) == 2, "what the interrupted writers left is removed"


async def test_a_snapshot_that_cannot_be_validated_is_not_published(own_server: Server) -> None:
    """Requirements 81, 83, 85"""
    async with registered(own_server) as (gateway, _):
        writer = commands_of(gateway).snapshot_writer
        first = await written(gateway)
        events: list[Event] = []
        writer._record = events.append
        route = next(iter(commands_of(gateway).route_table.keys_under()))
        commands_of(gateway).route_table._revisions[route] += 1_000_000  # a defect of the writer
        assert await writer.write() is None and len(events) == 1
        found = await loaded(gateway)
        assert found is not None and found.version_id == first.version_id


async def test_a_snapshot_that_is_too_large_is_reported_and_not_published(own_server: Server) -> None:
    """Requirements 82, 214"""
    async with registered(own_server) as (gateway, _):
        writer = commands_of(gateway).snapshot_writer
        first = await written(gateway)
        events: list[Event] = []
        writer._record, writer._bytes_max = events.append, 2000
        for _ in range(2):
            assert await writer.write() is None
        [event] = events
        fields = msgspec.to_builtins(event)
        assert (fields["event"], fields["tenant"], fields["max_bytes"]) == ("snavio.snapshot.too_large", "_platform", 2000)
        assert fields["size_bytes"] > 2000 and fields["version_id"]
        pointer = await writer._store.pointer()
        assert pointer.number == first.number


# Reasons to read the registry as a whole


async def damage_missing(gateway: Gateway) -> None:
    await purge_stream(gateway.node.platform.connection, stream_of(gateway))


async def damage_object(gateway: Gateway) -> None:
    await purge_stream(gateway.node.platform.connection, stream_of(gateway), f"$O.{SNAPSHOTS_BUCKET}.C.>")


async def damage_store(gateway: Gateway) -> None:
    await delete_stream(gateway.node.platform.connection, stream_of(gateway))


async def damage_content(gateway: Gateway) -> None:
    """A genuine object with another content."""
    store = commands_of(gateway).snapshot_writer._store
    pointer = await store.pointer()
    assert pointer.target is not None
    await store._objects.put(pointer.target, b"junk", {})


async def damage_age(gateway: Gateway) -> None:
    writer = commands_of(gateway).snapshot_writer
    writer._clock = lambda: gateway.clock() - 200_000
    await written(gateway)


async def damage_future(gateway: Gateway) -> None:
    writer = commands_of(gateway).snapshot_writer
    writer._clock = lambda: gateway.clock() + 200_000
    await written(gateway)


async def damage_registry(gateway: Gateway) -> None:
    """The table was created again, as after a loss of data, with more changes than before."""
    platform = gateway.node.platform
    info = await stream_info(platform.connection, commands_of(gateway).route_table.stream)
    assert info is not None
    await delete_stream(platform.connection, commands_of(gateway).route_table.stream)
    await platform.bucket(ROUTES_BUCKET).ensure()
    messages = [PendingMessage(f"$KV.{ROUTES_BUCKET}.x.y.z", b"{}", new_id()) for _ in range(info.state.last_seq + 5)]
    for one in messages:
        await platform.committers.of(f"KV_{ROUTES_BUCKET}").append(one)


async def damage_older(gateway: Gateway) -> None:
    """A snapshot that was loaded here is replaced by one before it."""
    store = commands_of(gateway).snapshot_writer._store
    old = await store.pointer()
    newer = await written(gateway)
    SeenVersion(gateway.settings.data_dir).record(newer.number)
    present = await store.pointer()
    assert old.target is not None
    await store._objects.link(store.latest, old.target, {}, present.revision)


@pytest.mark.parametrize(
    ("why", "damage", "other"),
    [
        ("missing", damage_missing, {}),
        ("malformed", damage_object, {}),
        ("malformed", damage_content, {}),
        ("unavailable", damage_store, {}),
        ("expired", damage_age, {}),
        ("expired", damage_future, {}),
        ("registry", damage_registry, {}),
        ("older", damage_older, {}),
        ("unsealed", None, {"keys": ("another platform key which is long enough",)}),
        ("too-large", None, {"bytes_max": 500}),
    ],
)
async def test_a_snapshot_that_is_not_usable_is_counted_by_its_reason(
    own_server: Server, why: str, damage: Callable[[Gateway], Any] | None, other: dict[str, Any]
) -> None:
    """Requirements 53, 78, 86: the start goes on with the whole registry."""
    async with registered(own_server) as (gateway, _):
        await written(gateway)
        assert await loaded(gateway) is not None
        if damage is not None:
            await damage(gateway)
        before = failures(why)
        assert await loaded(gateway, **other) is None
        assert failures(why) == before + 1


async def test_another_format_of_the_records_is_not_read(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requirements 78: a version that knows other fields would lose them."""
    async with registered(own_server) as (gateway, _):
        await written(gateway)
        before = failures("version")
        monkeypatch.setattr("postroad.commands.snapshot_format.records_version", lambda: "another")
        assert await loaded(gateway) is None
        assert failures("version") == before + 1


async def test_a_start_does_not_depend_on_snapshots(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requirements 53, 87: neither on errors that nobody expects, nor if they are turned off."""
    async with registered(own_server) as (gateway, sender):
        await written(gateway)

        def fails(*_: object) -> Any:
            raise RuntimeError("a defect")

        monkeypatch.setattr("postroad.commands.snapshots.opened", fails)
        data_dir: Path = gateway.settings.data_dir
        for settings in ({}, {"snapshots": False}):
            changed = gateway_settings(own_server.url, data_dir=data_dir, **settings)
            async with running_gateway(changed) as second:
                (await sender.at(second).send()).ok(202)


def test_no_route_of_the_api_serves_snapshots() -> None:
    """Requirements 88"""
    assert not [route.path for route in described_routes() if "snapshot" in route.path]


def test_the_newest_version_is_remembered_in_a_file(tmp_path: Path) -> None:
    seen = SeenVersion(tmp_path)
    assert seen.number == 0
    for number in (5, 3):
        seen.record(number)
    assert SeenVersion(tmp_path).number == 5
    (tmp_path / "snapshot-seen").write_text("junk")
    assert seen.number == 0
    SeenVersion(tmp_path / "none").record(7)
