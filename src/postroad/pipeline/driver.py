"""The pipeline as a process: micro-batches, maintenance of the lake between them, and the pipeline's status.

Spark's checkpoint holds the position in the streams, the lake's manifest the completed batches; results are published after that.
The driver may therefore die at any moment: the batch is repeated, or found in the manifest, and its results are published again.
"""

import fcntl
import json
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from postroad.api.insights import SourceProgress
from postroad.api.reports import reports
from postroad.contracts.contract import VERSION
from postroad.contracts.pipeline_status import PIPELINE_PROGRESS, PipelineProgress
from postroad.kernel.clock import rfc3339
from postroad.pipeline.compaction import compact
from postroad.pipeline.files import LocalFiles
from postroad.pipeline.ingest import SOURCES, BatchResult, Ingest
from postroad.pipeline.jetstream import Engine, JetStreamError
from postroad.pipeline.job_archive import JobArchive
from postroad.pipeline.job_names import job_names
from postroad.pipeline.lake import Counts, Lake, Manifest, day_span, of_days, with_staged
from postroad.pipeline.measures import measures
from postroad.pipeline.report_publisher import AffectedRange, ReportPublisher
from postroad.pipeline.retention import drop_old_days
from postroad.pipeline.rollups import ROLLUPS
from postroad.pipeline.schemas import events_schema
from postroad.pipeline.spark_session import silence_errors
from postroad.pipeline.tables import table_policies

_MESSAGES_MAX = 20_000  # frames per stream and batch, each with up to a thousand events
_MAINTENANCE_SECONDS = 300.0
_HOUR_MS = 3_600_000


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
    bronze_days: int = 30
    days: int = 400
    messages_max: int = _MESSAGES_MAX
    on_progress: Callable[[BatchProgress], None] = field(default=lambda _: None)
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
        self._ingest = Ingest(lake)
        self._publisher = ReportPublisher(lake, engine, config.report_names, has_cleanups=config.has("sessions"))
        self._tables = table_policies(config.bronze_days, config.days)
        self._archive = JobArchive(lake)
        self._maintenance_due = time.monotonic() + _MAINTENANCE_SECONDS
        self._is_once = False

    def run(self, stop: threading.Event) -> None:
        """Run a batch in every period until `stop` is set. Raises the exception that ended the query, or LakeBusy."""
        with lake_lock(self._lake):
            self._publisher.resume(self._lake.manifest())
            query = self._stream().trigger(processingTime=f"{self._config.period_seconds} seconds").start()
            try:
                while not stop.wait(0.2):
                    if not query.isActive:
                        query.awaitTermination()  # raises the cause
                        raise RuntimeError("the query ended without an error")
            finally:
                silence_errors(self._lake.spark)  # an interrupted batch prints errors, and is repeated
                query.stop()

    def run_once(self) -> None:
        """Process everything available, publish all results, and return. Raises LakeBusy."""
        self._is_once = True
        with lake_lock(self._lake):
            self._publisher.resume(self._lake.manifest())
            query = self._stream().trigger(availableNow=True).start()
            query.awaitTermination()
            self._publisher.publish_deferred(self._lake.manifest(), self._config.now())
            self._maintain()

    def _stream(self) -> Any:
        frame = self._engine.read_stream(self._lake.spark, SOURCES, messages_max=self._config.messages_max)
        writer = frame.writeStream.foreachBatch(self._process).option("checkpointLocation", self._lake.checkpoint)
        return writer.queryName("postroad")

    def _process(self, frame: DataFrame, batch: int) -> None:
        begun = time.monotonic()
        result = self._ingest.write(frame, self._checkpoint_id(), batch)
        affected = self._publisher.affected(result.manifest, result.batch)
        if self._is_once:  # results are published once, at the end
            self._publisher.defer(affected)
        else:
            self._publisher.publish(result.manifest, result.batch, affected, self._config.now())
        self._report_progress(result, begun)
        if not self._is_once and time.monotonic() >= self._maintenance_due:
            self._maintain()
            self._maintenance_due = time.monotonic() + _MAINTENANCE_SECONDS

    def _checkpoint_id(self) -> str:
        """Spark's id of the checkpoint, which survives a restart."""
        text = self._lake.files.read("checkpoint/metadata")
        return str(json.loads(text)["id"]) if text else ""

    def _report_progress(self, result: BatchResult, begun: float) -> None:
        positions = result.manifest.positions
        lag = lags(self._engine, positions)
        seconds = time.monotonic() - begun
        progress = BatchProgress(result.batch, result.counts, result.manifest.counts, positions, lag, seconds, result.to_silver)
        self._config.on_progress(progress)
        now = int(self._config.now().timestamp() * 1000)
        body = progress_message(progress, now, self._config.period_seconds)
        message_id = PIPELINE_PROGRESS.message_id_of(batch=result.batch, at_ms=now)
        self._engine.publish(PIPELINE_PROGRESS.subject, body, message_id)

    def _maintain(self) -> None:
        now = self._config.now()
        if self._config.has("job_history"):
            for day in self._archive.due_days(self._lake.manifest(), now):
                self._engine.write(self._archive.compute(day))
                self._archive.mark_done(day)
        if self._config.has("compact"):
            compact(self._lake, self._tables, now.date())
            drop_old_days(self._lake, self._tables, now.date())
            self._lake.sweep()

    def backfill(self, days: Collection[date], echo: Callable[[str], None]) -> None:
        """Recompute the reports of these days from the events, and publish them. Raises LakeBusy."""
        with lake_lock(self._lake):
            for day in sorted(days):
                manifest = self._rebuild_rollups(day)
                first, _ = day_span(day.isoformat())
                hours = frozenset(first + number * _HOUR_MS for number in range(24))
                tenants = self._tenants_of(manifest, day)
                batch = max(manifest.batches.values(), default=0)
                self._publisher.publish(manifest, batch, AffectedRange(tenants, hours), self._config.now(), everything=True)
                if self._config.has("job_history") and day < self._config.now().date():
                    self._engine.write(self._archive.compute(day))
                echo(f"{day}: published reports of {len(tenants)} tenants")

    def _rebuild_rollups(self, day: date) -> Manifest:
        manifest, name = self._lake.manifest(), day.isoformat()
        entries = of_days(manifest.entries("events"), {name})
        old = {entry.path for entry in of_days(manifest.entries("rollups"), {name})}
        if not entries:
            return manifest
        measured = measures(self._lake.read("events", events_schema(), entries))
        folder = self._lake.folder(f"rollups-{name}")
        self._lake.write(measured.withColumn("day", F.date_format("minute", "yyyy-MM-dd")).coalesce(1), folder, "day")
        staged = self._lake.stage("rollups", folder, day_span(name))
        return self._lake.commit(manifest, with_staged(manifest, [staged], without={"rollups": old}))

    def _tenants_of(self, manifest: Manifest, day: date) -> frozenset[str]:
        entries = of_days(manifest.entries("rollups"), {day.isoformat()})
        rows = self._lake.read("rollups", ROLLUPS, entries).select("tenant").distinct().collect()
        return frozenset(row["tenant"] for row in rows)


@contextmanager
def lake_lock(lake: Lake) -> Iterator[None]:
    """Exclude other pipelines of this machine; those of other machines are detected by their manifests. Raises LakeBusy."""
    if not isinstance(lake.files, LocalFiles):
        yield
        return
    with (lake.files.root / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise LakeBusy(f"another pipeline uses {lake.root}: stop it first") from exc
        yield


def lags(engine: Engine, positions: dict[str, int]) -> dict[str, int]:
    try:
        last = engine.last_sequences(SOURCES)
    except JetStreamError:
        return {}
    return {stream: max(0, sequence - positions.get(stream, 0)) for stream, sequence in last.items()}


def progress_message(progress: BatchProgress, now: int, period_seconds: float) -> PipelineProgress:
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
        quarantined=progress.totals.quarantined,
        late=progress.totals.late,
        duplicates=progress.totals.duplicates,
    )
