"""Clients that are slow, silent or gone, against a whole Postroad: each is let go in its time, others are served meanwhile, and
what they held comes back."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from postroad.runtime.embedded_server import raise_descriptor_limit
from tests.http.small import RawConnection, raw_connection
from tests.installation import Installation
from tests.waiting import eventually

pytestmark = pytest.mark.slow

QUEUE = "/v1/queues/slow"
LARGE = 7 * 1024 * 1024
IDLE = int(os.environ.get("IDLE_CONNECTIONS", "1000"))
SHORT = {"POSTROAD_HEADER_SECONDS_MAX": "1", "POSTROAD_BODY_SECONDS_MAX": "1", "POSTROAD_WRITE_TIMEOUT_SECONDS": "1"}


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    """One for all of these, patient with nobody. What is wrong with it afterwards is in its log."""
    one = Installation(tmp_path_factory.mktemp("slow"), **SHORT)
    try:
        yield await one.start().ready()
        log = one.log()
        assert not [word for word in ("request_crashed", "response_aborted", "Traceback") if word in log], log[-3000:]
    finally:
        one.end()


@pytest.fixture
async def session(running: Installation) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(running.url, headers=running.headers, connector=aiohttp.TCPConnector(limit=0)) as opened:
        yield opened


@pytest.fixture
async def descriptors(running: Installation, session: aiohttp.ClientSession) -> AsyncIterator[Callable[[], int]]:
    """How many more the worker has open than before the test. In the end there must be none, but for a few of its own."""
    await publish(session)
    [pid] = running.worker_pids

    def count() -> int:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))

    before = count()
    yield lambda: count() - before
    await eventually(lambda: count() <= before + 5)
    assert running.worker_pids == [pid], "nothing of it made the worker start again"


async def publish(session: aiohttp.ClientSession, payload: object = 1) -> None:
    async with session.post(f"{QUEUE}/messages", json={"payload": payload}) as answer:
        assert answer.status == 201, await answer.text()


def head(running: Installation, *lines: str, first: str = f"POST {QUEUE}/messages HTTP/1.1") -> bytes:
    named = [f"{name}: {value}" for name, value in running.headers.items()]
    return "\r\n".join([first, "Host: x", *named, *lines, "", ""]).encode()


async def served_while(work: Awaitable[None], session: aiohttp.ClientSession) -> int:
    """Publishes until the work is done; how many were answered, which all were."""
    doing, count = asyncio.ensure_future(work), 0
    while not doing.done():
        await publish(session)
        count += 1
    await doing
    return count


async def trickle(connection: RawConnection, text: bytes) -> None:
    """A byte at a time, until the other side has had enough."""
    with contextlib.suppress(ConnectionError):
        for byte in text:
            if connection.reader.at_eof() or connection.writer.transport.is_closing():
                return
            await connection.send(bytes([byte]))
            await asyncio.sleep(0.05)


async def ended(running: Installation, begin: bytes, rest: bytes, code: str) -> bool:
    """Whether it was also told why: who is still sending when the connection is closed may not hear it."""
    async with raw_connection(running.url) as connection:
        await connection.send(begin)
        sending = asyncio.create_task(trickle(connection, rest))
        try:
            answer = await connection.answer(20)
            assert (answer.status, answer.json["code"]) == (408, code)
            return await connection.is_closed()
        except ConnectionError:
            return False
        finally:
            await sending


@pytest.mark.parametrize("what", ["head", "body"])
async def test_who_trickles_is_let_go_and_others_are_served(
    running: Installation, session: aiohttp.ClientSession, descriptors: Callable[[], int], what: str
) -> None:
    whole = head(running, "X-Padding: " + "x" * 2000) if what == "head" else b" " * 2000
    begin = b"" if what == "head" else head(running, "Content-Length: 2000")
    code = "request-timeout" if what == "head" else "body-timeout"

    async def attack() -> None:
        assert any(await asyncio.gather(*(ended(running, begin, whole, code) for _ in range(100))))

    assert await served_while(attack(), session) > 10


async def test_a_connection_that_says_nothing_is_let_go(running: Installation, descriptors: Callable[[], int]) -> None:
    async with raw_connection(running.url) as connection:
        assert (await connection.answer(10)).status == 408
        assert await connection.is_closed()


async def test_who_has_no_more_to_say_is_answered_or_let_go(
    running: Installation, session: aiohttp.ClientSession, descriptors: Callable[[], int]
) -> None:
    """A half-closed connection: at once, before the head is whole, and in the middle of a body."""
    whole = head(running, "Content-Length: 14") + b'{"payload": 2}'
    for sent in (b"", whole[:40], whole[:-3], whole):
        async with raw_connection(running.url) as connection:
            await connection.send(sent)
            connection.writer.write_eof()
            async with asyncio.timeout(30):
                said = await connection.reader.read()
            assert said == b"" or said.startswith(b"HTTP/1.1 201 ")
    await publish(session)


async def test_a_long_poll_whose_client_is_gone_takes_no_message(
    running: Installation, session: aiohttp.ClientSession, descriptors: Callable[[], int]
) -> None:
    queue = "/v1/queues/polled"
    async with session.put(queue, json={}) as answer:
        assert answer.status in (200, 201)
    body = b'{"waitMs": 20000}'
    for _ in range(20):
        async with raw_connection(running.url) as connection:
            await connection.send(head(running, f"Content-Length: {len(body)}", first=f"POST {queue}/pull HTTP/1.1") + body)
    await eventually(lambda: descriptors() <= 5)
    for number in range(20):
        async with session.post(f"{queue}/messages", json={"payload": number}) as answer:
            assert answer.status == 201
    async with session.post(f"{queue}/pull", json={"maxMessages": 20, "waitMs": 2000}) as answer:
        pulled = (await answer.json())["messages"]
    assert [message["payload"] for message in pulled] == list(range(20))


async def test_readers_that_are_gone_leave_nothing_behind(
    running: Installation, session: aiohttp.ClientSession, descriptors: Callable[[], int]
) -> None:
    await large_stream(session)
    paths = [
        "/v1/telemetry/stream",
        "/v1/stream/large?offset=now&live=sse",
        "/v1/stream/large",
        "/v1/stream/large?offset=now&live=long-poll",
    ]
    for path in paths * 10:
        async with raw_connection(running.url) as connection:
            await connection.send(head(running, first=f"GET {path} HTTP/1.1"))
            if not path.endswith("long-poll"):
                assert await connection.reader.read(100)
    await eventually(lambda: descriptors() <= 5)

    async def has_no_reader() -> bool:
        async with session.get("/metrics") as answer:
            lines = [line for line in (await answer.text()).splitlines() if line.startswith("postroad_http_live_readers")]
        return bool(lines) and all(float(line.rsplit(" ", 1)[1]) == 0 for line in lines)

    await eventually(has_no_reader)


async def large_stream(session: aiohttp.ClientSession) -> None:
    async with session.put("/v1/stream/large", data=b"x" * LARGE, headers={"Content-Type": "text/plain"}) as answer:
        assert answer.status in (200, 201), await answer.text()


@contextlib.asynccontextmanager
async def small_window(running: Installation) -> AsyncIterator[socket.socket]:
    """A connection whose client takes little at a time, so that the server feels it."""
    with socket.socket() as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        opened.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(opened, ("127.0.0.1", running.port))
        await loop.sock_sendall(opened, head(running, first="GET /v1/stream/large HTTP/1.1"))
        yield opened


async def test_who_does_not_read_is_let_go(
    running: Installation, session: aiohttp.ClientSession, descriptors: Callable[[], int]
) -> None:
    await large_stream(session)
    async with contextlib.AsyncExitStack() as unread:
        for _ in range(10):
            await unread.enter_async_context(small_window(running))
        await eventually(lambda: descriptors() >= 10)
        await eventually(lambda: descriptors() <= 5)  # although they are all still there
        await publish(session)


async def test_who_reads_slowly_gets_everything(running: Installation, session: aiohttp.ClientSession) -> None:
    await large_stream(session)
    loop, count, began = asyncio.get_running_loop(), 0, time.monotonic()
    async with small_window(running) as connection:
        while count < LARGE:
            some = await asyncio.wait_for(loop.sock_recv(connection, 128 * 1024), 30)
            assert some, f"it ended after {count} bytes"
            count += len(some)
            await asyncio.sleep(
                max(0.0, 2.5 * count / LARGE - (time.monotonic() - began))
            )  # longer than reading nothing may take


async def test_idle_connections_are_in_nobodys_way_and_leave_no_trace(
    running: Installation, session: aiohttp.ClientSession, descriptors: Callable[[], int]
) -> None:
    raise_descriptor_limit()
    async with contextlib.AsyncExitStack() as idle:
        for _ in range(IDLE):
            connection = await idle.enter_async_context(raw_connection(running.url))
            await connection.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await connection.answer()).status == 200
        assert descriptors() >= IDLE

        async def some() -> None:
            for _ in range(50):
                await publish(session)

        await asyncio.wait_for(some(), 30)
        async with session.get("/readyz") as answer:
            assert answer.status == 200
