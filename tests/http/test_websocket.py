"""WebSocket connections, RFC 6455 rule by rule, against raw bytes and a client library."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from postroad.http import websocket
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.websocket import CloseCode, PingSchedule, WebSocket
from postroad.http.websocket_frames import text_frame
from tests.gateway import served
from tests.http.small import NOTES, RawConnection, raw_connection, route, small_app
from tests.http.test_server import assert_rejected
from tests.waiting import eventually

TEXT, BINARY, CLOSE, PING, PONG = 0x81, 0x82, 0x88, 0x89, 0x8A
KEY = b"dGhlIHNhbXBsZSBub25jZQ=="  # of the example in RFC 6455, with its answer
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
HANDSHAKE = (
    b"GET /echo HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: " + KEY + b"\r\nSec-WebSocket-Version: 13\r\n"
)


class Echo:
    """Sends every text back."""

    def __init__(self) -> None:
        self.socket: WebSocket | None = None
        self.is_closed = False

    def opened(self, socket: WebSocket) -> None:
        self.socket = socket

    def received(self, message: bytes) -> None:
        assert self.socket is not None
        self.socket.send(text_frame(message))

    def received_binary(self) -> None:
        assert self.socket is not None
        self.socket.close(CloseCode.POLICY, "no binary messages")

    def writable(self) -> None:
        pass

    def closed(self) -> None:
        self.is_closed = True


class EchoServer:
    def __init__(self, **settings: Any) -> None:
        self.opened: list[Echo] = []
        self.app = small_app(NOTES, route("/echo", self.open, is_websocket=True), **settings)

    async def open(self, _request: Request) -> Response:
        self.opened.append(Echo())
        return Response(status=101, socket=self.opened[-1])


@pytest.fixture(scope="module")
async def echo() -> AsyncIterator[tuple[EchoServer, str]]:
    server = EchoServer()
    async with served(server.app, header_bytes_max=2000) as url:
        yield server, url


class Peer:
    """A client that sends exactly the given frames."""

    def __init__(self, connection: RawConnection) -> None:
        self.connection = connection

    async def send(self, first: int, payload: bytes = b"", mask: bytes | None = b"\x01\x02\x03\x04") -> None:
        await self.connection.send(frame(first, payload, mask))

    async def next(self) -> tuple[int, bytes]:
        reader = self.connection.reader
        async with asyncio.timeout(30):
            first, second = await reader.readexactly(2)
            size = second & 127
            assert not second & 128, "servers do not mask"
            if size == 126:
                [size] = struct.unpack("!H", await reader.readexactly(2))
            elif size == 127:
                [size] = struct.unpack("!Q", await reader.readexactly(8))
            return first, await reader.readexactly(size)

    async def closed_with(self) -> int:
        """The code of the close frame, which must be the next frame, and the last."""
        first, payload = await self.next()
        assert first == CLOSE, (first, payload)
        await self.send(CLOSE, payload[:2])
        assert await self.connection.is_closed()
        return int.from_bytes(payload[:2], "big")


def frame(first: int, payload: bytes = b"", mask: bytes | None = b"\x01\x02\x03\x04") -> bytes:
    bit = 0 if mask is None else 128
    size = len(payload)
    if size < 126:
        head = bytes([first, bit | size])
    elif size < 65536:
        head = bytes([first, bit | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([first, bit | 127]) + size.to_bytes(8, "big")
    if mask is None:
        return head + payload
    return head + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))


@asynccontextmanager
async def peer_of(url: str) -> AsyncIterator[Peer]:
    async with raw_connection(url) as connection:
        await connection.send(HANDSHAKE + b"\r\n")
        answer = await head_of(connection)
        assert answer["sec-websocket-accept"] == ACCEPT
        yield Peer(connection)


async def head_of(connection: RawConnection) -> dict[str, str]:
    async with asyncio.timeout(30):
        lines = (await connection.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 101 Switching Protocols", lines
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}


# The handshake


async def test_the_answer_to_a_handshake(echo: tuple[EchoServer, str]) -> None:
    async with raw_connection(echo[1]) as connection:
        await connection.send(HANDSHAKE + b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n")
        headers = await head_of(connection)
    assert (headers["upgrade"], headers["connection"]) == ("websocket", "Upgrade")
    assert headers["sec-websocket-accept"] == ACCEPT
    assert "sec-websocket-extensions" not in headers and "sec-websocket-protocol" not in headers


@pytest.mark.parametrize("version", [b"", b"Sec-WebSocket-Version: 8\r\n", b"Sec-WebSocket-Version: 14\r\n"])
async def test_another_version_is_refused_with_the_supported_one(echo: tuple[EchoServer, str], version: bytes) -> None:
    async with raw_connection(echo[1]) as connection:
        await connection.send(HANDSHAKE.replace(b"Sec-WebSocket-Version: 13\r\n", version) + b"\r\n")
        answer = await connection.answer()
        assert answer.problem(426, "upgrade-required") and answer.headers["sec-websocket-version"] == "13"
        assert await connection.is_closed()


@pytest.mark.parametrize("key", [b"", b"c2hvcnQ=", b"not base64 at all!!!!!!!", KEY + KEY])
async def test_an_invalid_key_is_refused(echo: tuple[EchoServer, str], key: bytes) -> None:
    async with raw_connection(echo[1]) as connection:
        await connection.send(HANDSHAKE.replace(KEY, key) + b"\r\n")
        (await connection.answer()).problem(400, "malformed-request")


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n",
        HANDSHAKE.replace(b"Upgrade: websocket", b"Upgrade: h2c") + b"\r\n",
        HANDSHAKE.replace(b"Connection: Upgrade\r\n", b"") + b"\r\n",
        HANDSHAKE.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n",
        HANDSHAKE.replace(b"GET ", b"HEAD ") + b"\r\n",
        HANDSHAKE + b"Content-Length: 3\r\n\r\nabc",
    ],
)
async def test_a_request_that_is_no_handshake_gets_a_plain_response(echo: tuple[EchoServer, str], request_head: bytes) -> None:
    async with raw_connection(echo[1]) as connection:
        await connection.send(request_head)
        async with asyncio.timeout(30):
            assert b" 426 " in await connection.reader.readline()


async def test_a_handshake_on_another_path_is_served_as_plain_http(echo: tuple[EchoServer, str]) -> None:
    async with raw_connection(echo[1]) as connection:
        text = b'{"text": "abc"}'
        lines = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text)
        await connection.send(HANDSHAKE.replace(b"GET /echo", b"POST /notes") + lines + text)
        assert (await connection.answer()).ok() == {"length": 3}


async def test_a_page_of_another_origin_is_refused() -> None:
    server = EchoServer(cors_origin="https://shop.example")
    async with served(server.app) as url:
        for origin, status in (("https://shop.example", 101), ("http://x", 101), ("https://evil.example", 403), ("null", 403)):
            async with raw_connection(url) as connection:
                await connection.send(HANDSHAKE + f"Origin: {origin}\r\n\r\n".encode())
                async with asyncio.timeout(30):
                    assert f" {status} ".encode() in await connection.reader.readline(), origin


async def test_the_limits_of_a_head_apply_to_handshakes(echo: tuple[EchoServer, str]) -> None:
    async with raw_connection(echo[1]) as connection:
        await connection.send(HANDSHAKE + b"X-Padding: " + b"x" * 2000 + b"\r\n\r\n")
        assert_rejected(await connection.answer(), 431, "headers-too-large")
    async with served(EchoServer().app, header_seconds_max=0.05) as url, raw_connection(url) as connection:
        await connection.send(HANDSHAKE)
        assert_rejected(await connection.answer(), 408, "request-timeout")


async def test_bytes_after_the_head_belong_to_the_socket(echo: tuple[EchoServer, str]) -> None:
    async with raw_connection(echo[1]) as connection:
        await connection.send(HANDSHAKE + b"\r\n" + frame(TEXT, b"early"))
        await head_of(connection)
        assert await Peer(connection).next() == (TEXT, b"early")


async def test_a_handshake_after_another_request_on_the_connection(echo: tuple[EchoServer, str]) -> None:
    async with raw_connection(echo[1]) as connection:
        text = b'{"text": "abc"}'
        first = b"POST /notes HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(text) + text
        await connection.send(first + HANDSHAKE + b"\r\n" + frame(TEXT, b"hi"))
        assert (await connection.answer()).ok() == {"length": 3}
        await head_of(connection)
        assert await Peer(connection).next() == (TEXT, b"hi")


# Messages


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 16_384])
async def test_messages_of_every_length_encoding(echo: tuple[EchoServer, str], size: int) -> None:
    async with peer_of(echo[1]) as peer:
        await peer.send(TEXT, b"x" * size)
        assert await peer.next() == (TEXT, b"x" * size)


def test_the_frame_of_a_large_message_has_eight_bytes_of_length() -> None:
    assert text_frame(b"x" * 65_536)[:10] == b"\x81\x7f" + (65_536).to_bytes(8, "big")
    assert text_frame(b"x" * 65_535)[:4] == b"\x81\x7e\xff\xff"


async def test_fragments_are_put_together_and_control_frames_may_come_between(echo: tuple[EchoServer, str]) -> None:
    async with peer_of(echo[1]) as peer:
        snowman = "☃".encode()
        await peer.send(0x01, b"a" + snowman[:1])  # a character may be split
        await peer.send(PING, b"are you there")
        await peer.send(0x00, snowman[1:])
        await peer.send(PONG, b"unasked")
        await peer.send(0x80, b"z")
        answers = [await peer.next(), await peer.next()]
        assert sorted(answers) == [(TEXT, b"a" + snowman + b"z"), (PONG, b"are you there")]


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([frame(TEXT, b"x", None)], 1002),  # not masked
        ([frame(0xC1, b"x")], 1002),  # a reserved bit
        ([frame(0xA1, b"x")], 1002),
        ([frame(0x91, b"x")], 1002),
        ([frame(0x83, b"x")], 1002),  # a reserved opcode
        ([frame(0x8B, b"x")], 1002),
        ([frame(0x80, b"x")], 1002),  # a continuation of nothing
        ([frame(0x01, b"x"), frame(TEXT, b"y")], 1002),  # a message within a message
        ([frame(0x09, b"x")], 1002),  # a fragmented control frame
        ([frame(PING, b"x" * 126)], 1002),  # a long control frame
        ([frame(CLOSE, b"x")], 1002),  # half a close code
        ([frame(CLOSE, (1005).to_bytes(2, "big"))], 1002),  # a code that may not be sent
        ([frame(CLOSE, (999).to_bytes(2, "big"))], 1002),
        ([frame(CLOSE, (1000).to_bytes(2, "big") + b"\xff")], 1007),  # a reason that is no UTF-8
        ([frame(TEXT, b"\xff")], 1007),
        ([frame(0x01, b"\xe2"), frame(0x80, b"\x28")], 1007),
        ([frame(TEXT, b"x" * 16_385)], 1009),
        ([frame(0x01, b"x" * 10_000), frame(0x80, b"x" * 10_000)], 1009),
        ([b"\x81\xff" + (2**63 - 1).to_bytes(8, "big") + b"\0\0\0\0"], 1009),
        ([frame(0x01)] + [frame(0x00)] * 300, 1009),  # endless empty fragments
        ([frame(TEXT, b"x")] * 200, 1008),  # too many
        ([frame(PING, b"x")] * 200, 1008),
        ([frame(PONG, b"x")] * 200, 1008),
        ([frame(BINARY, b"x")], 1008),
    ],
)
async def test_a_violation_closes_the_connection(echo: tuple[EchoServer, str], frames: list[bytes], code: int) -> None:
    async with peer_of(echo[1]) as peer:
        await peer.connection.send(b"".join(frames))
        while (found := await peer.next())[0] != CLOSE:
            assert found[1] == b"x"
        assert int.from_bytes(found[1][:2], "big") == code
        await peer.send(CLOSE, found[1][:2])
        assert await peer.connection.is_closed()
    await eventually(lambda: echo[0].opened[-1].is_closed)


# Closing


@pytest.mark.parametrize(
    "payload", [b"", (1000).to_bytes(2, "big"), (1001).to_bytes(2, "big") + b"bye", (4999).to_bytes(2, "big")]
)
async def test_a_close_frame_is_answered_and_the_connection_ends(echo: tuple[EchoServer, str], payload: bytes) -> None:
    async with peer_of(echo[1]) as peer:
        await peer.send(CLOSE, payload)
        assert await peer.next() == (CLOSE, payload)
        assert await peer.connection.is_closed()
    await eventually(lambda: echo[0].opened[-1].is_closed)


async def test_nothing_follows_the_servers_close_frame(echo: tuple[EchoServer, str]) -> None:
    async with peer_of(echo[1]) as peer:
        socket = echo[0].opened[-1].socket
        assert socket is not None
        await peer.send(PING, b"late")
        socket.close(CloseCode.TOO_SLOW, "é" * 100)
        socket.send(text_frame(b"late"))
        socket.close(CloseCode.POLICY)
        first, payload = await peer.next()
        assert (first, payload[:2]) == (CLOSE, (4000).to_bytes(2, "big"))
        assert payload[2:].decode() == "é" * 61
        await peer.send(TEXT, b"ignored")
        await peer.send(CLOSE, payload[:2])
        assert await peer.connection.is_closed()


async def test_a_client_that_does_not_answer_a_close_is_disconnected(
    echo: tuple[EchoServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "_CLOSE_SECONDS", 0.05)
    async with peer_of(echo[1]) as peer:
        socket = echo[0].opened[-1].socket
        assert socket is not None
        socket.close(CloseCode.GOING_AWAY)
        await peer.next()
        assert await peer.connection.is_closed()


async def test_a_lost_connection_is_reported_once(echo: tuple[EchoServer, str]) -> None:
    async with peer_of(echo[1]) as peer:
        peer.connection.writer.transport.abort()
    await eventually(lambda: echo[0].opened[-1].is_closed)


async def test_a_server_that_drains_closes_with_1001() -> None:
    server = EchoServer()
    async with served(server.app) as url, peer_of(url) as peer:
        server.app.drain()
        assert await peer.closed_with() == 1001
        async with peer_of(url) as late:
            assert await late.closed_with() == 1001


# Pings


async def test_a_peer_that_answers_two_pings_no_more_is_disconnected(echo: tuple[EchoServer, str]) -> None:
    async with peer_of(echo[1]) as peer:
        socket = echo[0].opened[-1].socket
        assert socket is not None
        pings = PingSchedule(parts=1)
        pings.add(socket)
        for _ in range(5):
            pings._ping_part()
            assert await peer.next() == (PING, b"")
            await peer.send(PONG)
            await peer.send(TEXT, b"x")
            await peer.next()
        pings._ping_part()
        pings._ping_part()
        assert [await peer.next(), await peer.next()] == [(PING, b"")] * 2
        pings._ping_part()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await peer.next()
        pings.remove(socket)


# Limits of requests


async def test_a_socket_is_a_live_connection_and_no_open_request() -> None:
    server = EchoServer(live_max=1, requests_max=1)
    async with served(server.app) as url:
        async with peer_of(url):
            pass
        await eventually(lambda: server.opened[-1].is_closed)  # its slot is free again
        async with peer_of(url), raw_connection(url) as connection:
            await connection.send(HANDSHAKE + b"\r\n")
            (await connection.answer()).problem(503, "overloaded")
        async with raw_connection(url) as connection:
            text = b'{"text": "abc"}'
            await connection.send(b"POST /notes HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            assert (await connection.answer()).ok() == {"length": 3}


# Client libraries


async def test_the_client_of_websockets(echo: tuple[EchoServer, str]) -> None:
    async with connect(echo[1].replace("http", "ws") + "/echo") as socket:
        for text in ("", "short", "x" * 16_000, "☃" * 100):
            await socket.send(text)
            assert await socket.recv() == text
        await asyncio.wait_for(await socket.ping(), 30)
        await socket.send(["frag", "men", "ted"])
        assert await socket.recv() == "fragmented"
        await socket.send(b"binary")
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008


# Laws


class _Transport:
    is_write_paused = False

    def __init__(self) -> None:
        self.sent = b""
        self.is_ended = False

    def write_frame(self, data: bytes) -> None:
        self.sent += data

    def end_writing(self) -> None:
        self.is_ended = True

    def abort(self) -> None:
        self.is_ended = True


class _Recorder(Echo):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[bytes] = []

    def received(self, message: bytes) -> None:
        self.messages.append(message)


def _outcome(chunks: list[bytes]) -> tuple[list[bytes], bool, bool]:
    loop = asyncio.new_event_loop()
    try:
        transport, recorder = _Transport(), _Recorder()
        socket = WebSocket(transport, recorder, loop)
        recorder.opened(socket)
        for chunk in chunks:
            socket.receive(chunk)
        return recorder.messages, socket.is_closing, transport.is_ended
    finally:
        loop.close()


_FRAMES = st.one_of(
    st.builds(frame, st.sampled_from([TEXT, 0x01, 0x00, 0x80, PING, PONG, CLOSE]), st.text(max_size=60).map(str.encode)),
    st.builds(frame, st.integers(0, 255), st.binary(max_size=200), st.sampled_from([b"abcd", b"\0\0\0\0", None])),
    st.binary(max_size=20),
)


def test_a_message_is_refused_although_the_same_chunk_has_a_malformed_frame() -> None:
    _, is_closing, _ = _outcome([b"\x81\x81\x00\x00\x00\x00\x80\x00\x00"])
    assert is_closing


@given(st.lists(_FRAMES, max_size=12).map(b"".join), st.data())
def test_any_split_of_the_bytes_yields_the_same_messages(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert _outcome(chunks) == _outcome([stream])
