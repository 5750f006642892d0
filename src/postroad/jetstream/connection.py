"""The connection to NATS: reconnects fast and for ever, and says at once when it is gone.

nats-py does the protocol, TLS, credentials and reconnecting. Two things are added, both for speed and honesty under load:
`send` puts an already encoded run of commands on the socket in one piece, and `expect` hands out reply subjects whose
futures fail the moment the connection is lost, so that a writer retries then and not at its time-out.
"""

import asyncio
import contextlib
import itertools
import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import nats
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from postroad.jetstream.api_errors import ApiError, ApiFailure, translate
from postroad.kernel.errors import EngineRefused, EngineUnavailable

VERSION_FLOOR = (2, 12)
_DRAIN_SECONDS = 2.0
_FLUSH_SECONDS = 0.001  # how long what is in no hurry may wait for company: a write costs as much as ten messages

log = structlog.get_logger("postroad.jetstream")


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    urls: tuple[str, ...] = field(repr=False)  # with passwords
    name: str = "postroad"
    credentials_file: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    connect_timeout: float = 2.0
    request_timeout: float = 5.0
    has_replicas: bool = False  # streams have copies, and who answers a direct get may lag behind the leader (`log.py`)


class ConnectionLost(Exception):
    """The connection went away before the answer came: the request may or may not have been carried out."""


@dataclass(slots=True)
class Reply:
    """A message that came back: its payload, and its headers when it has any."""

    data: bytes
    headers: dict[str, str] | None = None

    @property
    def status(self) -> str:
        return (self.headers or {}).get("Status", "")


@dataclass(slots=True)
class Connection:
    settings: ConnectionSettings
    _nc: Client = field(init=False)
    _prefix: str = field(init=False)
    _awaited: dict[str, "asyncio.Future[Reply]"] = field(init=False, default_factory=dict)
    _streamed: dict[str, "asyncio.Queue[Reply | None]"] = field(init=False, default_factory=dict)
    _next: Callable[[], int] = field(init=False)
    _up: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _on_reconnect: list[Callable[[], None]] = field(init=False, default_factory=list)
    _ended: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _is_closing: bool = field(init=False, default=False)
    _is_flush_due: bool = field(init=False, default=False)

    async def open(self, *, deadline: float = 30.0) -> None:
        """Connect, trying until `deadline` seconds have passed; refuse a server that is too old."""
        self._nc = Client()
        self._prefix = f"_INBOX.{os.urandom(8).hex()}."
        self._next = itertools.count(1).__next__
        loop = asyncio.get_running_loop()
        give_up = loop.time() + deadline
        while True:
            try:
                await self._connect_within(give_up - loop.time())
                break
            except (OSError, nats.errors.Error, TimeoutError) as exc:
                if loop.time() >= give_up:
                    problem = self._nc.last_error or exc
                    raise EngineUnavailable(f"no NATS server let us in at {self._where()}: {problem!r}") from exc
                await asyncio.sleep(0.05)
                self._nc = Client()
        try:
            self._check_version()
        except EngineRefused:
            await self.close()
            raise
        await self._nc.subscribe(self._prefix + "*", cb=self._answered, pending_msgs_limit=0, pending_bytes_limit=0)
        self._up.set()

    async def _connect_within(self, seconds: float) -> None:
        """nats-py by itself would try for ever, and swallows a cancellation that meets it in the wrong place. So it is given up
        from outside: told to stop, and not waited for."""
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
            tls=self._tls(),
            connect_timeout=int(chosen.connect_timeout) or 1,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,  # type: ignore[arg-type]  # seconds; a fraction works and is what fast means
            ping_interval=5,
            max_outstanding_pings=2,
            allow_reconnect=True,
            pending_size=256 * 1024 * 1024,
            disconnected_cb=self._disconnected,
            reconnected_cb=self._reconnected,
            closed_cb=self._closed,
            error_cb=self._error,
        )

    def _tls(self) -> ssl.SSLContext | None:
        chosen = self.settings
        if not (chosen.tls_ca or chosen.tls_cert):
            return None
        context = ssl.create_default_context(cafile=str(chosen.tls_ca) if chosen.tls_ca else None)
        if chosen.tls_cert:
            context.load_cert_chain(str(chosen.tls_cert), str(chosen.tls_key) if chosen.tls_key else None)
        return context

    def _where(self) -> str:
        """The servers' addresses without user and password."""
        return ", ".join(url.rpartition("@")[2].removeprefix("nats://") for url in self.settings.urls)

    def _check_version(self) -> None:
        version = self._nc.connected_server_version
        if (version.major, version.minor) < VERSION_FLOOR:
            raise EngineRefused(f"nats-server {version.major}.{version.minor} is too old: Postroad needs 2.12 or newer")

    async def close(self) -> None:
        self._is_closing = True
        with contextlib.suppress(OSError):  # of a server that is gone: there is nobody to say goodbye to
            await self._nc.close()

    # The connection's state

    @property
    def is_up(self) -> bool:
        return self._up.is_set()

    @property
    def max_payload(self) -> int:
        return self._nc.max_payload

    async def wait_up(self) -> None:
        await self._up.wait()

    async def fail_when_ended(self) -> None:
        """Raise EngineUnavailable once the connection is closed for good, so that whoever depends on it can start anew."""
        await self._ended.wait()
        if not self._is_closing:
            raise EngineUnavailable(f"the server ended the connection: {self._nc.last_error!r}")

    def on_reconnect(self, call: Callable[[], None]) -> Callable[[], None]:
        """Have `call` called after each reconnect; returns what takes that back."""
        self._on_reconnect.append(call)
        return lambda: self._on_reconnect.remove(call)

    async def _disconnected(self) -> None:
        self._up.clear()
        lost, self._awaited = self._awaited, {}
        for future in lost.values():
            if not future.done():
                future.set_exception(ConnectionLost())
        for queue in self._streamed.values():
            queue.put_nowait(None)
        if not self._is_closing:
            log.warning("engine_connection_lost")

    async def _reconnected(self) -> None:
        self._up.set()
        log.info("engine_connection_back")
        for call in list(self._on_reconnect):
            call()

    async def _closed(self) -> None:
        """nats-py closes for good on most errors that a server sends, such as expired credentials."""
        self._up.clear()
        self._ended.set()

    async def _error(self, problem: Exception) -> None:
        log.debug("engine_connection_error", problem=type(problem).__name__)

    # Writing, and waiting for answers

    def send(self, commands: bytes, *, is_urgent: bool = True) -> None:
        """Send encoded protocol commands in one piece, soon. This is the one place that reaches into nats-py, whose `publish`
        encodes and flushes message by message: for a batch of 128 that costs five times as much (decision 0004). Raises Lost."""
        connection = self._nc
        if connection.is_closed:
            raise ConnectionLost
        connection._pending.append(commands)
        connection._pending_data_size += len(commands)
        if is_urgent:
            self._flush()
        elif not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self._flush_due)

    def _flush_due(self) -> None:
        self._is_flush_due = False
        self._flush()

    def _flush(self) -> None:
        """Wakes nats-py's flusher, which takes all that is there by then."""
        queue = self._nc._flush_queue
        if queue is not None and queue.empty() and self._nc.is_connected:
            queue.put_nowait(asyncio.get_running_loop().create_future())

    def expect(self) -> tuple[str, "asyncio.Future[Reply]"]:
        """A reply subject and the future of its answer, which is Lost if the connection goes away first."""
        if not self._up.is_set():
            raise ConnectionLost
        subject = f"{self._prefix}{self._next():x}"
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._awaited[subject] = future
        return subject, future

    def expect_many(self) -> tuple[str, "asyncio.Queue[Reply | None]"]:
        """As `expect`, for a request that many messages answer. None in the queue: the connection was lost."""
        if not self._up.is_set():
            raise ConnectionLost
        subject = f"{self._prefix}{self._next():x}"
        queue: asyncio.Queue[Reply | None] = asyncio.Queue()
        self._streamed[subject] = queue
        return subject, queue

    def forget(self, reply_subject: str) -> None:
        """No longer wait for this answer."""
        self._awaited.pop(reply_subject, None)
        self._streamed.pop(reply_subject, None)

    async def _answered(self, message: Msg) -> None:
        future = self._awaited.pop(message.subject, None)
        if future is not None:
            if not future.done():
                future.set_result(Reply(message.data, message.headers))
            return
        queue = self._streamed.get(message.subject)
        if queue is not None:
            queue.put_nowait(Reply(message.data, message.headers))

    async def request(self, subject: str, payload: bytes = b"", *, timeout: float | None = None) -> Reply:
        """Ask and wait. Raises Lost, TimeoutError, or NoResponders as a Reply with status 503."""
        reply, future = self.expect()
        try:
            await self.publish(subject, payload, reply)
            async with asyncio.timeout(timeout or self.settings.request_timeout):
                return await future
        finally:
            self.forget(reply)

    async def api(self, call: str, body: object = None, *, timeout: float | None = None) -> bytes:
        """A JetStream API call, tried again while no leader answers. Raises ApiFailure, or EngineUnavailable."""
        payload = b"" if body is None else msgspec.json.encode(body)
        loop = asyncio.get_running_loop()
        give_up = loop.time() + (timeout or self.settings.request_timeout)
        pause = 0.05
        while True:
            problem = "no answer"
            try:
                async with asyncio.timeout_at(give_up):
                    await self.wait_up()
                    answer = await self.request(f"$JS.API.{call}", payload, timeout=self.settings.request_timeout)
                if answer.status != "503":
                    failure = _ApiAnswer.decode(answer.data).error
                    if failure is None:
                        return answer.data
                    if failure.code != 503:
                        raise ApiFailure(failure)
                    problem = failure.description
                else:
                    problem = "no responders"
            except (ConnectionLost, TimeoutError):
                pass
            if loop.time() + pause > give_up:
                raise EngineUnavailable(f"the engine did not carry out {call.split('.')[0].lower()}: {problem}", retry_after=1)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)

    async def call(self, call: str, body: object = None, *, timeout: float | None = None) -> bytes:
        """As `api`, for calls whose errors need not be told apart: they come translated."""
        try:
            return await self.api(call, body, timeout=timeout)
        except ApiFailure as failure:
            raise translate(failure.error) from failure

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        """Send without waiting for anything."""
        self.send(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(payload), payload))

    async def subscribe(
        self, subject: str, handler: Callable[[Msg], Awaitable[None]], *, last_word: Callable[[], Awaitable[None]] | None = None
    ) -> Callable[[], Awaitable[None]]:
        """Have `handler` called for each message; returns what ends that, once it has had what was on its way.

        The server may still send a message after it has confirmed the end, if it had chosen whom to send it to before. Who must
        not miss that one gives a `last_word`: it is called when the end has been sent, and returns when nothing can follow.
        """
        subscription = await self._nc.subscribe(subject, cb=handler, pending_msgs_limit=0, pending_bytes_limit=0)

        async def drain() -> None:
            if not self.is_up:
                return
            self.send(b"UNSUB %d\r\n" % subscription._id)  # nats-py, if it did this, would hear no more
            await (last_word or self._nc.flush)()
            await subscription._pending_queue.join()

        async def stop() -> None:
            ending = asyncio.create_task(drain())
            ending.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # an end is an end
            try:
                await asyncio.wait({ending}, timeout=_DRAIN_SECONDS)
            finally:
                ending.cancel()
                with contextlib.suppress(nats.errors.Error, OSError, AttributeError):
                    await subscription.unsubscribe()

        return stop

    async def listen(self, subject: str, heard: Callable[[bytes], None]) -> Callable[[], Awaitable[None]]:
        """Have `heard` called with what others say on a subject that nobody stores; returns what ends that."""

        async def handle(message: Msg) -> None:
            heard(message.data)

        return await self.subscribe(subject, handle)


class _AnyAnswer(msgspec.Struct):
    error: ApiError | None = None


_ApiAnswer = msgspec.json.Decoder(_AnyAnswer)
