"""Live reading over WebSocket: the messages of clients, their subscriptions, and the credential of the connection."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
from msgspec import UNSET

from postroad.api.live import (
    SUBSCRIPTIONS_MAX,
    ClientOp,
    Expiring,
    LiveError,
    Ping,
    Pong,
    RenewToken,
    Subscribe,
    Subscribed,
    TokenAccepted,
    Unsubscribe,
    Unsubscribed,
)
from postroad.api.topics import TopicNotFound
from postroad.http.problems import problem_of
from postroad.http.request import Request, RevocationWatch
from postroad.http.websocket import CloseCode, WebSocket
from postroad.http.websocket_frames import text_frame
from postroad.kernel.clock import Clock, epoch_ms, rfc3339
from postroad.kernel.errors import (
    BodyInvalid,
    EngineUnavailable,
    Forbidden,
    InvalidParameter,
    MalformedJson,
    PostroadError,
    PreconditionFailed,
)
from postroad.kernel.identity import Caller
from postroad.kernel.json import decode, encode
from postroad.kernel.names import topic_name
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.live import LivePlan, LiveTopics
from postroad.topics.live_message import Selection, SocketForm
from postroad.topics.live_position import ResumePoint, event_id, incarnation_tag, parse_event_id
from postroad.topics.live_reader import LiveReader, ReaderEnd
from postroad.topics.records import TopicRecord
from postroad.topics.rules import check_pattern

_EXPIRING_MS = 60_000
_INBOX_MAX = 128  # messages of a client that wait: the rate limit allows no more in the time of a call
_DELAY_SECONDS_MAX = 24 * 3600.0

_OPS: dict[str, "msgspec.json.Decoder[Any]"] = {
    "subscribe": msgspec.json.Decoder(Subscribe),
    "unsubscribe": msgspec.json.Decoder(Unsubscribe),
    "token": msgspec.json.Decoder(RenewToken),
    "ping": msgspec.json.Decoder(Ping),
}
_head: "msgspec.json.Decoder[ClientOp]" = msgspec.json.Decoder(ClientOp)
_ref: "msgspec.json.Decoder[str]" = msgspec.json.Decoder(str)

log = structlog.get_logger("postroad.topics")


def selection_for(caller: Caller, topic: str, patterns: tuple[str, ...], latest_ms: int = 0) -> Selection:
    """What a caller reads of a topic. Raises Forbidden."""
    if not caller.may_use("topic", topic):
        raise Forbidden(f"the credential may not use the topic {topic[:100]!r}")
    return Selection(patterns, granted=caller.granted_patterns(topic), latest_ms=latest_ms)


class LiveConnection:
    """One WebSocket, its credential and its readers by `ref`. The base of connections with one and with many subscriptions."""

    def __init__(self, request: Request, live: LiveTopics, clock: Clock) -> None:
        self._live, self._clock = live, clock
        self.caller = request.caller
        self._watch_of, self._reauthenticate = request.watch, request.reauthenticate
        self._request_id = request.request_id
        self._socket: WebSocket | None = None
        self._readers: dict[str, LiveReader] = {}
        self._inbox: list[bytes] = []  # an empty deque takes 700 bytes more
        self._processing: asyncio.Task[None] | None = None
        self._watch: RevocationWatch | None = None
        self._expiring: asyncio.TimerHandle | None = None

    # The connection

    def opened(self, socket: WebSocket) -> None:
        self._socket = socket
        self._watch_credential()

    def received(self, message: bytes) -> None:
        if len(self._inbox) >= _INBOX_MAX:
            self._close(CloseCode.POLICY, "too many messages wait")
            return
        self._inbox.append(message)
        if self._processing is None:
            self._processing = asyncio.create_task(self._process_inbox())

    def received_binary(self) -> None:
        self._send(LiveError(problem_of(InvalidParameter("messages are JSON text, not binary"))))
        self._close(CloseCode.POLICY, "binary message")

    def writable(self) -> None:
        for reader in self._readers.values():
            reader.writable()

    def closed(self) -> None:
        for reader in tuple(self._readers.values()):
            reader.close()
        self._readers.clear()
        self._unwatch()
        if self._processing is not None:
            self._processing.cancel()
        self._socket = None

    # Its readers

    @property
    def is_paused(self) -> bool:
        return self._socket is None or self._socket.is_paused

    def send(self, frames: bytes) -> None:
        if self._socket is not None:
            self._socket.send(frames)

    def end(self, reader: LiveReader, reason: ReaderEnd) -> None:
        """A reader that was too slow ends the connection, since the client's messages wait in it."""
        if reason is ReaderEnd.TOO_SLOW:
            self._close(CloseCode.TOO_SLOW, f"too slow; last sequence of {reader.topic.record.name}: {reader.position}")
            return
        for ref, known in tuple(self._readers.items()):
            if known is reader:
                del self._readers[ref]
                self._reader_ended(ref, reader, reason)

    def _reader_ended(self, ref: str, reader: LiveReader, reason: ReaderEnd) -> None:
        name = reader.topic.record.name
        error: PostroadError = TopicNotFound(f"the topic {name!r} was deleted")
        if reason is ReaderEnd.FAILED:
            error = EngineUnavailable(f"reading the topic {name!r} failed; subscribe again", retry_after=1)
        self._send(LiveError(problem_of(error, self._request_id), ref or UNSET))

    def _start(self, ref: str, plan: LivePlan) -> None:
        identifier = event_id(plan.record.incarnation, plan.start.after)
        self._send(
            Subscribed(
                ref=ref or UNSET,
                id=identifier,
                topic=plan.record.name,
                sequence=plan.start.after,
                pending=max(0, plan.last - plan.start.after),
            )
        )
        self._readers[ref] = self._live.start(plan, SocketForm(ref), self)

    def _send(self, message: msgspec.Struct) -> None:
        self.send(text_frame(encode(message)))

    def _close(self, code: CloseCode, reason: str) -> None:
        if self._socket is not None:
            self._socket.close(code, reason)

    # The client's messages

    async def _process_inbox(self) -> None:
        try:
            while self._inbox and self._socket is not None and not self._socket.is_closing:
                await self._process(self._inbox.pop(0))
        finally:
            self._processing = None

    async def _process(self, message: bytes) -> None:
        ref: str = ""
        try:
            head = decode(_head, message)
            decoder = _OPS.get(head.op)
            if decoder is None:
                self._refuse(BodyInvalid(f"unknown op {head.op[:64]!r}; known are {', '.join(_OPS)}"), "unknown op")
                return
        except MalformedJson as error:
            self._send(LiveError(problem_of(error)))
            self._close(CloseCode.INVALID_DATA, "invalid JSON")
            return
        except BodyInvalid as error:
            self._refuse(error, "not an operation")
            return
        try:
            ref = _ref.decode(head.ref) if head.ref is not UNSET else ""
        except msgspec.MsgspecError:
            ref = ""
        try:
            await self._execute(decode(decoder, message))
        except PostroadError as error:
            self._send(LiveError(problem_of(error, self._request_id), ref or UNSET))
        except Exception as error:  # a bug: it must not leave the client without an answer
            log.exception("live_operation_crashed", request_id=self._request_id, error=repr(error))
            self._send(LiveError(problem_of(PostroadError("see the logs for this request id"), self._request_id), ref or UNSET))

    def _refuse(self, error: PostroadError, reason: str) -> None:
        self._send(LiveError(problem_of(error)))
        self._close(CloseCode.POLICY, reason)

    async def _execute(self, op: object) -> None:
        if isinstance(op, Ping):
            self._send(Pong())
        elif isinstance(op, RenewToken):
            await self._renew(op.token)
        else:
            raise PreconditionFailed("this connection has one subscription; use /v1/ws for several")

    # The credential

    async def _renew(self, credential: str) -> None:
        """Replace the credential. The connection keeps the old one if the new one is refused."""
        if self._reauthenticate is None:
            raise PreconditionFailed("this connection has no credential")
        caller = await self._reauthenticate(credential)
        before, self.caller = self.caller, caller
        self._watch_credential()
        expires_at_ms = caller.expires_at_ms
        self._send(TokenAccepted(None if expires_at_ms is None else rfc3339(expires_at_ms)))
        if (before.grants, before.allowed, before.only_stream) != (caller.grants, caller.allowed, caller.only_stream):
            await self._recheck()

    async def _recheck(self) -> None:
        """End or narrow what the new credential does not allow."""

    def _watch_credential(self) -> None:
        self._unwatch()
        watch = self._watch = self._watch_of(self.caller)
        if watch is not None:
            watch.ended.add_done_callback(self._credential_ended)
        self._await_expiry()

    def _await_expiry(self) -> None:
        """Announce the end of the credential a minute before. A timer takes a day at most: then the clock is read again."""
        if self.caller.expires_at_ms is None:
            return
        seconds = (self.caller.expires_at_ms - _EXPIRING_MS - self._clock()) / 1000
        is_last = seconds <= _DELAY_SECONDS_MAX
        delay = max(0.0, seconds) if is_last else _DELAY_SECONDS_MAX
        then = self._announce_expiry if is_last else self._await_expiry
        self._expiring = asyncio.get_running_loop().call_later(delay, then)

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.ended.remove_done_callback(self._credential_ended)
            self._watch.close()
            self._watch = None
        if self._expiring is not None:
            self._expiring.cancel()
            self._expiring = None

    def _credential_ended(self, _ended: "asyncio.Future[None]") -> None:
        for reader in tuple(self._readers.values()):
            reader.close()
        self._close(CloseCode.CREDENTIAL_ENDED, "the credential has ended; connect with another one")

    def _announce_expiry(self) -> None:
        if self.caller.expires_at_ms is not None:
            self._send(Expiring(rfc3339(self.caller.expires_at_ms)))


class MultiplexedConnection(LiveConnection):
    """The connection of `/v1/ws`: the client subscribes to topics."""

    def __init__(self, request: Request, live: LiveTopics, clock: Clock, lifecycle: TopicLifecycle) -> None:
        super().__init__(request, live, clock)
        self._lifecycle = lifecycle

    async def _execute(self, op: object) -> None:
        if isinstance(op, Subscribe):
            await self._subscribe(op)
        elif isinstance(op, Unsubscribe):
            reader = self._readers.pop(op.ref, None)
            if reader is None:
                raise PreconditionFailed(f"there is no subscription {op.ref!r} on this connection")
            reader.close()
            self._send(Unsubscribed(op.ref))
        else:
            await super()._execute(op)

    async def _subscribe(self, op: Subscribe) -> None:
        if op.ref in self._readers:
            raise PreconditionFailed(f"the subscription {op.ref!r} exists on this connection")
        if len(self._readers) >= SUBSCRIPTIONS_MAX:
            self._refuse(
                PreconditionFailed(f"a connection has at most {SUBSCRIPTIONS_MAX} subscriptions"), "too many subscriptions"
            )
            return
        wanted = (op.filter,) if isinstance(op.filter, str) else op.filter
        patterns = tuple(check_pattern(one) for one in wanted) or (">",)
        selection = selection_for(self.caller, topic_name(op.topic), patterns, op.latest_only or 0)
        record = await self._lifecycle.find(self.caller.tenant, op.topic)
        resume = None if op.after is None else parse_event_id(op.after)
        plan = await self._live.plan(record, selection, resume, from_sequence=op.from_sequence, from_ms=epoch_ms(op.from_time))
        if self._socket is not None and not self._socket.is_closing:
            self._start(op.ref, plan)

    async def _recheck(self) -> None:
        """First all readers end whose selection differs, so that none goes on with the old one; then they start again."""
        changed: list[tuple[str, TopicRecord, Selection, ResumePoint]] = []
        for ref, reader in tuple(self._readers.items()):
            record, known = reader.topic.record, reader.selection
            try:
                selection = selection_for(self.caller, record.name, known.patterns, known.latest_ms)
            except Forbidden as error:
                self._end_reader(ref, error)
                continue
            if selection != known:
                self._end_reader(ref)
                changed.append((ref, record, selection, ResumePoint(reader.position, incarnation_tag(record.incarnation))))
        for ref, record, selection, resume in changed:
            try:
                plan = await self._live.plan(record, selection, resume)
            except PostroadError as error:
                self._send(LiveError(problem_of(error, self._request_id), ref))
                continue
            if self._socket is not None and not self._socket.is_closing:
                self._start(ref, plan)

    def _end_reader(self, ref: str, error: PostroadError | None = None) -> None:
        self._readers.pop(ref).close()
        if error is not None:
            self._send(LiveError(problem_of(error, self._request_id), ref))


class SubscriptionConnection(LiveConnection):
    """The connection of a stored subscription. `register` is called with `changed` when it opens, and returns false if the
    subscription has changed already; `unregister` when it ends."""

    def __init__(
        self,
        request: Request,
        live: LiveTopics,
        clock: Clock,
        plan: LivePlan,
        register: Callable[[Callable[[], None]], bool],
        unregister: Callable[[Callable[[], None]], None],
    ) -> None:
        super().__init__(request, live, clock)
        self._plan: LivePlan | None = plan
        self._register, self._unregister = register, unregister

    def opened(self, socket: WebSocket) -> None:
        super().opened(socket)
        plan, self._plan = self._plan, None
        if not self._register(self.changed):
            self.changed()
        elif plan is not None:
            self._start("", plan)

    def changed(self) -> None:
        """The subscription was changed, paused or deleted. The client connects to the changed one."""
        self._close(CloseCode.GOING_AWAY, "the subscription was changed")

    def closed(self) -> None:
        super().closed()
        self._unregister(self.changed)

    def _reader_ended(self, ref: str, reader: LiveReader, reason: ReaderEnd) -> None:
        super()._reader_ended(ref, reader, reason)
        self._close(CloseCode.GOING_AWAY, "reading failed" if reason is ReaderEnd.FAILED else "the topic was deleted")

    async def _recheck(self) -> None:
        for reader in self._readers.values():
            if not self.caller.may_use("topic", reader.topic.record.name):
                self._close(CloseCode.CREDENTIAL_ENDED, "the new credential may not read this subscription")
