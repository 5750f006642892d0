"""A fuzzer of handshakes and WebSocket frames against a whole installation: no 5xx, no crash, and others are served."""

import asyncio
import base64
import os
import struct
from collections.abc import AsyncIterator

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.fuzz import bounded, nearly, odd_bytes
from tests.installation import Installation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_KEY = base64.b64encode(b"0123456789abcdef").decode()
_ANSWER_SECONDS = 5.0


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("sockets"))
    await installation.start().ready()
    async with (
        aiohttp.ClientSession(installation.url, headers=installation.headers) as session,
        session.put("/v1/topics/orders", json={}) as made,
    ):
        assert made.status == 201
    yield installation
    installation.end()


def handshake(running: Installation, path: str = "/v1/ws") -> bytes:
    lines = [
        f"GET {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {_KEY}",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: postroad.v1",
        f"Authorization: {running.headers['Authorization']}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def frame(first: int, payload: bytes, mask: bytes = b"\x01\x02\x03\x04") -> bytes:
    length = len(payload)
    size = bytes([0x80 | length]) if length < 126 else bytes([0x80 | 126]) + struct.pack("!H", length)
    return bytes([first]) + size + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))


TEXTS = st.sampled_from(
    [
        b'{"op":"subscribe","ref":"a","topic":"orders"}',
        b'{"op":"subscribe","ref":"a","topic":"orders","fromSequence":1,"filter":["a.>"]}',
        b'{"op":"unsubscribe","ref":"a"}',
        b'{"op":"ping"}',
        b'{"op":"token","token":"x"}',
    ]
)
PAYLOADS = TEXTS | nearly(TEXTS) | odd_bytes
OPCODES = st.sampled_from([0x81, 0x81, 0x81, 0x01, 0x00, 0x80, 0x82, 0x88, 0x89, 0x8A]) | st.integers(0, 255)
FRAMES = st.builds(frame, OPCODES, PAYLOADS)
SENT = st.lists(FRAMES | nearly(FRAMES) | st.binary(max_size=40), min_size=1, max_size=6)


async def exchange(running: Installation, sent: bytes) -> bytes:
    """What the server answers until it closes. The client says that it sends no more once it has an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    answer = b""
    try:
        writer.write(sent)
        await writer.drain()
        async with asyncio.timeout(_ANSWER_SECONDS):
            while piece := await reader.read(65_536):
                answer += piece
                if b"\r\n\r\n" in answer and not reader.at_eof() and writer.can_write_eof():
                    writer.write_eof()
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return answer


async def check_served(running: Installation, pids: list[int]) -> None:
    """The same processes serve an ordinary client."""
    async with (
        aiohttp.ClientSession(running.url, headers=running.headers) as session,
        session.ws_connect("/v1/ws", protocols=["postroad.v1"]) as socket,
    ):
        await socket.send_json({"op": "ping"})
        assert (await socket.receive_json(timeout=20))["op"] == "pong"
    assert running.worker_pids == pids
    assert "Traceback" not in running.log() and '"internal' not in running.log(), running.log()[-2000:]


@given(sent=SENT)
@bounded
async def test_no_frames_crash_a_worker(running: Installation, sent: list[bytes]) -> None:
    pids = running.worker_pids
    answer = await exchange(running, handshake(running) + b"".join(sent))
    assert answer.startswith(b"HTTP/1.1 101 "), answer[:100]
    await check_served(running, pids)


@given(changed=st.data())
@bounded
async def test_no_handshake_is_answered_with_a_5xx(running: Installation, changed: st.DataObject) -> None:
    pids = running.worker_pids
    paths = st.sampled_from(["/v1/ws", "/v1/ws/none", "/v1/topics/orders/stream", "/v1/queues", "/postroad-live.js"])
    sent = changed.draw(nearly(paths.map(lambda path: handshake(running, path))) | nearly(st.just(handshake(running))))
    answer = await exchange(running, sent)
    assert not answer.startswith(b"HTTP/1.1 5"), answer[:300]
    await check_served(running, pids)


def test_frames_are_masked_as_the_protocol_says() -> None:
    made = frame(0x81, b"hello", os.urandom(4))
    mask, masked = made[2:6], made[6:]
    assert (made[0], made[1]) == (0x81, 0x85)
    assert bytes(byte ^ mask[index % 4] for index, byte in enumerate(masked)) == b"hello"
