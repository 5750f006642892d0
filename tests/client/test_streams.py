"""Durable streams with both clients, against a running gateway."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, assert_type

import pytest

from postroad.client import (
    Appended,
    AsyncPostroad,
    AsyncProducer,
    Chunk,
    CreatedStream,
    Postroad,
    Producer,
    StreamInfo,
    StreamMessage,
)
from postroad.client.errors import (
    ContentTypeMismatch,
    Forbidden,
    OffsetGone,
    ProducerFenced,
    ProducerGap,
    SequenceConflict,
    StreamClosed,
    StreamExists,
    StreamGone,
    StreamNotFound,
    Unauthenticated,
    Unreachable,
)
from postroad.kernel.identity import Scope
from postroad.streams.capability import StreamsCapability
from tests.client.conftest import Sdk, opened
from tests.client.lossy_connection import LossyConnection
from tests.gateway import Gateway, ShiftedClock, Tenant
from tests.waiting import eventually

if TYPE_CHECKING:

    def the_types_follow_the_client(waiting: Postroad, awaited: AsyncPostroad) -> None:
        assert_type(waiting.streams.create("s"), CreatedStream)
        assert_type(awaited.streams.append("s", 1), Awaitable[Appended])
        assert_type(waiting.streams.read("s"), Chunk)
        assert_type(awaited.streams.info("s"), Awaitable[StreamInfo])
        assert_type(waiting.streams.messages("s"), Iterator[StreamMessage])
        assert_type(waiting.streams.follow("s"), Generator[StreamMessage, None, None])
        assert_type(awaited.streams.follow("s"), AsyncGenerator[StreamMessage, None])
        assert_type(waiting.streams.producer("s", "p"), Producer)
        assert_type(awaited.streams.producer("s", "p"), AsyncProducer)
        waiting.streams.follow("s", live="websocket")  # type: ignore[arg-type]


def values(messages: list[StreamMessage]) -> list[Any]:
    return [message.value for message in messages]


# Create, append, read


async def test_the_operations_on_a_stream(sdk: Sdk) -> None:
    made = await sdk("streams.create", "orders/2027")
    assert (made.content_type, made.is_new, made.is_closed) == ("application/json", True, False)
    assert not (await sdk("streams.create", "orders/2027")).is_new

    first = await sdk("streams.append", "orders/2027", {"id": 1})
    await sdk("streams.append", "orders/2027", [1, 2])  # one message that is a list
    last = await sdk("streams.append_many", "orders/2027", [None, "three"])
    assert first.offset < last.offset

    chunk = await sdk("streams.read", "orders/2027")
    assert chunk.messages == [{"id": 1}, [1, 2], None, "three"]
    assert (chunk.next_offset, chunk.is_up_to_date, chunk.is_closed) == (last.offset, True, False)
    assert (await sdk("streams.read", "orders/2027", first.offset)).messages == [[1, 2], None, "three"]
    now = await sdk("streams.read", "orders/2027", "now")
    assert (now.messages, now.next_offset) == ([], last.offset)

    closed = await sdk("streams.close", "orders/2027", {"id": "last"})
    assert closed.is_closed
    assert (await sdk("streams.close", "orders/2027")).offset == closed.offset
    info = await sdk("streams.info", "orders/2027")
    assert (info.content_type, info.offset, info.is_closed) == ("application/json", closed.offset, True)
    assert (await sdk("streams.read", "orders/2027", last.offset)).is_closed

    await sdk("streams.delete", "orders/2027")
    with pytest.raises(StreamNotFound):
        await sdk("streams.info", "orders/2027")


async def test_bytes_are_read_unchanged(sdk: Sdk) -> None:
    await sdk("streams.create", "log", content_type="application/octet-stream", body=b"\x00")
    await sdk("streams.append", "log", b"\xff\r\n ")
    chunk = await sdk("streams.read", "log")
    assert chunk.data == b"\x00\xff\r\n "
    with pytest.raises(ValueError, match="has no messages"):
        _ = chunk.messages
    assert b"".join(message.data for message in await sdk("streams.messages", "log")) == chunk.data


async def test_a_stream_starts_with_the_given_data(sdk: Sdk) -> None:
    made = await sdk("streams.create", "whole", messages=[1, [2]], closed=True)
    assert made.is_closed
    assert values(await sdk("streams.messages", "whole")) == [1, [2]]
    await sdk("streams.create", "text", content_type="text/plain", body=b"begin\r\n")
    assert (await sdk("streams.read", "text")).data == b"begin\r\n"
    with pytest.raises(ValueError, match="not both"):
        await sdk("streams.create", "both", body=b"1", messages=[1])


async def test_many_messages_are_read_in_chunks(sdk: Sdk) -> None:
    await sdk("streams.create", "many")
    batch = [{"n": number, "filling": "x" * 1000} for number in range(1000)]
    for _ in range(3):
        await sdk("streams.append_many", "many", batch)
    messages = await sdk("streams.messages", "many")
    assert [message.value["n"] for message in messages] == list(range(1000)) * 3
    assert not (await sdk("streams.read", "many")).is_up_to_date

    middle = messages[1234]
    rest = await sdk("streams.messages", "many", middle.offset, skip=middle.skip)
    assert [message.data for message in rest] == [message.data for message in messages[1235:]]


async def test_streams_expire(sdk: Sdk, clock: ShiftedClock) -> None:
    await sdk("streams.create", "short", ttl_seconds=60)
    await sdk("streams.create", "fixed", expires_at="2099-01-01T00:00:00Z")
    assert (await sdk("streams.info", "short")).ttl_seconds == 60
    assert (await sdk("streams.info", "fixed")).expires_at == "2099-01-01T00:00:00Z"
    clock.ahead_ms = 61_000
    with pytest.raises(StreamNotFound):
        await sdk("streams.read", "short")


async def test_a_fork_continues_independently(sdk: Sdk) -> None:
    await sdk("streams.create", "main", messages=["a"])
    here = await sdk("streams.append", "main", "b")
    await sdk("streams.append_many", "main", ["c", "d"])
    made = await sdk("streams.fork", "branch", "main", offset=here.offset, sub_offset=1)
    assert made.is_new
    await sdk("streams.append", "branch", "own")
    assert values(await sdk("streams.messages", "branch")) == ["a", "b", "c", "own"]
    assert values(await sdk("streams.messages", "main")) == ["a", "b", "c", "d"]
    await sdk("streams.fork", "whole", "main", ttl_seconds=600)
    assert values(await sdk("streams.messages", "whole")) == ["a", "b", "c", "d"]

    await sdk("streams.delete", "main")
    with pytest.raises(StreamGone):
        await sdk("streams.info", "main")
    with pytest.raises(StreamGone):
        await sdk("streams.read", "main")
    assert values(await sdk("streams.messages", "whole")) == ["a", "b", "c", "d"]


async def test_errors_are_those_of_the_table(sdk: Sdk) -> None:
    with pytest.raises(StreamNotFound):
        await sdk("streams.append", "nowhere", 1)
    await sdk("streams.create", "s")
    with pytest.raises(StreamExists):
        await sdk("streams.create", "s", content_type="text/plain")
    with pytest.raises(ContentTypeMismatch):
        await sdk("streams.append", "s", b"bytes")
    await sdk("streams.append", "s", 1, seq="b")
    with pytest.raises(SequenceConflict):
        await sdk("streams.append", "s", 2, seq="a")
    with pytest.raises(SequenceConflict):
        await sdk("streams.append_many", "s", [2], seq="b")
    end = await sdk("streams.close", "s")
    with pytest.raises(StreamClosed) as closed:
        await sdk("streams.append", "s", 3)
    assert closed.value.extra["offset"] == end.offset


async def test_a_project_in_the_path_is_a_tenant(sdk: Sdk, tenant: Tenant, platform: Sdk) -> None:
    await platform("streams.create", "s", project=tenant.id)
    await platform("streams.append", "s", 1, project=tenant.id)
    await platform("streams.fork", "f", "s", project=tenant.id)
    assert values(await sdk("streams.messages", "s")) == [1]
    assert values(await platform("streams.messages", "f", project=tenant.id)) == [1]
    assert (await platform("streams.info", "f", project=tenant.id)).content_type == "application/json"
    await platform("streams.close", "s", project=tenant.id)
    assert values(await platform("streams.follow", "s", project=tenant.id)) == [1]
    await platform("streams.delete", "f", project=tenant.id)


# Authorisation


async def test_a_head_response_without_a_body_raises_the_right_error(kind: str, gateway: Gateway, tenant: Tenant) -> None:
    writer = await tenant.another_key((Scope.WRITE,))
    async with opened(kind, gateway.url, writer.key) as call:
        await call("streams.create", "s")
        with pytest.raises(Forbidden):
            await call("streams.info", "s")
    async with opened(kind, gateway.url, "pr_live_wrong") as call:
        with pytest.raises(Unauthenticated):
            await call("streams.info", "s")


async def test_a_stream_token_reads_its_stream_and_no_other(kind: str, sdk: Sdk, tenant: Tenant) -> None:
    await sdk("streams.create", "a/b", messages=[1], closed=True)
    await sdk("streams.create", "other")
    token = (await sdk("tokens.create", "stream/a/b")).token
    async with opened(kind, tenant.client.url, token) as reader:
        assert values(await reader("streams.follow", "a/b")) == [1]
        with pytest.raises((Unauthenticated, Forbidden)):
            await reader("streams.read", "other")


async def test_a_public_stream_is_read_without_a_key(sdk: Sdk, tenant: Tenant, anonymous: Sdk) -> None:
    await sdk("streams.create", "open", public=True, messages=[1], closed=True)
    await sdk("streams.create", "private")
    assert values(await anonymous("streams.follow", "open", project=tenant.id)) == [1]
    with pytest.raises(Unauthenticated):
        await anonymous("streams.read", "private", project=tenant.id)


# Following

Append = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def following(
    kind: str, url: str, key: str, *args: Any, **kwargs: Any
) -> AsyncIterator["asyncio.Queue[StreamMessage | None]"]:
    """A queue of the messages of `follow`, with None at its end; its error is raised on exit."""
    came: asyncio.Queue[StreamMessage | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def follow() -> None:
        with Postroad(url, key) as client:
            for message in client.streams.follow(*args, **kwargs):
                loop.call_soon_threadsafe(came.put_nowait, message)
        loop.call_soon_threadsafe(came.put_nowait, None)

    async def follow_async() -> None:
        async with AsyncPostroad(url, key) as client, aclosing(client.streams.follow(*args, **kwargs)) as messages:
            async for message in messages:
                came.put_nowait(message)
        came.put_nowait(None)

    running = asyncio.ensure_future(asyncio.to_thread(follow) if kind == "sync" else follow_async())
    yield came
    async with asyncio.timeout(30):
        await running


async def rest(came: "asyncio.Queue[StreamMessage | None]") -> list[Any]:
    async with asyncio.timeout(30):
        return [message.value async for message in until_none(came)]


async def until_none(came: "asyncio.Queue[StreamMessage | None]") -> AsyncIterator[StreamMessage]:
    while (message := await came.get()) is not None:
        yield message


@pytest.mark.parametrize("live", ["sse", "long-poll"])
async def test_follow_yields_appends_until_the_stream_is_closed(kind: str, live: str, sdk: Sdk, tenant: Tenant) -> None:
    await sdk("streams.create", "s", messages=["before"])
    async with following(kind, tenant.client.url, tenant.key, "s", live=live) as came:
        first = await came.get()
        assert first is not None and first.value == "before"
        for number in range(20):
            await sdk("streams.append", "s", number)
        await sdk("streams.append_many", "s", ["x", "y"])
        await sdk("streams.close", "s", "end")
        assert await rest(came) == [*range(20), "x", "y", "end"]


@pytest.mark.parametrize("media", ["text/plain", "application/octet-stream"])
async def test_follow_yields_bytes_unchanged(kind: str, media: str, sdk: Sdk, tenant: Tenant) -> None:
    pieces = [b" one\r\n", b"two\r", b"\n  three", "vier ä".encode()]
    await sdk("streams.create", "s", content_type=media)
    async with following(kind, tenant.client.url, tenant.key, "s") as came:
        for piece in pieces:
            await sdk("streams.append", "s", piece, content_type=media)
        await sdk("streams.close", "s")
        assert b"".join([message.data async for message in until_none(came)]) == b"".join(pieces)


async def test_follow_from_now_yields_new_messages_only(sdk: Sdk, tenant: Tenant) -> None:
    await sdk("streams.create", "s", messages=["before"])
    async with AsyncPostroad(tenant.client.url, tenant.key) as client, aclosing(client.streams.follow("s", "now")) as messages:
        coming = asyncio.ensure_future(anext(messages))

        async def is_received() -> bool:
            await sdk("streams.append", "s", "after")
            await asyncio.wait({coming}, timeout=0.05)
            return coming.done()

        await eventually(is_received)
        assert (await coming).value == "after"


@pytest.mark.parametrize("live", ["sse", "long-poll"])
async def test_follow_continues_at_a_saved_position(kind: str, live: str, sdk: Sdk) -> None:
    await sdk("streams.create", "s", messages=[0, 1, 2])
    await sdk("streams.append_many", "s", [3, 4])
    await sdk("streams.close", "s", 5)
    all_of_it = await sdk("streams.follow", "s", live=live)
    assert values(all_of_it) == [0, 1, 2, 3, 4, 5]
    for index, message in enumerate(all_of_it):
        again = await sdk("streams.follow", "s", message.offset, skip=message.skip, live=live)
        assert values(again) == values(all_of_it)[index + 1 :]


async def test_follow_raises_when_the_stream_is_deleted(sdk: Sdk, tenant: Tenant) -> None:
    await sdk("streams.create", "s", messages=[1])
    async with AsyncPostroad(tenant.client.url, tenant.key) as client, aclosing(client.streams.follow("s")) as messages:
        await anext(messages)
        coming = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0)
        await sdk("streams.delete", "s")
        async with asyncio.timeout(30):
            with pytest.raises(StreamNotFound):
                await coming


@pytest.mark.parametrize("live", ["sse", "long-poll"])
async def test_broken_connections_lose_and_repeat_nothing(kind: str, live: str, sdk: Sdk, tenant: Tenant) -> None:
    await sdk("streams.create", "s", messages=["before"])
    line = LossyConnection(tenant.client.url, lasts_bytes=2500)
    async with line.opened() as url, following(kind, url, tenant.key, "s", live=live) as came:
        assert (await came.get()) is not None
        for number in range(150):
            await sdk("streams.append", "s", number)
        await sdk("streams.close", "s", "end")
        assert await rest(came) == [*range(150), "end"]
    assert line.breaks > 1


# Producers


class BothProducers:
    """A producer of either client with asynchronous methods."""

    def __init__(self, producer: Producer | AsyncProducer) -> None:
        self.producer = producer

    async def append(self, data: Any, **more: Any) -> Appended:
        if isinstance(self.producer, Producer):
            return await asyncio.to_thread(self.producer.append, data, **more)
        return await self.producer.append(data, **more)

    async def append_many(self, messages: list[Any]) -> Appended:
        if isinstance(self.producer, Producer):
            return await asyncio.to_thread(self.producer.append_many, messages)
        return await self.producer.append_many(messages)

    async def close(self, data: Any = None) -> Appended:
        if isinstance(self.producer, Producer):
            return await asyncio.to_thread(self.producer.close, data)
        return await self.producer.close(data)


MakeProducer = Callable[..., BothProducers]


@asynccontextmanager
async def producers(kind: str, url: str, key: str, **options: Any) -> AsyncIterator[MakeProducer]:
    if kind == "sync":
        with Postroad(url, key, **options) as waiting:
            yield lambda *args, **more: BothProducers(waiting.streams.producer(*args, **more))
        return
    async with AsyncPostroad(url, key, **options) as awaited:
        yield lambda *args, **more: BothProducers(awaited.streams.producer(*args, **more))


@pytest.fixture
async def producer_of(kind: str, tenant: Tenant) -> AsyncIterator[MakeProducer]:
    async with producers(kind, tenant.client.url, tenant.key) as make:
        yield make


async def test_a_producers_appends_are_stored_once(sdk: Sdk, producer_of: MakeProducer) -> None:
    await sdk("streams.create", "s")
    first = producer_of("s", "p")
    assert [(await first.append(number)).is_duplicate for number in range(3)] == [False] * 3
    assert not (await first.append_many(["x", "y"])).is_duplicate
    assert first.producer.next_seq == 4

    again = producer_of("s", "p")  # restarted at 0
    assert [(await again.append(number)).is_duplicate for number in range(3)] == [True] * 3
    on = producer_of("s", "p", next_seq=4)  # restarted at the next number
    assert not (await on.append("more")).is_duplicate
    closed = await on.close("end")
    assert (closed.is_closed, on.producer.next_seq) == (True, 6)
    assert values(await sdk("streams.messages", "s")) == [0, 1, 2, "x", "y", "more", "end"]


async def test_a_close_can_be_repeated(sdk: Sdk, producer_of: MakeProducer) -> None:
    await sdk("streams.create", "s", messages=[1])
    assert (await producer_of("s", "p").close()).is_closed
    assert (await producer_of("s", "p").close()).is_closed
    with pytest.raises(StreamClosed):
        await producer_of("s", "another").append(1)


async def test_a_higher_epoch_fences_lower_ones(sdk: Sdk, producer_of: MakeProducer) -> None:
    await sdk("streams.create", "s")
    old = producer_of("s", "p")
    await old.append("old")
    await producer_of("s", "p", 3).append("new")
    with pytest.raises(ProducerFenced) as fenced:
        await old.append("too late")
    assert fenced.value.extra["epoch"] == 3
    assert not old.producer.is_in_doubt
    assert values(await sdk("streams.messages", "s")) == ["old", "new"]


async def test_a_gap_is_refused(sdk: Sdk, producer_of: MakeProducer) -> None:
    await sdk("streams.create", "s")
    with pytest.raises(ProducerGap) as gap:
        await producer_of("s", "p", next_seq=5).append(1)
    assert (gap.value.extra["expected"], gap.value.extra["received"]) == (0, 5)


async def test_concurrent_appends_have_different_numbers(sdk: Sdk, producer_of: MakeProducer) -> None:
    await sdk("streams.create", "s")
    producer = producer_of("s", "p")
    await asyncio.gather(*[producer.append(number) for number in range(20)])
    assert sorted(values(await sdk("streams.messages", "s"))) == list(range(20))


async def test_an_append_whose_response_was_lost_is_stored_once(kind: str, sdk: Sdk, tenant: Tenant) -> None:
    await sdk("streams.create", "s")
    line = LossyConnection(tenant.client.url)
    async with line.opened() as url, producers(kind, url, tenant.key, deadline=5) as make:
        producer = make("s", "p")
        await producer.append(0)
        line.answers_lost = 1
        assert (await producer.append(1)).is_duplicate  # stored by the attempt whose response was lost
        await producer.append(2)
    assert values(await sdk("streams.messages", "s")) == [0, 1, 2]


async def test_an_append_in_doubt_is_resolved_by_the_next(kind: str, sdk: Sdk, tenant: Tenant) -> None:
    await sdk("streams.create", "s")
    line = LossyConnection(tenant.client.url)
    async with line.opened() as url, producers(kind, url, tenant.key, deadline=0.3) as make:
        producer = make("s", "p")
        line.answers_lost = 1000
        with pytest.raises(Unreachable):
            await producer.append("first")
        assert producer.producer.is_in_doubt
        line.answers_lost = 0
        await producer.append("second")
    assert values(await sdk("streams.messages", "s")) == ["first", "second"]


async def test_streams_are_listed(sdk: Sdk) -> None:
    for number in range(5):
        await sdk("streams.create", f"logs/{number}", messages=[1, 2])
    await sdk("streams.append", "logs/3", 3)
    await sdk("streams.create", "other")
    listed = await sdk("streams.list", prefix="logs/", page_size=2)
    assert [(one.id, one.appends) for one in listed] == [(f"logs/{number}", 2 if number == 3 else 1) for number in range(5)]
    assert (listed[3].next_offset, listed[3].is_closed) == ((await sdk("streams.info", "logs/3")).offset, False)


async def test_retention_is_shown_and_an_offset_before_the_start_is_gone(sdk: Sdk, gateway: Gateway, tenant: Tenant) -> None:
    await sdk("streams.create", "log", max_age_seconds=3600, max_bytes=1000, max_count=1)
    first = await sdk("streams.append", "log", 1)
    last = await sdk("streams.append", "log", 2)
    third = await sdk("streams.append", "log", 3)
    await gateway.node.platform.use(StreamsCapability).service.retention.enforce(tenant.id)
    info = await sdk("streams.info", "log")
    assert (info.max_age_seconds, info.max_bytes, info.max_count) == (3600, 1000, 1)
    assert (info.start_offset, info.offset) == (last.offset, third.offset)
    with pytest.raises(OffsetGone) as gone:
        await sdk("streams.read", "log", first.offset)
    assert gone.value.extra["start"] == last.offset
    assert (await sdk("streams.read", "log")).messages == [3]
