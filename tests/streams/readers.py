"""Streams over HTTP, and readers that record received events."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from postroad.http.app import App
from postroad.http.request import Request, RevocationWatch
from postroad.http.routing import Route, Router
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import ensure_stream
from postroad.kernel.identity import ALL_SCOPES, Caller
from postroad.streams.capability import StreamsCapability
from postroad.streams.live_reads import LiveOptions, LiveReads
from postroad.streams.routes import StreamRoutes
from postroad.telemetry.frames import frame_streams
from tests.gateway import (
    Answer,
    Client,
    EventReader,
    ShiftedClock,
    served,
    session,
)
from tests.http.small import settings_of
from tests.platforms import platform_on
from tests.streams.workers import TEXT

AT_ONCE = 15.0  # a deadline in seconds; a message that only the refresh of a follower finds takes longer


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream over HTTP."""

    client: Client
    path: str

    async def create(self, content_type: str = TEXT, data: bytes = b"", **headers: Any) -> str:
        answer = await self.client.call("PUT", self.path, data=data, headers={"Content-Type": content_type, **headers})
        assert answer.status in (200, 201), answer
        return answer.headers["stream-next-offset"]

    async def append(self, data: bytes, content_type: str = TEXT, **headers: str) -> str:
        answer = await self.client.call("POST", self.path, data=data, headers={"Content-Type": content_type, **headers})
        assert answer.status in (200, 204), answer
        return answer.headers["stream-next-offset"]

    async def close(self) -> str:
        answer = await self.client.call("POST", self.path, headers={"Stream-Closed": "true"})
        assert answer.status == 204, answer
        return answer.headers["stream-next-offset"]

    async def read(self, query: str = "") -> Answer:
        return await self.client.get(f"{self.path}{query}")

    async def poll(self, offset: str, more: str = "") -> Answer:
        return await self.client.get(f"{self.path}?offset={offset}&live=long-poll{more}")

    def events(self, offset: str, more: str = "", **headers: str) -> contextlib.AbstractAsyncContextManager[EventReader]:
        return self.client.events(f"{self.path}?offset={offset}&live=sse{more}", headers)

    def with_client(self, client: Client) -> "Stream":
        return Stream(client, self.path)


@dataclass
class Seen:
    """Events received by a reader; `offset` is its position."""

    data: list[str] = field(default_factory=list)
    controls: list[dict[str, Any]] = field(default_factory=list)
    offset: str = "-1"

    async def take(self, reader: EventReader, until: Callable[[], bool], seconds: float = 20) -> bool:
        """Read until `until` is true; False if the response ends first. Data counts once its control event has arrived."""
        pending: list[str] = []
        async with asyncio.timeout(seconds):
            while not until():
                event = await reader.next(seconds)
                if event is None:
                    return False
                if event.event == "data":
                    assert not pending, "each data event is followed by its own control event"
                    pending.append(event.data)
                else:
                    assert event.event == "control"
                    self.data += pending
                    pending = []
                    self.controls.append(event.json)
                    self.offset = event.json["streamNextOffset"]
                    assert event.id == self.offset
        return True

    async def up_to_date(self, reader: EventReader) -> None:
        """Read until a new control event is up to date."""
        already = len(self.controls)
        assert await self.take(reader, lambda: len(self.controls) > already and self.is_up_to_date)

    async def count(self, reader: EventReader, count: int) -> bool:
        """Read until this many data events have arrived; False if the response ends first."""
        return await self.take(reader, lambda: len(self.data) >= count)

    async def end(self, reader: EventReader, seconds: float = AT_ONCE) -> None:
        """Read until the response ends, within the time limit."""
        assert not await self.take(reader, lambda: False, seconds)

    @property
    def numbers(self) -> list[int]:
        """The data of a JSON stream of numbers."""
        return [one for text in self.data for one in msgspec.json.decode(text)]

    @property
    def is_up_to_date(self) -> bool:
        return bool(self.controls) and self.controls[-1].get("upToDate") is True

    @property
    def is_closed(self) -> bool:
        return bool(self.controls) and self.controls[-1].get("streamClosed") is True


# Gateways with chosen options


class _Watch:
    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        pass


class HeaderAuthenticator:
    """Callers with all scopes, of the tenant in a header."""

    def authenticate_now(self, _request: Request, _route: Route) -> Caller | None:
        return None

    async def authenticate(self, request: Request, _route: Route) -> Caller:
        return Caller(request.header(b"x-tenant") or "default", "k", frozenset(ALL_SCOPES))

    def watch(self, _caller: Caller) -> RevocationWatch:
        return _Watch()


@asynccontextmanager
async def small_gateway(
    connection: Connection, tenant: str, *, poll_seconds: float = 5, sse_seconds: float = 60, heartbeat_seconds: float = 60
) -> AsyncIterator[tuple[Stream, App]]:
    for spec in frame_streams(1):
        await ensure_stream(connection, spec)
    platform = platform_on(connection, ShiftedClock())
    service = platform.add(StreamsCapability).service
    live = LiveReads(service, LiveOptions(poll_seconds, sse_seconds, heartbeat_seconds))
    routes = StreamRoutes(service, live, platform.clock, None).table()
    app = App(Router(routes), HeaderAuthenticator(), settings_of(body_bytes_max=8_000_000, requests_max=1000))
    async with served(app) as url, session() as http:
        yield Stream(Client(url, http, {"X-Tenant": tenant}), "/v1/stream/a"), app
        app.drain()
