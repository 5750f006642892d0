"""The connection to NATS: reconnects quickly and without limit, and reports a loss at once.

nats-py implements the protocol, TLS, credentials and reconnecting. Three things are added: `send` writes several encoded commands
at once; `expect` returns reply subjects whose futures fail as soon as the connection is lost, so that a writer retries then and
not after its timeout; and `move_to` leaves a server whose connection is open but of no use (`health_monitor.py`).
"""

import asyncio
import contextlib
import itertools
import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import ParseResult

import msgspec
import nats
import nats.errors
import structlog
from nats.aio.client import Server
from nats.aio.msg import Msg

from postroad.jetstream import nats_internals
from postroad.jetstream.api_errors import NO_RESPONDERS, ApiError, ApiFailure, translate
from postroad.jetstream.health_rules import eligible_servers, next_server
from postroad.jetstream.protocol import encode_plain
from postroad.jetstream.store_sync import NoSync, StoreSync
from postroad.jetstream.write_gate import WriteGate
from postroad.kernel.backoff import Backoff
from postroad.kernel.errors import EngineNoResponders, EngineRefused, EngineUnavailable
from postroad.kernel.futures import resolve

VERSION_FLOOR = (2, 12)
_DRAIN_SECONDS = 2.0
_FLUSH_SECONDS = 0.001  # delay of commands that are not urgent: they share a system call, which costs as much as ten messages
# The server ends a connection for which it has too many bytes to send (`max_pending`, 64 MiB by default): these take turns.
_LARGE_PULLS_MAX = 4
_SCANS_MAX = 4
_API_BACKOFF = Backoff(first_seconds=0.05, max_seconds=1.0)

log = structlog.get_logger("postroad.jetstream")


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    urls: tuple[str, ...] = field(repr=False)  # with passwords
    name: str = "postroad"
    credentials_file: Path | None = None
    nkey_file: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    connect_timeout: float = 2.0
    request_timeout: float = 5.0
    has_replicas: bool = False  # then the replica that answers a direct get may lag behind the leader (`stream_reader.py`)
    reconnects: bool = True


class ConnectionLost(Exception):
    """The connection was lost before the reply arrived: the request may or may not have been executed."""


@dataclass(slots=True)
class Reply:
    """Payload and headers of a reply."""

    data: bytes
    headers: dict[str, str] | None = None

    @property
    def status(self) -> str:
        return (self.headers or {}).get("Status", "")


OnReply = Callable[[Reply | ConnectionLost], None]


@dataclass(slots=True)
class Connection:
    settings: ConnectionSettings
    large_pulls: asyncio.Semaphore = field(init=False, default_factory=lambda: asyncio.Semaphore(_LARGE_PULLS_MAX))
    large_transfer: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)  # for replies of many bytes
    scans: asyncio.Semaphore = field(init=False, default_factory=lambda: asyncio.Semaphore(_SCANS_MAX))
    store_sync: StoreSync | NoSync = field(init=False, default_factory=NoSync)
    writes: WriteGate = field(init=False, default_factory=WriteGate)
    _nc: nats_internals.Client = field(init=False)
    _prefix: str = field(init=False)
    _replies: dict[str, OnReply] = field(init=False, default_factory=dict)
    _reply_queues: dict[str, "asyncio.Queue[Reply | None]"] = field(init=False, default_factory=dict)
    _next: Callable[[], int] = field(init=False)
    _up: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _reconnect_callbacks: list[Callable[[], None]] = field(init=False, default_factory=list)
    _closed: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _is_closing: bool = field(init=False, default=False)
    _is_flush_scheduled: bool = field(init=False, default=False)
    _server: str = field(init=False, default="")
    _preferred_server: str | None = field(init=False, default=None)
    _tried_at: dict[str, float] = field(init=False, default_factory=dict)  # by server
    _unanswered: set[str] = field(init=False, default_factory=set)

    async def open(self, *, deadline: float = 30.0) -> None:
        """Connect, retrying for `deadline` seconds. Raises EngineUnavailable, and EngineRefused if the server is too old."""
        self._nc = nats_internals.Client()
        self._prefix = f"_INBOX.{os.urandom(8).hex()}."
        self._next = itertools.count(1).__next__
        loop = asyncio.get_running_loop()
        ends = loop.time() + deadline
        while True:
            try:
                await self._connect_within(ends - loop.time())
                break
            except (OSError, nats.errors.Error, TimeoutError) as exc:
                if loop.time() >= ends:
                    cause = self._nc.last_error or exc
                    raise EngineUnavailable(f"cannot connect to NATS at {self._addresses()}: {cause!r}") from exc
                await asyncio.sleep(0.05)
                self._nc = nats_internals.Client()
        try:
            self._check_version()
        except EngineRefused:
            await self.close()
            raise
        await self._nc.subscribe(self._prefix + "*", cb=self._on_reply, pending_msgs_limit=0, pending_bytes_limit=0)
        self._set_up()

    async def _connect_within(self, seconds: float) -> None:
        """Connect with a timeout. Raises TimeoutError.

        nats-py retries without limit and sometimes swallows a cancellation, so its task is cancelled but not awaited.
        """
        connecting = asyncio.ensure_future(self._connect())
        await asyncio.wait({connecting}, timeout=max(0.0, seconds))
        if connecting.done():
            return connecting.result()
        connecting.cancel()
        raise TimeoutError

    async def _connect(self) -> None:
        chosen = self.settings
        await self._nc.connect(
            servers=list(chosen.urls),
            name=chosen.name,
            user_credentials=str(chosen.credentials_file) if chosen.credentials_file else None,
            nkeys_seed=str(chosen.nkey_file) if chosen.nkey_file else None,
            tls=self._tls(),
            connect_timeout=int(chosen.connect_timeout) or 1,
            max_reconnect_attempts=-1 if chosen.reconnects else 1,
            reconnect_time_wait=0.1,  # type: ignore[arg-type]  # seconds; fractions work
            reconnect_to_server_handler=self._choose_server,
            ping_interval=2,  # three unanswered pings end the connection: after 8 s
            max_outstanding_pings=3,
            allow_reconnect=chosen.reconnects,
            pending_size=256 * 1024 * 1024,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_closed,
            error_cb=self._on_error,
        )

    def _tls(self) -> ssl.SSLContext | None:
        chosen = self.settings
        if not (chosen.tls_ca or chosen.tls_cert):
            return None
        context = ssl.create_default_context(cafile=str(chosen.tls_ca) if chosen.tls_ca else None)
        if chosen.tls_cert:
            context.load_cert_chain(str(chosen.tls_cert), str(chosen.tls_key) if chosen.tls_key else None)
        return context

    def _addresses(self) -> str:
        """The servers' addresses, without user and password."""
        return ", ".join(url.rpartition("@")[2].removeprefix("nats://") for url in self.settings.urls)

    def _check_version(self) -> None:
        if self.server_version[:2] < VERSION_FLOOR:
            raise EngineRefused(f"nats-server {'.'.join(map(str, self.server_version))} is too old: Postroad needs 2.12 or newer")

    async def close(self) -> None:
        self._is_closing = True
        with contextlib.suppress(OSError):  # the server is gone already
            await self._nc.close()

    @property
    def is_up(self) -> bool:
        return self._up.is_set()

    @property
    def max_payload(self) -> int:
        return self._nc.max_payload

    @property
    def server_version(self) -> tuple[int, int, int]:
        version = self._nc.connected_server_version
        return version.major, version.minor, version.patch

    @property
    def is_clustered(self) -> bool:
        """True if the server can keep several copies of a stream."""
        return nats_internals.is_clustered(self._nc)

    async def wait_up(self) -> None:
        await self._up.wait()

    async def raise_when_closed(self) -> None:
        """Raise EngineUnavailable once the connection is closed for good, so that the process can restart."""
        await self._closed.wait()
        if not self._is_closing:
            raise EngineUnavailable(f"the server closed the connection: {self._nc.last_error!r}")

    def on_reconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each reconnect. Returns a function that removes it."""
        self._reconnect_callbacks.append(callback)
        return lambda: self._reconnect_callbacks.remove(callback)

    def _set_up(self) -> None:
        connected = self._nc.connected_url
        self._server = nats_internals.address(connected) if connected else ""
        self._up.set()

    async def _on_disconnected(self) -> None:
        self._up.clear()
        self._tried_at[self._server] = asyncio.get_running_loop().time()
        lost, self._replies = self._replies, {}
        for on_reply in lost.values():
            on_reply(ConnectionLost())
        for queue in self._reply_queues.values():
            queue.put_nowait(None)
        if not self._is_closing:
            log.warning("engine_connection_lost", server=self._server)

    async def _on_reconnected(self) -> None:
        self._set_up()
        log.info("engine_connection_back", server=self._server)
        for callback in list(self._reconnect_callbacks):
            callback()

    async def _on_closed(self) -> None:
        """nats-py closes the connection for good on most errors that a server sends, such as expired credentials."""
        self._up.clear()
        self._closed.set()

    async def _on_error(self, error: Exception) -> None:
        log.debug("engine_connection_error", problem=type(error).__name__)

    # Servers, by address

    @property
    def server(self) -> str:
        """The server that this connection has, or had last."""
        return self._server

    def _servers(self) -> dict[str, ParseResult]:
        announced_urls = {url.netloc for url in self._nc.discovered_servers}
        configured = {nats_internals.address(url): url for url in self._nc.servers if url.netloc not in announced_urls}
        known = {nats_internals.address(url): url for url in self._nc.discovered_servers} | configured
        return {server: known[server] for server in eligible_servers(list(configured), list(known))}

    def other_servers(self) -> Sequence[str]:
        return [server for server in self._servers() if server != self._server]

    def trial_of(self, server: str) -> "Connection":
        """A further connection, not open yet, to one of `other_servers`. It is not restored if it is lost."""
        url = self._servers()[server].geturl()
        return Connection(replace(self.settings, urls=(url,), name=f"{self.settings.name}-trial", reconnects=False))

    async def move_to(self, server: str) -> None:
        """Drop the connection and connect to this server, or to another one if that fails."""
        self._preferred_server = server
        nats_internals.abort(self._nc)  # a plain close waits until everything is sent, which may be never
        await self._nc.force_reconnect()

    def _choose_server(self, servers: list[Server], _info: dict[str, Any]) -> tuple[Server | None, float]:
        """Called by nats-py before each attempt to reconnect."""
        nats_internals.abort(self._nc)  # an attempt that failed after the TCP handshake leaves its socket open
        now, known = asyncio.get_running_loop().time(), self._servers()
        chosen, delay = next_server(list(known), self._tried_at, self._preferred_server, now)
        self._preferred_server = None
        self._tried_at[chosen] = now + delay
        return next((one for one in servers if one.uri.netloc == known[chosen].netloc), None), delay

    def report_unanswered(self, stream: str) -> None:
        """Note that the leader of a stream did not answer, for the health monitor."""
        self._unanswered.add(stream)

    def pop_unanswered(self) -> set[str]:
        """The streams reported since the last call."""
        unanswered, self._unanswered = self._unanswered, set()
        return unanswered

    # Writing, and waiting for replies

    def send(self, commands: bytes, *, is_urgent: bool = True) -> None:
        """Send encoded protocol commands at once, or within a millisecond if they are not urgent. Raises ConnectionLost."""
        if self._nc.is_closed:
            raise ConnectionLost
        nats_internals.write(self._nc, commands)
        if is_urgent:
            nats_internals.flush(self._nc)
        elif not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        self._is_flush_scheduled = False
        nats_internals.flush(self._nc)

    def expect(self) -> tuple[str, "asyncio.Future[Reply]"]:
        """A reply subject and the future of its reply, which fails with ConnectionLost if the connection is lost first."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        return self.expect_callback(partial(resolve, future)), future

    def expect_callback(self, on_reply: OnReply) -> str:
        """Like `expect`, but calls `on_reply`, which must not raise, with the reply or ConnectionLost."""
        if not self._up.is_set():
            raise ConnectionLost
        subject = f"{self._prefix}{self._next():x}"
        self._replies[subject] = on_reply
        return subject

    def expect_many(self) -> tuple[str, "asyncio.Queue[Reply | None]"]:
        """Like `expect`, for a request with several replies. None in the queue: the connection was lost."""
        if not self._up.is_set():
            raise ConnectionLost
        subject = f"{self._prefix}{self._next():x}"
        queue: asyncio.Queue[Reply | None] = asyncio.Queue()
        self._reply_queues[subject] = queue
        return subject, queue

    def forget(self, reply_subject: str) -> None:
        """Stop waiting for a reply."""
        self._replies.pop(reply_subject, None)
        self._reply_queues.pop(reply_subject, None)

    async def _on_reply(self, message: Msg) -> None:
        reply = Reply(message.data, message.headers)
        if (on_reply := self._replies.pop(message.subject, None)) is not None:
            try:
                on_reply(reply)
            except (Exception, asyncio.CancelledError):  # a bug, or of a cancelled caller: replies to others must go on
                log.exception("reply_callback_failed")
        elif (queue := self._reply_queues.get(message.subject)) is not None:
            queue.put_nowait(reply)

    async def request(self, subject: str, payload: bytes = b"", *, timeout: float | None = None) -> Reply:
        """Send a request and return its reply; status 503 means no responders. Raises ConnectionLost, TimeoutError."""
        return await self.request_encoded(lambda reply_subject: encode_plain(subject, payload, reply_subject), timeout=timeout)

    async def request_encoded(self, encode: Callable[[str], bytes], *, timeout: float | None = None) -> Reply:
        """Like `request`, with a function that encodes it for a reply subject."""
        reply_subject, replied = self.expect()
        try:
            self.send(encode(reply_subject))
            async with asyncio.timeout(timeout or self.settings.request_timeout):
                return await replied
        finally:
            self.forget(reply_subject)

    async def api(
        self, call: str, body: object = None, *, timeout: float | None = None, attempt_timeout: float | None = None
    ) -> bytes:
        """Make a JetStream API call, retried while no leader answers. Raises ApiFailure, EngineUnavailable.

        `attempt_timeout`: for a call that may be repeated at any time, such as a read. A request that is sent while a leader is
        being elected is never answered, so waiting longer for it is of no use.
        """
        payload = b"" if body is None else msgspec.json.encode(body)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout or self.settings.request_timeout)
        delays = _API_BACKOFF.delays()
        while True:
            cause = "no answer"
            try:
                async with asyncio.timeout_at(deadline):
                    await self.wait_up()
                    reply = await self.request(f"$JS.API.{call}", payload, timeout=attempt_timeout)
                if reply.status != "503":
                    error = _decode_response(reply.data).error
                    if error is None:
                        return reply.data
                    if error.code != 503:
                        raise ApiFailure(error)
                    cause = error.description
                else:
                    cause = NO_RESPONDERS
            except (ConnectionLost, TimeoutError):
                pass
            delay = next(delays)
            if loop.time() + delay > deadline:
                kind = EngineNoResponders if cause == NO_RESPONDERS else EngineUnavailable
                raise kind(f"the engine did not execute {call.split('.')[0].lower()}: {cause}", retry_after=1)
            await asyncio.sleep(delay)

    async def call(self, call: str, body: object = None, *, timeout: float | None = None) -> bytes:
        """Like `api`, with translated errors."""
        try:
            return await self.api(call, body, timeout=timeout)
        except ApiFailure as failure:
            raise translate(failure.error) from failure

    async def publish(self, subject: str, payload: bytes, reply_subject: str = "") -> None:
        """Send a message without waiting for an acknowledgement."""
        self.send(encode_plain(subject, payload, reply_subject))

    async def subscribe(
        self, subject: str, handler: Callable[[Msg], Awaitable[None]], *, barrier: Callable[[], Awaitable[None]] | None = None
    ) -> Callable[[], Awaitable[None]]:
        """Call `handler` for each message. Returns a function that ends the subscription after the messages in flight.

        The server may still send a message after it has confirmed the end, if it had chosen the receiver before. A caller that
        must not miss that message passes a `barrier`, which is called after the end was sent and returns when no message can
        follow.
        """
        subscription = await self._nc.subscribe(subject, cb=handler, pending_msgs_limit=0, pending_bytes_limit=0)

        async def drain() -> None:
            if not self.is_up:
                return
            self.send(nats_internals.unsubscribe_command(subscription))
            await (barrier or self._nc.flush)()
            await nats_internals.wait_handled(subscription)

        async def stop() -> None:
            draining = asyncio.create_task(drain())
            draining.add_done_callback(lambda done: done.cancelled() or done.exception())  # errors do not matter any more
            try:
                await asyncio.wait({draining}, timeout=_DRAIN_SECONDS)
            finally:
                draining.cancel()
                with contextlib.suppress(nats.errors.Error, OSError, AttributeError):
                    await subscription.unsubscribe()

        return stop

    async def listen(self, subject: str, handler: Callable[[bytes], None]) -> Callable[[], Awaitable[None]]:
        """Call `handler` with the payload of each message. Returns a function that ends the subscription."""

        async def handle(message: Msg) -> None:
            handler(message.data)

        return await self.subscribe(subject, handle)


class _ApiResponse(msgspec.Struct):
    error: ApiError | None = None


_decode_response = msgspec.json.Decoder(_ApiResponse).decode
