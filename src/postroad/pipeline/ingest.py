"""Writes a batch to the lake: stored messages, their events, and the rollups of these, each exactly once (decision 0058).

A batch is one Spark job. Its tasks write files; the driver then commits them, table by table. The commits carry the number of the
batch, so that a batch that was interrupted between two of them is completed without repeating any.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]

from postroad.pipeline import session_states
from postroad.pipeline.delta_table import DataFile, batch_prefix, write_file
from postroad.pipeline.ingest_task import (
    AUDIT_STREAM,
    EventsFile,
    MessageRange,
    Place,
    ReplayRequest,
    TaskContext,
    TaskResult,
    by_day,
    find_events,
    ingest_ranges,
    ingest_stored,
    rewrite_without,
)
from postroad.pipeline.known_events import KnownEvents
from postroad.pipeline.lake import BATCH, Counts, Lake, position_key
from postroad.pipeline.rollups import NO_MEASURES, merge, stored_rollups
from postroad.pipeline.schemas import silver_tables
from postroad.telemetry.frames import STREAMS

SOURCES = (*STREAMS, AUDIT_STREAM)

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A batch in the lake, with its rollups (`MEASURES`); `to_silver` is the seconds until its events were written."""

    batch: int
    counts: Counts
    measures: Any
    to_silver: float
    is_quiet: bool  # its events are only samples
    replays: Sequence[ReplayRequest] = ()


class Ingest:
    def __init__(self, lake: Lake, options: Mapping[str, str]) -> None:
        self._lake, self._options = lake, options
        self._known = {name: KnownEvents(lake, name) for name in silver_tables()}

    def write(self, tasks: Sequence[Sequence[MessageRange]]) -> BatchResult:
        """Write the next batch: the messages of these ranges, by task. Raises OtherWriter."""
        begun = time.monotonic()
        context = self._context(self._lake.begun_batch + 1)
        results = self._run(partial(ingest_ranges, context=context), tasks)
        last: dict[str, int] = {}
        for one in (one for task in tasks for one in task):
            key = position_key(one.stream, one.created)
            last[key] = max(last.get(key, 0), one.last)
        self._lake.table("bronze").commit(_files(results, "bronze"), transactions={BATCH: context.batch, **last})
        return self._complete(context, results, begun)

    def resume(self) -> BatchResult | None:
        """Complete a batch that was interrupted after its messages were stored. Raises OtherWriter."""
        batch = self._lake.begun_batch
        if batch == self._lake.batch:
            return None
        begun, context = time.monotonic(), self._context(batch)
        paths = [file.path for file in self._lake.files("bronze") if file.batch == batch]
        return self._complete(context, self._run(partial(ingest_stored, context=context), paths), begun)

    def _context(self, batch: int) -> TaskContext:
        return TaskContext(self._lake.storage, self._options, batch)

    def _run(self, work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        """One Spark job, with a task for each item."""
        if not items:
            return []
        return list(self._lake.spark.sparkContext.parallelize(items, len(items)).map(work).collect())

    def _complete(self, context: TaskContext, results: Sequence[TaskResult], begun: float) -> BatchResult:
        found = [one for result in results for one in result.events]
        written = [one for name in self._known for one in self._each_once(context, name, found)]
        silver_at = time.monotonic()
        events = sum(one.file.rows for one in written)
        faults: dict[str, int] = {}
        for result in results:
            for reason, count in result.faults.items():
                faults[reason] = faults.get(reason, 0) + count
        counts = Counts(
            sum(result.messages for result in results),
            events,
            sum(one.file.rows for one in found) - events,
            sum(result.late for result in results),
            faults,
        )
        measured = merge(pa.concat_tables([NO_MEASURES, *(one.measures for one in written)]))
        for name in ("quarantine", "audit"):
            self._commit(context, name, _files(results, name))
        for name in self._known:
            self._commit(context, name, [one.file for one in written if one.table == name])
        self._commit(context, "sessions", self._session_files(context, written))
        totals = self._lake.counts().plus(counts).transactions()
        rollups = self._lake.table("rollups")
        stored = stored_rollups(measured, rollups.format.schema)
        rollups.commit(
            self._write_days(context, "rollups", by_day(stored, "minute")), transactions={BATCH: context.batch, **totals}
        )
        for name, known in self._known.items():
            known.remember(one for one in written if one.table == name)
        is_quiet = not any(result.active for result in results)
        replays = [one for result in results for one in result.replays]
        return BatchResult(context.batch, counts, measured, silver_at - begun, is_quiet, replays)

    def _commit(self, context: TaskContext, name: str, files: Sequence[DataFile]) -> None:
        table = self._lake.table(name)
        done = table.transaction(BATCH)
        if files and (done is None or done < context.batch):
            table.commit(files, transactions={BATCH: context.batch})

    def _session_files(self, context: TaskContext, written: Sequence[EventsFile]) -> list[DataFile]:
        states = session_states.merge(pa.concat_tables([one.states for one in written])) if written else None
        if states is None or not len(states):
            return []
        times = pa.array(states.column("last_at").to_pylist(), pa.timestamp("ms", tz="UTC"))
        days = by_day(states.append_column("at", times), "at")
        return self._write_days(context, "sessions", ((day, rows.drop_columns(["at"])) for day, rows in days))

    def _write_days(self, context: TaskContext, name: str, days: Iterable[tuple[str, Any]]) -> list[DataFile]:
        table = self._lake.table(name).format
        return [write_file(context.storage, table, day, rows, batch_prefix(context.batch)) for day, rows in days]

    def _each_once(self, context: TaskContext, name: str, every: Sequence[EventsFile]) -> list[EventsFile]:
        """The files of the table with each event once, as first stored. Nearly always they are those that were written."""
        written = [one for one in every if one.table == name]
        hashes, known = self._known[name].candidates(written, context.batch)
        if not len(hashes):
            return written
        paths = [one.file.path for one in written]
        found = self._run(partial(find_events, context=context, name=name, hashes=hashes), [*paths, *known])
        dropped = duplicates([one for some in found for one in some], set(known))
        kept = [one for one in written if one.file.path not in dropped]
        again = self._run(
            partial(_rewrite, context=context, name=name),
            [(one.file, dropped[one.file.path]) for one in written if one.file.path in dropped],
        )
        return [*kept, *(one for one in again if one is not None)]


def _rewrite(item: tuple[DataFile, list[Place]], context: TaskContext, name: str) -> EventsFile | None:
    return rewrite_without(item[0], context, name, item[1])


def _files(results: Sequence[TaskResult], name: str) -> list[DataFile]:
    return [file for result in results for file in result.files.get(name, ())]


def duplicates(found: Sequence[tuple[str, Place, str]], known: set[str]) -> dict[str, list[Place]]:
    """By file, the places of events to drop: of those with one id the first that was stored is kept, if no known file has it."""
    by_id: dict[str, list[tuple[Place, str]]] = {}
    for event_id, place, path in found:
        by_id.setdefault(event_id, []).append((place, path))
    dropped: dict[str, list[Place]] = {}
    for places in by_id.values():
        new = sorted(one for one in places if one[1] not in known)
        for place, path in new if len(new) < len(places) else new[1:]:
            dropped.setdefault(path, []).append(place)
    return dropped
