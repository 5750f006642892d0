"""Operations on streams: create, read, expire, delete."""

import asyncio
from typing import Any

import pytest

from postroad.api.streams import ProducerGap, StreamExists, StreamNotFound
from postroad.kernel.errors import MalformedJson
from postroad.streams import reading
from postroad.streams.offsets import NOW
from postroad.streams.store import StreamName
from tests.streams.workers import JSON, TEXT, OpenWorker, Worker
from tests.waiting import eventually

# Create


async def test_a_new_stream_is_empty_and_starts_at_zero(worker: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    made = await worker.create(stream, content_type=None)
    assert (made.is_new, made.tail, made.record.content_type) == (True, 0, "application/octet-stream")
    chunk = await worker.streams.read(stream, 0)
    assert (chunk.payloads, chunk.next_offset, chunk.is_end, chunk.is_closed) == ([], 0, True, False)


SOON: dict[str, Any] = {"expires_at_ms": 4_000_000_000_000, "expires_at": "2096-10-02T07:06:40Z"}


@pytest.mark.parametrize(
    ("wanted", "others"),
    [
        (
            {},
            [{"content_type": JSON}, {"ttl_seconds": 5}, SOON, {"is_closed": True}, {"is_public": True}, {"content_type": None}],
        ),
        ({"content_type": None}, [{"content_type": TEXT}]),
        ({"ttl_seconds": 5}, [{}, {"ttl_seconds": 6}, SOON]),
        (SOON, [{}, {"ttl_seconds": 5}, {**SOON, "expires_at_ms": 4_000_000_000_001}]),
        ({"is_closed": True}, [{}]),
        ({"is_public": True}, [{"is_public": False}]),
    ],
)
async def test_a_repeated_create_is_accepted_and_a_different_one_refused(
    worker: Worker, other: Worker, name: str, wanted: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    stream = StreamName(name, "a")
    made = await worker.create(stream, b"first", **wanted)
    assert made.is_new
    again = await other.create(stream, b"never", **wanted)
    assert (again.is_new, again.tail, again.record) == (False, made.tail, made.record)
    for different in others:
        with pytest.raises(StreamExists):
            await other.create(stream, b"never", **different)
    assert await worker.read_all(stream) == [b"first"]


@pytest.mark.parametrize("again", ["TEXT/PLAIN", "text/plain; charset=utf-8", "text/plain ;x"])
async def test_content_types_are_compared_without_parameters(worker: Worker, name: str, again: str) -> None:
    made = await worker.create(StreamName(name, "a"), content_type="text/plain;charset=ascii")
    assert (await worker.create(StreamName(name, "a"), content_type=again)).record == made.record


async def test_one_of_many_concurrent_creates_succeeds(new_worker: OpenWorker, name: str) -> None:
    workers = [await new_worker() for _ in range(3)]
    stream = StreamName(name, "a")
    made = await asyncio.gather(*[one.create(stream, b"first") for one in workers * 5])
    assert sum(one.is_new for one in made) == 1
    assert len({(one.record.incarnation, one.tail) for one in made}) == 1
    assert await workers[0].read_all(stream) == [b"first"]


@pytest.mark.parametrize(
    ("body", "content"), [(b"[]", []), (b"", []), (b"[1,[2]]", [b"1,[2]"]), (b' {"a": 1} ', [b'{"a": 1}']), (b"[[]]", [b"[]"])]
)
async def test_the_body_of_a_create_is_split_into_json_messages(
    worker: Worker, name: str, body: bytes, content: list[bytes]
) -> None:
    made = await worker.create(StreamName(name, "a"), body, JSON)
    assert await worker.read_all(StreamName(name, "a")) == content
    assert bool(made.tail) == bool(content)


async def test_a_create_with_malformed_json_creates_nothing(worker: Worker, name: str) -> None:
    with pytest.raises(MalformedJson):
        await worker.create(StreamName(name, "a"), b"[1", JSON)
    with pytest.raises(StreamNotFound):
        await worker.streams.snapshot(StreamName(name, "a"))
    assert await worker.subjects(name) == []


async def test_a_stream_created_closed_accepts_no_appends(worker: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    made = await worker.create(stream, b"all of it", is_closed=True)
    chunk = await worker.streams.read(stream, 0)
    assert (chunk.payloads, chunk.next_offset, chunk.is_end, chunk.is_closed) == ([b"all of it"], made.tail, True, True)


# Read


@pytest.mark.parametrize("at_a_time", [1, 2, 3, 1000])
async def test_only_the_last_chunk_is_the_end(worker: Worker, name: str, monkeypatch: pytest.MonkeyPatch, at_a_time: int) -> None:
    monkeypatch.setattr(reading, "CHUNK_MESSAGES_MAX", at_a_time)
    stream, neighbour = StreamName(name, "a"), StreamName(name, "b")
    await worker.create(stream)
    await worker.create(neighbour)
    offsets = [0]
    for number in range(7):
        offsets.append((await worker.append(stream, b"%d" % number)).next_offset)
        await worker.append(neighbour, b"another's")
    await worker.append(stream, None, closes=True)
    for position, offset in enumerate(offsets):
        content: list[bytes] = []
        while True:
            chunk = await worker.streams.read(stream, offset)
            content += chunk.payloads
            assert len(chunk.payloads) <= at_a_time
            assert chunk.next_offset == offsets[position + len(content)]
            assert chunk.is_closed == chunk.is_end == (chunk.next_offset == offsets[-1])
            if chunk.is_end:
                break
            offset = chunk.next_offset
        assert content == [b"%d" % number for number in range(position, 7)]


async def test_the_bytes_of_a_chunk_are_limited_but_it_has_at_least_one_message(
    worker: Worker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_BYTES_MAX", 1000)
    stream = StreamName(name, "a")
    await worker.create(stream)
    for size in (10, 5000, 400, 400, 400, 400, 10):
        await worker.append(stream, b"x" * size)
    chunks = await worker.chunks(stream)
    assert [len(payload) for _, payloads in chunks for payload in payloads] == [10, 5000, 400, 400, 400, 400, 10]
    assert len(chunks) >= 3
    assert all(sum(map(len, payloads[:-1])) < 1000 for _, payloads in chunks), "it is full with the last one"


async def test_a_read_beyond_the_end_returns_the_end(worker: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    made = await worker.create(stream, b"x")
    for beyond in (made.tail + 1, 9_999_999_999_999_999):
        chunk = await worker.streams.read(stream, beyond)
        assert (list(chunk.payloads), chunk.next_offset, chunk.is_end) == ([], made.tail, True)
    now = await worker.streams.read(stream, NOW)
    assert (list(now.payloads), now.next_offset, now.is_end, now.is_closed) == ([], made.tail, True, False)


async def test_concurrent_readers_see_a_prefix_of_the_data(worker: Worker, other: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream)
    seen: list[bytes] = []

    async def read() -> None:
        position = 0
        while len(seen) < 200:
            chunk = await other.streams.read(stream, position)
            seen.extend(chunk.payloads)
            position = chunk.next_offset

    async with asyncio.TaskGroup() as both:
        both.create_task(read())
        for number in range(0, 200, 10):
            await asyncio.gather(*[worker.append(stream, b"%d" % one) for one in range(number, number + 10)])
    assert seen == [b"%d" % number for number in range(200)]


async def test_a_continued_read_gets_no_data_of_a_recreated_stream(
    worker: Worker, other: Worker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_MESSAGES_MAX", 1)
    stream = StreamName(name, "a")
    record = (await worker.create(stream, b"old")).record
    await worker.append(stream, b"old too")
    first = await worker.streams.continue_read(stream, record, 0)
    assert first.payloads == [b"old"]
    await other.streams.delete(None, stream)
    await other.create(stream, b"new")
    on = await worker.streams.continue_read(stream, record, first.next_offset)
    assert (on.payloads, on.next_offset, on.is_end) == ((), first.next_offset, False)


# Expiry. The timestamps of the server are real, so the tests move the clock.


async def test_an_unused_stream_expires(worker: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream, b"x", ttl_seconds=10)
    worker.clock.ahead_ms = 9_000
    await worker.streams.snapshot(stream)
    worker.clock.ahead_ms = 10_100
    for position in (0, NOW):
        with pytest.raises(StreamNotFound):
            await worker.streams.read(stream, position)
    with pytest.raises(StreamNotFound):
        await worker.streams.snapshot(stream)
    with pytest.raises(StreamNotFound):
        await worker.streams.delete(None, stream)
    made = await worker.create(stream, b"y", ttl_seconds=20)
    assert made.is_new
    assert await worker.read_all(stream) == [b"y"]


@pytest.mark.parametrize("use", ["append", "read", "now", "look", "close", "producer close"])
async def test_every_use_restarts_the_ttl(worker: Worker, name: str, use: str) -> None:
    """The TTL is one second; a use shortly before its end prolongs it."""
    stream = StreamName(name, "a")
    await worker.create(stream, b"x", ttl_seconds=1)
    made_at = (await worker.store.snapshot(stream)).used_at_ms
    await eventually(lambda: worker.clock() >= made_at + 700)
    if use == "append":
        await worker.append(stream, b"y")
    elif use == "close":
        await worker.append(stream, None, closes=True)
    elif use == "producer close":
        await worker.append(stream, None, ("p", 0, 0), closes=True)
    elif use == "look":
        await worker.streams.snapshot(stream, is_use=True)
    else:
        await worker.streams.read(stream, NOW if use == "now" else 0)

    async def is_stored() -> bool:
        return (await worker.store.snapshot(stream)).used_at_ms >= made_at + 700

    await eventually(is_stored)
    worker.clock.ahead_ms = 500
    await worker.streams.snapshot(stream)


async def test_a_snapshot_does_not_count_as_use(worker: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream, b"x", ttl_seconds=1)
    made_at = (await worker.store.snapshot(stream)).used_at_ms

    async def has_expired() -> bool:
        try:
            await worker.streams.snapshot(stream)
        except StreamNotFound:
            return True
        return False

    await eventually(has_expired)
    assert worker.clock() - made_at >= 1000


async def test_the_time_of_frequent_reads_is_stored_once(worker: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream, b"x", ttl_seconds=100)
    for _ in range(20):
        await worker.streams.read(stream, 0)
    assert "a.a" not in await worker.subjects(name), "the stream was created just now"
    worker.clock.ahead_ms = 10_001  # a tenth of its TTL later
    await worker.streams.read(stream, 0)

    async def is_stored() -> bool:
        return "a.a" in await worker.subjects(name)

    await eventually(is_stored)


async def test_reads_of_streams_without_ttl_store_nothing(worker: Worker, name: str) -> None:
    await worker.create(StreamName(name, "a"), b"x")
    await worker.create(StreamName(name, "b"), b"x", **SOON)
    before = await worker.subjects(name)
    worker.clock.ahead_ms = 3_600_000
    for _ in range(3):
        await worker.read_all(StreamName(name, "a"))
        await worker.read_all(StreamName(name, "b"))
    await asyncio.sleep(0)
    assert await worker.subjects(name) == before


async def test_a_fixed_expiry_does_not_move(worker: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream, b"x", expires_at_ms=worker.clock() + 5_000, expires_at="whenever")
    worker.clock.ahead_ms = 4_000
    await worker.append(stream, b"y")
    await worker.read_all(stream)
    worker.clock.ahead_ms = 5_100
    with pytest.raises(StreamNotFound):
        await worker.streams.read(stream, 0)
    with pytest.raises(StreamNotFound):
        await worker.append(stream, b"z")


async def test_expired_streams_are_deleted_completely(worker: Worker, name: str) -> None:
    for number in range(3):
        await worker.create(StreamName(name, f"short{number}"), b"x", ttl_seconds=10)
        await worker.append(StreamName(name, f"short{number}"), b"x", ("p", 0, 0))
    await worker.create(StreamName(name, "long"), b"kept", ttl_seconds=100)
    await worker.create(StreamName(name, "ever"), b"kept")
    assert await worker.streams.delete_expired(name) == 0
    worker.clock.ahead_ms = 10_100
    assert await worker.streams.delete_expired(name) == 3
    assert await worker.streams.delete_expired(name) == 0
    assert {one.split(".")[1] for one in await worker.subjects(name)} == {"long", "ever"}
    assert await worker.read_all(StreamName(name, "long")) == [b"kept"]


async def test_a_concurrent_append_keeps_an_expired_stream(
    worker: Worker, other: Worker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker appends between the snapshot and the delete."""
    stream = StreamName(name, "a")
    await worker.create(stream, b"x", ttl_seconds=10)
    worker.clock.ahead_ms = 10_100
    with monkeypatch.context() as meanwhile:
        append_after_snapshots(worker, other, stream, meanwhile)
        assert await worker.streams.delete_expired(name) == 0
    assert await other.read_all(stream) == [b"x", b"y"]


async def test_a_tenant_without_streams_has_none_and_gets_no_store(worker: Worker, name: str) -> None:
    assert await worker.streams.delete_expired(name) == 0
    assert await worker.streams.paths(name) == []
    assert not await worker.store.exists(name)


# Delete


async def test_a_delete_removes_everything(worker: Worker, other: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream, b"x", ttl_seconds=100)
    await worker.store.save_read_time(stream)
    for number in range(3):
        await worker.append(stream, b"x", ("p", 0, number))
    await worker.store.save_checkpoint(stream, await worker.store.snapshot(stream, with_producers=True))
    await worker.append(stream, None, closes=True)
    assert {"s.a.d", "s.a.m", "a.a", "p.a"} <= set(await worker.subjects(name))
    await other.streams.delete(None, stream)
    assert await worker.subjects(name) == []
    for one in (worker, other):
        with pytest.raises(StreamNotFound):
            await one.streams.read(stream, 0)
        with pytest.raises(StreamNotFound):
            await one.streams.delete(None, stream)


async def test_a_stream_with_constant_appends_can_be_deleted(
    worker: Worker, other: Worker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker appends after every snapshot."""
    stream = StreamName(name, "a")
    await worker.create(stream)
    append_after_snapshots(worker, other, stream, monkeypatch)
    await worker.streams.delete(None, stream)
    assert await other.subjects(name) == []


def append_after_snapshots(worker: Worker, other: Worker, stream: StreamName, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the other worker append after every snapshot of this one."""
    really = worker.store.snapshot

    async def snapshot_and_append(*arguments: Any, **more: Any) -> Any:
        known = await really(*arguments, **more)
        await other.append(stream, b"y")
        return known

    monkeypatch.setattr(worker.store, "snapshot", snapshot_and_append)


async def test_a_recreated_stream_has_no_data_of_the_old_one(worker: Worker, other: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    old = await worker.create(stream, b"old", is_public=True)
    await worker.append(stream, b"old", ("p", 0, 0), seq="z")
    await other.streams.delete(None, stream)
    new = await other.create(stream, b'"new"', JSON)
    assert new.is_new
    assert new.record.incarnation > old.record.incarnation
    assert not new.record.is_public
    for one in (worker, other):
        assert await one.read_all(stream) == [b'"new"']
        assert await one.read_all(stream, old.tail) == [b'"new"'], "an old offset is before its start"
    known = await other.store.snapshot(stream, with_producers=True)
    assert (known.producers, known.last_seq) == ({}, None)


async def test_a_crash_between_the_steps_of_a_delete_leaves_nothing_visible(
    worker: Worker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream, b"old")
    await worker.append(stream, b"old", ("p", 0, 0))

    async def crash(*_: object) -> None:
        raise ConnectionError

    with monkeypatch.context() as broken:
        broken.setattr(worker.store, "purge", crash)
        with pytest.raises(ConnectionError):
            await worker.streams.delete(None, stream)
        with pytest.raises(StreamNotFound):
            await worker.streams.read(stream, 0)
        assert await worker.streams.paths(name) == []
        assert await worker.streams.tail(name, "a") is None
        with pytest.raises(ConnectionError):
            await worker.create(stream, ttl_seconds=100)
    assert await worker.tail(stream) == 0
    assert await worker.read_all(stream) == []
    with pytest.raises(ProducerGap):
        await worker.append(stream, b"new", ("p", 0, 1))
    await worker.append(stream, b"new")
    assert await worker.read_all(stream) == [b"new"]
    await worker.streams.delete(None, stream)
    assert await worker.subjects(name) == []


async def test_a_tenants_streams_are_deleted_together(worker: Worker, name: str) -> None:
    others = f"{name}x"
    for tenant in (name, others):
        for path in ("a", "b/c"):
            await worker.create(StreamName(tenant, path), b"x")
    await worker.streams.delete_all(name)
    await worker.streams.delete_all(name)
    assert not await worker.store.exists(name)
    assert await worker.streams.paths(others) == ["a", "b/c"]
    made = await worker.create(StreamName(name, "a"), b"new")
    assert made.is_new
    assert await worker.read_all(StreamName(name, "a")) == [b"new"]


# All streams of a tenant


async def test_paths_lists_the_existing_streams(worker: Worker, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.streams.directory._READ_MAX", 2)
    wanted = ["a", "a/b", "a.b", "c:d", "hidden", "gone", "closed"]
    for path in wanted:
        await worker.create(StreamName(name, path), b"x")
        await worker.append(StreamName(name, path), b"y", ("p", 0, 0))
    await worker.fork(StreamName(name, "fork"), StreamName(name, "hidden"))
    await worker.streams.delete(None, StreamName(name, "hidden"))
    await worker.streams.delete(None, StreamName(name, "gone"))
    await worker.append(StreamName(name, "closed"), None, closes=True)
    assert sorted(await worker.streams.paths(name)) == sorted(["a", "a/b", "a.b", "c:d", "closed", "fork"])


async def test_tail_is_the_end_of_a_stream(worker: Worker, name: str) -> None:
    assert await worker.streams.tail(name, "a") is None
    await worker.create(StreamName(name, "a"), b"1", JSON)
    await worker.streams.append_json(name, "a", b'{"b":2}')
    assert await worker.streams.tail(name, "a") == f"{0:016d}_{await worker.tail(StreamName(name, 'a')):016d}"
    assert await worker.read_all(StreamName(name, "a")) == [b"1", b'{"b":2}']
    with pytest.raises(StreamNotFound):
        await worker.streams.append_json(name, "none", b"1")


async def test_appends_yields_every_append_of_all_workers(worker: Worker, other: Worker, name: str) -> None:
    await worker.create(StreamName(name, "before"), b"x")
    heard: list[tuple[str, str]] = []

    async def listen() -> None:
        async for path, offset in worker.streams.appends(name):
            heard.append((path, offset))

    listening = asyncio.create_task(listen())
    try:
        # Append until the first is received; from then on none may be missed.
        async def hears() -> bool:
            await other.append(StreamName(name, "before"), b"x")
            return bool(heard)

        await eventually(hears)
        expected: set[tuple[str, str]] = set()
        for path in ("before", "a/b", "c.d"):
            for one in (worker, other):
                await one.create(StreamName(name, path), content_type=TEXT)
                outcome = await one.append(StreamName(name, path), b"x")
                expected.add((path, f"{0:016d}_{outcome.next_offset:016d}"))
        await eventually(lambda: expected <= set(heard))
        assert len(heard) == len(set(heard)), "each once"
        for path in ("before", "a/b", "c.d"):
            offsets = [offset for where, offset in heard if where == path]
            assert offsets == sorted(offsets)
    finally:
        listening.cancel()
