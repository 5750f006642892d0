"""One TCP connection to a NATS server, from its greeting to its end."""

import asyncio
import ipaddress
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import SplitResult

import msgspec

from postroad.jetstream.nats_credentials import Credentials
from postroad.jetstream.nats_parser import NatsParser, ProtocolViolation, ServerInfo
from postroad.kernel.futures import resolve

PORT = 4222
_SECURE_SCHEME = "tls"
_UNSENT_BYTES_MAX = 256 * 1024 * 1024  # then the server takes nothing any more

OnMessage = Callable[[int, str, str, bytes, bytes], None]


class NatsError(Exception):
    """The server refused or ended a connection, with its own words."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    name: str
    credentials: Credentials
    tls: ssl.SSLContext | None
    connect_timeout: float
    tls_hostname: str | None = None  # of servers that are known by their address only


@dataclass(slots=True)
class SessionCallbacks:
    on_message: OnMessage
    on_info: Callable[[ServerInfo], None]
    on_error: Callable[[str], None]  # after the handshake
    on_end: Callable[["NatsSession"], None]  # after the handshake, once


@dataclass(slots=True)
class NatsSession(asyncio.Protocol):
    """Begun by `connect`. It has ended when `on_end` is called; nothing is restored."""

    url: SplitResult
    callbacks: SessionCallbacks
    info: ServerInfo = field(init=False, default_factory=ServerInfo)
    _parser: NatsParser = field(init=False)
    _transport: asyncio.Transport | None = field(init=False, default=None)
    _greeting: "asyncio.Future[None]" = field(init=False)
    _pongs: "deque[asyncio.Future[None] | None]" = field(init=False, default_factory=deque)
    _is_established: bool = field(init=False, default=False)
    _error: Exception | None = field(init=False, default=None)

    async def connect(self, settings: SessionSettings) -> None:
        """Raises OSError, TimeoutError, NatsError, ProtocolViolation, ValueError (of files with credentials)."""
        try:
            async with asyncio.timeout(settings.connect_timeout):
                await self._connect(settings)
        except BaseException:
            self.abort()
            raise

    async def _connect(self, settings: SessionSettings) -> None:
        loop = asyncio.get_running_loop()
        self._greeting = loop.create_future()
        self._parser = NatsParser(self)
        transport, _ = await loop.create_connection(lambda: self, self.url.hostname or "127.0.0.1", self.url.port or PORT)
        await self._greeting
        await self._secure(transport, settings)
        options: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "lang": "python",
            "version": "postroad",
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            "name": settings.name,
            **settings.credentials.options(self.url, self.info.nonce),
        }
        self.write(b"CONNECT %b\r\n" % msgspec.json.encode(options))
        await self.ping()
        self._is_established = True

    async def _secure(self, transport: asyncio.Transport, settings: SessionSettings) -> None:
        """Encrypt the connection if the server requires it or the settings do."""
        is_wanted = settings.tls is not None or self.url.scheme == _SECURE_SCHEME
        if not (is_wanted or self.info.tls_required):
            return
        if not (self.info.tls_required or self.info.tls_available):
            raise NatsError("the server does not offer TLS")
        host = self.url.hostname or ""
        name = settings.tls_hostname if settings.tls_hostname and is_address(host) else host
        loop = asyncio.get_running_loop()
        context = settings.tls or ssl.create_default_context()
        secured = await loop.start_tls(transport, self, context, server_hostname=name)
        if secured is None:
            raise ConnectionResetError("the connection ended during the TLS handshake")
        self._transport = secured

    # Writing

    def write(self, commands: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(commands)
        if transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            self.abort()

    async def ping(self) -> None:
        """Return once the server has handled everything that was written before. Raises ConnectionResetError, NatsError."""
        answered = asyncio.get_running_loop().create_future()
        self._pongs.append(answered)
        self.write(b"PING\r\n")
        await answered

    def probe(self) -> int:
        """Send a ping. Returns how many were unanswered before."""
        unanswered = len(self._pongs)
        self._pongs.append(None)
        self.write(b"PING\r\n")
        return unanswered

    def close(self) -> None:
        """End the connection after everything was sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection without sending what is buffered, which may never be possible."""
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
        except ProtocolViolation as error:
            self._error = error
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        error = self._error or exc or ConnectionResetError("the server ended the connection")
        for waiting in (self._greeting, *self._pongs):
            if waiting is not None:
                resolve(waiting, error)
        self._pongs.clear()
        if self._is_established:
            self._is_established = False
            self.callbacks.on_end(self)

    # What the parser calls

    def on_message(self, sid: int, subject: str, reply: str, header_block: bytes, data: bytes) -> None:
        self.callbacks.on_message(sid, subject, reply, header_block, data)

    def on_info(self, info: ServerInfo) -> None:
        self.info = info
        self.callbacks.on_info(info)
        resolve(self._greeting, None)

    def on_ping(self) -> None:
        self.write(b"PONG\r\n")

    def on_pong(self) -> None:
        if self._pongs and (waiting := self._pongs.popleft()) is not None:
            resolve(waiting, None)

    def on_error(self, text: str) -> None:
        if self._is_established:
            self.callbacks.on_error(text)
            return
        self._error = NatsError(text)
        self.abort()


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
