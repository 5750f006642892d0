"""The pipeline as a process: micro-batches until it is told to stop, daily work in between, and word of how far it is.

Spark's checkpoint owns the position, the lake's manifest says which batches are in, and the results are told after that. So the
driver may die at any moment: the batch that it was at is begun again, or found done and only told of again.
"""

import fcntl
import json
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from postroad.kernel.clock import rfc3339
from postroad.pipeline import rollups
from postroad.pipeline.files import LocalFiles
from postroad.pipeline.ingest import SOURCES, BatchResult, Ingest
from postroad.pipeline.jetstream import Engine, JetStreamError
from postroad.pipeline.lake import Counts, Lake, Manifest, of_days, with_staged
from postroad.pipeline.maintenance import History, Upkeep, tables
from postroad.pipeline.report_publisher import AffectedRange, Answers
from postroad.pipeline.schemas import events_schema

JOBS = ("ingest", "latency", "usage", "dead_letters", "sessions", "queue_health", "job_history", "compact")
_REPORT_OF = {
    "latency": "latency",
    "usage": "usage",
    "dead_letters": "dead-letters",
    "sessions": "sessions",
    "queue_health": "health",
}
STATUS_SUBJECT = "insight._platform.pipeline.now.all"
_MESSAGES_MAX = 20_000  # of each stream in a batch: frames, each of up to a thousand events
_UPKEEP_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Progress:
    """What one batch came to. `lag` is how many messages of each stream are not in the lake yet; `to_silver` how many of the
    seconds went by until its events were written, before they were added up and told of."""

    batch: int
    counts: Counts
    totals: Counts
    positions: dict[str, int]
    lag: dict[str, int]
    seconds: float
    to_silver: float

    def line(self) -> str:
        """For people."""
        bad = sum(self.counts.quarantined.values())
        notes = [
            f"{count} {what}"
            for count, what in ((self.counts.duplicates, "twice"), (self.counts.late, "late"), (bad, "bad"))
            if count
        ]
        more = f" ({', '.join(notes)})" if notes else ""
        return (
            f"batch {self.batch}: {self.counts.messages} messages, {self.counts.events} events{more}, "
            f"lag {sum(self.lag.values())}, {self.seconds:.1f} s"
        )


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """How the pipeline is to run."""

    jobs: Collection[str] = JOBS
    period_seconds: float = 10.0
    bronze_days: int = 30
    days: int = 400
    messages_max: int = _MESSAGES_MAX
    tell: Callable[[Progress], None] = field(default=lambda _: None)
    now: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))

    def has(self, job: str) -> bool:
        return job in self.jobs

    @property
    def reports(self) -> set[str]:
        """By the names under which they are told. The backlog is a queue's health over time."""
        chosen = {_REPORT_OF[job] for job in self.jobs if job in _REPORT_OF}
        return chosen | {"backlog"} if "health" in chosen else chosen


class LakeBusy(Exception):
    """Another pipeline on this machine has the lake."""


class Pipeline:
    def __init__(self, lake: Lake, engine: Engine, wishes: PipelineConfig) -> None:
        self._lake, self._engine, self._wishes = lake, engine, wishes
        self._ingest = Ingest(lake)
        self._answers = Answers(lake, engine, wishes.reports)
        self._upkeep = Upkeep(lake, tables(wishes.bronze_days, wishes.days))
        self._history = History(lake)
        self._upkeep_due = time.monotonic() + _UPKEEP_SECONDS
        self._is_once = False

    def run(self, stop: threading.Event) -> None:
        """A batch every so often, until `stop` is set. Raises what ended the query."""
        with held(self._lake):
            self._answers.resume(self._lake.manifest())
            query = self._stream().trigger(processingTime=f"{self._wishes.period_seconds} seconds").start()
            try:
                while not stop.wait(0.2):
                    if not query.isActive:
                        query.awaitTermination()  # says why
                        raise RuntimeError("the query ended by itself")
            finally:
                self._lake.spark.sparkContext.setLogLevel("OFF")  # a batch that is broken off complains, and is done again
                query.stop()

    def run_once(self) -> None:
        """All that is there now, with everything that follows from it; then it is over."""
        self._is_once = True
        with held(self._lake):
            self._answers.resume(self._lake.manifest())
            query = self._stream().trigger(availableNow=True).start()
            query.awaitTermination()
            self._answers.tell_owed(self._lake.manifest(), self._wishes.now())
            self._look_after_the_lake()

    def _stream(self) -> Any:
        frame = self._engine.follow(self._lake.spark, SOURCES, messages_max=self._wishes.messages_max)
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", self._lake.checkpoint)
        return writer.queryName("postroad")

    def _take(self, frame: DataFrame, batch: int) -> None:
        begun = time.monotonic()
        taken = self._ingest.take(frame, self._checkpoint_id(), batch)
        self._answer(taken)
        self._tell(taken, begun)
        if not self._is_once and time.monotonic() >= self._upkeep_due:
            self._look_after_the_lake()
            self._upkeep_due = time.monotonic() + _UPKEEP_SECONDS

    def _checkpoint_id(self) -> str:
        """Spark gives each checkpoint an id, which stays when the driver starts again."""
        text = self._lake.files.read("checkpoint/metadata")
        return str(json.loads(text)["id"]) if text else ""

    def _answer(self, taken: BatchResult) -> None:
        touched = self._answers.touched(taken.manifest, taken.batch)
        if self._is_once:  # who catches up is asked for the results when it is done
            self._answers.owe(touched)
        else:
            self._answers.tell(taken.manifest, taken.batch, touched, self._wishes.now())

    def _tell(self, taken: BatchResult, begun: float) -> None:
        positions = taken.manifest.positions
        lag = lags(self._engine, positions)
        seconds = time.monotonic() - begun
        progress = Progress(taken.batch, taken.counts, taken.manifest.counts, positions, lag, seconds, taken.to_silver)
        self._wishes.tell(progress)
        now = int(self._wishes.now().timestamp() * 1000)
        self._engine.tell(
            STATUS_SUBJECT, status_body(progress, now, self._wishes.period_seconds), f"pipeline:{taken.batch}:{now}"
        )

    def _look_after_the_lake(self) -> None:
        now = self._wishes.now()
        if self._wishes.has("job_history"):
            for day in self._history.due(self._lake.manifest(), now):
                self._engine.send(self._history.compute(day))
                self._history.is_done(day)
        if self._wishes.has("compact"):
            self._upkeep.compact(now.date())
            self._upkeep.forget(now.date())
            self._lake.sweep()

    def backfill(self, days: Collection[date], tell: Callable[[str], None]) -> None:
        """Work out anew, from the events, what was told of these days, and tell it again. Raises LakeBusy."""
        with held(self._lake):
            for day in sorted(days):
                manifest = self._measure_again(day)
                hours = frozenset(_start_of(day) + number * 3_600_000 for number in range(24))
                tenants = self._tenants_of(manifest, day)
                batch = max(manifest.batches.values(), default=0)
                self._answers.tell(manifest, batch, AffectedRange(tenants, hours), self._wishes.now(), everything=True)
                if self._wishes.has("job_history") and day < self._wishes.now().date():
                    self._engine.send(self._history.compute(day))
                tell(f"{day}: {len(tenants)} tenants told")

    def _measure_again(self, day: date) -> Manifest:
        manifest = self._lake.manifest()
        entries = of_days(manifest.entries("events"), {day.isoformat()})
        old = {entry.path for entry in of_days(manifest.entries("rollups"), {day.isoformat()})}
        if not entries:
            return manifest
        measured = rollups.measures(self._lake.read("events", events_schema(), entries))
        folder = self._lake.folder(f"rollups-{day.isoformat()}")
        self._lake.write(measured.withColumn("day", F.date_format("minute", "yyyy-MM-dd")).coalesce(1), folder, "day")
        staged = self._lake.stage("rollups", folder, (_start_of(day), _start_of(day + timedelta(days=1)) - 1))
        return self._lake.commit(manifest, with_staged(manifest, [staged], without={"rollups": old}))

    def _tenants_of(self, manifest: Manifest, day: date) -> frozenset[str]:
        entries = of_days(manifest.entries("rollups"), {day.isoformat()})
        rows = self._lake.read("rollups", rollups.ROLLUPS, entries).select("tenant").distinct().collect()
        return frozenset(row["tenant"] for row in rows)


@contextmanager
def held(lake: Lake) -> Iterator[None]:
    """One pipeline at a time, as far as this machine can see; elsewhere the manifests tell. Raises LakeBusy."""
    if not isinstance(lake.files, LocalFiles):
        yield
        return
    with (lake.files.root / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise LakeBusy(f"another pipeline has {lake.root}: stop it first, or let it do the work") from exc
        yield


def lags(engine: Engine, positions: dict[str, int]) -> dict[str, int]:
    try:
        last = engine.last_sequences(SOURCES)
    except JetStreamError:
        return {}
    return {stream: max(0, sequence - positions.get(stream, 0)) for stream, sequence in last.items()}


def status_body(progress: Progress, now: int, period_seconds: float) -> dict[str, Any]:
    """As decision 0021 has it; `insights/pipeline.py` reads it."""
    rows = [
        {
            "stream": stream,
            "sequence": progress.positions.get(stream, 0),
            "lastSequence": progress.positions.get(stream, 0) + lag,
            "lag": lag,
        }
        for stream, lag in progress.lag.items()
    ]
    return {
        "v": 1,
        "report": "pipeline",
        "tenant": "_platform",
        "day": "now",
        "part": "all",
        "batch": progress.batch,
        "computedAt": rfc3339(now),
        "period": period_seconds,
        "rows": rows,
        "dropped": 0,
        "events": progress.counts.events,
        "seconds": round(progress.seconds, 3),
        "quarantined": progress.totals.quarantined,
        "late": progress.totals.late,
        "duplicates": progress.totals.duplicates,
    }


def _start_of(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000)
