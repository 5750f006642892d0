"""A gateway in the test process: a node as in `postroad.runtime.worker`, behind the real HTTP server."""

import asyncio
import contextlib
import socket
import uuid
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import aiohttp
import msgspec

from postroad.access.identity_cache import DEFAULT_TENANT
from postroad.access.key_service import key_record
from postroad.access.keys import PLATFORM_PREFIX, new_key
from postroad.access.records import KeyRecord, TenantRecord
from postroad.api.problems import HINTS
from postroad.container import Node, Role, prepare_engine, running_node, running_platform
from postroad.http.app import App
from postroad.http.connection import RequestLimits
from postroad.http.server import Server
from postroad.http.tls import TlsCertificate
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.kernel.clock import Clock, now_ms
from postroad.kernel.errors import RegistryStale
from postroad.kernel.identity import ALL_SCOPES, Scope
from postroad.settings import Secret, Settings
from postroad.telemetry.frames import frame_subject, unpack, unpack_archived
from tests.scratch import scratch_folder
from tests.waiting import eventually

T = TypeVar("T")


PLATFORM_KEY = "the platform key of the tests, long enough"


class ShiftedClock:
    """The real time plus an offset that tests set, or a time at which it stands still."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        self.frozen_ms: int | None = None

    def __call__(self) -> int:
        return now_ms() + self.ahead_ms if self.frozen_ms is None else self.frozen_ms


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    def problem(self, status: int, code: str) -> dict[str, Any]:
        """The problem of the response, after a check of the fields that every problem has."""
        found: dict[str, Any] = self.json
        assert (self.status, found.get("code")) == (status, code), found
        assert self.headers["content-type"] == "application/problem+json"
        assert found["status"] == status
        assert found["type"] == f"/docs/errors#{code}"
        assert found["title"] and found["detail"]
        assert isinstance(found["retryable"], bool)
        assert found["requestId"] == self.headers["x-request-id"]
        common = {"type", "title", "status", "detail", "code", "retryable", "requestId", "reason", "errors"}
        assert set(found) <= common | {*HINTS}
        return found

    def ok(self, status: int = 200) -> Any:
        """The JSON of the response."""
        assert self.status == status, (self.status, self.body)
        return self.json if self.body else None


@dataclass(frozen=True, slots=True)
class Client:
    """A client of a server, with a key or without."""

    url: str
    session: aiohttp.ClientSession
    headers: dict[str, str] = field(default_factory=dict)

    async def call(
        self, method: str, path: str, body: object = None, *, headers: dict[str, str] | None = None, data: Any = None
    ) -> Answer:
        """Send a request; `body` is sent as JSON, `data` unchanged."""
        sent = {**self.headers, **(headers or {})}
        if body is not None:
            data = msgspec.json.encode(body)
            sent.setdefault("Content-Type", "application/json")
        async with self.session.request(method, self.url + path, data=data, headers=sent) as answer:
            names = {name.lower(): value for name, value in answer.headers.items()}
            return Answer(answer.status, names, await answer.read())

    async def get(self, path: str, **more: Any) -> Answer:
        return await self.call("GET", path, **more)

    async def post(self, path: str, body: object = None, **more: Any) -> Answer:
        return await self.call("POST", path, body, **more)

    async def put(self, path: str, body: object = None, **more: Any) -> Answer:
        return await self.call("PUT", path, {} if body is None else body, **more)

    async def patch(self, path: str, body: object, **more: Any) -> Answer:
        return await self.call("PATCH", path, body, **more)

    async def delete(self, path: str, **more: Any) -> Answer:
        return await self.call("DELETE", path, **more)

    @asynccontextmanager
    async def events(self, path: str, headers: dict[str, str] | None = None) -> AsyncIterator["EventReader"]:
        async with self.session.get(self.url + path, headers={**self.headers, **(headers or {})}) as answer:
            assert answer.status == 200, await answer.read()
            yield EventReader(answer)

    def with_headers(self, **headers: str) -> "Client":
        return replace(self, headers={**self.headers, **headers})


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant and a key of it, by default with all scopes."""

    id: str
    key: str
    record: KeyRecord
    client: Client
    gateway: "Gateway"

    async def another_key(self, scopes: tuple[Scope, ...] = ALL_SCOPES, **more: Any) -> "Tenant":
        return await self.gateway.key_of(self.id, scopes, **more)

    async def queue(self, name: str = "q", **settings: object) -> str:
        """Create a queue; return the path that its routes start with."""
        (await self.client.put(f"/v1/queues/{name}", settings)).ok(201)
        return f"/v1/queues/{name}"

    async def publish(self, queue: str, payload: object = None, **more: object) -> Any:
        return (await self.client.post(f"{queue}/messages", {"payload": payload, **more})).ok(201)

    async def pull(self, queue: str, count: int = 1, **more: object) -> list[dict[str, Any]]:
        pulled: list[dict[str, Any]] = (await self.client.post(f"{queue}/pull", {"maxMessages": count, **more})).ok()["messages"]
        return pulled

    async def ack(self, queue: str, receipt: str) -> Answer:
        return await self.client.post(f"{queue}/ack", {"receiptId": receipt})

    async def stats(self, queue: str) -> dict[str, int]:
        """The number of messages by state."""
        stats: dict[str, int] = (await self.client.get(queue)).ok()["stats"]
        return {name: stats[name] for name in ("ready", "leased", "delayed")}

    async def events(self, stream: str = "JOBS") -> list[dict[str, Any]]:
        """The stored events of the tenant, in order."""
        return await events_of(self.gateway.node.platform.connection, stream, self.id)

    async def archived(self, stream: str = "COMMANDS") -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """The stored events of the tenant that have an archived line, each with that line, in order."""
        frames = await frames_of(self.gateway.node.platform.connection, stream, self.id)
        pairs = [pair for frame in frames for pair in unpack_archived(frame)]
        return [(msgspec.json.decode(event), msgspec.json.decode(line)) for event, line in pairs if line is not None]


async def events_of(connection: Connection, stream: str, tenant: str) -> list[dict[str, Any]]:
    frames = await frames_of(connection, stream, tenant)
    return [msgspec.json.decode(line) for frame in frames for line in unpack(frame)]


async def frames_of(connection: Connection, stream: str, tenant: str) -> list[bytes]:
    """The bodies of the stored frames of a tenant, in order."""
    found: list[bytes] = []
    following, is_end = 1, False
    while not is_end:
        page = await stream_reader.read(connection, stream, frame_subject(stream, tenant), following, 1000)
        found += [entry.payload for entry in page.entries]
        following, is_end = page.next_sequence, page.is_end
    return found


@dataclass(
    frozen=True, slots=True, repr=False
)  # Hypothesis prints the arguments of a failed test: those of a node fill megabytes
class Gateway:
    """A running node. All its clients share the connections of one session."""

    url: str
    node: Node
    settings: Settings
    clock: ShiftedClock
    session: aiohttp.ClientSession
    admin_key: str

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """For Hypothesis, which prints the arguments of a failed test: the fields of a node have megabytes."""
        printer.text(f"Gateway({self.url})")

    @property
    def anonymous(self) -> Client:
        return Client(self.url, self.session)

    @property
    def admin(self) -> Client:
        """A client with a platform key."""
        return self.with_key(self.admin_key)

    def with_key(self, key: str) -> Client:
        return Client(self.url, self.session, {"Authorization": f"Bearer {key}"})

    async def tenant(self, *, auto_create_queues: bool = False) -> Tenant:
        await eventually(self._is_fresh)
        name = f"t-{uuid.uuid4().hex[:16]}"
        record = TenantRecord(id=name, created_at_ms=now_ms(), updated_at_ms=now_ms())
        await self.node.access.tenants.add(record, auto_create_queues=auto_create_queues)
        return await self.key_of(name)

    def _is_fresh(self) -> bool:
        """False after a test without an event loop, during which the gateway stood still, until it has caught up."""
        try:
            self.node.platform.identities.check_fresh()
        except RegistryStale:
            return False
        return True

    async def key_of(self, tenant: str, scopes: tuple[Scope, ...] = ALL_SCOPES, **more: Any) -> Tenant:
        key = new_key()
        record = key_record(key, tenant, "a test's", scopes, now_ms(), **more)
        await self.node.access.keys.add(record)
        return Tenant(tenant, key, record, self.with_key(key), self)

    def seen_by(self, tenant: Tenant) -> Tenant:
        """The same tenant and key, as a client of this gateway."""
        return Tenant(tenant.id, tenant.key, tenant.record, self.with_key(tenant.key), self)


def gateway_settings(engine_url: str, **changes: Any) -> Settings:
    """Settings without throttling, since tests send many invalid credentials from one address, and without samples among the
    events."""
    given = {"nats_url": Secret(engine_url), "platform_key": Secret(PLATFORM_KEY), "auth_failures_burst": 1_000_000}
    given |= {"sample_seconds": 3600, "requests_per_second_per_tenant_max": 0}
    return Settings.of(**{**given, "data_dir": scratch_folder(), **changes})


class _Server(Server):
    """Does not handle signals, and stops without delay."""

    def __init__(self, app: App, limits: RequestLimits, certificate: TlsCertificate | None) -> None:
        super().__init__(app, limits, stop_seconds=1, certificate=certificate)
        self.leave = asyncio.Event()

    async def main_loop(self) -> None:
        await self.leave.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@asynccontextmanager
async def served(
    app: App,
    *,
    header_bytes_max: int = 32 * 1024,
    header_seconds_max: float = 10,
    body_seconds_max: float = 10,
    write_timeout_seconds: float = 30,
    keepalive_seconds: int = 75,
    connections_max: int | None = None,
    certificate: TlsCertificate | None = None,
) -> AsyncIterator[str]:
    """Serve the app at the yielded URL; at the end the server stops as in a worker."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio turns Nagle off by the last
    listener.bind(("127.0.0.1", 0))
    url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{listener.getsockname()[1]}"
    limits = RequestLimits(
        header_bytes_max, header_seconds_max, body_seconds_max, write_timeout_seconds, keepalive_seconds, connections_max
    )
    server = _Server(app, limits, certificate)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await eventually(lambda: server.started or serving.done())
        yield url
    finally:
        server.leave.set()
        await serving


class _SharedApp:
    def __init__(self, app: App) -> None:
        self._app, self.rejection = app, app.rejection

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)

    def drain(self) -> None: ...


def shared_app(gateway: "Gateway") -> App:
    """The gateway's app, which others still use when the server in front of it has stopped."""
    return cast(App, _SharedApp(gateway.node.app))


@asynccontextmanager
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=30)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, auto_decompress=False) as opened:
        yield opened


@asynccontextmanager
async def running_gateway(
    settings: Settings, role: Role = Role.GATEWAY, *, system_clock: Clock | None = None
) -> AsyncIterator[Gateway]:
    """A node on the engine of the settings, which is prepared first, with the tenant `default`.

    Its time is the engine's, measured against `system_clock`, or without one that of `Gateway.clock`.
    """
    clock = ShiftedClock()
    admin_key = new_key(PLATFORM_PREFIX)
    async with running_platform(settings, "tests-setup") as platform:
        await prepare_engine(platform)
    times = {"clock": clock} if system_clock is None else {"system_clock": system_clock}
    async with _on_its_own(running_node(settings, role, **times)) as node, served(node.app) as url, session() as opened:
        if not await node.access.tenants.create_default(tenant_key=new_key(), admin_key=admin_key):
            await node.access.keys.add(key_record(admin_key, None, "a test's admin", ALL_SCOPES, now_ms()))
        assert await node.platform.identities.tenant(DEFAULT_TENANT)
        gateway = Gateway(url, node, settings, clock, opened, admin_key)
        _living.append(gateway)
        try:
            yield gateway
        finally:
            _living.remove(gateway)


_living: "list[Gateway]" = []


def living_gateways(engine_url: str) -> "list[Gateway]":
    """The gateways of this process on an engine: those of other tests share the work with those of a test."""
    return [one for one in _living if one.settings.nats_url is not None and one.settings.nats_url.reveal() == engine_url]


@asynccontextmanager
async def _on_its_own(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave the context in one task: pytest runs the halves of a fixture in different tasks."""
    entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    leave = asyncio.Event()

    async def hold() -> None:
        async with context as value:
            entered.set_result(value)
            await leave.wait()

    holding = asyncio.create_task(hold())
    first: set[asyncio.Future[Any]] = {entered, holding}
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    if holding.done():
        await holding
    try:
        yield entered.result()
    finally:
        leave.set()
        await holding


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """An event; `id` is None if it has none."""

    event: str
    id: str | None
    data: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.data)


class EventReader:
    """Reads server-sent events of a response by the rules of the HTML standard."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer
        self.comments: list[str] = []
        self.last_event_id: str | None = None

    async def next(self, seconds: float = 5) -> ServerSentEvent | None:
        """The next event; None at the end of the response. `retry` and comments are skipped."""
        event, event_id, data = "message", None, list[str]()
        async with asyncio.timeout(seconds):
            while line := await self.answer.content.readline():
                name, _, value = line.decode().rstrip("\n").partition(":")
                value = value.removeprefix(" ")
                if line == b"\n":
                    if data:
                        return ServerSentEvent(event, event_id, "\n".join(data))
                    event, event_id = "message", None
                elif not name:
                    self.comments.append(value)
                elif name == "event":
                    event = value
                elif name == "id":
                    self.last_event_id = event_id = value
                elif name == "data":
                    data.append(value)
        return None

    async def take(self, count: int, seconds: float = 5) -> Sequence[ServerSentEvent]:
        async with asyncio.timeout(seconds):
            found = [await self.next(seconds) for _ in range(count)]
        assert None not in found, "the answer ended"
        return [one for one in found if one is not None]
