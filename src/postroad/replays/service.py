"""Replays: request, look up, list, pause, resume, cancel."""

import msgspec

from postroad.api.dead_letters import DeadLetterFilter
from postroad.api.replays import SELECTED_MAX, CommandSelection, NewReplay, ReplayCounts, ReplayNotFound, ReplayState
from postroad.commands.rules import target_of
from postroad.contracts.replays import ReplaySelection
from postroad.governance.audit import Audit
from postroad.kernel.clock import Clock, epoch_ms
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import PreconditionFailed
from postroad.kernel.identity import Caller
from postroad.kernel.ids import new_id
from postroad.kernel.json import invalid_field
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.lifecycle import QueueLifecycle
from postroad.replays.events import ReplayRequested
from postroad.replays.records import KEEP_SECONDS, ReplayRecord, state_of
from postroad.replays.sender import REPLAY
from postroad.replays.settings import ReplaysSettings
from postroad.replays.store import ReplayStore, operator_context
from postroad.tasks.rules import TaskRecord
from postroad.tasks.service import Tasks
from postroad.telemetry.outbox import Outbox


class Replays:
    def __init__(
        self,
        store: ReplayStore,
        tasks: Tasks,
        lifecycle: QueueLifecycle,
        dead_letters: DeadLetters,
        outbox: Outbox,
        audit: Audit,
        clock: Clock,
        chosen: ReplaysSettings,
    ) -> None:
        self._store, self._tasks, self._lifecycle, self._dead_letters = store, tasks, lifecycle, dead_letters
        self._outbox, self._audit, self._clock, self._chosen = outbox, audit, clock, chosen

    async def create(self, context: RequestContext, new: NewReplay) -> ReplayRecord:
        """Return once the replay is stored, and the pipeline will get the request.

        Raises BodyInvalid, QueueNotFound, PreconditionFailed if too many replays are active.
        """
        active = [one for one in self.of(context.tenant) if not one.state.is_final]
        if len(active) >= self._chosen.replays_per_tenant_max:
            raise PreconditionFailed(f"{len(active)} replays have not ended; {self._chosen.replays_per_tenant_max} is the limit")
        if new.origin == "archive":
            return await self._from_archive(context, new)
        return await self._from_dead_letters(context, new)

    async def _from_archive(self, context: RequestContext, new: NewReplay) -> ReplayRecord:
        if new.queue is not None or new.filter is not None or new.limit is not None:
            raise invalid_field("$.queue", "`queue`, `filter` and `limit` are for dead letters; use `selection`")
        wanted = new.selection or CommandSelection()
        if wanted.since is None and not wanted.ids:
            raise invalid_field("$.selection", "give `from` or `ids`")
        selection = self._selection(context.tenant, wanted)
        record = self._record(context, new, wanted, ReplayState.SELECTING)
        event = ReplayRequested(
            event_id=record.id,
            replay_id=record.id,
            reason=record.reason,
            selection=msgspec.json.encode(selection).decode(),
        )
        async with self._audit.change(context, "replay.create", record.id, after=_audited(record)):
            # A request without a record has no effect: its answer is removed after a while.
            await self._outbox.commit(context, event)
            await self._store.table.create(record.key, record, ttl_seconds=KEEP_SECONDS)
        return record

    def _selection(self, tenant: str, wanted: CommandSelection) -> ReplaySelection:
        """Raises BodyInvalid."""
        source = None if wanted.source is None else target_of(tenant, wanted.source)
        if wanted.source is not None and (source is None or source[0] != tenant):
            raise invalid_field("$.selection.source", "the sender must be a service of the tenant")
        target = None if wanted.target is None else target_of(tenant, wanted.target)
        if wanted.target is not None and target is None:
            raise invalid_field("$.selection.target", "must be <service> or <tenant>/<service>")
        now = self._clock()
        return ReplaySelection(
            sources=() if source is None else ("/".join(source),),
            targets=() if target is None else ("/".join(target),),
            commands=() if wanted.command is None else (wanted.command,),
            outcomes=tuple(wanted.outcomes),
            reasons=wanted.reasons,
            ids=tuple(one.lower() for one in wanted.ids),
            since_ms=max(0, epoch_ms(wanted.since) or 0),
            until_ms=min(now + 1, max(0, epoch_ms(wanted.until) or now + 1)),
            limit=wanted.limit,
            bytes_max=self._chosen.replay_bytes_max,
        )

    async def _from_dead_letters(self, context: RequestContext, new: NewReplay) -> ReplayRecord:
        if new.selection is not None:
            raise invalid_field("$.selection", "`selection` is for the archive; use `queue`, `filter` and `limit`")
        if new.queue is None:
            raise invalid_field("$.queue", "name the queue of the dead letters")
        queue = await self._lifecycle.find(context.tenant, new.queue)
        wanted = new.filter or DeadLetterFilter()
        bound = await self._dead_letters.last_sequence(queue)
        count = min(await self._dead_letters.count(queue, wanted), new.limit or SELECTED_MAX)
        record = msgspec.structs.replace(
            self._record(context, new, wanted, ReplayState.SELECTED),
            bound=bound,
            counts=ReplayCounts(selected=count, remaining=count),
        )
        async with self._audit.change(context, "replay.create", record.id, after=_audited(record)):
            await self._store.table.create(record.key, record, ttl_seconds=KEEP_SECONDS)
            await self.start_task(record)
        return record

    def _record(self, context: RequestContext, new: NewReplay, wanted: msgspec.Struct, state: ReplayState) -> ReplayRecord:
        now = self._clock()
        return ReplayRecord(
            id=new_id(),
            tenant=context.tenant,
            origin=new.origin,
            reason=new.reason,
            wanted=msgspec.to_builtins(wanted),
            queue=new.queue,
            limit=new.limit,
            rate_per_second=new.rate_per_second,
            is_dry_run=new.dry_run,
            is_run_wanted=not new.dry_run,
            keeps_ids=new.keep_ids,
            state=state,
            created_by=context.caller.key_id,
            request_id=context.request_id,
            is_platform=context.caller.is_platform,
            created_at_ms=now,
            updated_at_ms=now,
        )

    async def start_task(self, record: ReplayRecord) -> None:
        """Start the task of a replay whose commands are selected, unless it has one. May be repeated.

        Nothing is started while too many tasks of the tenant are active: the leader tries again.
        """
        if record.state is not ReplayState.SELECTED or not record.is_run_wanted or self.task_of(record) is not None:
            return
        wanted = NewReplay(reason=record.reason, rate_per_second=record.rate_per_second)
        try:
            await self._tasks.start(operator_context(record), REPLAY, REPLAY, record.id, wanted, record.counts.selected)
        except PreconditionFailed as problem:
            note = problem.detail
            await self._store.change(record.key, lambda found: msgspec.structs.replace(found, note=note))

    # Reading

    def of(self, tenant: str) -> list[ReplayRecord]:
        """The replays of a tenant, newest first."""
        table = self._store.table
        found = [table.get(key) for key in table.keys_under(f"{tenant}.")]
        return sorted((one for one in found if one is not None), key=lambda one: one.id, reverse=True)

    async def find(self, tenant: str, replay: str) -> ReplayRecord:
        """Raises ReplayNotFound."""
        is_id = len(replay) == 36 and replay.replace("-", "").isalnum() and replay.isascii()
        record = await self._store.table.fetch(f"{tenant}.{replay}") if is_id else None
        if record is None:
            raise ReplayNotFound(f"there is no replay {replay[:64]!r}")
        return record

    def task_of(self, record: ReplayRecord) -> TaskRecord | None:
        """The task that sends the commands of a replay."""
        if record.task_id is not None:
            known = self._tasks.table.get(f"{record.tenant}.{record.task_id}")
            if known is not None:
                return known
        caller = Caller(record.tenant, "", frozenset())
        return next((one for one in self._tasks.of(caller) if one.kind == REPLAY and one.target == record.id), None)

    async def current_task_of(self, record: ReplayRecord) -> TaskRecord | None:
        """Like `task_of`; also a task that this process does not know yet. Raises EngineUnavailable."""
        task = self.task_of(record)
        if task is None and record.task_id is not None:
            task = await self._tasks.table.fetch(f"{record.tenant}.{record.task_id}")
        return task

    # Control

    async def pause(self, context: RequestContext, replay: str) -> ReplayRecord:
        """Raises ReplayNotFound, PreconditionFailed unless the replay is running."""
        record = await self.find(context.tenant, replay)
        task = self.task_of(record)
        if record.state.is_final or task is None or task.state.is_final:
            raise PreconditionFailed(f"the replay is {record.state.value}; only a running one can be paused")
        await self._tasks.pause(context, task.id)
        return record

    async def resume(self, context: RequestContext, replay: str) -> ReplayRecord:
        """Send the commands of a dry run, or go on after a pause. Raises ReplayNotFound, PreconditionFailed."""
        record = await self.find(context.tenant, replay)
        task = self.task_of(record)
        if task is not None and not (task.state.is_final or record.state.is_final):
            await self._tasks.resume(context, task.id)
            return record
        if record.state is not ReplayState.SELECTED:
            raise PreconditionFailed(f"the replay is {state_of(record, task).value}: it cannot be resumed")
        async with self._audit.change(context, "replay.resume", record.id, after=_audited(record)):
            changed = await self._store.change(record.key, _with_run)
            if changed is None:
                raise ReplayNotFound(f"there is no replay {replay[:64]!r}")
            await self.start_task(changed)
        return changed

    async def cancel(self, context: RequestContext, replay: str) -> ReplayRecord:
        """Request the end of a replay. What is delivered stays delivered. Raises ReplayNotFound."""
        record = await self.find(context.tenant, replay)
        if record.state.is_final:
            return record
        task = self.task_of(record)
        async with self._audit.change(context, "replay.cancel", record.id, before=_audited(record)):
            if task is not None and not task.state.is_final:  # the task ends the replay, with its counts
                await self._tasks.cancel(context, task.id)
                return record
            return await self._store.end(record.key, ReplayState.CANCELLED) or record


def _with_run(record: ReplayRecord) -> ReplayRecord:
    return record if record.state.is_final else msgspec.structs.replace(record, is_run_wanted=True, note=None)


def _audited(record: ReplayRecord) -> dict[str, object]:
    return {
        "from": record.origin,
        "reason": record.reason,
        "selection": record.wanted,
        "queue": record.queue,
        "dryRun": record.is_dry_run,
        "counts": msgspec.to_builtins(record.counts),
    }
