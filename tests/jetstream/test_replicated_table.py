import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.jetstream.streams import committer_of, new_message, wait_replicated
from tests.servers import OpenConnection, Server, TcpProxy, restart
from tests.waiting import eventually

from postroad.jetstream import stream_reader
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import CommitPolicy, Committers
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.management import purge_stream, stream_info
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.clock import now_ms
from postroad.kernel.errors import Conflict, EngineRefused


class Person(msgspec.Struct, frozen=True):
    name: str
    age: int = 0


People = ReplicatedTable[Person]
OpenTable = Callable[[Bucket], "asyncio.Future[None]"]


async def _bucket(connection: Connection, name: str, *, replicas: int = 0) -> Bucket:
    """With 0 replicas it is left as it is, or made with one."""
    bucket = Bucket(connection, name, Committers(connection, CommitPolicy(), WriteBufferLimit(1 << 20)))
    if replicas or await stream_info(connection, bucket.stream) is None:
        await bucket.ensure(replicas=replicas or 1)
    return bucket


@pytest.fixture
async def run() -> AsyncIterator[Callable[[People], "asyncio.Future[None]"]]:
    """Runs a table until the end of the test."""
    running: list[asyncio.Future[None]] = []

    def start(table: People) -> "asyncio.Future[None]":
        running.append(asyncio.ensure_future(table.run()))
        return running[-1]

    yield start
    for one in running:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@pytest.fixture
async def tables(
    connection: Connection,
    engine_url: str,
    open_connection: OpenConnection,
    name: str,
    run: Callable[[People], "asyncio.Future[None]"],
) -> tuple[People, People]:
    """Two tables on one bucket, as in two processes."""
    one = ReplicatedTable(await _bucket(connection, name), Person)
    other = ReplicatedTable(await _bucket(await open_connection(engine_url), name), Person)
    for table in (one, other):
        assert table.staleness_seconds == float("inf")
        run(table)
        await asyncio.wait_for(table.wait_loaded(), 30)
        assert table.staleness_seconds < 5
    return one, other


async def test_a_write_is_visible_at_once_in_its_process_and_soon_in_others(tables: tuple[People, People]) -> None:
    one, other = tables
    await one.create("ada", Person("Ada", 36))
    assert one.get("ada") == Person("Ada", 36)
    await eventually(lambda: other.get("ada") == Person("Ada", 36), seconds=2)
    assert one.revision("ada") == other.revision("ada") > 0
    await other.update("ada", Person("Ada", 37), other.revision("ada"))
    assert other.get("ada") == Person("Ada", 37)
    await eventually(lambda: one.get("ada") == Person("Ada", 37), seconds=2)
    assert (len(one), list(one.keys_under())) == (1, ["ada"])


async def test_existing_records_are_loaded(connection: Connection, name: str, run: Callable[[People], object]) -> None:
    bucket = await _bucket(connection, name)
    writer = ReplicatedTable(bucket, Person)
    for number in range(300):
        await writer.create(f"p{number}", Person("P", number))
    await writer.delete("p7")
    table = ReplicatedTable(bucket, Person)
    run(table)
    await asyncio.wait_for(table.wait_loaded(), 30)
    assert len(table) == 299
    assert table.get("p8") == Person("P", 8) and table.get("p7") is None


async def test_an_update_of_an_old_revision_is_rejected(tables: tuple[People, People]) -> None:
    one, other = tables
    await one.create("ada", Person("Ada"))
    stale = one.revision("ada")
    await other.fetch("ada")
    await other.update("ada", Person("Augusta"), stale)
    with pytest.raises(Conflict):
        await one.update("ada", Person("ConnectionLost"), stale)
    with pytest.raises(Conflict):
        await other.create("ada", Person("Second"))
    await eventually(lambda: one.get("ada") == other.get("ada") == Person("Augusta"))


async def test_a_deleted_record_disappears_everywhere_and_can_be_created_again(tables: tuple[People, People]) -> None:
    one, other = tables
    await one.create("ada", Person("Ada"))
    await eventually(lambda: other.get("ada"))
    await other.delete("ada")
    assert other.get("ada") is None and await other.fetch("ada") is None
    await eventually(lambda: one.get("ada") is None)
    assert len(one) == len(other) == 0
    await one.create("ada", Person("Ada again"))
    await eventually(lambda: other.get("ada") == Person("Ada again"))


async def test_fetch_finds_a_record_that_has_not_been_replicated_yet(connection: Connection, name: str) -> None:
    bucket = await _bucket(connection, name)
    writer, reader = ReplicatedTable(bucket, Person), ReplicatedTable(bucket, Person)  # neither is running
    await writer.create("ada", Person("Ada"))
    assert reader.get("ada") is None
    assert await reader.fetch("ada") == Person("Ada")
    assert reader.get("ada") == Person("Ada")
    assert await reader.fetch("unknown") is None


async def test_listeners_are_called_for_each_change_once_and_in_order(tables: tuple[People, People]) -> None:
    one, other = tables
    changes: dict[str, list[tuple[str, Person | None]]] = {"one": [], "other": []}
    one.on_change(lambda key, record: changes["one"].append((key, record)))
    other.on_change(lambda key, record: changes["other"].append((key, record)))
    await one.create("ada", Person("Ada", 1))
    await one.update("ada", Person("Ada", 2), one.revision("ada"))
    await one.create("bob", Person("Bob"))
    await one.delete("ada")
    await one.create("end", Person("End"))
    await eventually(lambda: ("end", Person("End")) in changes["other"])
    expected = [
        ("ada", Person("Ada", 1)),
        ("ada", Person("Ada", 2)),
        ("bob", Person("Bob")),
        ("ada", None),
        ("end", Person("End")),
    ]
    assert changes == {"one": expected, "other": expected}


async def test_an_old_change_that_arrives_late_does_not_replace_a_newer_one(
    connection: Connection, name: str, run: Callable[[People], object]
) -> None:
    """A table that fetched or wrote a record is ahead of its follower."""
    bucket = await _bucket(connection, name)
    writer, reader = ReplicatedTable(bucket, Person), ReplicatedTable(bucket, Person)
    changes: list[Person | None] = []
    reader.on_change(lambda _key, record: changes.append(record))
    await writer.create("ada", Person("Ada", 1))
    await writer.update("ada", Person("Ada", 2), writer.revision("ada"))
    await writer.create("bob", Person("Bob"))
    assert await reader.fetch("ada") == Person("Ada", 2)
    run(reader)
    await asyncio.wait_for(reader.wait_loaded(), 30)
    assert changes == [Person("Ada", 2), Person("Bob")]


async def test_keys_are_listed_by_prefix_in_order(connection: Connection, name: str) -> None:
    table = ReplicatedTable(await _bucket(connection, name), Person)
    for key in ("b.2", "a.2", "b.1", "c"):
        await table.create(key, Person(key))
    assert list(table.keys_under()) == ["a.2", "b.1", "b.2", "c"]
    assert list(table.keys_under("b.")) == ["b.1", "b.2"]
    assert list(table.keys_under("x")) == []
    assert list(table.keys_under("b.", "b.1")) == ["b.2"]
    assert [table.count_under(prefix) for prefix in ("", "b.", "x")] == [4, 2, 0]
    await table.delete("b.2")
    table.forget("c")
    assert list(table.keys_under()) == ["a.2", "b.1"]
    await table.fetch("c")
    assert list(table.keys_under()) == ["a.2", "b.1", "c"]
    assert [table.count_under(prefix) for prefix in ("", "b.", "c")] == [3, 1, 1]


async def test_a_large_table_is_loaded_in_few_pages(
    place: ConnectionSettings,
    open_connection: OpenConnection,
    name: str,
    run: Callable[[People], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each page costs the server a search of the stream, and more so if it must compare subjects."""
    connection = await open_connection(place)
    bucket = await _bucket(connection, name, replicas=3 if place.has_replicas else 1)
    committer = committer_of(connection, bucket.stream)
    records = [new_message(f"$KV.{name}.t{number % 7}.{number}", b'{"name": "P"}') for number in range(2_500)]
    for start in range(0, 2_500, 500):
        await committer.append_together(records[start : start + 500])
    await wait_replicated(connection, bucket.stream)  # a replica that is behind answers with a smaller page
    really, pages = stream_reader.read, list[tuple[str, int]]()

    async def spy(connection: Connection, stream: str, subject: str, *arguments: Any, **more: Any) -> stream_reader.Page:
        page = await really(connection, stream, subject, *arguments, **more)
        if stream == bucket.stream:  # others follow tables, too
            pages.append((subject, len(page.entries)))
        return page

    monkeypatch.setattr(stream_reader, "read", spy)
    table = ReplicatedTable(bucket, Person)
    run(table)
    await asyncio.wait_for(table.wait_loaded(), 30)
    assert pages[:3] == [(">", 1000), (">", 1000), (">", 500)]
    assert len(table) == 2_500 and table.count_under("t3.") == 357


async def test_a_table_continues_after_a_restart_of_the_server(
    own_server: Server, open_connection: OpenConnection, name: str, run: Callable[[People], object]
) -> None:
    writing, reading = await open_connection(own_server.url), await open_connection(own_server.url)
    writer, reader = ReplicatedTable(await _bucket(writing, name), Person), ReplicatedTable(await _bucket(reading, name), Person)
    run(reader)
    await writer.create("before", Person("Before"))
    await eventually(lambda: reader.get("before"))
    own_server.kill()
    await eventually(lambda: reader.staleness_seconds > 0.6)
    own_server.start()
    await asyncio.wait_for(reading.wait_up(), 30)
    await eventually(lambda: reader.staleness_seconds < 0.5)
    await restart(own_server, writing, reading)
    await writer.create("after", Person("After"))
    await eventually(lambda: reader.get("after"))
    assert reader.get("before")


async def test_an_undecodable_record_does_not_block_the_others(
    connection: Connection, name: str, run: Callable[[People], "asyncio.Future[None]"]
) -> None:
    bucket = await _bucket(connection, name)
    table = People(bucket, Person)
    following = run(table)
    await bucket.put("bad", b"{not json")

    await bucket.put("good", b'{"name": "Ada"}')

    await eventually(lambda: table.get("good") == Person("Ada"))
    assert table.get("bad") is None
    assert not following.done()


async def test_a_record_that_became_undecodable_is_dropped(
    connection: Connection, name: str, run: Callable[[People], "asyncio.Future[None]"]
) -> None:
    bucket = await _bucket(connection, name)
    table = People(bucket, Person)
    run(table)
    await table.create("ada", Person("Ada"))

    await bucket.put("ada", b'{"name": 1}')

    await eventually(lambda: table.get("ada") is None)
    with pytest.raises(EngineRefused):
        await table.fetch("ada")
    await bucket.put("ada", b'{"name": "Ada Lovelace"}')
    assert await eventually(lambda: table.get("ada")) == Person("Ada Lovelace")


# Expiry


async def _expired_notifications_are_gone(bucket: Bucket, connection: Connection) -> None:
    """The engine keeps the notification of an expiry for a minute; here it is removed at once."""

    async def is_expired() -> bool:
        return await bucket.get("ada") is None

    await eventually(is_expired)
    await eventually(lambda: _is_empty(bucket, connection))


async def _is_empty(bucket: Bucket, connection: Connection) -> bool:
    await purge_stream(connection, bucket.stream, f"$KV.{bucket.name}.ada")
    return await stream_reader.last(connection, bucket.stream, f"$KV.{bucket.name}.ada") is None


async def test_a_follower_that_is_cut_off_during_an_expiry_drops_the_record_at_its_time(
    place: ConnectionSettings, open_connection: OpenConnection, name: str, run: Callable[[People], "asyncio.Future[None]"]
) -> None:
    connection = await open_connection(place)
    bucket = await _bucket(connection, name, replicas=3 if place.has_replicas else 1)
    proxy = await TcpProxy(place.urls[0]).start()
    following = await open_connection(replace(place, urls=(proxy.url,)))
    try:
        reader = ReplicatedTable(await _bucket(following, name), Person)
        writer = ReplicatedTable(bucket, Person)
        run(reader)
        await writer.create("ada", Person("Ada"), ttl_seconds=3)
        await writer.create("bob", Person("Bob"), ttl_seconds=1000)
        await eventually(lambda: reader.get("bob"))
        assert reader.get("ada") == writer.get("ada") == Person("Ada")
        changes: list[tuple[str, Person | None]] = []
        reader.on_change(lambda key, record: changes.append((key, record)))
        proxy.drops_replies = True
        await eventually(lambda: reader.get("ada") is None)
        assert changes == [("ada", None)], "by its own clock: it heard nothing"
        assert list(reader.keys_under()) == ["bob"]
        await _expired_notifications_are_gone(bucket, connection)
        proxy.cut()
        await writer.create("cid", Person("Cid"))
        await eventually(lambda: reader.get("cid"), seconds=60)
        assert list(reader.keys_under()) == ["bob", "cid"]
        assert reader.get("ada") is None and await reader.fetch("ada") is None
        await eventually(lambda: writer.get("ada") is None)  # of the process that wrote it, which does not follow the bucket
    finally:
        await following.close()
        proxy.stop()


async def test_a_record_that_has_expired_is_not_loaded(connection: Connection, name: str) -> None:
    """The engine may delete it a moment later than its time."""
    bucket = await _bucket(connection, name)
    writer = ReplicatedTable(bucket, Person)
    await writer.create("ada", Person("Ada"), ttl_seconds=1000)
    later = ReplicatedTable(bucket, Person, clock=lambda: now_ms() + 1_001_000)
    assert await later.fetch("ada") is None
    sooner = ReplicatedTable(bucket, Person, clock=lambda: now_ms() + 900_000)
    assert await sooner.fetch("ada") == Person("Ada")


async def test_an_update_renews_or_ends_the_time_to_live(connection: Connection, name: str) -> None:
    """The earlier expiry no longer counts."""
    ahead = [0]
    table = ReplicatedTable(await _bucket(connection, name), Person, clock=lambda: now_ms() + ahead[0])
    for key in ("expired", "renewed", "kept"):
        await table.create(key, Person(key), ttl_seconds=1000)
    await table.update("renewed", Person("renewed"), table.revision("renewed"), ttl_seconds=3000)
    await table.update("kept", Person("kept"), table.revision("kept"))
    assert table._timer is not None
    table._timer.cancel()  # which would ask the clock again after 30 s
    ahead[0] = 1_500_000
    table._expire()
    assert list(table.keys_under()) == ["kept", "renewed"]


# Changes


def _older(person: Person) -> Person:
    return Person(person.name, person.age + 1)


async def test_a_change_of_the_present_record_is_stored(tables: tuple[People, People]) -> None:
    one, other = tables
    await one.create("ada", Person("Ada", 36))
    assert await one.change("ada", _older) == (Person("Ada", 36), Person("Ada", 37))
    assert one.get("ada") == Person("Ada", 37)
    await eventually(lambda: other.get("ada") == Person("Ada", 37))


async def test_a_missing_record_is_not_changed(connection: Connection, name: str) -> None:
    table = ReplicatedTable(await _bucket(connection, name), Person)
    assert await table.change("unknown", _older) is None
    await table.create("ada", Person("Ada"))
    await table.delete("ada")
    assert await table.change("ada", _older) is None
    assert await table.fetch("ada") is None


async def test_a_change_finds_a_record_that_another_process_just_created(connection: Connection, name: str) -> None:
    bucket = await _bucket(connection, name)
    writer, changer = ReplicatedTable(bucket, Person), ReplicatedTable(bucket, Person)  # neither is running
    await writer.create("ada", Person("Ada", 1))
    assert await changer.change("ada", _older) == (Person("Ada", 1), Person("Ada", 2))


async def test_a_change_of_an_outdated_record_is_repeated_with_the_newest(connection: Connection, name: str) -> None:
    bucket = await _bucket(connection, name)
    quick, slow = (
        ReplicatedTable(bucket, Person),
        ReplicatedTable(bucket, Person),
    )  # neither is running, so the slow one knows only the old record
    await quick.create("ada", Person("Ada", 1))
    await slow.fetch("ada")
    await quick.update("ada", Person("Augusta", 10), quick.revision("ada"))
    seen: list[Person] = []

    def note_and_age(person: Person) -> Person:
        seen.append(person)
        return _older(person)

    assert await slow.change("ada", note_and_age) == (Person("Augusta", 10), Person("Augusta", 11))
    assert seen == [Person("Ada", 1), Person("Augusta", 10)]
    quick.forget("ada")
    assert await quick.fetch("ada") == Person("Augusta", 11)


async def test_a_change_of_a_record_deleted_meanwhile_does_nothing(connection: Connection, name: str) -> None:
    bucket = await _bucket(connection, name)
    quick, slow = ReplicatedTable(bucket, Person), ReplicatedTable(bucket, Person)
    await quick.create("ada", Person("Ada", 1))
    await slow.fetch("ada")
    await quick.delete("ada")
    assert await slow.change("ada", _older) is None
    assert await slow.fetch("ada") is None


async def test_no_concurrent_change_is_lost(tables: tuple[People, People]) -> None:
    one, other = tables
    await one.create("ada", Person("Ada", 0))
    await asyncio.gather(*[table.change("ada", _older) for table in (one, other) * 10])
    await eventually(lambda: one.get("ada") == other.get("ada") == Person("Ada", 20))


async def test_a_change_without_effect_is_not_stored(connection: Connection, name: str) -> None:
    table = ReplicatedTable(await _bucket(connection, name), Person)
    await table.create("ada", Person("Ada", 1))
    revision = table.revision("ada")
    assert await table.change("ada", lambda person: Person(person.name, person.age)) == (Person("Ada", 1), Person("Ada", 1))
    assert table.revision("ada") == revision


async def test_an_exception_in_a_change_is_raised_and_nothing_is_stored(connection: Connection, name: str) -> None:
    table = ReplicatedTable(await _bucket(connection, name), Person)
    await table.create("ada", Person("Ada", 1))

    def refuse(_person: Person) -> Person:
        raise ValueError("not her")

    with pytest.raises(ValueError, match="not her"):
        await table.change("ada", refuse)
    assert table.get("ada") == Person("Ada", 1)
