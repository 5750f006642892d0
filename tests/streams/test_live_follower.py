"""Followers of live reads: sharing, slow readers, lost connections and revoked keys."""

import asyncio
import contextlib
import time
from functools import partial

import pytest

from postroad.http.request import Scope
from postroad.http.request_cycle import RequestCycle
from postroad.jetstream.connection import Connection
from postroad.streams import content, live_follower
from tests.access.control import KEYS
from tests.gateway import (
    Gateway,
    Tenant,
)
from tests.servers import OpenConnection, Server, TcpProxy, restart
from tests.streams.readers import AT_ONCE, Seen, Stream, small_gateway
from tests.streams.workers import JSON
from tests.waiting import eventually

# Sharing


async def test_each_message_is_encoded_once_for_all_readers(
    open_connection: OpenConnection, engine_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    framed = 0
    really = content.data_event

    def counted(body: bytes, media: str) -> bytes:
        nonlocal framed
        framed += 1
        return really(body, media)

    monkeypatch.setattr(live_follower, "data_event", counted)
    connection = await open_connection(engine_url)
    async with small_gateway(connection, name) as (stream, _), contextlib.AsyncExitStack() as open_readers:
        await stream.create()
        readers = [await open_readers.enter_async_context(stream.events("now")) for _ in range(30)]
        everyone = [Seen() for _ in readers]
        pairs = list(zip(everyone, readers, strict=True))
        await asyncio.gather(*[seen.up_to_date(one) for seen, one in pairs])
        assert subscriptions_of(connection, name) == 2, "one for the data, one for the record"
        for number in range(50):
            await stream.append(b"%d" % number)
        await asyncio.gather(*[seen.count(one, 50) for seen, one in pairs])
        assert framed == 50
        assert all(seen.data == [str(number) for number in range(50)] for seen in everyone)


@pytest.mark.parametrize("is_writable", [True, False])
async def test_a_message_for_readers_that_wait_is_written_without_their_tasks_unless_a_client_does_not_read(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, is_writable: bool
) -> None:
    written, sent = list[bytes](), list[bytes]()
    write_chunk, send = RequestCycle.write_chunk, RequestCycle.send

    def counted_write(self: RequestCycle, chunk: bytes) -> bool:
        written.append(chunk)
        return is_writable and write_chunk(self, chunk)

    async def counted_send(self: RequestCycle, message: Scope) -> None:
        if b"event: data" in message.get("body", b""):
            sent.append(message["body"])
        await send(self, message)

    monkeypatch.setattr(RequestCycle, "write_chunk", counted_write)
    monkeypatch.setattr(RequestCycle, "send", counted_send)
    await stream.create()
    async with stream.events("now") as one, stream.events("now") as other:
        seen = [(Seen(), one), (Seen(), other)]
        for those, reader in seen:
            await those.up_to_date(reader)
        for number in range(20):
            await stream.append(b"%d" % number)
            for those, reader in seen:
                await those.count(reader, number + 1)
        assert all(those.data == [str(number) for number in range(20)] for those, _ in seen)
    data = b"".join(sent if not is_writable else written)
    assert data.count(b"event: data") == 40
    assert bool(sent) is not is_writable


def subscriptions_of(connection: Connection, tenant: str) -> int:
    """Number of subscriptions of the connection to the tenant's streams."""
    return sum(f".{tenant}." in subject for subject in connection._client.subjects)


async def test_a_follower_without_readers_is_dropped(
    open_connection: OpenConnection, engine_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_follower, "_IDLE_SECONDS", 0.1)
    connection = await open_connection(engine_url)
    async with small_gateway(connection, name) as (stream, _):
        await stream.create()
        async with stream.events("now") as one, stream.events("now") as two:
            for reader in (one, two):
                await reader.take(1)
            assert subscriptions_of(connection, name) == 2
        await eventually(lambda: subscriptions_of(connection, name) == 0)
        async with stream.events("now") as again:
            await again.take(1)
            await stream.append(b"x")
            assert (await again.take(1))[0].data == "x"
        await eventually(lambda: subscriptions_of(connection, name) == 0)


async def test_a_follower_of_a_deleted_stream_is_dropped(
    open_connection: OpenConnection, engine_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_follower, "_IDLE_SECONDS", 0.1)
    connection = await open_connection(engine_url)
    async with small_gateway(connection, name) as (stream, _):
        for _ in range(2):
            await stream.create()
            async with stream.events("now") as reader:
                await reader.take(1)
                (await stream.client.delete(stream.path)).ok(204)
                assert await reader.next(AT_ONCE) is None
        await eventually(lambda: subscriptions_of(connection, name) == 0)


async def test_an_idle_reader_gets_heartbeats(open_connection: OpenConnection, engine_url: str, name: str) -> None:
    async with small_gateway(await open_connection(engine_url), name, heartbeat_seconds=0.5) as (stream, _):
        await stream.create()
        async with stream.events("now") as reader:
            await reader.take(1)
            with contextlib.suppress(TimeoutError):
                await reader.next(2.5)
            assert reader.comments[:1] == ["beat"]
            await stream.append(b"x")
            assert (await reader.take(1))[0].data == "x"


async def test_an_event_stream_ends_after_the_maximum_duration(
    open_connection: OpenConnection, engine_url: str, name: str
) -> None:
    async with small_gateway(await open_connection(engine_url), name, sse_seconds=0.3) as (stream, _):
        await stream.create()
        seen = Seen()
        for connection in range(3):
            async with stream.events(seen.offset) as reader:
                await seen.up_to_date(reader)
                began_at = time.monotonic()
                is_open = True
                while is_open:
                    await stream.append(b"%d" % connection)
                    is_open = await seen.count(reader, len(seen.data) + 1)
                assert time.monotonic() - began_at > 0.2
        async with stream.events(seen.offset) as reader:
            await seen.up_to_date(reader)
        assert "".join(seen.data) == await everything_in(stream)


async def everything_in(stream: Stream) -> str:
    """The stream, which may be longer than one response."""
    found, offset = "", "-1"
    while True:
        page = await stream.read(f"?offset={offset}")
        found, offset = found + page.body.decode(), page.headers["stream-next-offset"]
        if page.headers.get("stream-up-to-date") == "true":
            return found


# Slow readers, lost connections, revoked keys


def lines(number: int, size: int) -> bytes:
    return (b"%04d" % number * 1000 + b"\n") * (size // 4001)


async def test_a_slow_reader_is_disconnected_and_continues_without_loss(
    open_connection: OpenConnection, engine_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_follower, "_RING_BYTES_MAX", 600_000)
    count, size = 120, 200_000  # far more than the socket buffers hold
    async with small_gateway(await open_connection(engine_url), name) as (stream, _):
        await stream.create()
        seen = Seen()
        async with stream.events("-1") as slow, stream.events("-1") as quick:
            await seen.up_to_date(slow)
            sizes = Seen()
            await sizes.up_to_date(quick)
            for number in range(count):
                await stream.append(lines(number, size))
                await sizes.count(quick, number + 1)
            assert not await seen.count(slow, count), "it was disconnected"
        assert 0 < len(seen.data) < count
        whole = b"".join(lines(number, size) for number in range(count)).decode()
        while sum(map(len, seen.data)) < len(whole):
            async with stream.events(seen.offset) as reader:
                await seen.up_to_date(reader)
        assert "".join(seen.data) == "".join(sizes.data) == whole


async def test_a_burst_larger_than_the_ring_is_read_completely(
    open_connection: OpenConnection, engine_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that falls behind the ring may be disconnected, and reads the rest after reconnecting."""
    monkeypatch.setattr(live_follower, "_RING_EVENTS_MAX", 8)
    async with small_gateway(await open_connection(engine_url), name) as (stream, _):
        await stream.create(JSON)
        seen = Seen()

        async def follow() -> None:
            while not seen.is_closed:
                async with stream.events(seen.offset) as reader:
                    await seen.take(reader, lambda: seen.is_closed)

        following = asyncio.create_task(follow())
        await eventually(lambda: seen.is_up_to_date)
        await asyncio.gather(*[stream.append(b"%d" % number, JSON) for number in range(300)])
        await stream.close()
        await asyncio.wait_for(following, 30)
        assert seen.numbers == (await stream.read()).json
        assert sorted(seen.numbers) == list(range(300))


async def produce(stream: Stream, count: int, written: list[int]) -> None:
    """Append as a producer, repeating each request until it succeeds."""
    for number in range(count):
        headers = {"Content-Type": JSON, "Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(number)}
        while True:
            answer = await stream.client.call("POST", stream.path, data=b"%d" % number, headers=headers)
            if answer.status in (200, 204):
                break
            assert answer.status == 503, answer
        written.append(number)


async def follow_until(stream: Stream, seen: Seen, count: int) -> None:
    while len(seen.numbers) < count:
        with contextlib.suppress(AssertionError):  # a status other than 200 while the server is down
            async with stream.events(seen.offset) as reader:
                await seen.take(reader, lambda: len(seen.numbers) >= count, 30)


def has_reached(written: list[int], count: int) -> bool:
    return len(written) >= count


async def test_a_server_restart_loses_and_repeats_nothing(own_server: Server, open_connection: OpenConnection) -> None:
    connection = await open_connection(own_server.url)
    async with small_gateway(connection, "t") as (stream, _):
        await stream.create(JSON)
        everyone, written = [Seen(), Seen()], list[int]()
        async with asyncio.TaskGroup() as tasks:
            for seen in everyone:
                tasks.create_task(follow_until(stream, seen, 60))
            tasks.create_task(produce(stream, 60, written))
            for due in (15, 35):
                await eventually(partial(has_reached, written, due))
                await restart(own_server, connection)
        for seen in everyone:
            assert seen.numbers == list(range(60))
        assert (await stream.read()).json == list(range(60))


async def test_a_broken_connection_loses_and_repeats_nothing(
    proxy: TcpProxy, open_connection: OpenConnection, engine_url: str, name: str
) -> None:
    """Appends through another worker arrive after the reader's worker has reconnected."""
    deaf = await open_connection(proxy.url)
    async with small_gateway(deaf, name) as (stream, _), small_gateway(await open_connection(engine_url), name) as (elsewhere, _):
        await elsewhere.create(JSON)
        seen = Seen()
        async with stream.events("-1") as reader:
            await seen.up_to_date(reader)
            for round_number in range(3):
                await elsewhere.append(b"%d" % (2 * round_number), JSON)
                await seen.count(reader, 2 * round_number + 1)
                proxy.drops_replies = True
                proxy.dropped.clear()
                await elsewhere.append(b"%d" % (2 * round_number + 1), JSON)
                await asyncio.wait_for(proxy.dropped.wait(), 30)
                proxy.cut()
                await seen.count(reader, 2 * round_number + 2)
        assert seen.numbers == list(range(6))


async def test_a_close_or_delete_during_a_broken_connection_is_noticed(
    proxy: TcpProxy, open_connection: OpenConnection, engine_url: str, name: str
) -> None:
    connection = await open_connection(proxy.url)
    async with (
        small_gateway(connection, name) as (stream, _),
        small_gateway(await open_connection(engine_url), name) as (elsewhere, _),
    ):
        await elsewhere.create()
        other, other_there = Stream(stream.client, "/v1/stream/b"), Stream(elsewhere.client, "/v1/stream/b")
        await other_there.create()
        closed, deleted = Seen(), Seen()
        async with stream.events("-1") as one, other.events("-1") as two:
            await closed.up_to_date(one)
            await deleted.up_to_date(two)
            proxy.drops_replies = True
            await elsewhere.append(b"last", **{"Stream-Closed": "true"})
            (await elsewhere.client.delete(other_there.path)).ok(204)
            proxy.cut()
            await closed.end(one, 10)
            await deleted.end(two, 10)
        assert (closed.data, closed.is_closed) == (["last"], True)
        assert (deleted.data, deleted.is_closed) == ([], False)


async def test_a_revoked_key_reads_no_further(gateway: Gateway, second_gateway: Gateway, tenant: Tenant, stream: Stream) -> None:
    await stream.create(data=b"x")
    hook_tenant = await tenant.another_key()
    readers = [stream.with_client(one.with_key(hook_tenant.key)) for one in (gateway, second_gateway)]
    polls = [asyncio.create_task(one.poll("now")) for one in readers]
    async with readers[0].events("-1") as here, readers[1].events("now") as there, stream.events("now") as unconcerned:
        for reader in (here, there, unconcerned):
            await reader.take(1)
        (await tenant.client.delete(f"{KEYS}/{hook_tenant.record.id}")).ok(204)
        for reader in (here, there):
            while await reader.next(AT_ONCE) is not None:
                pass
        for poll in polls:
            assert (await asyncio.wait_for(poll, AT_ONCE)).status == 401
        await stream.append(b"y")
        assert (await unconcerned.take(1))[0].data == "y"


async def test_live_reads_end_when_the_process_drains(open_connection: OpenConnection, engine_url: str, name: str) -> None:
    connection = await open_connection(engine_url)
    async with small_gateway(connection, name) as (stream, app):
        start = await stream.create()
        polling = asyncio.create_task(stream.poll(start))
        async with stream.events("-1") as reader:
            await reader.take(1)
            app.drain()
            assert await reader.next(AT_ONCE) is None
        assert (await asyncio.wait_for(polling, AT_ONCE)).status in (204, 503)
        await eventually(lambda: subscriptions_of(connection, name) == 0)


async def test_a_disconnected_reader_is_removed(gateway: Gateway, stream: Stream) -> None:
    await stream.create()
    for _ in range(3):
        async with stream.events("now") as reader:
            await reader.take(1)
    polling = asyncio.create_task(stream.poll("now"))
    await asyncio.sleep(0)
    polling.cancel()
    await stream.append(b"x")
    assert (await stream.read()).body == b"x"
