"""Streams and subscriptions on a real server, with a real webhook receiver."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from tests.gateway import Answer, Client, ShiftedClock, served, session
from tests.http.small import settings_of
from tests.platforms import platform_on
from tests.waiting import eventually

from postroad.governance.audit import audit_stream
from postroad.http.app import App
from postroad.http.request import Request, RevocationWatch
from postroad.http.routing import Route, Router
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import ensure_stream
from postroad.kernel.identity import ALL_SCOPES, Caller, resource_restrictions
from postroad.stream_subscriptions import capability
from postroad.stream_subscriptions.records import Wake, record_key
from postroad.streams.capability import StreamsCapability
from postroad.telemetry.frames import frame_streams

KEYS = ("the platform key of the tests, long enough",)
ROOT = "/v1/stream/__ds/subscriptions"


class _Watch:
    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        pass


class HeaderAuthenticator:
    """Callers with all scopes, of the tenant in a header, restricted to the streams in another header."""

    def authenticate_now(self, _request: Request, _route: Route) -> Caller | None:
        return None

    async def authenticate(self, request: Request, _route: Route) -> Caller:
        tenant = request.parameters.get("project") or request.header(b"x-tenant") or "default"
        only = request.header(b"x-streams")
        return Caller(tenant, "k", frozenset(ALL_SCOPES), allowed=resource_restrictions(stream=[only]) if only else None)

    def watch(self, _caller: Caller) -> RevocationWatch:
        return _Watch()


@dataclass
class Node:
    """One worker: its own tables, routes and outbound client. `lead` makes it deliver."""

    url: str
    clock: ShiftedClock
    parts: capability.StreamSubscriptionsCapability
    client: Client
    tenant: str
    disabled: set[str]
    following: list[asyncio.Task[None]]
    leading: asyncio.Task[None] | None = None

    def lead(self) -> None:
        self.leading = asyncio.create_task(self.parts.delivery.run())

    async def step_down(self) -> None:
        if self.leading is not None:
            self.leading.cancel()
            await asyncio.gather(self.leading, return_exceptions=True)
            self.leading = None

    async def stop_following(self) -> None:
        """Stop receiving changes of the table."""
        for task in self.following:
            task.cancel()
        await asyncio.gather(*self.following, return_exceptions=True)

    async def leased(self, subscription: str = "sub", tenant: str | None = None) -> Wake:
        """The wake, once it is leased."""

        def found() -> Wake | None:
            record = self.parts.table.get(record_key(tenant or self.tenant, subscription))
            wake = record.wake if record else None
            return wake if wake and wake.lease_until_ms is not None else None

        wake = await eventually(found)
        assert wake is not None
        return wake

    async def subscribe(self, subscription: str = "sub", **wanted: Any) -> Answer:
        return await self.client.put(f"{ROOT}/{subscription}", wanted)

    async def show(self, subscription: str = "sub") -> dict[str, Any]:
        shown: dict[str, Any] = (await self.client.get(f"{ROOT}/{subscription}")).ok()
        return shown

    async def acked(self, path: str, subscription: str = "sub") -> str | None:
        streams = (await self.show(subscription))["streams"]
        return next((one["acked_offset"] for one in streams if one["path"] == path), None)

    async def reaches(self, status: str) -> None:
        async def is_there() -> bool:
            return str((await self.show())["status"]) == status

        await eventually(is_there)

    async def create(self, path: str, *values: object) -> str:
        """Create a JSON stream with these values; returns its end."""
        answer = await self.client.put(f"/v1/stream/{path}", list(values))
        assert answer.status in (200, 201), answer
        return answer.headers["stream-next-offset"]

    async def append(self, path: str, value: object) -> str:
        answer = await self.client.post(f"/v1/stream/{path}", value)
        assert answer.status in (200, 204), answer
        return answer.headers["stream-next-offset"]

    async def read(self, path: str) -> list[Any]:
        found: list[Any] = (await self.client.get(f"/v1/stream/{path}")).ok()
        return found

    async def act(self, action: str, body: object, token: str | None = None, subscription: str = "sub") -> Answer:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        return await self.client.post(f"{ROOT}/{subscription}/{action}", body, headers=headers)


@dataclass
class Hook:
    """A webhook receiver. It responds with `status` and `answer`; `before` runs first."""

    url: str = ""
    status: int = 200
    answer: object = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    raw: list[tuple[str, bytes]] = field(default_factory=list)
    before: Callable[[dict[str, Any]], Any] | None = None

    async def received(self, count: int = 1, seconds: float = 5) -> list[dict[str, Any]]:
        await eventually(lambda: len(self.calls) >= count, seconds)
        return self.calls


@pytest.fixture
async def hook() -> AsyncIterator[Hook]:
    made = Hook()

    async def receive(request: web.Request) -> web.Response:
        body = await request.read()
        made.raw.append((request.headers["Webhook-Signature"], body))
        made.calls.append(msgspec.json.decode(body))
        if made.before is not None:
            await made.before(made.calls[-1])
        return web.Response(status=made.status, body=msgspec.json.encode(made.answer))

    app = web.Application()
    app.router.add_post("/hook", receive)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield made
    await runner.cleanup()


@contextlib.asynccontextmanager
async def running(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, name: str, clock: ShiftedClock, http: aiohttp.ClientSession
) -> AsyncIterator[Node]:
    disabled: set[str] = set()

    async def is_served(tenant: str) -> bool:
        return tenant not in disabled

    for spec in frame_streams(1):
        await ensure_stream(connection, spec)
    platform = platform_on(connection, clock, open=True, stream_long_poll_seconds=2.0, stream_sse_seconds=10.0)
    monkeypatch.setattr(platform.identities, "is_enabled", is_served)
    monkeypatch.setattr(capability, "SUBSCRIPTIONS_BUCKET", f"{name}_subscriptions")
    real, parts = platform.add(StreamsCapability), platform.add(capability.StreamSubscriptionsCapability)
    following = [asyncio.create_task(table.run()) for table in parts.tables()]
    app = App(
        Router([*parts.routes(), *real.routes()]), HeaderAuthenticator(), settings_of(body_bytes_max=1_000_000, requests_max=1000)
    )
    async with served(app) as url:
        tenant = name
        node = Node(url, clock, parts, Client(url, http, {"X-Tenant": tenant}), tenant, disabled, following)
        for table in parts.tables():
            await table.wait_loaded()
        try:
            yield node
        finally:
            await node.step_down()
            await node.stop_following()
            await platform.outbound.close()


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


MakeNode = Callable[[], Awaitable[Node]]


@pytest.fixture
async def make_node(
    connection: Connection, committers: Committers, name: str, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MakeNode]:
    """Starts workers that share a table."""
    await ensure_stream(connection, audit_stream(1))
    await Bucket(connection, f"{name}_subscriptions", committers).ensure()
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(session())

        async def make() -> Node:
            return await stack.enter_async_context(running(connection, monkeypatch, name, clock, http))

        yield make


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    """A worker that also delivers wakes."""
    made = await make_node()
    made.lead()
    return made
