"""Leases of deliveries that this process received from RabbitMQ, and requests to the processes that own others.

A delivery can be settled on its channel only, so its lease belongs to the process that received it. The receipt names the owner;
other processes send it their operations over NATS. If no process answers for the owner, it is gone, and RabbitMQ has returned
its messages to their queues.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from postroad.api.queues import LeaseExpired
from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.jetstream.incoming_message import IncomingMessage
from postroad.kernel.errors import ERRORS, EngineUnavailable, PostroadError
from postroad.queues.rabbitmq.messages import ReceivedMessage
from postroad.queues.rabbitmq.receiving import RawDelivery

SUBJECT = "postroad.leases"
HELD_SUBJECT = f"{SUBJECT}.held"
OWNER_BYTES, _GENERATION_BYTES = 9, 4
NO_OWNER = b"\0" * OWNER_BYTES
_ANSWER_SECONDS = 8.0
_RECEIVED_SECONDS = 30.0  # between a delivery and its lease
_HELD_SECONDS, _HELD_SECONDS_MAX = 0.3, 1.0  # the first is more than it takes until a lease is in the lease log of all processes
_HELD_SIZE = 5000  # of a reply

log = structlog.get_logger("postroad.rabbitmq")


@dataclass(frozen=True, slots=True)
class Token:
    """What a receipt needs to find a delivery: the process, the generation of its channel, and which copy it is."""

    owner: bytes
    generation: int
    copy: str

    def to_bytes(self) -> bytes:
        return self.owner + self.generation.to_bytes(_GENERATION_BYTES) + self.copy.encode()

    @classmethod
    def from_bytes(cls, token: bytes) -> "Token":
        end = OWNER_BYTES + _GENERATION_BYTES
        return cls(token[:OWNER_BYTES], int.from_bytes(token[OWNER_BYTES:end]), token[end:].decode())


@dataclass(slots=True)
class HeldLease:
    """A delivery that this process holds, until its timer returns it to the queue."""

    queue: str  # incarnation of the queue
    raw: RawDelivery
    message: ReceivedMessage
    timer: asyncio.TimerHandle | None = None
    until: float = 0.0  # of the event loop


Key = tuple[str, int, int]  # incarnation of the queue, generation of the channel, tag
MessageKey = tuple[int, str]  # number of a message in the lease log, and its copy
OnExpired = Callable[[HeldLease], Awaitable[None]]


class Leases:
    """The leases of this process. `on_expired` returns a message to its queue."""

    def __init__(self, on_expired: OnExpired) -> None:
        self._held: dict[Key, HeldLease] = {}
        self._on_expired = on_expired
        self._returning: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, lease: HeldLease, seconds: float = _RECEIVED_SECONDS) -> None:
        key = (lease.queue, *lease.raw.key)
        if lease.timer is not None:
            lease.timer.cancel()
        self._held[key] = lease
        loop = asyncio.get_running_loop()
        lease.until = loop.time() + seconds
        lease.timer = loop.call_at(lease.until, self._expire, key)

    def resume(self, lease: HeldLease) -> None:
        """Hold a lease again, for the rest of its time, that was taken out and could not be ended."""
        self.hold(lease, max(0.0, lease.until - asyncio.get_running_loop().time()))

    def get(self, queue: str, generation: int, tag: int) -> HeldLease | None:
        return self._held.get((queue, generation, tag))

    def pop(self, queue: str, generation: int, tag: int) -> HeldLease | None:
        lease = self._held.pop((queue, generation, tag), None)
        if lease is not None and lease.timer is not None:
            lease.timer.cancel()
        return lease

    def of_queue(self, queue: str) -> list[HeldLease]:
        return [lease for key, lease in self._held.items() if key[0] == queue]

    def drop_channel(self, queue: str, generation: int) -> list[HeldLease]:
        """Forget the deliveries of a channel that is closed."""
        keys = [key for key in self._held if key[:2] == (queue, generation)]
        return [lease for key in keys if (lease := self.pop(*key)) is not None]

    def drop_queue(self, queue: str) -> None:
        for key in [key for key in self._held if key[0] == queue]:
            self.pop(*key)

    def _expire(self, key: Key) -> None:
        lease = self._held.pop(key, None)
        if lease is not None:
            task = asyncio.get_running_loop().create_task(self._return(lease))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def _return(self, lease: HeldLease) -> None:
        try:
            await self._on_expired(lease)
        except PostroadError as problem:
            log.warning("message_not_returned", code=problem.code)


class LeaseItem(msgspec.Struct, frozen=True, array_like=True):
    """A delivery and what to do with it: `delay_ms` -1 is done; `lease_ms` of an extension."""

    generation: int
    tag: int
    delay_ms: int = -1


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    queue: str
    incarnation: str
    action: str  # `settle`, `extend`, `fetch`, `held`
    items: list[LeaseItem]


class LeaseReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`results`: for each item "" or the code of its error; `messages`: those that were fetched; `held`: those of the queue."""

    results: list[tuple[str, str]] = []
    messages: list[bytes] = []
    held: list[MessageKey] = []
    error: str = ""
    detail: str = ""


Execute = Callable[[LeaseRequest], Awaitable[LeaseReply]]
_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(LeaseRequest).decode
_decode_reply = msgspec.msgpack.Decoder(LeaseReply).decode


class LeaseRouting:
    """Sends operations to the process that owns a lease, which may be this one."""

    def __init__(self, connection: Connection, owner: bytes, execute: Execute) -> None:
        self._connection, self.owner, self._execute = connection, owner, execute
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, owner: bytes, request: LeaseRequest) -> LeaseReply | None:
        """None if the owner is gone. Raises EngineUnavailable, BackendUnavailable."""
        if owner == self.owner:
            return await self._execute(request)
        try:
            reply = await self._connection.request(f"{SUBJECT}.{owner.hex()}", _encode(request), timeout=_ANSWER_SECONDS)
        except (ConnectionLost, TimeoutError) as exc:
            raise EngineUnavailable("the worker that has the lease did not answer", retry_after=1) from exc
        if reply.status == "503":
            return None
        answer = _decode_reply(reply.data)
        if answer.error:
            raise error_of(answer.error, answer.detail)
        return answer

    async def held(self, request: LeaseRequest, expected: int) -> list[MessageKey]:
        """The messages of a queue that processes hold. `expected`: how many are leased, as far as this process knows; if fewer
        are reported, it waits for a second. Raises EngineUnavailable."""
        found: dict[MessageKey, None] = {}
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            inbox, replies = self._connection.expect_many()
            try:
                self._connection.publish(HELD_SUBJECT, _encode(request), inbox)
                while (left := started + (_HELD_SECONDS if len(found) >= expected else _HELD_SECONDS_MAX) - loop.time()) > 0:
                    async with asyncio.timeout(left):
                        reply = await replies.get()
                    if reply is None:
                        raise ConnectionLost
                    found |= dict.fromkeys(_decode_reply(reply.data).held)
            finally:
                self._connection.forget(inbox)
        except ConnectionLost as exc:
            raise EngineUnavailable("the connection to the engine was lost", retry_after=1) from exc
        except TimeoutError:
            pass
        return list(found)

    async def run(self) -> None:
        """Answer the requests of other processes until cancelled."""
        stops = [self._connection.subscribe(one, self._receive) for one in (f"{SUBJECT}.{self.owner.hex()}", HELD_SUBJECT)]
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.gather(*(stop() for stop in stops))

    def _receive(self, message: IncomingMessage) -> None:
        try:
            request = _decode_request(message.data)
        except msgspec.DecodeError:
            return
        task = asyncio.get_running_loop().create_task(self._answer(message.reply, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, inbox: str, request: LeaseRequest) -> None:
        try:
            reply = await self._execute(request)
        except PostroadError as problem:
            reply = LeaseReply(error=problem.code, detail=problem.detail)
        except Exception:  # a requester without an answer would wait until its deadline
            log.exception("lease_operation_failed", action=request.action)
            reply = LeaseReply(error=EngineUnavailable.code, detail="the worker that has the lease failed")
        chunks = [reply.held[start : start + _HELD_SIZE] for start in range(0, len(reply.held), _HELD_SIZE)]
        with contextlib.suppress(ConnectionLost):
            if request.action != "held":
                self._connection.publish(inbox, _encode(reply))
            for chunk in chunks:
                self._connection.publish(inbox, _encode(LeaseReply(held=chunk)))


def error_of(code: str, detail: str) -> PostroadError:
    kinds: Mapping[str, type[PostroadError]] = ERRORS
    kind = kinds.get(code, EngineUnavailable)
    return kind(detail, retry_after=1 if kind.retryable else None)


def gone(count: int) -> Sequence[PostroadError]:
    return [LeaseExpired("the worker that had the lease is gone: the message is delivered again")] * count
