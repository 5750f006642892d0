"""Live reads over HTTP: appends arrive at once, in order, once."""

import asyncio
import base64
import random
from functools import partial

import msgspec
import pytest

from postroad.streams import reading
from postroad.streams.live_reads import DirectWrites, LiveOptions, LiveReads
from postroad.streams.store import StreamName
from tests.gateway import (
    Gateway,
    Tenant,
)
from tests.servers import OpenConnection
from tests.streams.readers import AT_ONCE, Seen, Stream, small_gateway
from tests.streams.workers import JSON, TEXT, Worker
from tests.waiting import eventually

NewLive = tuple[Worker, LiveReads, StreamName]


@pytest.fixture
async def new_stream(worker: Worker, name: str) -> NewLive:
    return worker, LiveReads(worker.streams, LiveOptions(5, 60, 60)), StreamName(name, "a")


# Long polls


async def test_a_long_poll_returns_an_append_at_once(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant, stream: Stream
) -> None:
    start = await stream.create()
    for number in range(3):
        for writer in (gateway, second_gateway):
            polling = asyncio.create_task(stream.poll(start))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(polling), 0.05)
            end = await stream.with_client(writer.with_key(tenant.key)).append(b"%d" % number)
            answer = await asyncio.wait_for(polling, AT_ONCE)
            assert (answer.status, answer.body) == (200, b"%d" % number)
            assert (answer.headers["stream-next-offset"], answer.headers["stream-up-to-date"]) == (end, "true")
            assert int(answer.headers["stream-cursor"]) > 0
            start = end


async def test_a_long_poll_with_pending_data_does_not_wait(stream: Stream) -> None:
    start = await stream.create()
    end = await stream.append(b"x")
    answer = await asyncio.wait_for(stream.poll("-1"), AT_ONCE)
    assert (answer.status, answer.body, answer.headers["stream-next-offset"]) == (200, b"x", end)
    assert (await asyncio.wait_for(stream.poll(start), AT_ONCE)).body == b"x"


async def test_a_long_poll_from_now_waits_for_new_data(stream: Stream) -> None:
    await stream.create(JSON, b'["old"]')
    polling = asyncio.create_task(stream.poll("now"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(polling), 0.1)
    await stream.append(b'[{"a":1},2]', JSON)
    assert (await polling).json == [{"a": 1}, 2]


async def test_a_long_poll_ends_after_its_timeout_with_the_offset(
    open_connection: OpenConnection, engine_url: str, name: str
) -> None:
    async with small_gateway(await open_connection(engine_url), name, poll_seconds=0.2) as (stream, _):
        end = await stream.create(data=b"x")
        for offset in (end, "now"):
            answer = await stream.poll(offset, "&cursor=99999999")
            assert (answer.status, answer.body) == (204, b"")
            assert (answer.headers["stream-next-offset"], answer.headers["stream-up-to-date"]) == (end, "true")
            assert "stream-closed" not in answer.headers
            assert int(answer.headers["stream-cursor"]) > 99_999_999


@pytest.mark.parametrize("with_data", [True, False])
async def test_a_close_ends_current_and_later_long_polls_at_once(stream: Stream, with_data: bool) -> None:
    start = await stream.create()
    polling = asyncio.create_task(stream.poll(start))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(polling), 0.05)
    end = await stream.append(b"last", **{"Stream-Closed": "true"}) if with_data else await stream.close()
    answer = await asyncio.wait_for(polling, AT_ONCE)
    assert answer.status == (200 if with_data else 204)
    assert answer.headers["stream-next-offset"] == end
    for offset in (end, "now"):
        answer = await asyncio.wait_for(stream.poll(offset), AT_ONCE)
        assert (answer.status, answer.headers["stream-closed"], answer.headers["stream-next-offset"]) == (204, "true", end)


async def test_a_delete_ends_every_live_read(second_gateway: Gateway, tenant: Tenant, stream: Stream) -> None:
    start = await stream.create()
    there = stream.with_client(second_gateway.with_key(tenant.key))
    polls = [asyncio.create_task(one.poll(start)) for one in (stream, there)]
    async with stream.events(start) as here, there.events("now") as elsewhere:
        for reader in (here, elsewhere):
            assert (await reader.take(1))[0].event == "control"
        (await stream.client.delete(stream.path)).ok(204)
        for poll in polls:
            assert (await asyncio.wait_for(poll, AT_ONCE)).status in (204, 404)
        for reader in (here, elsewhere):
            assert await reader.next(AT_ONCE) is None
    assert (await stream.poll(start)).status == 404


async def test_a_long_poll_gets_no_data_of_a_recreated_stream(stream: Stream) -> None:
    start = await stream.create()
    async with stream.events(start) as reader:
        await reader.take(1)
        (await stream.client.delete(stream.path)).ok(204)
        await stream.create(data=b"new")
        assert await reader.next(AT_ONCE) is None
    async with stream.events("-1") as reader:
        assert (await reader.take(1))[0].data == "new"


async def test_a_live_read_needs_a_stream_and_an_offset(stream: Stream) -> None:
    for live in ("long-poll", "sse"):
        (await stream.read(f"?live={live}&offset=now")).problem(404, "stream-not-found")
    await stream.create()
    for live in ("long-poll", "sse"):
        (await stream.read(f"?live={live}")).problem(400, "invalid-parameter")
        (await stream.read(f"?live={live}&offset=")).problem(400, "invalid-parameter")
        (await stream.read(f"?live={live}&offset=0_0&offset=0_0")).problem(400, "invalid-parameter")


# Events


@pytest.mark.parametrize(
    ("content_type", "data", "texts"),
    [
        (TEXT, [b"a", b" b ", b"line\nline", b"\r\n", b"", "ü€".encode()], ["a", " b ", "line\nline", "\n", "ü€"]),
        (JSON, [b"1", b'[{"a": [2]}, "x"]', b"[[3]]", b'{\n "a":\r\n1}'], None),
        ("application/octet-stream", [b"\x00\xff", b"event: control\n\n", b"a" * 1000], None),
    ],
)
@pytest.mark.parametrize("is_live", [True, False])
async def test_events_contain_data_of_every_content_type(
    stream: Stream, content_type: str, data: list[bytes], texts: list[str] | None, is_live: bool
) -> None:
    await stream.create(content_type)
    data = [one for one in data if one]
    seen = Seen()
    if not is_live:
        for one in data:
            await stream.append(one, content_type)
    async with stream.events("-1") as reader:
        assert reader.answer.headers["Content-Type"] == "text/event-stream"
        assert reader.answer.headers["Cache-Control"] == "no-cache"
        assert "Content-Length" not in reader.answer.headers
        assert ("Stream-SSE-Data-Encoding" in reader.answer.headers) == (content_type == "application/octet-stream")
        await seen.up_to_date(reader)
        if is_live:
            for number, one in enumerate(data, 1):
                await stream.append(one, content_type)
                await seen.count(reader, number)
        end = await stream.close()
        await seen.end(reader)
    assert seen.is_closed
    assert "streamCursor" not in seen.controls[-1]
    assert seen.offset == end
    if content_type == TEXT:
        assert texts is not None
        assert seen.data == (texts if is_live else ["".join(texts)])
    elif content_type == JSON:
        arrays = [msgspec.json.decode(one) for one in seen.data]
        assert [one for array in arrays for one in array] == [1, {"a": [2]}, "x", [3], {"a": 1}]
    else:
        assert b"".join(base64.b64decode(one, validate=True) for one in seen.data) == b"".join(data)


async def test_an_empty_stream_sends_its_end_at_once(stream: Stream) -> None:
    await stream.create()
    for offset in ("-1", "now", "0_0"):
        async with stream.events(offset) as reader:
            [event] = await reader.take(1, AT_ONCE)
            assert event.event == "control"
            assert event.json["streamNextOffset"] == f"{0:016d}_{0:016d}"
            assert event.json["upToDate"] is True


async def test_events_from_now_contain_no_earlier_data(stream: Stream) -> None:
    end = await stream.create(data=b"old")
    async with stream.events("now") as reader:
        [control] = await reader.take(1)
        assert (control.event, control.json["streamNextOffset"]) == ("control", end)
        await stream.append(b"new")
        assert [one.data for one in await reader.take(1)] == ["new"]


async def test_a_closed_stream_is_sent_completely_and_ends(stream: Stream) -> None:
    await stream.create(data=b"all of it", **{"Stream-Closed": "true"})
    for offset in ("-1", "now"):
        seen = Seen()
        async with stream.events(offset) as reader:
            await seen.end(reader)
        assert seen.data == (["all of it"] if offset == "-1" else [])
        assert seen.is_closed


async def test_a_reader_at_the_end_gets_the_last_data_before_the_close(stream: Stream) -> None:
    await stream.create()
    for number in range(20):
        path = Stream(stream.client, f"{stream.path}/{number}")
        await path.create()
        seen = Seen()
        async with path.events("-1") as reader:
            await seen.up_to_date(reader)
            await path.append(b"last", **{"Stream-Closed": "true"})
            await seen.end(reader)
        assert (seen.data, seen.is_closed) == (["last"], True)


async def test_a_browser_continues_at_its_last_event_id(stream: Stream) -> None:
    """EventSource sends the id of the last event, which overrides the unchanged offset in the URL."""
    await stream.create(JSON, b"[1]")
    middle = await stream.append(b"[2]", JSON)
    await stream.append(b"[3]", JSON)
    seen = Seen()
    async with stream.events("-1", **{"Last-Event-ID": middle}) as reader:
        await seen.up_to_date(reader)
    assert [msgspec.json.decode(one) for one in seen.data] == [[3]]
    assert seen.controls[-1]["streamNextOffset"] == reader.last_event_id


async def test_a_given_cursor_is_not_returned(stream: Stream) -> None:
    await stream.create(data=b"x")
    async with stream.events("-1", "&cursor=99999999") as reader:
        seen = Seen()
        await seen.up_to_date(reader)
        for number in range(3):
            await stream.append(b"y")
            await seen.count(reader, number + 2)
    cursors = [int(one["streamCursor"]) for one in seen.controls]
    assert cursors == sorted(set(cursors))
    assert cursors[0] > 99_999_999


async def test_a_fork_gets_its_own_appends_only(stream: Stream) -> None:
    await stream.create(data=b"1")
    fork = Stream(stream.client, "/v1/stream/fork")
    await fork.create(TEXT, b"", **{"Stream-Forked-From": stream.path})
    seen = Seen()
    async with fork.events("-1") as reader:
        await seen.up_to_date(reader)
        await stream.append(b"the source's")
        await fork.append(b"2")
        await seen.count(reader, 2)
        (await stream.client.delete(stream.path)).ok(204)
        await fork.append(b"3")
        await seen.count(reader, 3)
    assert seen.data == ["1", "2", "3"]


async def test_a_fork_between_two_messages_can_be_followed(stream: Stream) -> None:
    await stream.create(data=b"1")
    pad = Stream(stream.client, "/v1/stream/pad")
    between = await pad.create(data=b"pad")
    await stream.append(b"2")
    fork = Stream(stream.client, "/v1/stream/fork")
    await fork.create(TEXT, b"", **{"Stream-Forked-From": stream.path, "Stream-Fork-Offset": between})
    seen = Seen()
    async with fork.events("-1") as reader:
        await seen.up_to_date(reader)
        await fork.append(b"3")
        await seen.count(reader, 2)
    assert seen.data == ["1", "3"]


async def test_events_and_polls_and_reads_agree_on_offsets(stream: Stream) -> None:
    await stream.create(JSON)
    ends = [await stream.append(b"%d" % number, JSON) for number in range(5)]
    seen = Seen()
    async with stream.events("-1") as reader:
        await seen.up_to_date(reader)
        ends += [await stream.append(b"%d" % number, JSON) for number in range(5, 8)]
        await seen.take(reader, lambda: seen.offset == ends[-1])
    assert [one["streamNextOffset"] for one in seen.controls] == ends[4:]
    for number, end in enumerate(ends):
        assert (await stream.read(f"?offset={end}")).json == list(range(number + 1, 8))


# Catching up while others write


async def test_readers_at_any_offset_and_time_miss_and_repeat_nothing(
    second_gateway: Gateway, tenant: Tenant, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers connect at offsets of earlier appends while 500 appends are written."""
    monkeypatch.setattr(reading, "CHUNK_MESSAGES_MAX", 37)
    chosen = random.Random(7)
    await stream.create(JSON)
    there = stream.with_client(second_gateway.with_key(tenant.key))
    ends: list[tuple[str, int]] = [("-1", -1)]
    is_written = False

    async def write() -> None:
        nonlocal is_written
        for number in range(500):
            end = await chosen.choice([stream, there]).append(b"%d" % number, JSON)
            ends.append((end, number))
        await stream.close()
        is_written = True

    async def follow() -> None:
        offset, last = chosen.choice(ends)
        seen = Seen(offset=offset)
        where = chosen.choice([stream, there])
        while not seen.is_closed:
            async with where.events(seen.offset) as reader:
                await seen.take(reader, lambda: seen.is_closed, seconds=100)
        assert seen.numbers == list(range(last + 1, 500))

    async def poll() -> None:
        offset, last = chosen.choice(ends)
        numbers: list[int] = []
        while True:
            answer = await stream.poll(offset)
            numbers += answer.json if answer.body else []
            offset = answer.headers["stream-next-offset"]
            if answer.headers.get("stream-closed") == "true":
                break
        assert numbers == list(range(last + 1, 500))

    def has_written(count: int) -> bool:
        return len(ends) > count or is_written

    async with asyncio.TaskGroup() as everyone:
        everyone.create_task(write())
        for number in range(12):
            await eventually(partial(has_written, number * 38))
            everyone.create_task(poll() if number % 8 == 3 else follow())


async def test_a_reader_that_is_catching_up_gets_no_data_of_a_recreated_stream(
    new_stream: NewLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_MESSAGES_MAX", 2)
    worker, live, name = new_stream
    await worker.create(name)
    for number in range(6):
        await worker.append(name, b"old%d " % number)
    events = live.events(name, await worker.streams.snapshot(name), 0, None, asyncio.Event(), DirectWrites())
    assert b"data:old0 old1 " in await anext(events)
    await worker.streams.delete(None, name)
    await worker.create(name, b"new")
    async with asyncio.timeout(30):
        rest = b"".join([one async for one in events])
    assert b"event: data" not in rest


async def test_a_reader_gets_no_unpurged_data_of_an_earlier_incarnation(
    new_stream: NewLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, live, name = new_stream
    await worker.create(name, b"old")

    async def crash(*_: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(worker.store, "purge", crash)
    for ending in (worker.streams.delete(None, name), worker.create(name)):
        with pytest.raises(ConnectionError):
            await ending
    draining = asyncio.Event()
    events = live.events(name, await worker.streams.snapshot(name), 0, None, draining, DirectWrites())
    try:
        assert b"upToDate" in await anext(events)
        await worker.append(name, b"new")
        async with asyncio.timeout(30):
            assert (await anext(events)).startswith(b"event: data\ndata:new\n")
    finally:
        draining.set()
        await events.aclose()  # type: ignore[attr-defined]
