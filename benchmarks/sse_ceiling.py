"""A minimal SSE server that copies each posted message to every open reader. It shows the upper limit of the benchmark's readers
and publisher.

    python -m benchmarks.sse_ceiling      # prints its address and runs until a signal
"""

import asyncio

import uvloop

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_CONTROL = b'event: control\ndata:{"streamNextOffset":"0"}\n\n'
_DONE = b"HTTP/1.1 204 No Content\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    readers: dict[asyncio.WriteTransport, None] = {}  # noqa: RUF012 - of all connections
    bodies: list[bytes] = []  # noqa: RUF012
    _received = b""

    def connection_made(self, transport: asyncio.WriteTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.readers.pop(self._transport, None)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        if head.startswith(b"GET") and b"live=sse" not in head:
            body = b"[" + b",".join(self.bodies) + b"]"
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        elif head.startswith(b"GET"):
            self.readers[self._transport] = None
            self._transport.write(_HEAD + _chunk(_CONTROL))
        elif head.startswith(b"POST"):
            if not body:
                return
            self.bodies.append(body)
            chunk = _chunk(b"event: data\ndata:[" + body + b"]\n\n" + _CONTROL)
            for reader in self.readers:
                reader.write(chunk)
            self._transport.write(_DONE)
        elif head.startswith(b"HEAD"):
            self._transport.write(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            self.bodies.clear()
            self._transport.write(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
        self._received = b""


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
