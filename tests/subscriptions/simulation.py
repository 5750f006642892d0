"""Delivery processes on a simulated engine: the real dispatcher, scheduler, cursors and takeover, in virtual time.

Simulated are the engine (the log of a topic, stored progress and dead letters, the registries) and the endpoint, which records
each request and answers it when a test says so. A process can crash, be cut off from the engine, and stop in order.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec

from postroad.api.subscriptions import DeliveryType, Ordering, SubscriptionState
from postroad.jetstream.stream_reader import Entry, Page
from postroad.kernel.errors import Conflict, EngineUnavailable
from postroad.kernel.matching import pattern_matches
from postroad.kernel.spans import Span
from postroad.subscriptions.attempter import Attempter
from postroad.subscriptions.delivery_cursor import CursorState
from postroad.subscriptions.dispatcher import Dispatcher
from postroad.subscriptions.endpoint_rules import Outcome
from postroad.subscriptions.formats import DeliveryFormats
from postroad.subscriptions.log_reader import LogReader
from postroad.subscriptions.message_cache import MessageCache
from postroad.subscriptions.outgoing import OutgoingMessage
from postroad.subscriptions.progress_store import StoredProgress
from postroad.subscriptions.push_client import AttemptResult
from postroad.subscriptions.records import LIVE_CURSOR, ProgressRecord, SubscriptionRecord, progress_subject
from postroad.subscriptions.takeover import Takeover
from postroad.subscriptions.topic_follower import TopicFollower
from postroad.subscriptions.topic_followers import TopicFollowers
from tests.virtual_time import VirtualTimeLoop

SUBJECT = "t.acme__orders"
MEMBER_SECONDS = 6.0


def new_record(**changes: Any) -> SubscriptionRecord:
    settings: dict[str, Any] = {
        "id": "sub",
        "incarnation": "sub-1",
        "tenant": "acme",
        "topic": "orders",
        "topic_incarnation": "orders-1",
        "delivery_type": DeliveryType.HTTP_PUSH,
        "patterns": ("key.>",),
        "url": "https://endpoint.example/",
        "start_after": 0,
        "max_deliver": 4,
        "retry_delays_ms": (1000, 2000),
        "ack_wait_ms": 5000,
        "max_in_flight": 3,
        "ordering": Ordering.KEY,
        "created_at_ms": 0,
        "updated_at_ms": 0,
    }
    return SubscriptionRecord(**{**settings, **changes})


@dataclass(eq=False)
class Request:
    """A request that the endpoint received. `answer` is its outcome; without one it runs into the timeout."""

    process: "Process"
    record: SubscriptionRecord
    sequence: int
    key: str
    attempt: int
    answer: asyncio.Future[AttemptResult]

    def respond(self, outcome: Outcome, status: int, retry_after_ms: int | None = None) -> None:
        if not self.answer.done():
            self.answer.set_result(AttemptResult(outcome, 1, status, retry_after_ms=retry_after_ms))


class Engine:
    """What outlives the processes. Sequences of the log start at 1."""

    def __init__(self, record: SubscriptionRecord) -> None:
        self.loop = VirtualTimeLoop()
        self.log: list[Entry] = []
        self.progress: dict[str, tuple[int, bytes]] = {}
        self.revision = 0
        self.record: SubscriptionRecord | None = record
        self.dead: set[int] = set()
        self.dead_reasons: list[str] = []
        self.holds_dead_letters = False  # it is unavailable for them
        self.dead_letter_problem: Exception | None = None
        self.members: dict[str, float] = {}  # time of the expiry
        self.processes: list[Process] = []
        self.requests: list[Request] = []  # in flight
        self.reads = 0  # of the log
        self.delivered: Counter[int] = Counter()
        self.published = asyncio.Event()
        self.on_request: Callable[[Request], None] = lambda _request: None

    def now_ms(self) -> int:
        return 1_000_000 + int(self.loop.time() * 1000)

    # Topic

    def publish(self, subject: str) -> None:
        self.log.append(Entry(f"{SUBJECT}.{subject}", len(self.log) + 1, self.now_ms(), b"{}", {}))
        published, self.published = self.published, asyncio.Event()
        published.set()

    def matching(self) -> set[int]:
        assert self.record is not None
        return {one.sequence for one in self.log if pattern_matches("key.>", one.subject[len(SUBJECT) + 1 :])}

    # Subscription

    def change(self, **changes: Any) -> None:
        assert self.record is not None
        self.record = msgspec.structs.replace(self.record, updated_at_ms=self.now_ms(), **changes)
        for process in self.processes:
            process.table.notify()

    def start(self) -> "Process":
        process = Process(self, f"p{len(self.processes)}")
        self.processes.append(process)
        return process

    @property
    def living(self) -> list["Process"]:
        return [one for one in self.processes if one.is_running]

    def stored(self, cursor: str) -> CursorState:
        """The stored progress of a cursor."""
        return msgspec.json.decode(self.progress[f"progress.acme.sub-1.{cursor}"][1], type=ProgressRecord).cursor

    def settled(self) -> set[int]:
        return set(self.delivered) | self.dead

    async def run_for(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        for process in self.living:
            assert process.running is not None
            assert not process.running.done(), process.running.exception()


class _Table:
    def __init__(self, process: "Process") -> None:
        self._process, self._listeners = process, list[Callable[[str, Any], None]]()

    def on_change(self, listener: Callable[[str, Any], None]) -> None:
        self._listeners.append(listener)

    def notify(self) -> None:
        record = self.get("")
        for listener in self._listeners:
            listener("acme.sub", record)

    def get(self, _key: str) -> SubscriptionRecord | None:
        """A process that is cut off keeps the record that it knew."""
        if not self._process.is_cut_off:
            self._process.known = self._process.engine.record
        return self._process.known

    def keys_under(self) -> list[str]:
        return [] if self.get("") is None else ["acme.sub"]


class _Membership:
    def __init__(self, process: "Process") -> None:
        self.name, self._process, self._listeners = process.name, process, list[Callable[[], None]]()

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    @property
    def members(self) -> frozenset[str]:
        """A process that is cut off is no member, to itself, when its registration has expired."""
        now = self._process.engine.loop.time()
        return frozenset(name for name, until in self._process.engine.members.items() if until > now)

    async def run(self) -> None:
        engine, seen = self._process.engine, frozenset[str]()
        try:
            while True:
                if not self._process.is_cut_off:
                    engine.members[self.name] = engine.loop.time() + MEMBER_SECONDS
                if seen != self.members:
                    seen = self.members
                    for listener in self._listeners:
                        listener()
                await asyncio.sleep(0.5)
        finally:
            if not self._process.is_cut_off:
                engine.members.pop(self.name, None)


class _Progress:
    def __init__(self, process: "Process") -> None:
        self._process = process

    async def load(self, record: SubscriptionRecord, cursor: str = LIVE_CURSOR) -> StoredProgress:
        await self._process.reach()
        revision, payload = self._process.engine.progress.get(progress_subject(record, cursor), (0, b""))
        return StoredProgress(msgspec.json.decode(payload, type=ProgressRecord) if payload else None, revision)

    async def store(self, record: SubscriptionRecord, cursor: str, progress: ProgressRecord, revision: int) -> int:
        engine, subject, payload = self._process.engine, progress_subject(record, cursor), msgspec.json.encode(progress)
        await self._process.reach()
        if engine.progress.get(subject, (0, b""))[0] != revision:
            raise Conflict("another revision")
        engine.revision += 1
        engine.progress[subject] = (engine.revision, payload)
        stored = engine.revision
        await self._process.reach()  # the answer may be lost
        return stored


class _Endpoint:
    """The push client and the registry of endpoints in one."""

    def __init__(self, process: "Process") -> None:
        self._process = process

    def of(self, record: SubscriptionRecord, _now_ms: int) -> SubscriptionRecord:
        return record

    async def attempt(
        self, record: SubscriptionRecord, message: OutgoingMessage, number: int, _span: Span | None = None
    ) -> AttemptResult:
        engine, stored = self._process.engine, message.stored
        answer: asyncio.Future[AttemptResult] = engine.loop.create_future()
        request = Request(self._process, record, stored.sequence, stored.subject, number, answer)
        engine.requests.append(request)
        engine.on_request(request)
        try:
            async with asyncio.timeout(record.ack_wait_ms / 1000):
                result = await request.answer
        except TimeoutError:
            return AttemptResult(Outcome.TRANSIENT, record.ack_wait_ms, error="timeout")
        finally:
            engine.requests.remove(request)
        if result.outcome is Outcome.DELIVERED:
            engine.delivered[stored.sequence] += 1
        return result


class SimulatedFollower(TopicFollower):
    """Reads the simulated log instead of a tail."""

    async def run(self) -> None:
        process: Process = self._connection.process  # type: ignore[attr-defined]
        await process.reach()
        self.position = len(process.engine.log)
        while True:
            published = process.engine.published
            while not process.is_cut_off and self.position < len(process.engine.log):
                await self._deliver(process.engine.log[self.position])
            if process.is_cut_off:
                await asyncio.sleep(0.1)
            else:
                await published.wait()


class SimulatedStreamReader:
    """Stands for `jetstream.stream_reader`."""

    @staticmethod
    async def read(connection: Any, _stream: str, pattern: str, start: int, limit: int) -> Page:
        process: Process = connection.process
        process.engine.reads += 1
        await process.reach()
        found = [one for one in process.engine.log[start - 1 :] if pattern_matches(pattern, one.subject)]
        entries = found[:limit]
        return Page(entries, entries[-1].sequence + 1 if entries else start, len(found) - len(entries))

    @staticmethod
    async def at(connection: Any, _stream: str, sequence: int) -> Entry | None:
        process: Process = connection.process
        await process.reach()
        return process.engine.log[sequence - 1]


class Process:
    """A delivery process. `is_cut_off`: the engine does not answer it."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self.name = engine, name
        self.is_cut_off = False
        self.knows_topic = True
        self.known: SubscriptionRecord | None = None
        self.table = _Table(self)
        self.running: asyncio.Task[None] | None = None
        connection: Any = SimpleNamespace(process=self, settings=SimpleNamespace(has_replicas=False))
        topic: Any = SimpleNamespace(name="orders", incarnation="orders-1", stream="T", subject=SUBJECT)
        endpoint: Any = _Endpoint(self)
        membership: Any = _Membership(self)
        anything: Any = SimpleNamespace(
            record=lambda *_: None, takes_success=lambda *_: False, add=lambda *_: None, forget=lambda *_: None, flush=_nothing
        )
        reader = LogReader(connection, MessageCache(20_000))
        topics: Any = SimpleNamespace(cached=lambda *_: topic if self.knows_topic else None)
        dead_letters: Any = SimpleNamespace(store=self._dead_letter)
        progress: Any = _Progress(self)
        table: Any = self.table
        self.dispatcher = Dispatcher(
            table,
            topics,
            membership,
            Takeover(progress, reader, engine.now_ms, name),
            TopicFollowers(connection),
            reader,
            Attempter(endpoint, anything, endpoint, dead_letters, anything, anything, engine.now_ms, DeliveryFormats()),
            anything,
            anything,
            engine.now_ms,
            slots=8,
            is_served=lambda _tenant: True,
            disable=self._disable,
        )

    async def reach(self) -> None:
        """A request to the engine: it takes a moment, and fails if the process is cut off."""
        await asyncio.sleep(0.002)
        if self.is_cut_off:
            await asyncio.sleep(1)
            raise EngineUnavailable("cut off")

    async def _dead_letter(self, _record: Any, message: Any, reason: str, *_more: Any) -> None:
        await self.reach()
        if self.engine.dead_letter_problem is not None:
            raise self.engine.dead_letter_problem
        if self.engine.holds_dead_letters:
            raise EngineUnavailable("held")
        self.engine.dead.add(message.sequence)
        self.engine.dead_reasons.append(reason)

    async def _disable(self, record: SubscriptionRecord, _reason: str) -> None:
        await self.reach()
        now = self.engine.record
        if now is not None and now.is_active and now.updated_at_ms == record.updated_at_ms:
            self.engine.change(state=SubscriptionState.DISABLED)

    @property
    def is_running(self) -> bool:
        return self.running is not None

    def begin(self) -> "Process":
        self.running = self.engine.loop.create_task(self.dispatcher.run())
        return self

    async def stop(self) -> None:
        """In order: it stores its progress and releases its subscription."""
        assert self.running is not None
        running, self.running = self.running, None
        running.cancel()
        await asyncio.wait([running])

    async def crash(self) -> None:
        """Nothing that it does from now on reaches the engine; its requests break off."""
        self.is_cut_off = True
        for request in [one for one in self.engine.requests if one.process is self]:
            request.answer.cancel()
        await self.stop()


async def _nothing() -> None:
    """For writes that do not matter here."""
