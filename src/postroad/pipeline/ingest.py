"""Writes a micro-batch to the lake: stored messages, their events, and the rollups of these, atomically.

The folders of a batch are written first; one manifest then adds all of them. A batch that is in the manifest is complete, so that
it counts once even if the driver dies (decision 0021).
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from postroad.pipeline import session_states
from postroad.pipeline.events import BAD, EVENT, audit_entries, parsed_lines, without_duplicates
from postroad.pipeline.lake import Counts, Entry, Lake, Manifest, Staged, with_staged
from postroad.pipeline.measures import measures
from postroad.pipeline.schemas import BRONZE, QUARANTINE, events_schema

_REPEATED_MS = 120_000  # an ack that is repeated after a lost response repeats its event with a new time

SOURCES = ("JOBS", "TELEMETRY", "AUDIT")


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A batch in the lake. `is_new` is false if it was complete before; `to_silver` is the seconds until events were written."""

    manifest: Manifest
    batch: int
    counts: Counts
    is_new: bool
    to_silver: float = 0.0


@dataclass(frozen=True, slots=True)
class _Written:
    staged: list[Staged]
    counts: Counts
    silver_at: float = 0.0


class Ingest:
    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def write(self, frame: DataFrame, checkpoint: str, batch: int) -> BatchResult:
        """Write the batch with this number of the checkpoint with this id. Raises OtherWriter."""
        begun = time.monotonic()
        manifest = self._lake.manifest()
        if manifest.has(checkpoint, batch):
            return BatchResult(manifest, batch, Counts(), is_new=False)
        folder = self._lake.folder(f"b{batch:08d}")
        seen = self._store(frame, folder, manifest.positions, batch)
        positions = {**manifest.positions, **{stream: last for stream in SOURCES if (last := seen[stream]) is not None}}
        done = replace(manifest, batches={**manifest.batches, checkpoint: batch}, positions=positions)
        counts = Counts(messages=seen["messages"])
        staged: list[Staged] = []
        silver_at = begun
        if counts.messages:
            staged.append(self._lake.stage("bronze", f"{folder}/bronze", _span(seen), batch))
            written = self._refine(folder, manifest, seen, batch)
            staged += written.staged
            counts = counts.plus(written.counts)
            silver_at = max(begun, written.silver_at)
        after = replace(with_staged(done, staged), counts=manifest.counts.plus(counts))
        return BatchResult(self._lake.commit(manifest, after), batch, counts, is_new=True, to_silver=silver_at - begun)

    def _store(self, frame: DataFrame, folder: str, positions: dict[str, int], batch: int) -> dict[str, Any]:
        """Write the messages without those that are in the lake already: after a lost checkpoint they are read again."""
        is_known = F.lit(False)
        for stream, position in positions.items():
            is_known = is_known | ((F.col("stream") == stream) & (F.col("sequence") <= position))
        observed = Observation()
        fresh = frame.where(~is_known).observe(
            observed,
            F.count(F.lit(1)).alias("messages"),
            F.min("timestamp").alias("first"),
            F.max("timestamp").alias("last"),
            *(F.max(F.when(F.col("stream") == stream, F.col("sequence"))).alias(stream) for stream in SOURCES),
        )
        rows = fresh.withColumns({"batch_id": F.lit(batch).cast("long"), "day": F.date_format("timestamp", "yyyy-MM-dd")})
        self._lake.write(rows, f"{folder}/bronze", "day")
        return observed.get

    def _refine(self, folder: str, manifest: Manifest, seen: dict[str, Any], batch: int) -> _Written:
        messages = self._lake.read_folder(f"{folder}/bronze", BRONZE)
        staged: list[Staged] = []
        if seen["AUDIT"] is not None:
            self._lake.write(audit_entries(messages).coalesce(1), f"{folder}/audit", "day")
            staged.append(self._lake.stage("audit", f"{folder}/audit", _span(seen), batch))
        if seen["JOBS"] is None and seen["TELEMETRY"] is None:
            return _Written(staged, Counts())
        found = self._parse(messages, folder)
        faults: dict[str, int] = {}
        if found["bad"]:
            faults = self._faults(f"{folder}/lines/state={BAD}")
            staged.append(self._lake.stage("quarantine", f"{folder}/lines/state={BAD}", _span(seen), batch))
        if not found["good"]:
            return _Written(staged, Counts(quarantined=faults))
        span = _span(found)
        events_folder, duplicates = self._each_once(folder, found["good"], manifest.entries("events"), span)
        silver_at = time.monotonic()
        if duplicates < found["good"]:
            staged.append(self._lake.stage("events", events_folder, span, batch))
            staged += self._write_rollups(folder, events_folder, span, batch, has_sessions=found["sessions"] > 0)
        events = found["good"] - duplicates
        counts = Counts(events=events, duplicates=duplicates, late=found["late"], quarantined=faults)
        return _Written(staged, counts, silver_at)

    def _parse(self, messages: DataFrame, folder: str) -> dict[str, Any]:
        is_event = F.col("state") == EVENT
        observed = Observation()
        parsed = parsed_lines(messages).observe(
            observed,
            F.count_if(is_event).alias("good"),
            F.count_if(~is_event).alias("bad"),
            F.count_if("is_late").alias("late"),
            F.count_if(is_event & F.col("event").startswith("session.")).alias("sessions"),
            F.min(F.when(is_event, F.col("time"))).alias("first"),
            F.max(F.when(is_event, F.col("time"))).alias("last"),
        )
        ordered = parsed.sortWithinPartitions("state", "day", "event", "tenant")
        self._lake.write(ordered, f"{folder}/lines", "state", "day")
        return observed.get

    def _faults(self, folder: str) -> dict[str, int]:
        rows = self._lake.read_folder(folder, QUARANTINE).groupBy("fault").count().collect()
        return {row["fault"]: row["count"] for row in rows}

    def _each_once(self, folder: str, count: int, known: list[Entry], span: tuple[int, int]) -> tuple[str, int]:
        """The folder with each event once, and the number of duplicates. Nearly always there are none, and the folder of the
        parsed lines is that of the table."""
        written = f"{folder}/lines/state={EVENT}"
        events = self._lake.read_folder(written, events_schema())
        first, last = span[0] - _REPEATED_MS, span[1]
        seen = self._lake.read("events", events_schema(), [entry for entry in known if entry.overlaps(first, last)])
        seen = seen.where(F.col("time").between(F.timestamp_millis(F.lit(first)), F.timestamp_millis(F.lit(last))))
        ids = events.select(F.xxhash64("event_id").alias("id")).union(seen.select(F.xxhash64("event_id")))
        if not ids.groupBy("id").count().where("count > 1").limit(1).count():  # numbers are grouped faster than texts
            return written, 0
        observed = Observation()
        left = without_duplicates(events, seen).withColumn("day", F.date_format("time", "yyyy-MM-dd"))
        left = left.observe(observed, F.count(F.lit(1)).alias("left"))
        self._lake.write(left.sortWithinPartitions("day", "event", "tenant"), f"{folder}/events", "day")
        return f"{folder}/events", count - int(observed.get["left"])

    def _write_rollups(
        self, folder: str, events_folder: str, span: tuple[int, int], batch: int, *, has_sessions: bool
    ) -> list[Staged]:
        events = self._lake.read_folder(events_folder, events_schema())
        rollups = measures(events).withColumn("day", F.date_format("minute", "yyyy-MM-dd"))
        self._lake.write(rollups.coalesce(1), f"{folder}/rollups", "day")
        minute = (span[0] - span[0] % 60_000, span[1])  # a rollup has the start of its minute
        staged = [self._lake.stage("rollups", f"{folder}/rollups", minute, batch)]
        if has_sessions:
            states = session_states.states(events).withColumn("day", F.date_format(F.timestamp_millis("last_at"), "yyyy-MM-dd"))
            self._lake.write(states.coalesce(1), f"{folder}/sessions", "day")
            staged.append(self._lake.stage("sessions", f"{folder}/sessions", span, batch))
        return staged


def _span(seen: dict[str, Any]) -> tuple[int, int]:
    return _millis(seen["first"]), _millis(seen["last"]) + 1


def _millis(at: datetime) -> int:
    """Spark returns naive times in the local zone."""
    return int((at if at.tzinfo else at.astimezone(UTC)).timestamp() * 1000)
