"""Watches replays that wait: for the pipeline's selection, for a task, for the end of a task. For the control role's leader."""

import msgspec
import structlog

from postroad.api.replays import ReplayCounts, ReplayState
from postroad.api.tasks import TaskState
from postroad.contracts.replays import REPLAYS, SelectionEnd
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.kernel.clock import Clock
from postroad.replays.records import ReplayRecord
from postroad.replays.service import Replays
from postroad.replays.sources import read_message
from postroad.replays.store import ReplayStore

RESPONSE_MS = 120_000
NO_PIPELINE = "no pipeline has responded within two minutes; the replay keeps waiting. Check `postroad pipeline status`"
INCOMPLETE = "the pipeline has stopped in the middle of the selection; the replay keeps waiting. Check `postroad pipeline status`"
_TRUNCATED = "more commands match than the limit allows; the oldest are selected"
_CLEAN_EVERY = 300  # rounds

log = structlog.get_logger("postroad.replays")


class SelectionWatcher:
    def __init__(self, connection: Connection, store: ReplayStore, replays: Replays, clock: Clock) -> None:
        self._connection, self._store, self._replays, self._clock = connection, store, replays, clock
        self._round = 0

    async def run_once(self) -> None:
        """Raises EngineUnavailable."""
        for key in list(self._store.table.keys_under()):
            record = self._store.table.get(key)
            if record is None or record.state.is_final:
                continue
            if record.state is ReplayState.SELECTING:
                await self._check_selection(record)
            elif record.state is ReplayState.SELECTED:
                await self._replays.start_task(record)
            else:
                await self._check_task(record)
        self._round += 1
        if self._round % _CLEAN_EVERY == 1:
            await self._remove_orphans()

    async def _check_selection(self, record: ReplayRecord) -> None:
        """The last message of a complete selection is its end, also if the pipeline repeated it."""
        subject = REPLAYS.subject_of(tenant=record.tenant, replay=record.id)
        entry = await stream_reader.last(self._connection, REPLAYS.stream, subject)
        message = None if entry is None else read_message(entry.payload)
        if message is None or message.end is None:
            since_ms, note = (record.created_at_ms, NO_PIPELINE) if entry is None else (entry.at_ms, INCOMPLETE)
            if record.note != note and self._clock() - since_ms > RESPONSE_MS:
                await self._store.change(record.key, lambda found: msgspec.structs.replace(found, note=note))
            return
        end = message.end
        if end.error is not None:
            await self._store.end(record.key, ReplayState.FAILED, end.error[:500])
            return
        changed = await self._store.change(record.key, lambda found: _selected(found, end))
        if changed is not None:
            await self._replays.start_task(changed)

    async def _check_task(self, record: ReplayRecord) -> None:
        """End a replay whose task ended without it: it was cancelled while it was paused, or failed."""
        task = await self._replays.current_task_of(record)
        if task is not None and not task.state.is_final:
            return
        if task is not None and task.state is not TaskState.CANCELLED:
            await self._store.end(record.key, ReplayState.FAILED, task.error or "the task ended")
        else:
            await self._store.end(record.key, ReplayState.CANCELLED)

    async def _remove_orphans(self) -> None:
        """Remove selected commands without a replay that needs them: the pipeline answered late, or answered again."""
        page = await stream_reader.read(self._connection, REPLAYS.stream, REPLAYS.subjects, 1, 1)
        while page.entries:
            entry = page.entries[0]
            key = entry.subject.removeprefix(f"{REPLAYS.prefix}.")
            record = await self._store.table.fetch(key)
            if (record is None or record.state.is_final) and self._clock() - entry.at_ms > RESPONSE_MS:
                log.info("selection_removed", replay=key)
                await self._store.remove_messages(key)
            page = await stream_reader.read(self._connection, REPLAYS.stream, REPLAYS.subjects, entry.sequence + 1, 1)
            if record is not None and not record.state.is_final:
                return  # the rest is looked at when this replay has ended


def _selected(record: ReplayRecord, end: SelectionEnd) -> ReplayRecord:
    if record.state is not ReplayState.SELECTING:
        return record
    return msgspec.structs.replace(
        record,
        state=ReplayState.SELECTED,
        counts=ReplayCounts(selected=end.count, remaining=end.count),
        note=_TRUNCATED if end.is_truncated else None,
    )
