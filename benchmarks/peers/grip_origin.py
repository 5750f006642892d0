"""The origin behind pushpin: it subscribes every client to the channel that its path names.

    python benchmarks/peers/grip_origin.py PORT

`GET /events/<channel>` is a stream of events, `POST /socket/<channel>` the opening of a WebSocket, as pushpin translates it to
HTTP (https://pushpin.org/docs/protocols/).
"""

import asyncio
import sys


def answer(method: str, path: str) -> bytes:
    kind, _, channel = path.strip("/").partition("/")
    if kind == "events":
        headers, body = f"Content-Type: text/event-stream\r\nGrip-Hold: stream\r\nGrip-Channel: {channel}", "\n: hi\n\n"
    elif kind == "socket" and method == "POST":
        subscribe = f'c:{{"type": "subscribe", "channel": "{channel}"}}'
        headers = "Content-Type: application/websocket-events\r\nSec-WebSocket-Extensions: grip"
        body = f"OPEN\r\nTEXT {len(subscribe):X}\r\n{subscribe}\r\n"
    else:
        headers, body = "Content-Type: text/plain", "ready\n"
    return f"HTTP/1.1 200 OK\r\n{headers}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        method, path, _ = line.decode().split(" ", 2)
        length = 0
        while (header := (await reader.readline()).strip().lower()) != b"":
            if header.startswith(b"content-length:"):
                length = int(header.partition(b":")[2])
        await reader.readexactly(length)
        writer.write(answer(method, path.partition("?")[0]))
        await writer.drain()
    writer.close()


async def main(port: int) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
