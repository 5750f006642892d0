"""Processor time of the HTTP layer for a request whose body follows its headers in a second write, as many clients send it.

    .venv/bin/python -m benchmarks.two_writes [requests per round] [rounds]

Without sockets and engine: chunks are handed to a connection whose transport counts responses. The route can be served with
callbacks, and answers at once. `callbacks` and `handler` are the two paths of decision 0050; the kinds take turns.
"""

import asyncio
import statistics
import sys
import time
from typing import Any

import msgspec
import uvicorn
import uvloop
from uvicorn.server import ServerState

from benchmarks.harness import table
from benchmarks.peers.peer import PAYLOAD
from postroad.container import app_settings
from postroad.http.app import App
from postroad.http.body_discarder import BodyDiscarder
from postroad.http.body_waits import BodyWaits
from postroad.http.connection import HttpConnection, RequestLimits
from postroad.http.request import Request, RevocationWatch
from postroad.http.response import Response
from postroad.http.routing import Respond, Route, Router, Start
from postroad.kernel.identity import ALL_SCOPES, Caller, Scope
from postroad.settings import Settings

BODY = f'{{"payload":{PAYLOAD}}}'.encode()
HEAD = b"POST /it HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
_ANSWER = Response(b'{"id":"0123456789"}', status=201)


class Message(msgspec.Struct):
    payload: msgspec.Raw


class Known:
    """Everybody is known."""

    _caller = Caller("acme", "key", frozenset(ALL_SCOPES))

    def authenticate_now(self, _request: Request, _route: Route) -> Caller:
        return self._caller

    async def authenticate(self, _request: Request, _route: Route) -> Caller:
        return self._caller

    def watch(self, caller: Caller) -> RevocationWatch:
        raise NotImplementedError


async def handle(_request: Request) -> Response:
    return _ANSWER


def prepare(_request: Request) -> Start:
    def start(respond: Respond) -> None:
        asyncio.get_running_loop().call_soon(respond, _ANSWER)

    return start


class Transport:
    """Counts the responses."""

    def __init__(self) -> None:
        self.responses = 0

    def write(self, data: bytes) -> None:
        self.responses += data.count(b"HTTP/1.1 201")

    def get_extra_info(self, _name: str, default: object = None) -> object:
        return default

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...


async def served(connection: HttpConnection, transport: Transport, chunks: tuple[bytes, ...], count: int) -> float:
    """Processor µs of a request."""
    started = time.process_time()
    for number in range(count):
        for chunk in chunks:
            if chunk:
                connection.data_received(chunk)
            await asyncio.sleep(0)
        while transport.responses <= number:  # noqa: ASYNC110  # nobody else waits
            await asyncio.sleep(0)
    return (time.process_time() - started) / count * 1e6


async def measure(count: int, rounds: int) -> list[list[object]]:
    route = Route("POST", "/it", handle, Scope.PUBLISH, "It", "Benchmark", body=Message, prepare=prepare)
    app = App(Router([route]), Known(), app_settings(Settings.of()))
    asgi: Any = app
    config = uvicorn.Config(asgi, ws="none", lifespan="off", log_config=None, proxy_headers=False)
    limits = RequestLimits(32_768, 10.0, 30.0, 30.0, 75)
    kinds = {
        f"{path}, {name}": chunks
        for path in ("callbacks", "handler")
        for name, chunks in (("one write", (HEAD + BODY, b"")), ("two writes", (HEAD, BODY)))
    }
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(rounds):
        for name, chunks in kinds.items() if number % 2 == 0 else reversed(kinds.items()):
            app.has_callbacks = name.startswith("callbacks")
            connection = HttpConnection(
                limits, BodyDiscarder(), BodyWaits(), config=config, server_state=ServerState(), app_state={}
            )
            transport: Any = Transport()
            connection.connection_made(transport)
            await served(connection, transport, chunks, count // 10)
            transport.responses = 0
            found[name].append(await served(connection, transport, chunks, count))
            connection.connection_lost(None)
    base = found["handler, two writes"]
    return [
        [
            name,
            f"{statistics.median(times):.1f}",
            f"{statistics.median(one / other for one, other in zip(times, base, strict=True)):.2f}",
        ]
        for name, times in found.items()
    ]


def main() -> None:
    count, rounds = ([int(text) for text in sys.argv[1:]] + [5000, 8][len(sys.argv) - 1 :])[:2]
    print(table(["path", "processor µs", "ratio"], uvloop.run(measure(count, rounds))))


if __name__ == "__main__":
    main()
