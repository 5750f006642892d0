"""Limits of a connection, which apply before the app sees a request."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from postroad.http.body_discarder import CHUNK_SECONDS, BodyDiscarder
from postroad.http.connection import HttpConnection
from postroad.http.request import Request
from postroad.http.response import Response
from tests.gateway import Answer, served
from tests.http.small import NOTES, raw_connection, route, small_app

HEADER_BYTES_MAX = 2000


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    async with served(small_app(NOTES), header_bytes_max=HEADER_BYTES_MAX) as url:
        yield url


def assert_rejected(answer: Answer, status: int, code: str) -> None:
    """An error of the connection, which has the fields and headers of every other error."""
    problem = msgspec.json.decode(answer.body)
    assert set(problem) == {"type", "title", "status", "detail", "code", "retryable", "requestId"}
    assert problem["detail"] and problem["requestId"] == answer.headers["x-request-id"]
    assert answer.headers["access-control-allow-origin"] == "*"
    assert (answer.status, problem["status"], problem["code"]) == (status, status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["connection"] == "close"
    assert problem["type"] == f"/docs/errors#{code}"


def head(padding: int, *, first_line: bytes = b"POST /notes HTTP/1.1", length: int = 15) -> bytes:
    return b"%b\r\nHost: x\r\nContent-Length: %d\r\nX-Padding: %b\r\n\r\n" % (first_line, length, b"x" * padding)


async def test_headers_within_the_limit_are_accepted_for_any_body_size(url: str) -> None:
    async with raw_connection(url) as connection:
        for _ in range(3):
            await connection.send(head(HEADER_BYTES_MAX - 200, length=915) + b'{"text": "' + b"x" * 903 + b'"}')
            assert (await connection.answer()).ok() == {"length": 903}


async def test_headers_over_the_limit_are_rejected_and_the_connection_is_closed(url: str) -> None:
    async with raw_connection(url) as connection:
        await connection.send(head(HEADER_BYTES_MAX) + b'{"text": "abc"}')
        assert_rejected(await connection.answer(), 431, "headers-too-large")
        assert await connection.is_closed()


async def test_unfinished_headers_are_rejected_once_they_exceed_the_limit(url: str) -> None:
    async with raw_connection(url) as connection:
        await connection.send(b"GET /notes HTTP/1.1\r\n")
        for number in range(HEADER_BYTES_MAX // 100 + 1):
            await connection.send(b"X-%04d: %b\r\n" % (number, b"x" * 100))
        assert_rejected(await connection.answer(), 431, "headers-too-large")


async def test_a_path_over_the_limit_is_rejected(url: str) -> None:
    async with raw_connection(url) as connection:
        await connection.send(b"GET /" + b"x" * HEADER_BYTES_MAX + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert_rejected(await connection.answer(), 431, "headers-too-large")


async def test_the_headers_of_a_second_request_are_limited_too(url: str) -> None:
    async with raw_connection(url) as connection:
        await connection.send(head(10) + b'{"text": "abc"}')
        assert (await connection.answer()).status == 200
        await connection.send(head(HEADER_BYTES_MAX) + b'{"text": "abc"}')
        assert_rejected(await connection.answer(), 431, "headers-too-large")


@pytest.mark.parametrize(
    "text", [b"hello?\r\n\r\n", b"BREW /coffee HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"]
)
async def test_bytes_that_are_not_http_are_rejected(url: str, text: bytes) -> None:
    async with raw_connection(url) as connection:
        await connection.send(text)
        assert_rejected(await connection.answer(), 400, "malformed-request")
        assert await connection.is_closed()


@pytest.mark.parametrize("sent", [b"", b"GET /notes HTTP/1.1\r\nHost:"])
async def test_slow_headers_time_out(sent: bytes) -> None:
    async with served(small_app(NOTES), header_seconds_max=0.05) as url, raw_connection(url) as connection:
        if sent:
            await connection.send(sent)
        assert_rejected(await connection.answer(2), 408, "request-timeout")
        assert await connection.is_closed()


async def test_slow_headers_of_a_second_request_time_out() -> None:
    async with served(small_app(NOTES), header_seconds_max=0.05) as url, raw_connection(url) as connection:
        await connection.send(head(10) + b'{"text": "abc"}')
        assert (await connection.answer()).status == 200
        await connection.send(b"GET /notes HTTP/1.1\r\nHost:")
        assert_rejected(await connection.answer(2), 408, "request-timeout")


async def test_an_idle_connection_is_kept_open() -> None:
    async with served(small_app(NOTES), header_seconds_max=0.05) as url, raw_connection(url) as connection:
        await connection.send(head(10) + b'{"text": "abc"}')
        assert (await connection.answer()).status == 200
        with pytest.raises(TimeoutError):
            await connection.is_closed(seconds=0.2)
        await connection.send(head(10) + b'{"text": "abc"}')
        assert (await connection.answer()).status == 200


async def test_blank_lines_do_not_extend_the_keepalive_timeout() -> None:
    async with served(small_app(NOTES), keepalive_seconds=1) as url, raw_connection(url) as connection:
        await connection.send(head(10) + b'{"text": "abc"}')
        assert (await connection.answer()).status == 200
        await connection.send(b"\r\n")
        assert await connection.is_closed()


async def test_a_blank_line_before_a_request_is_skipped(url: str) -> None:
    async with raw_connection(url) as connection:
        for _ in range(2):
            await connection.send(b"\r\n" + head(10) + b'{"text": "abc"}')
            assert (await connection.answer()).status == 200


async def test_a_connection_stays_usable_after_a_large_body_was_rejected(url: str) -> None:
    """The rest of the body is read and discarded, also if more of it than the buffer holds arrives after the response."""
    async with raw_connection(url) as connection:
        await connection.send(head(10, length=4_000_000) + b"x" * 1_000_000)
        assert (await connection.answer()).status == 413
        await connection.send(b"x" * 3_000_000)
        await connection.send(head(10) + b'{"text": "abc"}')
        assert (await connection.answer()).status == 200


async def test_bodies_that_were_rejected_are_read_in_turns(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One chunk of one connection at a time, however many connections send."""
    chunks: list[tuple[float, int]] = []
    received = HttpConnection.data_received

    def record(connection: HttpConnection, data: bytes) -> None:
        if connection.cycle is not None and connection.cycle.response_complete and connection._is_reading_body:
            chunks.append((time.monotonic(), id(connection)))
        received(connection, data)

    monkeypatch.setattr(HttpConnection, "data_received", record)
    body = b"x" * 4_000_000

    async def upload() -> None:
        async with raw_connection(url) as connection:
            sending = asyncio.create_task(connection.send(head(10, length=len(body)) + body))
            assert (await connection.answer()).status == 413
            await sending

    start = time.monotonic()
    await asyncio.gather(*(upload() for _ in range(5)))
    assert len({sender for _, sender in chunks}) == 5
    assert len(chunks) * CHUNK_SECONDS <= time.monotonic() - start + 5 * CHUNK_SECONDS


async def test_a_client_that_was_not_asked_for_its_body_may_send_another_request_elsewhere(url: str) -> None:
    """Whether it sends the body that it announced cannot be known, so the connection ends."""
    async with raw_connection(url) as connection:
        await connection.send(b"POST /notes HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\nExpect: 100-continue\r\n\r\n")
        answer = await connection.answer()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert await connection.is_closed()


async def test_two_requests_in_one_segment_are_both_served(url: str) -> None:
    async with raw_connection(url) as connection:
        await connection.send((head(10) + b'{"text": "abc"}') * 2)
        assert [(await connection.answer()).status for _ in range(2)] == [200, 200]


async def test_a_slow_response_does_not_trigger_the_header_timeout() -> None:
    async def slow(_request: Request) -> Response:
        await asyncio.sleep(0.2)  # longer than the header timeout
        return Response(b"{}")

    async with served(small_app(route("/slow", slow)), header_seconds_max=0.05) as url, raw_connection(url) as connection:
        await connection.send(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await connection.answer(2)).status == 200


async def test_discarded_chunks_take_turns() -> None:
    """A connection that is scheduled again waits for the others."""
    discarder, read = BodyDiscarder(0.001), []
    done = asyncio.Event()

    def reader(name: str, count: int) -> Callable[[], None]:
        left = [count]

        def read_chunk() -> None:
            read.append(name)
            left[0] -= 1
            if left[0]:
                discarder.schedule(read_chunk)
            elif len(read) == 5:
                done.set()

        return read_chunk

    discarder.schedule(reader("a", 3))
    discarder.schedule(reader("b", 2))
    assert read == []
    await asyncio.wait_for(done.wait(), 10)
    assert read == ["a", "b", "a", "b", "a"]
