"""Apps with test routes, and raw connections for requests that no client library sends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec

from postroad.container import app_settings
from postroad.http.app import App, AppSettings
from postroad.http.request import Request, RevocationWatch
from postroad.http.response import Response
from postroad.http.routing import Handler, Route, Router
from postroad.kernel.errors import Unauthenticated
from postroad.kernel.identity import Caller
from postroad.kernel.spans import Tracer
from postroad.settings import Settings
from tests.gateway import Answer, Client, served, session


class Note(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    copies: int = 1


class NoteLength(msgspec.Struct):
    length: int


async def note_length(request: Request) -> Response:
    return Response(NoteLength(len(request.body.text)))


class RejectingAuthenticator:
    def authenticate_now(self, _request: Request, _route: Route) -> Caller | None:
        return None

    async def authenticate(self, _request: Request, _route: Route) -> Caller:
        raise Unauthenticated("the key is not valid")

    def watch(self, caller: Caller) -> RevocationWatch:
        raise AssertionError("there is nobody to watch")


def route(path: str, handler: Handler, method: str = "GET", **more: Any) -> Route:
    return Route(method, path, handler, None, "A test's", "Tests", **more)


NOTES = route("/notes", note_length, "POST", body=Note, response=NoteLength)


def small_app(*routes: Route, tracer: Tracer | None = None, **settings: Any) -> App:
    return App(Router(routes), RejectingAuthenticator(), settings_of(**settings), tracer=tracer)


def settings_of(**changes: Any) -> AppSettings:
    return app_settings(Settings.of(**{"body_bytes_max": 1000, "requests_max": 100, **changes}))


@asynccontextmanager
async def client_of(app: App, **limits: Any) -> AsyncIterator[Client]:
    async with served(app, **limits) as url, session() as opened:
        yield Client(url, opened)


class RawConnection:
    """A connection that sends exactly the given bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, text: bytes) -> None:
        self.writer.write(text)
        await self.writer.drain()

    async def answer(self, seconds: float = 30) -> Answer:
        """The next response on the connection."""
        async with asyncio.timeout(seconds):
            status = int((await self.reader.readline()).split(b" ")[1])
            headers: dict[str, str] = {}
            while line := (await self.reader.readline()).rstrip(b"\r\n"):
                name, _, value = line.decode().partition(":")
                headers[name.lower()] = value.strip()
            return Answer(status, headers, await self.reader.readexactly(int(headers.get("content-length", 0))))

    async def is_closed(self, seconds: float = 30) -> bool:
        """True if the other side closes the connection in time."""
        async with asyncio.timeout(seconds):
            return await self.reader.read() == b""

    def abort(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def raw_connection(url: str) -> AsyncIterator[RawConnection]:
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.transport.abort()
