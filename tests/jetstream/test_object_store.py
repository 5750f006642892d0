"""Objects in the layout of NATS: read back, listed by another client, damaged, linked by compare-and-set, removed."""

import pytest
from nats.aio.client import Client as NatsClient
from tests.servers import OpenConnection

from postroad.jetstream.commit import CommitPolicy, Committers, PendingMessage
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.management import ensure_stream, stream_info, subjects_of
from postroad.jetstream.object_store import ObjectDamaged, ObjectStore, object_store_stream
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.clock import now_ms
from postroad.kernel.errors import Conflict
from postroad.kernel.ids import new_id


@pytest.fixture
async def connection(engine_url: str, open_connection: OpenConnection) -> Connection:
    return await open_connection(ConnectionSettings((engine_url,), name="tests"))


@pytest.fixture
async def committers(connection: Connection) -> Committers:
    return Committers(connection, CommitPolicy(), WriteBufferLimit(1 << 26))


@pytest.fixture
async def store(connection: Connection, committers: Committers, name: str) -> ObjectStore:
    await ensure_stream(connection, object_store_stream(name, 1))
    return ObjectStore(connection, name, committers)


@pytest.mark.parametrize("size", [0, 1, 128 * 1024, 128 * 1024 + 1, 5_000_000])
async def test_what_was_stored_is_read(store: ObjectStore, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    await store.put("a/b", content, {"version": "1"})
    info, revision = await store.find("a/b")
    assert info is not None and revision and (info.size, info.metadata) == (size, {"version": "1"})
    assert await store.read(info) == content
    assert await store.find("a/c") == (None, 0)


async def test_other_clients_of_nats_list_and_read_it(store: ObjectStore, engine_url: str) -> None:
    """Requirements 72: `nats object` uses the same layout."""
    content = b"x" * 300_000
    await store.put("a/b", content, {})
    await store.link("a/latest", "a/b", {}, 0)
    client = NatsClient()
    await client.connect(engine_url)
    try:
        objects = await client.jetstream().object_store(store.bucket)
        assert {one.name for one in await objects.list()} == {"a/b", "a/latest"}
        assert (await objects.get("a/b")).data == content
        assert (await objects.get("a/latest")).data == content
    finally:
        await client.close()


async def test_a_link_is_replaced_by_compare_and_set(store: ObjectStore) -> None:
    first = await store.link("latest", "a", {}, 0)
    with pytest.raises(Conflict):
        await store.link("latest", "b", {}, 0)
    await store.link("latest", "b", {}, first)
    with pytest.raises(Conflict):
        await store.link("latest", "c", {}, first)
    info, _ = await store.find("latest")
    assert info is not None and info.target == "b"


async def test_missing_or_changed_chunks_are_noticed(store: ObjectStore, connection: Connection, committers: Committers) -> None:
    info = await store.put("a", b"x" * 300_000, {})
    await committers.of(store.stream).append(PendingMessage(store._chunks(info.nuid), b"more", new_id()))
    with pytest.raises(ObjectDamaged):
        await store.read(info)
    await store.delete(info)
    with pytest.raises(ObjectDamaged):
        await store.read(info)
    state = await stream_info(connection, store.stream)
    assert state is not None and state.state.messages == 0


async def test_chunks_of_an_interrupted_write_are_removed_later(
    store: ObjectStore, connection: Connection, committers: Committers
) -> None:
    await store.put("kept", b"1", {})
    await committers.of(store.stream).append(PendingMessage(f"$O.{store.bucket}.C.lost", b"1", new_id()))
    assert await store.delete_abandoned(now_ms()) == 0, "it may still be written"
    assert await store.delete_abandoned(now_ms() + 3_600_000) == 1
    assert len(await subjects_of(connection, store.stream, f"$O.{store.bucket}.C.>")) == 1


async def test_descriptions_of_others_do_no_harm(store: ObjectStore, committers: Committers) -> None:
    for text in (b"junk", b"{}", b'{"name":"a","bucket":"b","nuid":"x.>","chunks":1}'):
        await committers.of(store.stream).append(PendingMessage(store._description("a"), text, new_id()))
        info, _ = await store.find("a")
        if info is not None:
            with pytest.raises(ObjectDamaged):
                await store.read(info)
            await store.delete(info)
    assert len(await store.list()) <= 2
