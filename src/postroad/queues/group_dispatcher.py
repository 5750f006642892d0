"""The dispatcher of one ordered queue: pulls and settlements become writes of group records.

Any process can run one, and two at once are correct: a record is written on condition that it has not changed. One at a time is
fast, because the state of a group in memory is then the stored one. A task works on a group at a time; operations that arrive
meanwhile share its next write, which also leases the group's next messages if a pull waits.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence

import structlog

from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.jetstream.incoming_message import IncomingMessage
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Conflict, EngineUnavailable, Overloaded, PostroadError
from postroad.kernel.futures import outcomes_of, resolve
from postroad.kernel.ids import new_id
from postroad.queues.group_index import Group
from postroad.queues.group_state import (
    EMPTY,
    Action,
    GroupState,
    OpenMessage,
    Operation,
    OperationResult,
    apply,
    counts,
    lease,
)
from postroad.queues.group_store import live_subject
from postroad.queues.group_turns import (
    CONFLICTS_MAX,
    PULL_BYTES_MAX,
    WALK_AHEAD,
    DeadLetterMessage,
    DispatchCounts,
    LeasedMessage,
    PendingOperation,
    PreparedGroup,
    Pull,
    leased_messages,
    within,
)
from postroad.queues.records import QueueRecord
from postroad.queues.repeated_pulls import RepeatedPulls

_TICK_SECONDS = 0.25  # how often groups are looked at while pulls wait, whatever the clock does
_CATCH_UP_SECONDS = 1.0
_READ_AGE_SECONDS = 10.0  # far less than the time for which the record of an empty group is kept

log = structlog.get_logger("postroad.queues")


class GroupDispatcher(RepeatedPulls):
    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        record: QueueRecord,
        find_record: Callable[[], QueueRecord | None],
        dead_letter: DeadLetterMessage,
        clock: Clock,
    ) -> None:
        super().__init__(connection, committers, record, find_record, dead_letter, clock)
        self._waiting: deque[Pull] = deque()
        self._serving = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed_by: PostroadError | None = None
        self._catching_up: dict[str, asyncio.Future[None]] = {}
        self.used_at = asyncio.get_running_loop().time()

    # Life

    async def start(self) -> None:
        """Find the groups. Raises EngineUnavailable."""
        self._stop_subscription = self._connection.subscribe(f"{live_subject(self.record)}.*", self._on_stored)
        self._stop_reconnect = self._connection.on_reconnect(self._reconnected)
        try:
            await self._scan()
        except BaseException:
            self._stop_reconnect()
            await self._stop_subscription()
            raise
        self._start(self._maintain())
        self._begin_walk()

    async def close(self, error: PostroadError) -> None:
        """End all waiting pulls and operations with the error."""
        self._closed_by = error
        self._stop_reconnect()
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            resolve(self._waiting.popleft().future, error)
        for group in list(self._index.groups.values()):
            for pending in group.operations:
                resolve(pending.future, error)
        for task in list(self._tasks):
            task.cancel()
        await self._stop_subscription()

    @property
    def is_idle(self) -> bool:
        """True if no call is served, and nothing of empty groups is left to be removed: no other process would do that."""
        return not self._waiting and not self._serving and not self._index.unclean

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _reconnected(self) -> None:
        """Notices may have been lost, and an engine that lost its newest messages gives their sequences to others."""
        self._begin_walk()
        self._must_scan.set()

    def _begin_walk(self) -> None:
        self._start(self._walk(self._index.sequences.begin_walk()))

    def _on_stored(self, message: IncomingMessage) -> None:
        headers = message.headers or {}
        caught_up = self._catching_up.pop(message.subject, None)
        if caught_up is not None:
            resolve(caught_up, None)
        if "Nats-Sequence" not in headers:
            return
        token, sequence = message.subject.rpartition(".")[2], int(headers["Nats-Sequence"])
        if "Nats-Rollup" in headers:
            self._index.sequences.ended(token, sequence)
            return
        group = self._index.stored(token, sequence, int(headers["Nats-Last-Sequence"]))
        self._index.place(group, self._clock())
        if self._waiting:
            self._pump()

    async def _catch_up(self) -> None:
        """Return once the notices of messages that are stored already have arrived: a message of this process follows them."""
        subject = f"{live_subject(self.record)}.caught-up-{new_id()}"
        caught_up = self._catching_up[subject] = asyncio.get_running_loop().create_future()
        try:
            self._connection.publish(subject, b"")
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                await caught_up
        except (TimeoutError, ConnectionLost):
            self._catching_up.pop(subject, None)

    # Pulls

    async def pull(self, count: int, lease_ms: int, wait_seconds: float, *, per_group: int, receive: str) -> list[LeasedMessage]:
        """Lease up to `count` messages; wait up to `wait_seconds` for the first. Raises EngineUnavailable."""
        if self._closed_by is not None:
            raise self._closed_by
        loop = asyncio.get_running_loop()
        self.used_at = loop.time()
        if receive:
            repeated = await self._repeat(receive, lease_ms)
            if repeated:
                return repeated
        if wait_seconds <= 0 and not self._index.has_ready:
            await self._catch_up()
            await self._not_cleaning.wait()  # the group may have messages
        future: asyncio.Future[list[LeasedMessage]] = loop.create_future()
        pull = Pull(count, lease_ms, loop.time() + wait_seconds, min(per_group, count), receive, future)
        self._waiting.append(pull)
        self._pump()
        try:
            return await future
        except asyncio.CancelledError:
            if pull in self._waiting:
                self._waiting.remove(pull)
            if future.done() and not future.cancelled() and future.exception() is None:
                self._undo(future.result())  # leased while the caller left
            raise
        finally:
            self.used_at = loop.time()

    def _pump(self) -> None:
        """Serve the pulls that wait, as far as groups are ready; end those whose time is over."""
        if self._closed_by is not None:
            return
        now, loop_now = self._clock(), asyncio.get_running_loop().time()
        if self._index.sequences.kept < WALK_AHEAD:
            self._walks_on.set()
        self._index.advance(now)
        is_paused = self._present().is_paused
        while self._waiting and not is_paused and self._index.has_ready:
            pull = self._waiting.popleft()
            if not pull.future.done():
                groups = self._index.take(pull.count, pull.per_group)
                self._serving += 1
                self._start(self._serve(pull, groups))
        for pull in [one for one in self._waiting if one.until <= loop_now]:
            self._waiting.remove(pull)
            resolve(pull.future, [])
        self._set_timer(now)

    def _set_timer(self, now_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        seconds = min(_TICK_SECONDS, max(0.0, min(pull.until for pull in self._waiting) - loop.time()))
        next_ms = self._index.next_check_ms
        if next_ms is not None:
            seconds = min(seconds, max(0, next_ms - now_ms) / 1000)
        self._timer = loop.call_later(max(seconds, 0.001), self._pump)

    async def _serve(self, pull: Pull, groups: list[Group]) -> None:
        outcome: list[LeasedMessage] | Exception = []
        try:
            outcome = await self._grant(pull, groups)
        except PostroadError as error:
            outcome = error
        except Exception as problem:
            log.exception("dispatcher_pull_failed", stream=self.record.stream)
            outcome = EngineUnavailable(f"the dispatcher of the queue failed: {type(problem).__name__}", retry_after=1)
        finally:
            self._serving -= 1
        if outcome:
            self._answer(pull, outcome)
        elif not pull.future.done():
            self._waiting.appendleft(pull)
        self._pump()

    def _answer(self, pull: Pull, outcome: list[LeasedMessage] | Exception) -> None:
        """Give the messages to the pull, or back to the queue if its caller is gone."""
        if not pull.future.done():
            resolve(pull.future, outcome)
        elif not isinstance(outcome, Exception):
            self._undo(outcome)

    def _undo(self, messages: Sequence[LeasedMessage]) -> None:
        for one in messages:
            self.submit(Operation(one.group, one.lease.sequence, one.lease.attempt, Action.UNDO))

    async def _grant(self, pull: Pull, groups: list[Group]) -> list[LeasedMessage]:
        """Lease messages of the groups, which are busy, and of further ones that are ready."""
        chosen: list[tuple[Group, PreparedGroup]] = []
        left, bytes_left, problem = pull.count, PULL_BYTES_MAX, None
        try:
            while groups:
                wanted = min(left, pull.per_group)
                found = await outcomes_of([self._prepare_loaded(one, wanted) for one in groups])
                for group, prepared in zip(groups, found, strict=True):
                    if isinstance(prepared, BaseException):
                        problem = prepared
                        self._retry_later(group)
                        continue
                    prepared.entries = within(prepared.entries, min(left, pull.per_group), bytes_left)
                    left -= len(prepared.entries)
                    bytes_left -= sum(len(entry.payload) for entry in prepared.entries)
                    if prepared.entries or prepared.state is not group.state:
                        chosen.append((group, prepared))
                    else:
                        self._block(group, prepared)
                        self._release(group)
                groups = self._index.take(left, pull.per_group) if left > 0 and bytes_left > 0 else []
        except BaseException:
            for group in [*groups, *(one for one, _ in chosen)]:
                self._retry_later(group)
            raise
        leased = await self._lease(pull, chosen)
        if not leased and problem is not None:
            raise problem if isinstance(problem, PostroadError) else EngineUnavailable(repr(problem)) from problem
        return leased

    async def _lease(self, pull: Pull, chosen: Sequence[tuple[Group, PreparedGroup]]) -> list[LeasedMessage]:
        """Write the leases: together if the pull can be repeated, else each for itself."""
        now, oldest = self._clock(), asyncio.get_running_loop().time() - _READ_AGE_SECONDS
        for group, prepared in chosen:
            if prepared.read_at < oldest:  # the messages may have been settled, and the record may be gone
                self._retry_later(group)
        chosen = [(group, prepared) for group, prepared in chosen if prepared.read_at >= oldest]
        total = sum(len(prepared.entries) for _, prepared in chosen) if pull.receive else 0
        turns = [
            (group, prepared, *lease(prepared.state, prepared.sequences, now, now + pull.lease_ms, pull.receive, total))
            for group, prepared in chosen
        ]
        try:
            if pull.receive and turns:
                await self._write_together([(group, state) for group, _, state, _ in turns])
                outcomes: list[BaseException | None] = [None] * len(turns)
            else:
                outcomes = await outcomes_of([self._write(group, state) for group, _, state, _ in turns])
        except Conflict as conflict:
            outcomes = [conflict] * len(turns)
        messages: list[LeasedMessage] = []
        problem: BaseException | None = None
        for (group, prepared, _, leased), outcome in zip(turns, outcomes, strict=True):
            if outcome is None:
                if not leased:
                    self._block(group, prepared)
                messages += leased_messages(group, prepared.entries, leased)
            elif not isinstance(outcome, Conflict):
                problem = outcome
            self._release(group)
        if problem is not None and not messages:
            raise problem
        return messages

    # Operations

    def submit(self, operation: Operation) -> "asyncio.Future[OperationResult]":
        """Apply an operation; the result follows once it is durable."""
        future: asyncio.Future[OperationResult] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._closed_by is not None:
            future.set_exception(self._closed_by)
            return future
        group = self._index.group(operation.group)
        group.operations.append(PendingOperation(operation, future))
        if not group.is_busy:
            self._begin_flush(group)
        return future

    async def operate(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Apply operations, of any groups. Raises EngineUnavailable, Overloaded."""
        self.used_at = asyncio.get_running_loop().time()
        futures = [self.submit(one) for one in operations]
        return [await future for future in futures]

    def _begin_flush(self, group: Group) -> None:
        self._claim(group)
        self._start(self._flush(group))

    async def _flush(self, group: Group) -> None:
        pending, group.operations = group.operations, []
        pull, messages = None, list[LeasedMessage]()
        try:
            results, pull, messages = await self._apply(group, [one.operation for one in pending])
        except BaseException as error:
            problem = error if isinstance(error, PostroadError) else EngineUnavailable("the dispatcher ended", retry_after=1)
            for one in pending:
                resolve(one.future, problem)
            if not isinstance(error, PostroadError):
                raise
        else:
            for one, result in zip(pending, results, strict=True):
                resolve(one.future, result)
        finally:
            self._release(group)
            if pull is not None and messages:
                self._answer(pull, messages)
            elif pull is not None and not pull.future.done():
                self._waiting.appendleft(pull)
            if self._waiting:
                self._pump()

    async def _apply(
        self, group: Group, operations: Sequence[Operation]
    ) -> tuple[list[OperationResult], Pull | None, list[LeasedMessage]]:
        """Apply operations and, if a pull waits and the group is free then, lease its next messages in the same write."""
        pull: Pull | None = None
        try:
            for _ in range(CONFLICTS_MAX):
                is_fresh = group.state is None
                if is_fresh:
                    await self._load(group)
                before = state = group.state or EMPTY
                now, results = self._clock(), []
                for one in operations:
                    state, result = apply(state, one, now)
                    results.append(result)
                    if one.action == Action.REMOVE:
                        group.ahead = None
                if state is before:
                    if is_fresh:
                        return results, pull, []
                    self._index.set_state(group, None, 0)  # no write checks that this is the stored state: read it again
                    continue
                leased: list[OpenMessage] = []
                prepared = None
                pull = pull or self._next_waiting(group, state, now)
                if pull is not None:
                    prepared = await self._prepare(group, state, pull.per_group)
                    prepared.entries = within(prepared.entries, pull.per_group, PULL_BYTES_MAX)
                    now = self._clock()
                    state, leased = lease(prepared.state, prepared.sequences, now, now + pull.lease_ms)
                try:
                    await self._write(group, state)
                except Conflict:
                    continue
                if prepared is not None and not leased:
                    self._block(group, prepared)
                return results, pull, leased_messages(group, prepared.entries, leased) if prepared is not None else []
        except BaseException:
            if pull is not None and not pull.future.done():
                self._waiting.appendleft(pull)
            raise
        if pull is not None and not pull.future.done():
            self._waiting.appendleft(pull)
        raise Overloaded("too many concurrent changes of the group", retry_after=1)

    def _next_waiting(self, group: Group, state: GroupState, now_ms: int) -> Pull | None:
        """The pull to serve with the group, if none else is ready."""
        if state.held_until(now_ms) or self._index.has_ready or self._present().is_paused:
            return None
        if not state.open and group.newest <= state.last:
            return None
        for pull in self._waiting:
            if not pull.future.done() and not pull.receive:
                self._waiting.remove(pull)
                return pull
        return None

    # Whole queue

    def wake(self) -> None:
        """The settings of the queue have changed."""
        for group in list(self._index.groups.values()):
            if group.blocked_until_ms:
                group.blocked_until_ms = 0
                self._index.place(group, self._clock())
        self._pump()

    async def counts(self) -> DispatchCounts:
        """Messages by state, once all states are loaded."""
        self.used_at = asyncio.get_running_loop().time()
        await self._loaded.wait()
        now = self._clock()
        found = [counts(one.state, now) for one in self._index.open_groups.values() if one.state is not None]
        leased, retrying, due, overdue = (sum(one[part] for one in found) for part in range(4))
        return DispatchCounts(self._index.new_count, leased, retrying, due, overdue, len(self._waiting))

    async def purge(self) -> int:
        """Remove all messages and leases; return the number of messages."""
        self.used_at = asyncio.get_running_loop().time()
        found = await self.counts()
        await self._store.purge()
        self._index.clear()
        await self._scan()
        return found.new + found.leased + found.retrying + found.due + found.overdue
