"""Which process dispatches an ordered queue, and requests to it over NATS.

The owner is chosen by rendezvous hashing over the living gateways. Ownership is an optimization: two processes that dispatch one
queue meet conflicts and repeat their writes. A request to a process that is gone is answered by the server at once (no
responders), and one that is on its way when the process dies is noticed by the next probe: then the next process is asked.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import structlog

from postroad.api.queues import QueueNotFound
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection, ConnectionLost, Reply
from postroad.jetstream.incoming_message import IncomingMessage
from postroad.jetstream.membership import Membership
from postroad.jetstream.protocol import encode_plain
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.kernel.clock import Clock
from postroad.kernel.errors import ERRORS, EngineUnavailable, PostroadError
from postroad.kernel.rendezvous import ranking
from postroad.queues.group_dispatcher import GroupDispatcher
from postroad.queues.group_state import Action, Operation, OperationResult
from postroad.queues.group_turns import DeadLetterMessage, DispatchCounts, LeasedMessage
from postroad.queues.records import QueueRecord

SUBJECT = "postroad.dispatch"
WAIT_SECONDS = 5.0  # of one request: then the present owner is asked
_ANSWER_SECONDS = 12.0  # in addition: longer than a write can take
_PROBE_SECONDS = 0.25
_PROBE_ANSWER_SECONDS = 2.0
_SUSPECT_SECONDS = 3.0
_IDLE_SECONDS = 60.0
_INLINE_BYTES = 256 * 1024  # of a payload, and _REPLY_BYTES of all: others are read from the stream
_REPLY_BYTES = 2 * 1024 * 1024

log = structlog.get_logger("postroad.queues")

T = TypeVar("T")


class DispatchRequest(msgspec.Struct, frozen=True, tag_field="ask", kw_only=True):
    tenant: str
    queue: str
    incarnation: str


class PullCall(DispatchRequest, frozen=True, tag="pull", kw_only=True):
    count: int
    lease_ms: int
    wait_seconds: float
    per_group: int
    receive: str = ""


class OperateCall(DispatchRequest, frozen=True, tag="operate", kw_only=True):
    operations: list[Operation]


class CountsCall(DispatchRequest, frozen=True, tag="counts", kw_only=True):
    pass


class PurgeCall(DispatchRequest, frozen=True, tag="purge", kw_only=True):
    pass


class CancelCall(DispatchRequest, frozen=True, tag="cancel", kw_only=True):
    """Cancels the request with this reply subject."""

    inbox: str


class DispatchReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    messages: list[LeasedMessage] = []
    results: list[OperationResult] = []
    counts: DispatchCounts | None = None
    purged: int = 0
    error: str = ""
    detail: str = ""
    retry_after: float | None = None


Call = PullCall | OperateCall | CountsCall | PurgeCall
_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(PullCall | OperateCall | CountsCall | PurgeCall | CancelCall).decode
_decode_reply = msgspec.msgpack.Decoder(DispatchReply).decode


class _MemberGone(Exception):
    """The process does not answer any more: the request may or may not have been executed."""


class Dispatchers:
    """The dispatchers of this process, created on first use and closed when they are not used any more."""

    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        find_queue: Callable[[str, str], QueueRecord | None],
        dead_letter: DeadLetterMessage,
        clock: Clock,
    ) -> None:
        self._connection, self._committers, self._clock = connection, committers, clock
        self._find_queue, self._dead_letter = find_queue, dead_letter
        self._running: dict[str, GroupDispatcher] = {}
        self._starting: dict[str, asyncio.Future[GroupDispatcher]] = {}

    async def of(self, record: QueueRecord) -> GroupDispatcher:
        found = self._running.get(record.stream)
        if found is not None and found.record.incarnation == record.incarnation:
            return found
        starting = self._starting.get(record.stream)
        if starting is None:
            starting = self._starting[record.stream] = asyncio.ensure_future(self._create(record))
            starting.add_done_callback(lambda _done: self._starting.pop(record.stream, None))
        return await asyncio.shield(starting)

    async def _create(self, record: QueueRecord) -> GroupDispatcher:
        before = self._running.pop(record.stream, None)
        if before is not None:
            await before.close(QueueNotFound("the queue was deleted"))

        def find() -> QueueRecord | None:
            return self._find_queue(record.tenant, record.name)

        made = GroupDispatcher(self._connection, self._committers, record, find, self._dead_letter, self._clock)
        await made.start()
        self._running[record.stream] = made
        return made

    def queue_changed(self, key: str, record: QueueRecord | None) -> None:
        tenant, _, token = key.partition(".")
        stream = f"Q_{tenant}__{token}"
        found = self._running.get(stream)
        if found is None:
            return
        if record is not None and record.state is not RecordState.DELETING and record.incarnation == found.record.incarnation:
            found.wake()
            return
        del self._running[stream]
        closing = asyncio.ensure_future(found.close(QueueNotFound("the queue was deleted")))
        closing.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def close_idle(self) -> None:
        """Close the dispatchers of queues that another process dispatches by now, or that are not used."""
        now = asyncio.get_running_loop().time()
        for stream, one in list(self._running.items()):
            if one.is_idle and now - one.used_at > _IDLE_SECONDS:
                del self._running[stream]
                await one.close(EngineUnavailable("the dispatcher moved to another process; repeat the request", retry_after=1))

    async def execute(self, record: QueueRecord, call: Call) -> DispatchReply:
        dispatcher = await self.of(record)
        if isinstance(call, PullCall):
            found = await dispatcher.pull(
                call.count, call.lease_ms, call.wait_seconds, per_group=call.per_group, receive=call.receive
            )
            return DispatchReply(messages=found)
        if isinstance(call, OperateCall):
            return DispatchReply(results=await dispatcher.operate(call.operations))
        if isinstance(call, PurgeCall):
            return DispatchReply(purged=await dispatcher.purge())
        return DispatchReply(counts=await dispatcher.counts())


class DispatchServer:
    """Answers the requests of other processes to this one."""

    def __init__(self, connection: Connection, dispatchers: Dispatchers, find: Callable[[str, str], Any], name: str) -> None:
        self._connection, self._dispatchers, self._find, self.name = connection, dispatchers, find, name
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Answer until cancelled."""
        stop_probes = self._connection.subscribe(f"{SUBJECT}.{self.name}.probe", self._answer_probe)
        stop = self._connection.subscribe(f"{SUBJECT}.{self.name}", self._receive)
        try:
            while True:
                await asyncio.sleep(_IDLE_SECONDS / 2)
                await self._dispatchers.close_idle()
        finally:
            await stop()
            await stop_probes()

    def _answer_probe(self, message: IncomingMessage) -> None:
        with contextlib.suppress(ConnectionLost):
            self._connection.publish(message.reply, b"")

    def _receive(self, message: IncomingMessage) -> None:
        try:
            request = _decode_request(message.data)
        except msgspec.DecodeError:
            return
        if isinstance(request, CancelCall):
            task = self._tasks.get(request.inbox)
            if task is not None:
                task.cancel()
            return
        task = asyncio.get_running_loop().create_task(self._answer(message.reply, request))
        self._tasks[message.reply] = task
        task.add_done_callback(lambda _done: self._tasks.pop(message.reply, None))

    async def _answer(self, inbox: str, call: Call) -> None:
        try:
            record = await self._find(call.tenant, call.queue)
            if record.incarnation != call.incarnation:
                raise QueueNotFound(f"there is no queue {call.queue!r}")
            reply = await self._dispatchers.execute(record, call)
        except PostroadError as error:
            reply = DispatchReply(error=error.code, detail=error.detail, retry_after=error.retry_after)
        except asyncio.CancelledError:
            reply = DispatchReply()
            if asyncio.current_task() is not None:
                asyncio.current_task().uncancel()  # type: ignore[union-attr]
        except Exception as problem:  # without an answer the caller would wait until its deadline
            log.exception("dispatch_failed", tenant=call.tenant, queue=call.queue, call=type(call).__name__)
            failure = EngineUnavailable(f"the dispatcher of the queue failed: {type(problem).__name__}", retry_after=1)
            reply = DispatchReply(error=failure.code, detail=failure.detail, retry_after=failure.retry_after)
        with contextlib.suppress(ConnectionLost):
            self._connection.publish(inbox, _encode(_without_large_payloads(reply)))


class DispatchRouting:
    """Sends calls to the process that dispatches the queue, which may be this one."""

    def __init__(self, connection: Connection, dispatchers: Dispatchers, membership: Membership, *, is_member: bool) -> None:
        self._connection, self._dispatchers, self._membership = connection, dispatchers, membership
        self._is_member = is_member
        self._suspects: dict[str, float] = {}
        self._asked: dict[str, set[asyncio.Future[Reply]]] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._releasing: set[asyncio.Task[None]] = set()

    async def call(self, record: QueueRecord, call: Call) -> DispatchReply:
        """Raises EngineUnavailable, QueueNotFound, Overloaded."""
        for member in self._candidates(record.stream):
            if member == self._membership.name:
                return await self._dispatchers.execute(record, call)
            try:
                return await self._ask(record, member, call)
            except _MemberGone:
                self._suspects[member] = asyncio.get_running_loop().time() + _SUSPECT_SECONDS
        if self._is_member:
            return await self._dispatchers.execute(record, call)
        raise EngineUnavailable("no process dispatches ordered queues now", retry_after=1)

    def _candidates(self, stream: str) -> Sequence[str]:
        now = asyncio.get_running_loop().time()
        self._suspects = {member: until for member, until in self._suspects.items() if until > now}
        members = set(self._membership.members) - self._suspects.keys()
        if self._is_member:
            members.add(self._membership.name)
        return ranking(stream, members)

    async def _ask(self, record: QueueRecord, member: str, call: Call) -> DispatchReply:
        subject = f"{SUBJECT}.{member}"
        seconds = _ANSWER_SECONDS + (call.wait_seconds if isinstance(call, PullCall) else 0)
        try:
            inbox, replied = self._connection.expect()
            self._connection.send(encode_plain(subject, _encode(call), inbox))
        except ConnectionLost as exc:
            raise EngineUnavailable("the connection to the engine is down", retry_after=1) from exc
        self._watch(member, replied)
        try:
            async with asyncio.timeout(seconds):
                reply = await asyncio.shield(replied)
        except asyncio.CancelledError:
            self._give_up(record, member, call, inbox, replied)
            raise
        except ConnectionLost as exc:
            raise EngineUnavailable("the connection to the engine was lost", retry_after=1) from exc
        except TimeoutError as exc:
            raise _MemberGone from exc
        finally:
            self._asked.get(member, set()).discard(replied)
        if reply.status == "503":
            raise _MemberGone
        return _checked(_decode_reply(reply.data))

    # A process that dies does not answer the requests that it has received. So it is probed while it has some.

    def _watch(self, member: str, replied: "asyncio.Future[Reply]") -> None:
        self._asked.setdefault(member, set()).add(replied)
        probe = self._probes.get(member)
        if probe is None or probe.done():
            self._probes[member] = asyncio.get_running_loop().create_task(self._probe(member))

    async def _probe(self, member: str) -> None:
        while True:
            await asyncio.sleep(_PROBE_SECONDS)
            asked = self._asked.get(member)
            if not asked:
                self._asked.pop(member, None)
                self._probes.pop(member, None)
                return
            try:
                reply = await self._connection.request(f"{SUBJECT}.{member}.probe", timeout=_PROBE_ANSWER_SECONDS)
                is_gone = reply.status == "503"
            except TimeoutError:
                is_gone = True
            except ConnectionLost:
                continue
            if is_gone:
                log.info("dispatcher_gone", member=member, requests=len(asked))
                for replied in list(asked):
                    if not replied.done():
                        replied.set_exception(_MemberGone())

    def _give_up(self, record: QueueRecord, member: str, call: Call, inbox: str, replied: "asyncio.Future[Reply]") -> None:
        """The caller is gone. Messages that were leased for it return to the queue."""
        if not isinstance(call, PullCall):
            return

        async def release() -> None:
            with contextlib.suppress(ConnectionLost, TimeoutError, PostroadError, _MemberGone, msgspec.DecodeError):
                cancel = CancelCall(tenant=record.tenant, queue=record.name, incarnation=record.incarnation, inbox=inbox)
                self._connection.publish(f"{SUBJECT}.{member}", _encode(cancel))
                async with asyncio.timeout(_ANSWER_SECONDS):
                    reply = await replied
                if reply.status == "503":
                    return
                leased = _decode_reply(reply.data).messages
                undo = [Operation(one.group, one.lease.sequence, one.lease.attempt, Action.UNDO) for one in leased]
                if undo:
                    await self.call(record, operate_call(record, undo))

        task = asyncio.get_running_loop().create_task(release())
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)


def operate_call(record: QueueRecord, operations: Sequence[Operation]) -> OperateCall:
    return OperateCall(tenant=record.tenant, queue=record.name, incarnation=record.incarnation, operations=list(operations))


def _without_large_payloads(reply: DispatchReply) -> DispatchReply:
    """A reply within the limits of a NATS message: the receiver reads large payloads from the stream."""
    size, messages = 0, []
    for one in reply.messages:
        size += len(one.payload)
        is_inline = len(one.payload) <= _INLINE_BYTES and size <= _REPLY_BYTES
        messages.append(one if is_inline else msgspec.structs.replace(one, payload=b""))
    return msgspec.structs.replace(reply, messages=messages)


def _checked(reply: DispatchReply) -> DispatchReply:
    if not reply.error:
        return reply
    kind: Mapping[str, type[PostroadError]] = ERRORS
    raise kind.get(reply.error, EngineUnavailable)(reply.detail, retry_after=reply.retry_after)
