import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.jetstream.streams import committer_of, make_stream, new_message
from tests.servers import OpenConnection, Server, TcpProxy
from tests.waiting import eventually

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import CommitPolicy, Committers, PendingMessage
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.management import purge_stream
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.clock import now_ms
from postroad.kernel.errors import EngineNoResponders, EngineUnavailable


async def _fill(connection: Connection, committers: Committers, name: str, letters: str) -> None:
    """Store one message per letter: its sequence is its position in `letters`, from 1."""
    await make_stream(connection, name)
    for number, letter in enumerate(letters, 1):
        await committers.of(name).append(new_message(f"{name}.{letter}.x", b"%d" % number))


def _sequences(page: stream_reader.Page) -> list[int]:
    return [entry.sequence for entry in page.entries]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("a.x", [1, 3, 6]), ("*.x", [1, 2, 3, 4, 5, 6]), (">", [1, 2, 3, 4, 5, 6]), ("b.>", [2, 5]), ("d.x", [])],
)
async def test_a_subject_or_a_pattern_is_read_in_order(
    connection: Connection, committers: Committers, name: str, pattern: str, expected: list[int]
) -> None:
    await _fill(connection, committers, name, "abacba")
    page = await stream_reader.read(connection, name, f"{name}.{pattern}")
    assert _sequences(page) == expected
    assert page.is_end


async def test_an_entry_has_the_stored_message_and_its_time(connection: Connection, committers: Committers, name: str) -> None:
    await make_stream(connection, name)
    before = now_ms()
    await committers.of(name).append(new_message(f"{name}.a", "grüße".encode(), message_id="id-1"))
    after = now_ms()
    for entry in (
        (await stream_reader.read(connection, name, f"{name}.a")).entries[0],
        await stream_reader.at(connection, name, 1),
        await stream_reader.last(connection, name, f"{name}.a"),
    ):
        assert entry is not None
        assert (entry.subject, entry.sequence, entry.payload) == (f"{name}.a", 1, "grüße".encode())
        assert entry.headers == {"Nats-Msg-Id": "id-1"}
        assert before <= entry.at_ms <= after


async def test_consecutive_pages_have_no_gap_or_overlap(connection: Connection, committers: Committers, name: str) -> None:
    await make_stream(connection, name)
    await asyncio.gather(*[committers.of(name).append(new_message(f"{name}.{number % 3}")) for number in range(100)])
    wanted = _sequences(await stream_reader.read(connection, name, f"{name}.1", limit=1000))
    assert len(wanted) == 33
    for limit in (1, 2, 10, 33, 34):
        read: list[int] = []
        following, is_end = 1, False
        while not is_end:
            page = await stream_reader.read(connection, name, f"{name}.1", following, limit)
            assert len(page.entries) <= limit
            read += _sequences(page)
            following, is_end = page.next_sequence, page.is_end
        assert read == wanted
        assert following == wanted[-1] + 1


async def test_a_read_starts_at_or_after_the_sequence(connection: Connection, committers: Committers, name: str) -> None:
    await _fill(connection, committers, name, "abab")
    assert _sequences(await stream_reader.read(connection, name, f"{name}.a.x", 1)) == [1, 3]
    assert _sequences(await stream_reader.read(connection, name, f"{name}.a.x", 2)) == [3]
    assert _sequences(await stream_reader.read(connection, name, f"{name}.a.x", 3)) == [3]
    assert _sequences(await stream_reader.read(connection, name, f"{name}.a.x", 0)) == [1, 3]


async def test_reading_continues_from_the_end_when_more_is_stored(
    connection: Connection, committers: Committers, name: str
) -> None:
    await _fill(connection, committers, name, "aa")
    for beyond in (3, 1_000_000):
        page = await stream_reader.read(connection, name, f"{name}.>", beyond)
        assert (page.entries, page.next_sequence, page.is_end) == ([], beyond, True)
    await committers.of(name).append(new_message(f"{name}.a.x"))
    assert _sequences(await stream_reader.read(connection, name, f"{name}.>", 3)) == [3]


async def test_an_empty_stream_is_at_its_end(connection: Connection, name: str) -> None:
    await make_stream(connection, name)
    page = await stream_reader.read(connection, name, f"{name}.>")
    assert (page.entries, page.next_sequence, page.is_end) == ([], 1, True)
    assert await stream_reader.last(connection, name, f"{name}.a") is None
    assert await stream_reader.at(connection, name, 1) is None


async def test_deleted_entries_are_skipped(connection: Connection, committers: Committers, name: str) -> None:
    await _fill(connection, committers, name, "abcabc")
    await purge_stream(connection, name, f"{name}.b.x")
    assert _sequences(await stream_reader.read(connection, name, f"{name}.>")) == [1, 3, 4, 6]
    assert await stream_reader.at(connection, name, 2) is None


async def test_a_page_of_large_messages_ends_early_and_is_not_the_end(connection: Connection, name: str) -> None:
    await make_stream(connection, name)
    committer = committer_of(connection, name)
    for number in range(8):
        await committer.append(new_message(f"{name}.a", b"%d" % number + b"x" * 1_000_000))
    page = await stream_reader.read(connection, name, f"{name}.a")
    assert 1 <= len(page.entries) < 8 and not page.is_end
    rest = await stream_reader.read(connection, name, f"{name}.a", page.next_sequence)
    more = await stream_reader.read(connection, name, f"{name}.a", rest.next_sequence)
    assert _sequences(page) + _sequences(rest) + _sequences(more) == list(range(1, 9))


async def test_last_returns_the_newest_entry_of_a_subject(connection: Connection, committers: Committers, name: str) -> None:
    await _fill(connection, committers, name, "abab")
    for letter, sequence in (("a", 3), ("b", 4)):
        entry = await stream_reader.last(connection, name, f"{name}.{letter}.x")
        assert entry is not None and entry.sequence == sequence
    assert await stream_reader.last(connection, name, f"{name}.c.x") is None


async def test_at_returns_the_entry_of_a_sequence(connection: Connection, committers: Committers, name: str) -> None:
    await _fill(connection, committers, name, "ab")
    entry = await stream_reader.at(connection, name, 2)
    assert entry is not None and (entry.subject, entry.payload) == (f"{name}.b.x", b"2")
    assert await stream_reader.at(connection, name, 3) is None


async def test_concurrent_reads_get_their_own_replies(connection: Connection, committers: Committers, name: str) -> None:
    await _fill(connection, committers, name, "abcd")
    pages = await asyncio.gather(
        *[stream_reader.read(connection, name, f"{name}.{'abcd'[number % 4]}.x") for number in range(100)]
    )
    assert [_sequences(page) for page in pages] == [[number % 4 + 1] for number in range(100)]


async def test_a_missing_stream_cannot_be_read(connection: Connection, name: str) -> None:
    with pytest.raises(EngineUnavailable):
        await stream_reader.read(connection, name, f"{name}.>")


async def test_a_read_is_unavailable_while_the_server_is_down(
    own_server: Server, open_connection: OpenConnection, name: str
) -> None:
    connection = await open_connection(own_server.url)
    await make_stream(connection, name)
    own_server.kill()
    for _ in range(2):  # while the connection breaks, and when the loss is known
        with pytest.raises(EngineUnavailable):
            await asyncio.wait_for(stream_reader.read(connection, name, f"{name}.>"), 30)
        await eventually(lambda: not connection.is_up)


@pytest.mark.parametrize("way", ["last", "at"])
async def test_a_read_of_one_entry_survives_a_lost_reply(
    connection: Connection, committers: Committers, proxy: TcpProxy, open_connection: OpenConnection, name: str, way: str
) -> None:
    await _fill(connection, committers, name, "a")
    far = await open_connection(proxy.url)
    proxy.drops_replies = True
    looking = asyncio.ensure_future(
        stream_reader.last(far, name, f"{name}.a.x") if way == "last" else stream_reader.at(far, name, 1)
    )
    await asyncio.wait_for(proxy.dropped.wait(), 30)
    proxy.cut()
    entry = await asyncio.wait_for(looking, 30)
    assert entry is not None and entry.payload == b"1"


# With replicas, which may lag


@pytest.fixture
async def leader_reads(connection: Connection) -> AsyncIterator[Connection]:
    """A connection that reads from the leader; here the only server."""
    opened = Connection(replace(connection.settings, has_replicas=True))
    await opened.open()
    yield opened
    await opened.close()


async def test_the_leader_returns_the_same_as_a_direct_get(
    connection: Connection, leader_reads: Connection, committers: Committers, name: str
) -> None:
    await _fill(connection, committers, name, "abac")
    await purge_stream(connection, name, f"{name}.c.x")
    await committers.of(name).append(new_message(f"{name}.a.x", "grüße".encode(), message_id="id: 1", after=3))
    for subject in (f"{name}.a.x", f"{name}.b.x", f"{name}.c.x", f"{name}.none"):
        assert await stream_reader.last(leader_reads, name, subject) == await stream_reader.last(connection, name, subject)
    for sequence in range(1, 7):
        assert await stream_reader.at(leader_reads, name, sequence) == await stream_reader.at(connection, name, sequence)
    for patterns in ([f"{name}.*.x"], [f"{name}.a.*", f"{name}.b.x"], [f"{name}.none"]):
        assert await stream_reader.newest(leader_reads, name, patterns) == await stream_reader.newest(connection, name, patterns)
    newest = await stream_reader.last(leader_reads, name, f"{name}.>")
    assert newest is not None and newest.sequence == 5
    with pytest.raises(EngineUnavailable):
        await stream_reader.last(leader_reads, f"{name}-not", "x")


async def test_the_leader_returns_headers_of_other_clients_as_a_direct_get_does(
    connection: Connection, leader_reads: Connection, name: str
) -> None:
    """Any bytes: one that is not UTF-8 is replaced."""
    await make_stream(connection, name)
    head = b"NATS/1.0\r\nX-Text: \xff\xfe\r\nX-\xff: a\r\nX-Two: a\r\nX-Two: b\r\nnothing\r\n\r\n"
    await connection.request_encoded(
        lambda reply: b"HPUB %b.a %b %d %d\r\n%b\r\n" % (name.encode(), reply.encode(), len(head), len(head), head)
    )
    entry = await stream_reader.at(leader_reads, name, 1)
    assert entry is not None and entry.headers == {"X-Text": "\ufffd\ufffd", "X-Two": "b"}
    assert entry == await stream_reader.at(connection, name, 1) == await stream_reader.last(leader_reads, name, f"{name}.a")


def _behind(monkeypatch: pytest.MonkeyPatch, asker: Connection, function: str, times: int, nothing: object) -> list[int]:
    """Make a function return no entries at first, as a lagging replica does. Returns its calls."""
    real, calls = getattr(stream_reader, function), list[int]()

    async def found(connection: Connection, *more: Any) -> Any:
        calls.extend([1] if connection is asker else [])
        return nothing if connection is asker and len(calls) <= times else await real(connection, *more)

    monkeypatch.setattr(stream_reader, function, found)
    return calls


async def test_a_replica_behind_its_leader_is_read_again(
    connection: Connection, leader_reads: Connection, committers: Committers, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _fill(connection, committers, name, "ab")
    calls = _behind(monkeypatch, leader_reads, "_newest", 3, [])
    assert [entry.sequence for entry in await stream_reader.newest(leader_reads, name, [f"{name}.*.x"])] == [1, 2]
    assert len(calls) == 4


async def test_read_to_reaches_the_known_end(
    connection: Connection, leader_reads: Connection, committers: Committers, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _fill(connection, committers, name, "aba")
    calls = _behind(monkeypatch, leader_reads, "read", 2, stream_reader.Page((), 1, 0))
    assert _sequences(await stream_reader.read_to(leader_reads, name, f"{name}.a.x", 1, 3)) == [1, 3]
    assert len(calls) == 3


async def test_a_replica_that_stays_behind_is_unavailable(
    connection: Connection, leader_reads: Connection, committers: Committers, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _fill(connection, committers, name, "ab")
    leader_reads.settings = replace(leader_reads.settings, request_timeout=0.2)
    with pytest.raises(EngineUnavailable):
        await stream_reader.read_to(leader_reads, name, f"{name}.a.x", 1, 7)
    _behind(monkeypatch, leader_reads, "_newest", 1000, [])
    with pytest.raises(EngineUnavailable):
        await stream_reader.newest(leader_reads, name, [f"{name}.*.x"])


async def test_with_replicas_a_read_without_a_reply_is_sent_again(connection: Connection, proxy: TcpProxy, name: str) -> None:
    """The server may choose a replica that is gone."""
    await make_stream(connection, name)
    await committer_of(connection, name).append(new_message(f"{name}.a", b"stored"))
    far = Connection(ConnectionSettings((proxy.url,), has_replicas=True))
    await far.open(deadline=10)
    try:
        proxy.drops_replies = True
        reading = asyncio.create_task(stream_reader.read(far, name, f"{name}.a"))
        await asyncio.wait_for(proxy.dropped.wait(), 10)
        proxy.drops_replies = False
        assert [entry.payload for entry in (await reading).entries] == [b"stored"]
    finally:
        await far.close()


async def test_without_a_stream_nothing_responds(engine_url: str, open_connection: OpenConnection, name: str) -> None:
    """The errors are 502, retryable: no server is responsible. A request that is not answered in time is 503."""
    connection = await open_connection(ConnectionSettings((engine_url,), name="tests", request_timeout=0.2))
    committers = Committers(connection, CommitPolicy(deadline_seconds=0.2), WriteBufferLimit(1024 * 1024))
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: stream_reader.at(connection, name, 1),
        lambda: stream_reader.read(connection, name, name),
        lambda: committers.of(name).append(PendingMessage(name, b"x", "1")),
    ]
    for call in calls:
        with pytest.raises(EngineNoResponders) as caught:
            await call()
        error = caught.value
        assert (error.status, error.retryable, error.retry_after) == (502, True, 1)
        assert isinstance(error, EngineUnavailable)
