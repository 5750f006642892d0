"""The connection to NATS: reconnects quickly and without limit, and reports a loss at once.

`nats_client.py` implements the protocol and reconnecting. Three things are added: requests, whose futures fail as soon as the
connection is lost, so that a writer retries then and not after its timeout; calls of the JetStream API; and `move_to`, which
leaves a server whose connection is open but of no use (`health_monitor.py`).
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
from urllib.parse import SplitResult

import msgspec
import structlog

from postroad.jetstream.api_errors import NO_RESPONDERS, ApiError, ApiFailure, translate
from postroad.jetstream.health_rules import eligible_servers, next_server
from postroad.jetstream.incoming_message import IncomingMessage, Received
from postroad.jetstream.nats_client import NO_CONNECTION, NatsClient
from postroad.jetstream.nats_credentials import Credentials
from postroad.jetstream.nats_session import SessionSettings
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


class Reply(Received):
    """A reply to a request."""

    __slots__ = ()

    @property
    def status(self) -> str:
        return self.headers.get("Status", "") if self.header_block else ""


OnReply = Callable[[Reply | ConnectionLost], None]


@dataclass(slots=True)
class Connection:
    settings: ConnectionSettings
    large_pulls: asyncio.Semaphore = field(init=False, default_factory=lambda: asyncio.Semaphore(_LARGE_PULLS_MAX))
    large_transfer: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)  # for replies of many bytes
    scans: asyncio.Semaphore = field(init=False, default_factory=lambda: asyncio.Semaphore(_SCANS_MAX))
    store_sync: StoreSync | NoSync = field(init=False, default_factory=NoSync)
    writes: WriteGate = field(init=False, default_factory=WriteGate)
    _client: NatsClient = field(init=False)
    _prefix: str = field(init=False)
    _replies: dict[str, OnReply] = field(init=False, default_factory=dict)
    _reply_queues: dict[str, "asyncio.Queue[Reply | None]"] = field(init=False, default_factory=dict)
    _next: Callable[[], int] = field(init=False)
    _up: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _reconnect_callbacks: list[Callable[[], None]] = field(init=False, default_factory=list)
    _closed: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _is_closing: bool = field(init=False, default=False)
    _is_flush_scheduled: bool = field(init=False, default=False)
    _preferred_server: str | None = field(init=False, default=None)
    _tried_at: dict[str, float] = field(init=False, default_factory=dict)  # by server
    _unanswered: set[str] = field(init=False, default_factory=set)

    async def open(self, *, deadline: float = 30.0) -> None:
        """Connect, retrying for `deadline` seconds. Raises EngineUnavailable, and EngineRefused if the server is too old."""
        self._client = self._new_client()
        self._prefix = f"_INBOX.{os.urandom(8).hex()}."
        self._next = itertools.count(1).__next__
        self._client.subscribe(self._prefix + "*", self._on_reply)
        loop = asyncio.get_running_loop()
        ends = loop.time() + deadline
        while True:
            try:
                async with asyncio.timeout_at(ends):
                    await self._client.connect()
                break
            except NO_CONNECTION as exc:
                if loop.time() >= ends:
                    cause = self._client.last_error or exc
                    raise EngineUnavailable(f"cannot connect to NATS at {self._addresses()}: {cause!r}") from exc
                await asyncio.sleep(0.05)
        try:
            self._check_version()
        except EngineRefused:
            await self.close()
            raise
        self._up.set()

    def _new_client(self) -> NatsClient:
        chosen = self.settings
        credentials = Credentials(chosen.credentials_file, chosen.nkey_file)
        session = SessionSettings(chosen.name, credentials, self._tls(), chosen.connect_timeout)
        return NatsClient(chosen.urls, session, self, chosen.reconnects)

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
        self._client.close()

    @property
    def is_up(self) -> bool:
        return self._up.is_set()

    @property
    def max_payload(self) -> int:
        return self._client.info.max_payload

    @property
    def server_version(self) -> tuple[int, int, int]:
        major, minor, patch = self._client.info.version.partition("-")[0].split(".")
        return int(major), int(minor), int(patch)

    @property
    def is_clustered(self) -> bool:
        """True if the server can keep several copies of a stream."""
        return bool(self._client.info.cluster)

    async def wait_up(self) -> None:
        await self._up.wait()

    async def wait_up_until(self, deadline: float) -> None:
        """Like `wait_up`, but return at `deadline`, a time of the event loop, at the latest."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self.wait_up()

    async def raise_when_closed(self) -> None:
        """Raise EngineUnavailable once the connection is closed for good, so that the process can restart."""
        await self._closed.wait()
        if not self._is_closing:
            raise EngineUnavailable(f"the server closed the connection: {self._client.last_error!r}")

    def on_reconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each reconnect. Returns a function that removes it."""
        self._reconnect_callbacks.append(callback)
        return lambda: self._reconnect_callbacks.remove(callback)

    # What the client calls

    def on_lost(self) -> None:
        self._up.clear()
        self._tried_at[self.server] = asyncio.get_running_loop().time()
        lost, self._replies = self._replies, {}
        for on_reply in lost.values():
            on_reply(ConnectionLost())
        for queue in self._reply_queues.values():
            queue.put_nowait(None)
        if not self._is_closing:
            log.warning("engine_connection_lost", server=self.server)

    def on_restored(self) -> None:
        self._up.set()
        log.info("engine_connection_back", server=self.server)
        for callback in list(self._reconnect_callbacks):
            callback()

    def on_closed(self) -> None:
        """For good, as after an error of the credentials."""
        self._up.clear()
        self._closed.set()

    def choose_server(self, servers: Sequence[str]) -> tuple[str, float]:
        now = asyncio.get_running_loop().time()
        chosen, delay = next_server(list(self._servers()), self._tried_at, self._preferred_server, now)
        self._preferred_server = None
        self._tried_at[chosen] = now + delay
        return chosen, delay

    # Servers, by address

    @property
    def server(self) -> str:
        """The server that this connection has, or had last."""
        return self._client.server

    def _servers(self) -> dict[str, SplitResult]:
        configured = self._client.configured
        known = self._client.announced | configured
        return {server: known[server] for server in eligible_servers(list(configured), list(known))}

    def other_servers(self) -> Sequence[str]:
        return [server for server in self._servers() if server != self.server]

    def trial_of(self, server: str) -> "Connection":
        """A further connection, not open yet, to one of `other_servers`. It is not restored if it is lost."""
        url = self._servers()[server].geturl()
        return Connection(replace(self.settings, urls=(url,), name=f"{self.settings.name}-trial", reconnects=False))

    async def move_to(self, server: str) -> None:
        """Drop the connection and connect to this server, or to another one if that fails."""
        self._preferred_server = server
        self._client.drop()

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
        if self._client.is_closed:
            raise ConnectionLost
        self._client.write(commands)
        if is_urgent:
            self._client.flush()
        elif not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        self._is_flush_scheduled = False
        self._client.flush()

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

    def _on_reply(self, subject: str, _reply: str, header_block: bytes, data: bytes) -> None:
        if (on_reply := self._replies.pop(subject, None)) is not None:
            on_reply(Reply(data, header_block))
        elif (queue := self._reply_queues.get(subject)) is not None:
            queue.put_nowait(Reply(data, header_block))

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
        cause = "no answer"
        while True:
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

    def publish(self, subject: str, payload: bytes, reply_subject: str = "") -> None:
        """Send a message without waiting for an acknowledgement. Raises ConnectionLost."""
        self.send(encode_plain(subject, payload, reply_subject))

    def subscribe(
        self, subject: str, handler: Callable[[IncomingMessage], None], *, barrier: Callable[[], Awaitable[None]] | None = None
    ) -> Callable[[], Awaitable[None]]:
        """Call `handler`, which must not block, for each message. Returns a function that ends the subscription after the
        messages in flight.

        The server may still send a message after it has confirmed the end, if it had chosen the receiver before. A caller that
        must not miss that message passes a `barrier`, which is called after the end was sent and returns when no message can
        follow.
        """

        def handle(subject: str, reply: str, header_block: bytes, data: bytes) -> None:
            handler(IncomingMessage(data, header_block, subject, reply))

        return partial(self._end, self._client.subscribe(subject, handle), barrier or self._client.round_trip)

    def listen(self, subject: str, handler: Callable[[bytes], None]) -> Callable[[], Awaitable[None]]:
        """Call `handler` with the payload of each message. Returns a function that ends the subscription."""
        sid = self._client.subscribe(subject, lambda _subject, _reply, _headers, data: handler(data))
        return partial(self._end, sid, self._client.round_trip)

    async def _end(self, sid: int, barrier: Callable[[], Awaitable[None]]) -> None:
        try:
            if self.is_up:
                self._client.end_at_server(sid)
                with contextlib.suppress(*NO_CONNECTION):  # nothing more can arrive
                    async with asyncio.timeout(_DRAIN_SECONDS):
                        await barrier()
        finally:
            self._client.unsubscribe(sid)


class _ApiResponse(msgspec.Struct):
    error: ApiError | None = None


_decode_response = msgspec.json.Decoder(_ApiResponse).decode
