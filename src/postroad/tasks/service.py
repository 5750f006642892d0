"""Tasks as things, and the runner that carries them out in the control role.

A task's record is its truth: what was asked for, how far it is, whether it is to stop. The runner saves the position after each
step, so that a successor goes on from there; a step that was done and not saved is done again, and must bear that.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from postroad.governance.audit import Audit
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import PostroadError, PreconditionFailed, TaskNotFound
from postroad.kernel.identity import Caller
from postroad.kernel.ids import new_id
from postroad.tasks.rules import Progress, TaskRecord, TaskState, task_view

TASKS_BUCKET = "postroad_tasks"
_KEPT_SECONDS = 7 * 86_400
_AT_ONCE = 8
_ACTIVE_MAX = 100
_LOOK_EVERY_SECONDS = 5.0

log = structlog.get_logger("postroad.tasks")


class TaskCancelled(Exception):
    """Somebody wants the task to stop."""


class Tasks:
    def __init__(self, table: ReplicatedTable[TaskRecord], audit: Audit, clock: Clock) -> None:
        self._table, self._audit, self._clock = table, audit, clock

    async def start(self, context: RequestContext, kind: str, target: str, wanted: msgspec.Struct, total: int) -> TaskRecord:
        """Raises NotNow if one of this kind works on the same target already."""
        active = [one for one in self.of(context.caller) if not one.state.is_final]
        same = next((one for one in active if one.kind == kind and one.target == target), None)
        if same is not None:
            raise PreconditionFailed(f"the task {same.id} does that already: /v1/tasks/{same.id}")
        if len(active) >= _ACTIVE_MAX:
            raise PreconditionFailed(f"{len(active)} tasks are waiting or running already")
        now = self._clock()
        record = TaskRecord(
            id=new_id(),
            tenant=context.tenant,
            kind=kind,
            target=target,
            wanted=msgspec.to_builtins(wanted),
            progress=Progress(total=total),
            created_by=context.caller.key_id,
            request_id=context.request_id,
            created_at_ms=now,
            updated_at_ms=now,
        )
        async with self._audit.change(context, f"{kind}.start", target, after=task_view(record)):
            await self._table.create(record.key, record)
        return record

    def of(self, caller: Caller) -> list[TaskRecord]:
        """The tenant's tasks that concern what the caller may use, newest first."""
        found = [self._table.get(key) for key in self._table.keys_under(f"{caller.tenant}.")]
        return sorted(
            (one for one in found if one is not None and caller.may_use("queue", one.target)),
            key=lambda one: one.id,
            reverse=True,
        )

    async def find(self, caller: Caller, task: str) -> TaskRecord:
        """Raises TaskNotFound."""
        is_id = len(task) == 36 and task.replace("-", "").isalnum() and task.isascii()
        record = await self._table.fetch(f"{caller.tenant}.{task}") if is_id else None
        if record is None or not caller.may_use("queue", record.target):
            raise TaskNotFound(f"there is no task {task[:64]!r}")
        return record

    async def cancel(self, context: RequestContext, task: str) -> TaskRecord:
        """Ask it to stop; what it has done stays done. One that has ended stays as it is. Raises TaskNotFound."""
        record = await self.find(context.caller, task)
        if record.state.is_final or record.is_cancel_wanted:
            return record
        async with self._audit.change(context, f"{record.kind}.cancel", record.target, before=task_view(record)):
            changed = await self._table.change(record.key, self._to_be_cancelled)
        return changed[1] if changed else record

    def _to_be_cancelled(self, record: TaskRecord) -> TaskRecord:
        if record.state.is_final:
            return record
        return msgspec.structs.replace(record, is_cancel_wanted=True, updated_at_ms=self._clock())

    async def delete_all(self, tenant: str) -> None:
        for key in list(self._table.keys_under(f"{tenant}.")):
            await self._table.delete(key)


class TaskContext:
    """One task as its handler has it."""

    def __init__(self, table: ReplicatedTable[TaskRecord], record: TaskRecord, clock: Clock) -> None:
        self._table, self._clock = table, clock
        self.record = record

    async def save(self, position: int, progress: Progress, bound: int = 0) -> None:
        """How far it is. Raises TaskCancelled if it is to stop."""
        await self._change(position=position, progress=progress, bound=bound)
        if self.record.is_cancel_wanted:
            raise TaskCancelled

    def check(self) -> None:
        """Raises TaskCancelled if it is to stop: for handlers that wait."""
        known = self._table.get(self.record.key)
        if known is None or known.is_cancel_wanted:
            raise TaskCancelled

    async def begin(self) -> None:
        if self.record.started_at_ms is None:
            await self._change(state=TaskState.RUNNING, started_at_ms=self._clock())

    async def end(self, state: TaskState, error: str | None = None) -> None:
        await self._change(state=state, error=error, ended_at_ms=self._clock(), _ttl_seconds=_KEPT_SECONDS)

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
    """Carries out every task that has not ended. For the control role's leader."""

    def __init__(self, table: ReplicatedTable[TaskRecord], clock: Clock, handlers: dict[str, Handler]) -> None:
        self._table, self._clock, self._handlers = table, clock, handlers
        self._running: dict[str, asyncio.Task[None]] = {}
        self._must_look = asyncio.Event()
        table.on_change(lambda _key, _record: self._must_look.set())

    async def run(self) -> None:
        """Until cancelled; what runs then is taken up by the next leader."""
        try:
            while True:
                self._must_look.clear()
                self._begin_more()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_EVERY_SECONDS):
                        await self._must_look.wait()
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)
            self._running.clear()

    def _begin_more(self) -> None:
        for key in self._table.keys_under():
            record = self._table.get(key)
            if len(self._running) >= _AT_ONCE:
                return
            if record is not None and not record.state.is_final and key not in self._running:
                self._running[key] = asyncio.create_task(self._carry_out(record))
                self._running[key].add_done_callback(lambda _done, key=key: self._ended(key))  # type: ignore[misc]

    def _ended(self, key: str) -> None:
        self._running.pop(key, None)
        self._must_look.set()

    async def _carry_out(self, record: TaskRecord) -> None:
        running = TaskContext(self._table, record, self._clock)
        try:
            handler = self._handlers.get(record.kind)
            if record.is_cancel_wanted:
                raise TaskCancelled
            if handler is None:
                await running.end(TaskState.FAILED, f"this version of Postroad has no tasks of the kind {record.kind!r}")
                return
            await running.begin()
            await handler(running)
            await running.end(TaskState.DONE)
        except TaskCancelled:
            with contextlib.suppress(PostroadError, TaskCancelled):
                await running.end(TaskState.CANCELLED)
        except PostroadError as problem:
            if problem.retryable:  # not its fault: it goes on from its position, after a moment
                log.warning("task_interrupted", task=record.id, code=problem.code)
                await asyncio.sleep(1)
                return
            await self._fail(running, problem.detail or problem.title)
        except Exception as exc:
            log.error("task_crashed", task=record.id, error=repr(exc))
            await self._fail(running, "internal error")

    async def _fail(self, running: TaskContext, error: str) -> None:
        with contextlib.suppress(PostroadError, TaskCancelled):
            await running.end(TaskState.FAILED, error)
