"""A NATS client that restores its connection and its subscriptions: writes, subscriptions, pings, reconnects.

Messages are handled where they arrive, in the callback of the event loop that read them: no task and no queue between. A handler
must not block.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

import structlog

from postroad.jetstream.nats_parser import ProtocolViolation, ServerInfo
from postroad.jetstream.nats_session import PORT, NatsError, NatsSession, SessionCallbacks, SessionSettings, is_address

_PING_SECONDS = 2.0
_PINGS_MAX = 3  # unanswered: the connection ends after 8 s without an answer
_UNSENT_BYTES_MAX = 256 * 1024 * 1024  # while there is no connection
# A connection that the server ends with one of these cannot be restored with the same credentials.
_FINAL_ERRORS = ("authorization violation", "authentication expired", "authentication revoked", "authentication timeout")
NO_CONNECTION = (OSError, TimeoutError, NatsError, ProtocolViolation, ValueError)

MessageHandler = Callable[[str, str, bytes, bytes], None]  # subject, reply, headers as sent, data

log = structlog.get_logger("postroad.jetstream")


class ClientObserver(Protocol):
    """Learns of the loss and the return of the connection, and chooses the server."""

    def on_lost(self) -> None: ...

    def on_restored(self) -> None: ...

    def on_closed(self) -> None: ...

    def choose_server(self, servers: Sequence[str]) -> tuple[str, float]:
        """One of the addresses to connect to, and the seconds to wait before."""
        ...


@dataclass(slots=True)
class NatsClient:
    urls: Sequence[str]
    settings: SessionSettings
    observer: ClientObserver
    reconnects: bool = True
    info: ServerInfo = field(init=False, default_factory=ServerInfo)
    server: str = field(init=False, default="")  # the address of the present server, or of the last one
    last_error: Exception | None = field(init=False, default=None)
    is_closed: bool = field(init=False, default=False)
    _session: NatsSession | None = field(init=False, default=None)
    _announced: Sequence[str] = field(init=False, default=())
    _handlers: dict[int, tuple[str, MessageHandler]] = field(init=False, default_factory=dict)  # by subscription id
    _last_sid: int = field(init=False, default=0)
    _unsent: list[bytes] = field(init=False, default_factory=list)
    _unsent_size: int = field(init=False, default=0)
    _is_flush_scheduled: bool = field(init=False, default=False)
    _pings: asyncio.TimerHandle | None = field(init=False, default=None)
    _reconnecting: "asyncio.Task[None] | None" = field(init=False, default=None)

    # Servers, by address

    @property
    def configured(self) -> dict[str, SplitResult]:
        urls = [urlsplit(url if "://" in url else f"nats://{url}") for url in self.urls]
        return {address_of(url): url for url in urls}

    @property
    def announced(self) -> dict[str, SplitResult]:
        """The servers that the present one announced, with scheme, user and password of the first configured one."""
        first = next(iter(self.configured.values()))
        user, at, _ = first.netloc.rpartition("@")
        urls = [first._replace(netloc=f"{user}{at}{one}") for one in self._announced]
        return {address_of(url): url for url in urls}

    # Connecting

    async def connect(self) -> None:
        """Connect to the first configured server that accepts. Raises what the last one raised: OSError, TimeoutError, NatsError,
        ProtocolViolation, ValueError."""
        failure: Exception = NatsError("no server is configured")
        for url in self.configured.values():
            try:
                await self._connect_to(url)
                return
            except NO_CONNECTION as error:
                self.last_error = failure = error
        raise failure

    async def _connect_to(self, url: SplitResult) -> None:
        callbacks = SessionCallbacks(self._on_message, self._on_info, self._on_error, self._on_end)
        session = NatsSession(url, callbacks)
        await session.connect(self._settings_for(url))
        if self.is_closed:
            session.abort()
            return
        self._session, self.server = session, address_of(url)
        session.write(b"".join([_sub(subject, sid) for sid, (subject, _) in self._handlers.items()]))
        self._pings = asyncio.get_running_loop().call_later(_PING_SECONDS, self._ping)
        self.flush()

    def _settings_for(self, url: SplitResult) -> SessionSettings:
        """The certificate of a server that was announced by its IP address has the name of a configured one."""
        host = next(iter(self.configured.values())).hostname or ""
        is_announced = address_of(url) not in self.configured
        return replace(self.settings, tls_hostname=host) if is_announced and not is_address(host) else self.settings

    async def _reconnect(self) -> None:
        while not self.is_closed:
            known = self.announced | self.configured
            chosen, delay = self.observer.choose_server(list(known))
            await asyncio.sleep(delay)
            try:
                await self._connect_to(known[chosen])
            except NO_CONNECTION as error:
                self.last_error = error
                log.debug("engine_not_reached", server=chosen, problem=type(error).__name__)
                continue
            if self._session is not None:  # which may have ended meanwhile
                self._reconnecting = None
                self.observer.on_restored()
            return

    def drop(self) -> None:
        """End the present connection without sending what is buffered, and connect again."""
        if self._session is not None:
            self._session.abort()

    def close(self) -> None:
        if self.is_closed:
            return
        self._end()
        if self._session is not None:
            self._session.write(b"".join(self._unsent))
            self._session.close()
            self._session = None
            self.observer.on_lost()
        self.observer.on_closed()

    def _end(self) -> None:
        self.is_closed = True
        self._stop_pings()
        if self._reconnecting is not None:
            self._reconnecting.cancel()

    # Writing

    def write(self, commands: bytes) -> None:
        """Add encoded commands to what `flush` sends. Without a connection they are sent after the reconnect, or dropped if there
        are too many."""
        self._unsent.append(commands)
        self._unsent_size += len(commands)
        if self._session is None and self._unsent_size > _UNSENT_BYTES_MAX:
            self._take_unsent()

    def flush(self) -> None:
        """Send what was written, together with what is written until the event loop's next turn."""
        if not self._is_flush_scheduled and self._session is not None and self._unsent:
            self._is_flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if self._session is not None and self._unsent:
            self._session.write(self._take_unsent())

    def _take_unsent(self) -> bytes:
        unsent = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
        self._unsent.clear()
        self._unsent_size = 0
        return unsent

    async def round_trip(self) -> None:
        """Return once the server has handled everything that was written before, and its messages have been handled here.

        Raises ConnectionResetError.
        """
        if self._session is None:
            raise ConnectionResetError("there is no connection")
        self._flush()
        await self._session.ping()

    def _ping(self) -> None:
        session = self._session
        if session is None:
            return
        self._pings = asyncio.get_running_loop().call_later(_PING_SECONDS, self._ping)
        if session.probe() >= _PINGS_MAX:
            self.last_error = NatsError("the server does not answer pings")
            session.abort()

    def _stop_pings(self) -> None:
        if self._pings is not None:
            self._pings.cancel()

    # Subscriptions

    def subscribe(self, subject: str, handler: MessageHandler) -> int:
        """Call the handler for each message, in order. Returns the subscription's id."""
        self._last_sid += 1
        self._handlers[self._last_sid] = (subject, handler)
        if self._session is not None:  # otherwise it is restored with the others
            self.write(_sub(subject, self._last_sid))
            self.flush()
        return self._last_sid

    def end_at_server(self, sid: int) -> None:
        """Ask the server to send no more messages. Those in flight are still handled."""
        if self._session is not None:
            self.write(b"UNSUB %d\r\n" % sid)
            self.flush()

    def unsubscribe(self, sid: int) -> None:
        """Handle no more messages."""
        if self._handlers.pop(sid, None) is not None:
            self.end_at_server(sid)

    @property
    def subjects(self) -> Sequence[str]:
        return [subject for subject, _ in self._handlers.values()]

    # What the session calls

    def _on_message(self, sid: int, subject: str, reply: str, header_block: bytes, data: bytes) -> None:
        subscription = self._handlers.get(sid)
        if subscription is None:
            return
        try:
            subscription[1](subject, reply, header_block, data)
        except (Exception, asyncio.CancelledError):  # a bug, or of a cancelled caller: messages to others must go on
            log.exception("message_handler_failed", subject=subject)

    def _on_info(self, info: ServerInfo) -> None:
        self.info = info
        self._announced = info.connect_urls or self._announced

    def _on_error(self, text: str) -> None:
        self.last_error = NatsError(text)
        log.warning("engine_error", detail=text)
        if text.lower().endswith(_FINAL_ERRORS):
            self._end()

    def _on_end(self, session: NatsSession) -> None:
        if session is not self._session:
            return
        self._session = None
        self._stop_pings()
        if self.reconnects and not self.is_closed:
            self.observer.on_lost()
            self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect())
            return
        self._end()
        self.observer.on_lost()
        self.observer.on_closed()


def address_of(url: SplitResult) -> str:
    """Host and port of a server, without user and password."""
    address = url.netloc.rpartition("@")[2]
    return address if url.port else f"{address}:{PORT}"


def _sub(subject: str, sid: int) -> bytes:
    return b"SUB %b  %d\r\n" % (subject.encode(), sid)
