"""Limits on what callers can hold at the same time: requests, live connections and bytes of bodies."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from postroad.http.app import App
from postroad.http.request import Request, RevocationWatch
from postroad.http.response import Response
from postroad.http.routing import Route, Router
from postroad.http.sse import event_stream
from postroad.kernel.errors import Unauthenticated
from postroad.kernel.identity import ALL_SCOPES, Caller, Credential, Scope
from postroad.kernel.log_limit import LogLimit
from tests.gateway import Answer, Client, Gateway
from tests.http.small import client_of, raw_connection, settings_of
from tests.waiting import eventually

KIB = 1024


class _Watch:
    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        self.ended.cancel()


class HeaderAuthenticator:
    """Callers of the tenant in `X-Postroad-Tenant`: `admin` is a platform key, `public` an anonymous caller."""

    def authenticate_now(self, _request: Request, _route: Route) -> Caller | None:
        return None

    async def authenticate(self, request: Request, _route: Route) -> Caller:
        tenant = request.header(b"x-postroad-tenant")
        if tenant is None:
            raise Unauthenticated("no tenant")
        credential = Credential.NONE if tenant == "public" else Credential.KEY
        return Caller(tenant, "k", frozenset(ALL_SCOPES), is_platform=tenant == "admin", credential=credential)

    def watch(self, _caller: Caller) -> RevocationWatch:
        return _Watch()


class Handlers:
    """Handlers that wait until the test opens them."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def wait(self, _request: Request) -> Response:
        await self.opened.wait()
        return Response(b"{}")

    async def poll(self, request: Request) -> Response:
        return await request.cancel_on_disconnect(self.wait(request))

    async def events(self, request: Request) -> Response:
        return event_stream(request, self._frames())

    async def _frames(self) -> AsyncIterator[bytes]:
        await self.opened.wait()
        yield b"data: last\n\n"

    async def size(self, request: Request) -> Response:
        return Response(str(len(request.body or b"")).encode())

    def table(self) -> list[Route]:
        def route(method: str, path: str, handler: Any, scope: Scope | None = Scope.READ, **more: Any) -> Route:
            return Route(method, path, handler, scope, "", "", **more)

        return [
            route("GET", "/wait", self.wait),
            route("GET", "/poll", self.poll),
            route("GET", "/events", self.events),
            route("POST", "/size", self.size, raw_body=True),
            route("POST", "/wait", self.wait, raw_body=True),
            route("GET", "/healthz", self.size, None, is_unlimited=True),
            route("GET", "/public", self.wait, None),
            route("POST", "/public", self.size, None, raw_body=True),
        ]


@asynccontextmanager
async def running(**limits: Any) -> AsyncIterator[tuple[App, Handlers, Client]]:
    handlers = Handlers()
    app = App(Router(handlers.table()), HeaderAuthenticator(), settings_of(**{"body_bytes_max": 100 * KIB, **limits}))
    async with client_of(app) as client:
        yield app, handlers, client
        handlers.opened.set()


def of(client: Client, tenant: str) -> Client:
    return client.with_headers(**{"X-Postroad-Tenant": tenant})


@asynccontextmanager
async def held(client: Client, path: str, count: int) -> AsyncIterator[None]:
    """So many open requests."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            connection = await stack.enter_async_context(raw_connection(client.url))
            tenant = client.headers.get("X-Postroad-Tenant")
            line = f"X-Postroad-Tenant: {tenant}\r\n" if tenant else ""
            await connection.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n{line}\r\n".encode())
        yield


def refused(answer: Answer, status: int, limit: str, before: float) -> None:
    problem = answer.problem(status, "rate-limited" if status == 429 else "overloaded")
    assert problem["retryable"] is True
    assert answer.headers["retry-after"] == "1"
    assert refusals(limit) == before + 1


def refusals(limit: str) -> float:
    return REGISTRY.get_sample_value("postroad_http_refusals_total", {"limit": limit}) or 0


# Requests


async def test_a_tenant_at_its_limit_does_not_stop_others() -> None:
    async with running(requests_per_tenant_max=2) as (app, handlers, client), held(of(client, "a"), "/wait", 2):
        await eventually(lambda: app.open_requests == 2)
        before = refusals("tenant_requests")
        refused(await of(client, "a").post("/size", data=b"x"), 429, "tenant_requests", before)
        assert (await of(client, "b").post("/size", data=b"x")).status == 200
        assert (await of(client, "admin").post("/size", data=b"x")).status == 200
        handlers.opened.set()
        await eventually(lambda: app.open_requests == 0)
        assert (await of(client, "a").post("/size", data=b"x")).status == 200


@pytest.mark.parametrize("tenant", [None, "public"])
async def test_an_address_at_its_limit_can_still_use_a_key(tenant: str | None) -> None:
    async with running(requests_per_address_max=2) as (app, handlers, client):
        other_tenant, path = (of(client, tenant), "/wait") if tenant else (client, "/public")
        async with held(other_tenant, path, 2):
            await eventually(lambda: app.open_requests == 2)
            before = refusals("address_requests")
            refused(await other_tenant.get(path), 429, "address_requests", before)
            assert (await of(client, "b").post("/size", data=b"x")).status == 200
        handlers.opened.set()
        await eventually(lambda: app.open_requests == 0)
        assert app._admission.addresses == {}
        assert (await client.post("/public", data=b"x")).status == 200


async def test_a_full_worker_refuses_requests_but_not_health_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(requests_max=2) as (app, _handlers, client), held(of(client, "a"), "/wait", 2):
        await eventually(lambda: app.open_requests == 2)
        before = refusals("worker_requests")
        monkeypatch.setattr(app._log, "_overload_limit", LogLimit(1.0, lambda: 100.0))
        with capture_logs() as logs:
            for number in range(5):
                refused(await of(client, "b").get("/wait"), 503, "worker_requests", before + number)
        assert len([one for one in logs if one.get("code") == "overloaded"]) == 1, "at most one line per second"
        assert (await client.get("/healthz")).status == 200


# Live connections


@pytest.mark.parametrize("path", ["/poll", "/events"])
async def test_live_connections_are_not_counted_as_requests(path: str) -> None:
    limits = {"requests_max": 1, "requests_per_tenant_max": 1}
    async with running(**limits) as (app, _handlers, client), held(of(client, "a"), path, 5):
        await eventually(lambda: app._admission.worker.live == 5)
        assert (await of(client, "a").post("/size", data=b"x")).status == 200


@pytest.mark.parametrize("path", ["/poll", "/events"])
async def test_live_connections_have_limits_of_their_own(path: str) -> None:
    limits = {"live_max": 3, "live_connections_per_tenant_max": 2}
    async with running(**limits) as (app, handlers, client), held(of(client, "a"), path, 2):
        await eventually(lambda: app._admission.worker.live == 2)
        before = refusals("tenant_live_connections")
        refused(await of(client, "a").get(path), 429, "tenant_live_connections", before)
        async with held(of(client, "b"), path, 1):
            await eventually(lambda: app._admission.worker.live == 3)
            before = refusals("worker_live_connections")
            refused(await of(client, "b").get(path), 503, "worker_live_connections", before)
            assert (await of(client, "a").post("/size", data=b"x")).status == 200
        handlers.opened.set()
        await eventually(lambda: app._admission.worker.live == 0)
        assert (await of(client, "a").get(path)).status == 200
    loads = [app._admission.worker, *app._admission.tenants.values()]
    assert [(load.requests, load.live, load.body_bytes) for load in loads] == [(0, 0, 0)] * 3


# Bodies


def post(path: str, size: int, tenant: str | None = None) -> bytes:
    line = f"X-Postroad-Tenant: {tenant}\r\n" if tenant else ""
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{line}Content-Length: {size}\r\n\r\n".encode()


async def test_a_body_without_a_credential_is_small() -> None:
    async with running() as (_app, _handlers, client):
        assert (await client.post("/public", data=b"x" * 16 * KIB)).ok() == 16 * KIB
        async with raw_connection(client.url) as connection:
            await connection.send(post("/public", 16 * KIB + 1))  # and nothing of the body
            (await connection.answer()).problem(413, "too-large")
        async with raw_connection(client.url) as connection:
            await connection.send(b"POST /public HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            await connection.send(b"4001\r\n" + b"x" * 0x4001 + b"\r\n")
            (await connection.answer()).problem(413, "too-large")
        assert (await of(client, "a").post("/size", data=b"x" * 50 * KIB)).ok() == 50 * KIB


async def test_received_bodies_have_a_budget_per_worker_and_tenant() -> None:
    async with running(body_buffer_bytes_max=100 * KIB) as (app, _handlers, client):
        worker = app._admission.worker
        async with contextlib.AsyncExitStack() as stack:
            for tenant in ("a", "b"):
                connection = await stack.enter_async_context(raw_connection(client.url))
                await connection.send(post("/size", 90 * KIB, tenant) + b"x" * 45 * KIB)  # half of the body
            await eventually(lambda: worker.body_bytes == 90 * KIB)
            before = refusals("tenant_body_bytes")
            refused(await of(client, "a").post("/size", data=b"x" * 10 * KIB), 429, "tenant_body_bytes", before)
            before = refusals("worker_body_bytes")
            refused(await of(client, "c").post("/size", data=b"x" * 20 * KIB), 503, "worker_body_bytes", before)
            assert (await of(client, "c").post("/size", data=b"x" * KIB)).ok() == KIB
        await eventually(lambda: worker.body_bytes == 0)
        assert (await of(client, "a").post("/size", data=b"x" * 50 * KIB)).ok() == 50 * KIB


async def test_an_announced_body_holds_nothing_until_it_arrives() -> None:
    async with running(body_buffer_bytes_max=100 * KIB) as (app, _handlers, client), contextlib.AsyncExitStack() as stack:
        for _ in range(5):
            connection = await stack.enter_async_context(raw_connection(client.url))
            await connection.send(post("/size", 90 * KIB, "a"))
        await eventually(lambda: app.open_requests == 5)
        assert (await of(client, "a").post("/size", data=b"x" * 40 * KIB)).ok() == 40 * KIB


async def test_every_route_authenticates_before_it_reads_the_body(gateway: Gateway) -> None:
    """The response comes although the body never does."""
    routes = [one for one in gateway.node.routes if (one.body is not None or one.raw_body) and one.scope is not None]
    assert len(routes) > 20
    for one in routes:
        path = "/".join("x" if segment.startswith("{") else segment for segment in one.path.split("/"))
        async with raw_connection(gateway.url) as connection:
            request = f"{one.method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
            await connection.send(request.encode())
            answer = await connection.answer()
            assert (answer.status, answer.json["code"]) == (401, "unauthenticated"), one.path


async def test_the_real_anonymous_routes_refuse_large_bodies(gateway: Gateway) -> None:
    routes = [one for one in gateway.node.routes if (one.body is not None or one.raw_body) and one.scope is None]
    assert {one.path for one in routes} >= {"/api/control/claim", "/v1/stream/__ds/subscriptions/{subscription}/ack"}
    for one in routes:
        path = "/".join("x" if segment.startswith("{") else segment for segment in one.path.split("/"))
        async with raw_connection(gateway.url) as connection:
            await connection.send(post(path, 16 * KIB + 1))
            (await connection.answer()).problem(413, "too-large")


async def test_the_health_routes_are_unlimited(gateway: Gateway) -> None:
    unlimited = {one.path for one in gateway.node.routes if one.is_unlimited}
    assert unlimited == {"/healthz", "/livez", "/health", "/readyz", "/metrics"}


async def test_many_strangers_hold_little_memory() -> None:
    """A hundred of them, each with a body of 8 MiB on its way, have a few buffers of the kernel."""
    async with running(body_bytes_max=8 * KIB * KIB) as (app, _handlers, client), contextlib.AsyncExitStack() as stack:
        answers = []
        for _ in range(100):
            connection = await stack.enter_async_context(raw_connection(client.url))
            await connection.send(post("/public", 8 * KIB * KIB) + b"x" * 16 * KIB)
            answers.append(connection.answer())
        assert {answer.status for answer in await asyncio.gather(*answers)} == {413}
        assert app._admission.worker.body_bytes == 0
