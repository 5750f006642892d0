"""The pipeline as a process: micro-batches, maintenance of the lake between them, and the pipeline's status.

The lake's tables hold the positions in the streams and the completed batches; results are published after that. The driver may
therefore die at any moment: the batch is repeated or completed, and its results are published again.
"""

import fcntl
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path

from postroad.api.insights import SourceProgress
from postroad.api.reports import reports
from postroad.contracts.contract import VERSION
from postroad.contracts.pipeline_status import PIPELINE_PROGRESS, PipelineProgress
from postroad.kernel.clock import rfc3339
from postroad.pipeline.backfill import rebuild_rollups
from postroad.pipeline.batch_plan import plan_tasks, unread
from postroad.pipeline.batch_requests import listen
from postroad.pipeline.compaction import compact
from postroad.pipeline.erasure import erase_deleted_tenants
from postroad.pipeline.fairness_auditor import DEFAULT_AUDITOR, AuditorConfig, FairnessAuditor
from postroad.pipeline.ingest import SOURCES, BatchResult, Ingest
from postroad.pipeline.jetstream import Engine
from postroad.pipeline.job_archive import JobArchive
from postroad.pipeline.job_names import job_names
from postroad.pipeline.lake import Counts, Lake, day_span
from postroad.pipeline.messages import contract_message
from postroad.pipeline.migration import migrate
from postroad.pipeline.replay_selection import ReplaySelections
from postroad.pipeline.report_publisher import NOTHING, AffectedRange, ReportPublisher, affected_by
from postroad.pipeline.reports import DEFAULT_SETTINGS, ReportSettings
from postroad.pipeline.restored_engine import LakeAhead, RestoredEngine, follow_restore
from postroad.pipeline.retention import drop_old_days
from postroad.pipeline.spark_session import silence_errors
from postroad.pipeline.tables import table_policies
from postroad.pipeline.trigger import Trigger
from spark_jetstream.api import StreamInfo
from spark_jetstream.plan import SequenceRange

_MESSAGES_MAX = 20_000  # frames per stream and batch, each with up to a thousand events
_MAINTENANCE_SECONDS = 300.0
_STOP_SECONDS = 5.0
_HOUR_MS = 3_600_000
_REQUEST_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """Outcome of one batch. `lag` is the number of messages per stream that are not in the lake yet, `to_silver` the seconds
    until its events were written."""

    batch: int
    counts: Counts
    totals: Counts
    positions: dict[str, int]
    lag: dict[str, int]
    seconds: float
    to_silver: float

    def line(self) -> str:
        """A line of text for the operator."""
        invalid = sum(self.counts.quarantined.values())
        notes = [
            f"{count} {what}"
            for count, what in ((self.counts.duplicates, "duplicates"), (self.counts.late, "late"), (invalid, "quarantined"))
            if count
        ]
        more = f" ({', '.join(notes)})" if notes else ""
        return (
            f"batch {self.batch}: {self.counts.messages} messages, {self.counts.events} events{more}, "
            f"lag {sum(self.lag.values())}, {self.seconds:.1f} s"
        )


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    jobs: Collection[str] = field(default_factory=job_names)
    period_seconds: float = 10.0
    quiet_seconds: float = 60.0
    bronze_days: int = 30
    days: int = 400
    archive_days: int = 30
    report_settings: ReportSettings = DEFAULT_SETTINGS
    auditor: AuditorConfig = DEFAULT_AUDITOR
    messages_max: int = _MESSAGES_MAX
    on_progress: Callable[[BatchProgress], None] = field(default=lambda _: None)
    on_migrated: Callable[[str], None] = field(default=lambda _: None)
    on_ahead: Callable[[LakeAhead], None] = field(default=lambda _: None)
    now: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))

    def has(self, job: str) -> bool:
        return job in self.jobs

    @property
    def report_names(self) -> set[str]:
        return {report.name for report in reports() if report.job_name in self.jobs}


class LakeBusy(Exception):
    """Another pipeline on this machine uses the lake."""


class Pipeline:
    def __init__(self, lake: Lake, engine: Engine, config: PipelineConfig) -> None:
        self._lake, self._engine, self._config = lake, engine, config
        self._ingest = Ingest(lake, engine.options)
        self._publisher = ReportPublisher(
            lake, engine, config.report_names, config.report_settings, has_cleanups=config.has("sessions")
        )
        self._tables = table_policies(config.bronze_days, config.days, config.archive_days)
        self._archive = JobArchive(lake)
        self._auditor = FairnessAuditor(lake, engine, config.auditor)
        self._replays = ReplaySelections(lake, engine)
        self._trigger = Trigger(config.period_seconds, config.quiet_seconds)
        self._maintenance_due = time.monotonic() + _MAINTENANCE_SECONDS
        self._has_backlog = False  # the last batch did not reach the ends of the streams
        self._progress: BatchProgress | None = None  # of the last batch
        self._looked_at: datetime | None = None  # all events up to this time are in the lake
        self._fresh_until: datetime | None = None

    @property
    def fresh_until(self) -> datetime | None:
        """All events up to this time are in the published results."""
        return self._fresh_until

    def run(self, stop: threading.Event) -> None:
        """Run a batch in every period in which events arrive, until `stop` is set; a batch that runs then is interrupted, and
        completed at the next start. Raises LakeBusy, OtherWriter, JetStreamError."""
        failures: list[BaseException] = []

        def work() -> None:
            try:
                self._run_until(stop)
            except BaseException as problem:
                if not stop.is_set():
                    failures.append(problem)
            finally:
                stop.set()

        with lake_lock(self._lake):
            worker = threading.Thread(target=work, name="pipeline", daemon=True)
            worker.start()
            stop.wait()
            if failures:
                raise failures[0]
            silence_errors(self._lake.spark)
            self._lake.spark.sparkContext.cancelAllJobs()
            worker.join(_STOP_SECONDS)

    def _run_until(self, stop: threading.Event) -> None:
        self._open()
        listen(self._engine.options, self._trigger.request, stop)
        while not stop.is_set():
            self._run_due_batch()
            if time.monotonic() >= self._maintenance_due:
                self._maintain()
                self._maintenance_due = time.monotonic() + _MAINTENANCE_SECONDS
            self._pause(stop)

    def _pause(self, stop: threading.Event) -> None:
        """Until the next look at the streams; shorter if a request arrives meanwhile."""
        begun = time.monotonic()
        while (left := begun + self._trigger.pause - time.monotonic()) > 0:
            if stop.wait(min(left, _REQUEST_LOOK_SECONDS)):
                return

    def run_once(self) -> None:
        """Process everything available, publish all results, and return. Raises LakeBusy, OtherWriter, JetStreamError."""
        with lake_lock(self._lake):
            self._open()
            looked_at, end = self._config.now(), self._engine.streams(SOURCES)
            while ranges := unread(end, self._lake.position):
                self._run_batch(end, ranges, looked_at, is_last=False)
            self._publisher.publish(self._lake.batch, NOTHING, self._config.now(), everything=True)
            self._report_freshness()
            self._audit(self._config.now())
            self._maintain()

    def migrate(self) -> bool:
        """Convert a lake of the former format; returns false if there is none. Raises LakeBusy, LakeBroken."""
        with lake_lock(self._lake):
            return self._migrate()

    def _migrate(self) -> bool:
        is_migrated = migrate(self._lake, self._config.on_migrated)
        if is_migrated:  # the last results of the former version may not have been published
            days = sorted({file.day for file in self._lake.files("rollups")})[-2:]
            self._publisher.defer(affected_by(self._lake.read_rollups(self._lake.table("rollups").files_of_days(days))))
        return is_migrated

    def _open(self) -> None:
        """Complete what an earlier driver has left."""
        self._migrate()
        self._publisher.resume()
        result = self._ingest.resume()
        if result is not None:
            self._publisher.defer(affected_by(result.measures))
            self._report_progress(result, time.monotonic())
        self._follow_restore()
        if self._config.has("replay_selection"):
            self._replays.answer_missed(self._lake.batch)

    def _follow_restore(self) -> None:
        follow_restore(self._lake, self._engine, self._config.on_ahead, self._answer_replays_again)

    def _answer_replays_again(self, restored: RestoredEngine) -> None:
        if self._config.has("replay_selection"):
            self._replays.answer_again(restored, self._config.now(), self._lake.batch)

    def _audit(self, at: datetime) -> None:
        """All events up to this time are in the lake."""
        if self._config.has("fairness"):
            self._auditor.audit(at)

    def run_batch(self) -> None:
        """Process what is available, up to the limit of a batch, and publish all reports that it affects."""
        looked_at, infos = self._config.now(), self._engine.streams(SOURCES)
        self._run_batch(infos, unread(infos, self._lake.position), looked_at, is_last=False)
        self._publisher.publish(self._lake.batch, NOTHING, self._config.now(), everything=True)

    def _run_due_batch(self) -> None:
        looked_at, requests = self._config.now(), self._trigger.requests
        self._follow_restore()
        infos = self._engine.streams(SOURCES)
        ranges = unread(infos, self._lake.position)
        now = time.monotonic()
        has_more = self._has_backlog = any(len(one) > self._config.messages_max for one in ranges.values())
        if self._trigger.is_due({name: len(one) for name, one in ranges.items()}, now):
            result = self._run_batch(infos, ranges, looked_at, is_last=True)
            self._trigger.ran(now, is_quiet=result.is_quiet, has_more=has_more)
        elif self._publisher.has_deferred:
            self._publisher.publish(self._lake.batch, NOTHING, self._config.now(), is_requested=self._trigger.is_requested)
            self._report_freshness()
        self._trigger.answer(requests)
        if not has_more:
            self._audit(looked_at)

    def _run_batch(
        self, infos: Mapping[str, StreamInfo], ranges: Mapping[str, SequenceRange], looked_at: datetime, *, is_last: bool
    ) -> BatchResult:
        """`is_last`: publish its results now. `looked_at`: when the ends of the streams were read."""
        begun = time.monotonic()
        self._engine.sync()
        cores = self._lake.spark.sparkContext.defaultParallelism
        result = self._ingest.write(plan_tasks(ranges, infos, self._config.messages_max, cores))
        affected = affected_by(result.measures)
        if is_last:
            self._publisher.publish(result.batch, affected, self._config.now(), is_requested=self._trigger.is_requested)
        else:
            self._publisher.defer(affected)
        self._looked_at = looked_at
        self._report_progress(result, begun)
        if result.replays and self._config.has("replay_selection"):
            self._replays.answer(result.replays, result.batch)
        return result

    def _report_progress(self, result: BatchResult, begun: float) -> None:
        positions, lag = self._positions()
        seconds = time.monotonic() - begun
        progress = BatchProgress(result.batch, result.counts, self._lake.counts(), positions, lag, seconds, result.to_silver)
        self._config.on_progress(progress)
        self._progress = progress
        self._publish_progress(progress)

    def _report_freshness(self) -> None:
        """Results that were deferred are published now: say so, unless it was said with the last batch."""
        if self._progress is not None and self._looked_at is not None and self._fresh_until != self._looked_at:
            self._publish_progress(self._progress)

    def _publish_progress(self, progress: BatchProgress) -> None:
        if self._looked_at is not None and not self._publisher.has_deferred:
            self._fresh_until = self._looked_at
        now = int(self._config.now().timestamp() * 1000)
        is_complete = not self._publisher.has_deferred
        body = progress_message(progress, now, self._trigger.interval, self._fresh_until, is_complete=is_complete)
        self._engine.publish([contract_message(PIPELINE_PROGRESS, body, batch=progress.batch, at_ms=now)])

    def _positions(self) -> tuple[dict[str, int], dict[str, int]]:
        """By stream, the last sequence in the lake, and the number of messages after it."""
        infos = self._engine.streams(SOURCES)
        positions = {name: self._lake.position(name, info.created) for name, info in infos.items()}
        return positions, {name: max(0, info.last - positions[name]) for name, info in infos.items()}

    def _maintain(self) -> None:
        now = self._config.now()
        if self._config.has("job_history"):
            for day in self._archive.due_days(now):
                self._engine.write(self._archive.compute(day))
                self._archive.mark_done(day)
        if self._config.has("compact"):
            compact(self._lake, self._tables, now.date())
            drop_old_days(self._lake, self._tables, now.date())
            if not self._has_backlog:  # it may have older frames of a tenant whose deletion is in the lake already
                erase_deleted_tenants(self._lake, now.date())
            for name in self._lake.table_names:
                self._lake.table(name).maintain()

    def backfill(self, days: Collection[date], echo: Callable[[str], None]) -> None:
        """Recompute the reports of these days from the events, and publish them. Raises LakeBusy, OtherWriter."""
        with lake_lock(self._lake):
            self._open()
            for day in sorted(days):
                rebuild_rollups(self._lake, day.isoformat())
                first, _ = day_span(day.isoformat())
                hours = frozenset(first + number * _HOUR_MS for number in range(24))
                affected = affected_by(self._lake.read_rollups(self._lake.table("rollups").files_of_days({day.isoformat()})))
                self._publisher.publish(
                    max(self._lake.batch, 0), AffectedRange(affected.tenants, hours), self._config.now(), everything=True
                )
                if self._config.has("job_history") and day < self._config.now().date():
                    self._engine.write(self._archive.compute(day))
                echo(f"{day}: published reports of {len(affected.tenants)} tenants")


@contextmanager
def lake_lock(lake: Lake) -> Iterator[None]:
    """Exclude other pipelines of this machine; those of other machines are detected by their commits. Raises LakeBusy."""
    if not lake.storage.is_local:
        yield
        return
    with (Path(lake.storage.root) / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise LakeBusy(f"another pipeline uses {lake.root}: stop it first") from exc
        yield


def progress_message(
    progress: BatchProgress, now: int, period_seconds: float, fresh_until: datetime | None, *, is_complete: bool
) -> PipelineProgress:
    streams = [
        SourceProgress(
            stream=stream,
            sequence=progress.positions.get(stream, 0),
            last_sequence=progress.positions.get(stream, 0) + lag,
            lag=lag,
        )
        for stream, lag in progress.lag.items()
    ]
    return PipelineProgress(
        v=VERSION,
        batch=progress.batch,
        computed_at=rfc3339(now),
        period=period_seconds,
        rows=streams,
        events=progress.counts.events,
        seconds=round(progress.seconds, 3),
        quarantined=dict(progress.totals.quarantined),
        late=progress.totals.late,
        duplicates=progress.totals.duplicates,
        fresh_until=None if fresh_until is None else rfc3339(int(fresh_until.timestamp() * 1000)),
        is_complete=is_complete,
    )
