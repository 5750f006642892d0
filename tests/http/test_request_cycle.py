"""Requests and responses on the wire."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from postroad.http.app import App
from postroad.http.request import Receive, Request, Scope, Send
from postroad.http.response import Response
from postroad.http.routing import Router
from tests.gateway import served
from tests.http.small import NOTES, RejectingAuthenticator, raw_connection, route, settings_of, small_app
from tests.waiting import eventually

GET = b"GET /it HTTP/1.1\r\nHost: x\r\n\r\n"


def app_that(answers: Callable[[Request], Awaitable[Response]], *, method: str = "GET") -> App:
    return small_app(route("/it", answers, method, raw_body=method == "POST"))


async def test_a_body_in_several_chunks_is_joined() -> None:
    async def echo(request: Request) -> Response:
        return Response(request.body)

    async with served(app_that(echo, method="POST")) as url, raw_connection(url) as connection:
        await connection.send(b"POST /it HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(30):
            await connection.send(b"a\r\n0123456789\r\n")
            await asyncio.sleep(0)
        await connection.send(b"0\r\n\r\n")
        assert (await connection.answer()).body == b"0123456789" * 30


async def test_expect_100_continue_is_answered_before_the_body() -> None:
    async with served(small_app(NOTES)) as url, raw_connection(url) as connection:
        await connection.send(b"POST /notes HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 15\r\n\r\n")
        assert await connection.reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        await connection.send(b'{"text": "abc"}')
        assert (await connection.answer()).ok() == {"length": 3}


async def test_a_request_rejected_by_its_headers_gets_no_100_continue() -> None:
    async with served(small_app(NOTES)) as url, raw_connection(url) as connection:
        await connection.send(b"POST /notes HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5000\r\n\r\n")
        assert (await connection.answer()).status == 413


@pytest.mark.parametrize(
    ("version", "header", "is_kept"),
    [(b"1.1", b"", True), (b"1.1", b"Connection: close\r\n", False), (b"1.0", b"", False)],
)
async def test_a_connection_is_kept_alive_if_the_client_wants_it(version: bytes, header: bytes, is_kept: bool) -> None:
    async def small(_request: Request) -> Response:
        return Response(b"{}")

    async with served(app_that(small)) as url, raw_connection(url) as connection:
        await connection.send(b"GET /it HTTP/%b\r\nHost: x\r\n%b\r\n" % (version, header))
        answer = await connection.answer()
        assert (answer.status, answer.headers.get("connection")) == (200, None if is_kept else "close")
        if is_kept:
            await connection.send(GET)
            assert (await connection.answer()).status == 200
        else:
            assert await connection.is_closed()


@pytest.mark.parametrize("status", [204, 304])
async def test_a_response_without_a_body_has_no_body_headers(status: int) -> None:
    async def nothing(_request: Request) -> Response:
        return Response(status=status)

    async with served(app_that(nothing)) as url, raw_connection(url) as connection:
        for _ in range(2):
            await connection.send(GET)
            answer = await connection.answer()
            assert answer.status == status
            assert not {"content-length", "transfer-encoding", "content-type"} & set(answer.headers)


async def test_the_response_to_head_has_the_length_but_no_body() -> None:
    async def text(_request: Request) -> Response:
        return Response(b"12345")

    async with served(app_that(text, method="HEAD")) as url, raw_connection(url) as connection:
        for _ in range(2):
            await connection.send(GET.replace(b"GET", b"HEAD"))
            head = await connection.reader.readuntil(b"\r\n\r\n")
            assert b"content-length: 5\r\n" in head
        await connection.send(GET.replace(b"GET", b"HEAD"))
        assert (await connection.reader.readline()).startswith(b"HTTP/1.1 200")  # and no body before it


async def test_a_streamed_response_is_chunked_and_the_connection_stays_open() -> None:
    may_end = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"first"
        await may_end.wait()
        yield b"second"

    async def live(_request: Request) -> Response:
        return Response(chunks(), media=b"text/plain")

    async with served(app_that(live)) as url, raw_connection(url) as connection:
        await connection.send(GET)
        head = await connection.reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding: chunked\r\n" in head and b"content-length" not in head
        assert await connection.reader.readexactly(10) == b"5\r\nfirst\r\n"
        may_end.set()
        assert await connection.reader.readexactly(16) == b"6\r\nsecond\r\n0\r\n\r\n"
        await connection.send(GET)
        assert (await connection.reader.readline()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("value", [b"a\r\nSet-Cookie: b", b"a\nb", b"a\rb", b"a\x00b"])
async def test_an_invalid_response_header_is_not_sent(value: bytes) -> None:
    async def split(_request: Request) -> Response:
        return Response(b"{}", headers=[(b"x-custom", value)])

    async with served(app_that(split)) as url, raw_connection(url) as connection:
        await connection.send(GET)
        assert await connection.reader.read() == b""


class WrongLengthApp(App):
    """Declares another content length than its response has."""

    length = b"1"

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", self.length)]})
        await send({"type": "http.response.body", "body": b"ab"})


@pytest.mark.parametrize("length", [b"1", b"3"])
async def test_a_response_of_the_wrong_length_closes_the_connection(length: bytes) -> None:
    app = WrongLengthApp(Router([NOTES]), RejectingAuthenticator(), settings_of())
    app.length = length
    async with served(app) as url, raw_connection(url) as connection:
        await connection.send(GET)
        assert await connection.reader.read() == b""


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def by_length(request: Request) -> Response:
        if request.body == b"first":
            await asyncio.sleep(0.05)
        return Response(request.body)

    async with served(app_that(by_length, method="POST")) as url, raw_connection(url) as connection:
        bodies = [b"first", b"second", b"third"]
        await connection.send(
            b"".join(b"POST /it HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body) for body in bodies)
        )
        assert [(await connection.answer()).body for _ in bodies] == bodies


async def test_a_disconnect_cancels_the_running_one_of_pipelined_requests() -> None:
    started, is_cancelled = asyncio.Event(), asyncio.Event()

    async def wait(request: Request) -> Response:
        started.set()
        try:
            await request.cancel_on_disconnect(asyncio.sleep(30))
        finally:
            is_cancelled.set()
        return Response(b"{}")

    async with served(app_that(wait)) as url:
        async with raw_connection(url) as connection:
            await connection.send(GET * 3)
            await asyncio.wait_for(started.wait(), 30)
        await asyncio.wait_for(is_cancelled.wait(), 30)


async def test_a_closed_connection_leaves_no_reference_cycles() -> None:
    async def small(_request: Request) -> Response:
        return Response(b"{}")

    def count_alive() -> int:
        return sum(type(one).__name__ in ("HttpConnection", "RequestCycle") for one in gc.get_objects())

    async with served(app_that(small)) as url:
        gc.collect()
        gc.freeze()  # leaves out what is there already: looking through all of it takes long
        before = count_alive()
        gc.disable()
        try:
            for _ in range(5):
                async with raw_connection(url) as connection:
                    await connection.send(GET)
                    assert (await connection.answer()).status == 200
            await eventually(lambda: count_alive() <= before)
        finally:
            gc.enable()
