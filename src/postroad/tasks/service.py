"""Tasks and their runner.

The record of a task holds its request, its progress and whether it was cancelled. A handler saves its position after each step,
so that another process can resume it; a step that was done but not saved is repeated, and must tolerate that.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import structlog

from postroad.api.tasks import Progress, TaskNotFound, TaskState
from postroad.governance.audit import Audit
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import PostroadError, PreconditionFailed
from postroad.kernel.identity import Caller
from postroad.kernel.ids import new_id
from postroad.tasks.rules import TaskRecord, may_see, paused, task_of, with_pause, without_pause

TASKS_BUCKET = "postroad_tasks"
_RETENTION_SECONDS = 7 * 86_400
_CONCURRENCY = 8
_TENANT_CONCURRENCY = 4  # so that slow tasks of one tenant do not keep those of others waiting
_ACTIVE_MAX = 100
_POLL_SECONDS = 5.0
_CANCEL_CHECK_SECONDS = 0.25

log = structlog.get_logger("postroad.tasks")


class TaskCancelled(Exception):
    """The task was cancelled."""


class TaskPaused(Exception):
    """The task was paused: it is resumed from its position."""


class Tasks:
    def __init__(self, table: ReplicatedTable[TaskRecord], audit: Audit, clock: Clock) -> None:
        self.table, self._audit, self._clock = table, audit, clock

    async def start(
        self,
        context: RequestContext,
        kind: str,
        target_kind: str,
        target: str,
        wanted: msgspec.Struct,
        total: int,
        *,
        part: str = "",
    ) -> TaskRecord:
        """Raises PreconditionFailed if a task of this kind is active on the same part of the target, or too many are."""
        active = [one for one in self.of(context.caller) if not one.state.is_final]
        wanted_key = (kind, target_kind, target, part)
        same = next((one for one in active if (one.kind, one.target_kind, one.target, one.part) == wanted_key), None)
        if same is not None:
            raise PreconditionFailed(f"task {same.id} already does this: /v1/tasks/{same.id}")
        if len(active) >= _ACTIVE_MAX:
            raise PreconditionFailed(f"{len(active)} tasks are active; {_ACTIVE_MAX} is the limit")
        now = self._clock()
        record = TaskRecord(
            id=new_id(),
            tenant=context.tenant,
            kind=kind,
            target=target,
            target_kind=target_kind,
            part=part,
            wanted=msgspec.to_builtins(wanted),
            progress=Progress(total=total),
            created_by=context.caller.key_id,
            request_id=context.request_id,
            created_at_ms=now,
            updated_at_ms=now,
        )
        async with self._audit.change(context, f"{kind}.start", target, after=task_of(record)):
            await self.table.create(record.key, record)
        return record

    def of(self, caller: Caller) -> list[TaskRecord]:
        """The tenant's tasks on resources that the caller may use, newest first."""
        found = [self.table.get(key) for key in self.table.keys_under(f"{caller.tenant}.")]
        visible = [one for one in found if one is not None and may_see(caller, one.target_kind, one.target)]
        return sorted(visible, key=lambda one: one.id, reverse=True)

    async def find(self, caller: Caller, task: str) -> TaskRecord:
        """Raises TaskNotFound."""
        is_id = len(task) == 36 and task.replace("-", "").isalnum() and task.isascii()
        record = await self.table.fetch(f"{caller.tenant}.{task}") if is_id else None
        if record is None or not may_see(caller, record.target_kind, record.target):
            raise TaskNotFound(f"there is no task {task[:64]!r}")
        return record

    async def cancel(self, context: RequestContext, task: str) -> TaskRecord:
        """Request the cancellation of a task. Completed work is not undone. Raises TaskNotFound."""
        record = await self.find(context.caller, task)
        if record.state.is_final or record.is_cancel_wanted:
            return record
        async with self._audit.change(context, f"{record.kind}.cancel", record.target, before=task_of(record)):
            changed = await self.table.change(record.key, self._with_cancellation)
        return changed[1] if changed else record

    async def pause(self, context: RequestContext, task: str) -> TaskRecord:
        """Request a pause: it stops soon and keeps its position. Raises TaskNotFound, PreconditionFailed if it has ended."""
        return await self._change_pause(context, task, "pause", with_pause)

    async def resume(self, context: RequestContext, task: str) -> TaskRecord:
        """Let a paused task go on. Raises TaskNotFound, PreconditionFailed if it has ended."""
        return await self._change_pause(context, task, "resume", without_pause)

    async def _change_pause(
        self, context: RequestContext, task: str, verb: str, make: Callable[[TaskRecord, int], TaskRecord]
    ) -> TaskRecord:
        record = await self.find(context.caller, task)
        if record.state.is_final or record.is_cancel_wanted:
            raise PreconditionFailed(f"cannot {verb} the task: it has ended or was cancelled")
        if make(record, 0) == msgspec.structs.replace(record, updated_at_ms=0):
            return record
        async with self._audit.change(context, f"{record.kind}.{verb}", record.target, before=task_of(record)):
            changed = await self.table.change(record.key, lambda found: make(found, self._clock()))
        return changed[1] if changed else record

    def _with_cancellation(self, record: TaskRecord) -> TaskRecord:
        if record.state.is_final:
            return record
        return msgspec.structs.replace(record, is_cancel_wanted=True, updated_at_ms=self._clock())

    async def delete_all(self, tenant: str) -> None:
        for key in list(self.table.keys_under(f"{tenant}.")):
            await self.table.delete(key)


class TaskContext:
    """A running task, as its handler sees it."""

    def __init__(self, table: ReplicatedTable[TaskRecord], record: TaskRecord, clock: Clock) -> None:
        self._table, self._clock = table, clock
        self.record = record

    async def save(self, position: int, progress: Progress, bound: int = 0) -> None:
        """Store the progress. Raises TaskCancelled, TaskPaused."""
        await self._change(position=position, progress=progress, bound=bound)
        self._check(self.record)

    @property
    def is_cancelled(self) -> bool:
        known = self._table.get(self.record.key)
        return known is None or known.is_cancel_wanted

    @property
    def is_paused(self) -> bool:
        known = self._table.get(self.record.key)
        return known is not None and known.is_pause_wanted

    def check(self) -> None:
        """For handlers that wait. Raises TaskCancelled, TaskPaused."""
        self._check(self._table.get(self.record.key))

    def _check(self, record: TaskRecord | None) -> None:
        if record is None or record.is_cancel_wanted:
            raise TaskCancelled
        if record.is_pause_wanted:
            raise TaskPaused

    async def sleep(self, seconds: float) -> None:
        """Raises TaskCancelled or TaskPaused soon after a request."""
        while seconds > 0:
            self.check()
            await asyncio.sleep(min(seconds, _CANCEL_CHECK_SECONDS))
            seconds -= _CANCEL_CHECK_SECONDS

    async def stop(self) -> None:
        """Record that the task is paused."""
        await self._table.change(self.record.key, lambda record: paused(record, self._clock()))

    async def begin(self) -> None:
        if self.record.started_at_ms is None:
            await self._change(state=TaskState.RUNNING, started_at_ms=self._clock())

    async def end(self, state: TaskState, error: str | None = None) -> None:
        await self._change(state=state, error=error, ended_at_ms=self._clock(), _ttl_seconds=_RETENTION_SECONDS)

    async def _change(self, *, _ttl_seconds: int | None = None, **values: object) -> None:
        changed = await self._table.change(
            self.record.key,
            lambda record: msgspec.structs.replace(record, updated_at_ms=self._clock(), **values),
            ttl_seconds=_ttl_seconds,
        )
        if changed is None:
            raise TaskCancelled
        self.record = changed[1]


Handler = Callable[[TaskContext], Awaitable[None]]


class Runner:
    """Runs every task that has not ended. For the control role's leader. `handlers` has the handler of each kind."""

    def __init__(self, table: ReplicatedTable[TaskRecord], clock: Clock, handlers: Mapping[str, Handler] | None = None) -> None:
        self._table, self._clock, self.handlers = table, clock, handlers or {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        table.on_change(lambda _key, _record: self._changed.set())

    async def run(self) -> None:
        """Run until cancelled. The next leader resumes the tasks that are running then."""
        try:
            while True:
                self._changed.clear()
                self._start_tasks()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_SECONDS):
                        await self._changed.wait()
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)
            self._running.clear()

    def _start_tasks(self) -> None:
        tenants = Counter(key.partition(".")[0] for key in self._running)
        for key in self._table.keys_under():
            record = self._table.get(key)
            if len(self._running) >= _CONCURRENCY:
                return
            if record is None or not record.is_runnable or key in self._running:
                continue
            if tenants[record.tenant] < _TENANT_CONCURRENCY:
                tenants[record.tenant] += 1
                self._running[key] = asyncio.create_task(self._run(record))
                self._running[key].add_done_callback(lambda _done, key=key: self._stopped(key))  # type: ignore[misc]

    def _stopped(self, key: str) -> None:
        self._running.pop(key, None)
        self._changed.set()

    async def _run(self, record: TaskRecord) -> None:
        task = TaskContext(self._table, record, self._clock)
        try:
            handler = self.handlers.get(record.kind)
            if record.is_cancel_wanted:
                raise TaskCancelled
            if record.is_pause_wanted:
                raise TaskPaused
            if handler is None:
                await task.end(TaskState.FAILED, f"this version of Postroad has no handler for tasks of the kind {record.kind!r}")
                return
            await task.begin()
            await handler(task)
            await task.end(TaskState.DONE)
        except TaskCancelled:
            with contextlib.suppress(PostroadError, TaskCancelled):
                await task.end(TaskState.CANCELLED)
        except TaskPaused:
            with contextlib.suppress(PostroadError):
                await task.stop()
        except PostroadError as problem:
            if problem.retryable:  # resumed from its position after a moment
                log.warning("task_interrupted", task=record.id, code=problem.code)
                await asyncio.sleep(1)
                return
            await self._fail(task, problem.detail or problem.title)
        except Exception as exc:
            log.error("task_crashed", task=record.id, error=repr(exc))
            await self._fail(task, "internal error")

    async def _fail(self, task: TaskContext, error: str) -> None:
        with contextlib.suppress(PostroadError, TaskCancelled):
            await task.end(TaskState.FAILED, error)
