"""An HTTP endpoint that records what it receives and answers as a test says."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def sequence(self) -> int:
        return int(self.headers["x-mq-id"])

    @property
    def attempt(self) -> int:
        return int(self.headers["x-mq-attempt"])


@dataclass
class Receiver:
    """`answer` returns the status, optionally with headers and a body; `hold` delays all answers while it is set."""

    url: str = ""
    received: list[Received] = field(default_factory=list)
    answer: Callable[[Received], int | tuple[int, dict[str, str], bytes]] = lambda _received: 200
    in_flight: int = 0
    in_flight_max: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.released.set()

    @property
    def sequences(self) -> list[int]:
        return [one.sequence for one in self.received]

    def hold(self) -> None:
        self.released.clear()

    async def handle(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        one = Received(request.path, headers, await request.read())
        self.received.append(one)
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            await self.released.wait()
        finally:
            self.in_flight -= 1
        answer = self.answer(one)
        status, more, body = answer if isinstance(answer, tuple) else (answer, {}, b"")
        return web.Response(status=status, headers=more, body=body)


@asynccontextmanager
async def receiving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_post("/{path:.*}", receiver.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    host, port = runner.addresses[0][:2]
    receiver.url = f"{'http' if tls is None else 'https'}://{host}:{port}"
    try:
        yield receiver
    finally:
        receiver.released.set()
        await runner.cleanup()
