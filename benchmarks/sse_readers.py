"""Many readers of server-sent events in one process. They parse the start of a response, and then only count a byte that occurs
once per message: the n-th on a connection is the n-th message.

    python -m benchmarks.sse_readers URL READERS MESSAGES FILE [HEADER …]

Prints `connected` once every reader has its first control event (of nchan: its greeting). Ends when every reader has every
message, or after a minute; then FILE has the time of each arrival (CLOCK_MONOTONIC, float64, reader by reader; 0 for
missing messages).
"""

import asyncio
import resource
import sys
import time
from array import array
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

MARKER = b"~"
SECONDS_MAX = 60
_OPENINGS = (b"event: control", b"\n: hi\n", b"event: ready", b'"op":"ready"')
_CONNECTING_MAX = 200  # concurrent, so that the server's accept backlog does not limit the result


class Reader(asyncio.BufferedProtocol):
    _buffer = bytearray(256 * 1024)  # shared by all readers: a chunk is counted before the next one arrives
    _view = memoryview(_buffer)

    def __init__(self, request: bytes, messages: int, crowd: "Crowd") -> None:
        self._request = request
        self._messages = messages
        self._crowd = crowd
        self._head: bytes | None = b""
        self._count = 0
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.arrivals = array("d", bytes(8 * messages))

    def connection_made(self, transport: asyncio.WriteTransport) -> None:  # type: ignore[override]
        transport.write(self._request)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        if self._head is not None:
            self._open(bytes(self._view[:nbytes]))
        found = self._buffer.count(MARKER, 0, nbytes)
        if found:
            now = time.monotonic()
            until = min(self._count + found, self._messages)
            for number in range(self._count, until):
                self.arrivals[number] = now
            self._count = until
            if until == self._messages:
                self._crowd.one_is_done()

    def _open(self, chunk: bytes) -> None:
        assert self._head is not None
        self._head += chunk
        is_socket_of_peer = self._head.startswith(b"HTTP/1.1 101") and b"postroad" not in self._request
        if is_socket_of_peer or any(opening in self._head for opening in _OPENINGS):
            self._head = None
            self.ready.set_result(None)
        elif b"\r\n" in self._head and not self._head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 101")):
            self._crowd.fail(f"the server said {self._head[:200]!r}")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._count < self._messages:
            self._crowd.fail(f"a connection ended after {self._count} messages: {exc}")


class Crowd:
    def __init__(self, readers: int) -> None:
        self._missing = readers
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def one_is_done(self) -> None:
        self._missing -= 1
        if not self._missing and not self.done.done():
            self.done.set_result(None)

    def fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(SystemExit(why))


def socket_request(path: str, topic: str, host: str, headers: list[str]) -> bytes:
    """The handshake; to `/v1/ws` with a subscription to the topic in the same bytes, masked with zeros."""
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade", *headers]
    lines += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13"]
    if path != "/v1/ws":
        return "\r\n".join([*lines, "", ""]).encode()
    subscribe = f'{{"op":"subscribe","ref":"a","topic":"{topic}"}}'.encode()
    frame = bytes([0x81, 0x80 | len(subscribe)]) + bytes(4) + subscribe
    return "\r\n".join([*lines, "Sec-WebSocket-Protocol: postroad.v1", "", ""]).encode() + frame


async def read(url: str, readers: int, messages: int, file: Path, headers: list[str]) -> None:
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    host, port = parts.hostname, parts.port
    lines = [f"GET {parts.path}?{parts.query} HTTP/1.1", f"Host: {parts.netloc}", "Accept: text/event-stream", *headers]
    request = "\r\n".join([*lines, "", ""]).encode()
    if parts.scheme == "ws":
        request = socket_request(parts.path, parts.query, parts.netloc, headers)
    crowd, slots = Crowd(readers), asyncio.Semaphore(_CONNECTING_MAX)
    loop = asyncio.get_running_loop()

    async def connect() -> Reader:
        async with slots:
            _, reader = await loop.create_connection(lambda: Reader(request, messages, crowd), host, port)
            await asyncio.wait({reader.ready, crowd.done}, return_when=asyncio.FIRST_COMPLETED)
            return reader

    async with asyncio.timeout(SECONDS_MAX):
        everyone = await asyncio.gather(*[connect() for _ in range(readers)])
    if not crowd.done.done():
        print("connected", flush=True)
    await asyncio.wait({crowd.done}, timeout=SECONDS_MAX)
    with file.open("wb") as out:
        for reader in everyone:
            reader.arrivals.tofile(out)
    if crowd.done.done():
        crowd.done.result()


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    url, readers, messages, file, *headers = sys.argv[1:]
    uvloop.run(read(url, int(readers), int(messages), Path(file), headers))


if __name__ == "__main__":
    main()
