import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from postroad.http.app import App
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.sse import event_stream, frame
from tests.gateway import ServerSentEvent
from tests.http.small import client_of, raw_connection, route, small_app
from tests.waiting import eventually


class Source:
    """A route that streams the frames of a test."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.is_closed = False

    async def __call__(self, request: Request) -> Response:
        return event_stream(request, self._frames(), heartbeat_seconds=0.05)

    async def _frames(self) -> AsyncIterator[bytes]:
        try:
            while (found := await self.frames.get()) is not None:
                if isinstance(found, Exception):
                    raise found
                yield found
        finally:
            self.is_closed = True


def app_of(source: Source) -> App:
    return small_app(route("/events", source, media="text/event-stream"))


def live_readers() -> float:
    return REGISTRY.get_sample_value("postroad_http_live_readers") or 0


# Framing


def test_a_frame_has_its_type_its_id_and_its_data() -> None:
    assert frame(b"{}", event="job.queued", event_id="7-3") == b"event: job.queued\nid: 7-3\ndata: {}\n\n"
    assert frame(b"{}") == b"data: {}\n\n"


def test_data_of_several_lines_is_one_event() -> None:
    assert frame(b"one\ntwo\n") == b"data: one\ndata: two\ndata: \n\n"


@given(st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"])))
def test_any_data_can_be_decoded_again(text: str) -> None:
    lines = frame(text.encode()).decode()
    assert lines.endswith("\n\n")
    assert "\n".join(line.removeprefix("data: ") for line in lines[:-2].split("\n")) == text
    assert all(line.startswith("data: ") for line in lines[:-2].split("\n"))


# The stream


async def test_a_reader_gets_each_event_at_once() -> None:
    source = Source()
    async with client_of(app_of(source)) as client, client.events("/events") as reader:
        assert reader.answer.headers["Content-Type"] == "text/event-stream"
        assert reader.answer.headers["Cache-Control"] == "no-store, no-transform"
        assert reader.answer.headers["X-Request-Id"]
        source.frames.put_nowait(frame(b"1", event="one", event_id="a"))
        assert await reader.next() == ServerSentEvent("one", "a", "1")
        source.frames.put_nowait(frame(b"2\n3"))
        assert await reader.next() == ServerSentEvent("message", None, "2\n3")


async def test_the_first_line_is_the_reconnection_time() -> None:
    async with client_of(app_of(Source())) as client, client.events("/events") as reader:
        async with asyncio.timeout(30):
            assert await reader.answer.content.readline() == b"retry: 1000\n"


async def test_an_idle_stream_sends_heartbeats() -> None:
    source = Source()
    async with client_of(app_of(source)) as client, client.events("/events") as reader:
        with pytest.raises(TimeoutError):
            await reader.next(0.3)
        assert len(reader.comments) >= 2 and set(reader.comments) == {"beat"}
        source.frames.put_nowait(frame(b"1"))
        assert await reader.next() == ServerSentEvent("message", None, "1"), "no event is lost after a heartbeat"


async def test_a_stream_ends_when_its_source_does() -> None:
    source = Source()
    async with client_of(app_of(source)) as client, client.events("/events") as reader:
        source.frames.put_nowait(frame(b"1"))
        source.frames.put_nowait(None)
        assert await reader.next() == ServerSentEvent("message", None, "1")
        assert await reader.next() is None


async def test_a_stream_ends_properly_when_the_process_drains() -> None:
    source = Source()
    app = app_of(source)
    async with client_of(app) as client, client.events("/events") as reader:
        source.frames.put_nowait(frame(b"1"))
        assert await reader.next()
        app.drain()
        assert await reader.next(2) is None
        await eventually(lambda: source.is_closed)


async def test_the_source_is_closed_when_the_reader_disconnects() -> None:
    source = Source()
    before = live_readers()
    async with client_of(app_of(source)) as client:
        async with client.events("/events") as reader:
            source.frames.put_nowait(frame(b"1"))
            assert await reader.next()
            assert live_readers() == before + 1
        await eventually(lambda: source.is_closed)
        await eventually(lambda: live_readers() == before)


async def test_a_failing_source_aborts_the_response_and_is_logged() -> None:
    source = Source()
    with capture_logs() as logs:
        async with client_of(app_of(source)) as client, raw_connection(client.url) as connection:
            await connection.send(b"GET /events HTTP/1.1\r\nHost: x\r\nX-Request-Id: my-request\r\n\r\n")
            source.frames.put_nowait(frame(b"1"))
            source.frames.put_nowait(RuntimeError("broken"))
            async with asyncio.timeout(30):
                received = await connection.reader.read()
            await eventually(lambda: any(one["event"] == "response_aborted" for one in logs))
    assert b"data: 1\n\n" in received
    assert not received.endswith(b"0\r\n\r\n"), "the client must notice the incomplete response"
    [logged] = [one for one in logs if one["event"] == "response_aborted"]
    assert logged["request_id"] == "my-request" and "broken" in logged["error"]


async def test_head_of_a_stream_does_not_wait_for_it() -> None:
    async with client_of(app_of(Source())) as client:
        async with asyncio.timeout(30):
            answer = await client.call("HEAD", "/events")
        assert (answer.status, answer.headers["content-type"], answer.body) == (200, "text/event-stream", b"")
