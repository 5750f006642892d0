"""Computes the reports that a batch affects, and publishes them.

Snapshots are published after every batch. The minutes, hours and days of a report are published together, from the same batch, so
that a table of the day agrees with its chart. Hours and days are sums over many rows, so this happens only from time to time: for
at most a twentieth of the time.
"""

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from postroad.api.insights import Grain
from postroad.pipeline import session_states
from postroad.pipeline.jetstream import Engine
from postroad.pipeline.lake import Entry, Lake, Manifest
from postroad.pipeline.report_messages import report_messages
from postroad.pipeline.reports import spark_reports
from postroad.pipeline.rollups import ROLLUPS
from postroad.pipeline.spark_session import small_query_settings

_COARSE = (Grain.HOUR, Grain.DAY)
_PAUSE_SECONDS = 10.0  # at least, between two publications of time reports
_PAUSE_FACTOR = 20  # of the time that the last one took
_TENANTS_MAX = 500
_CLEANUP_DAYS = timedelta(days=2)
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class AffectedRange:
    """Tenants and hours (their first milliseconds) whose reports a batch has changed."""

    tenants: frozenset[str]
    hours: frozenset[int]

    @property
    def days(self) -> frozenset[str]:
        return frozenset(datetime.fromtimestamp(hour / 1000, UTC).strftime("%Y-%m-%d") for hour in self.hours)

    def __or__(self, other: "AffectedRange") -> "AffectedRange":
        return AffectedRange(self.tenants | other.tenants, self.hours | other.hours)


NOTHING = AffectedRange(frozenset(), frozenset())


class ReportPublisher:
    """Publishes the reports with these names, and requests to clean up sessions if `has_cleanups`."""

    def __init__(self, lake: Lake, engine: Engine, names: Collection[str], *, has_cleanups: bool) -> None:
        self._lake, self._engine, self._has_cleanups = lake, engine, has_cleanups
        chosen = [one for one in spark_reports() if one.report.name in names]
        self._time_reports = [one for one in chosen if not one.report.is_snapshot]
        self._snapshots = [one for one in chosen if one.report.is_snapshot]
        self._deferred = NOTHING  # whose time reports are not published yet
        self._due = 0.0

    def resume(self, manifest: Manifest) -> None:
        """Schedule the reports of recent batches: a driver that died may not have published them."""
        self._deferred = self._affected_by([entry for entry in manifest.entries("rollups") if entry.batch >= 0])

    def defer(self, affected: AffectedRange) -> None:
        self._deferred |= affected

    def publish_deferred(self, manifest: Manifest, now: datetime) -> None:
        self.publish(manifest, max(manifest.batches.values(), default=0), self._deferred, now, everything=True)

    def affected(self, manifest: Manifest, batch: int) -> AffectedRange:
        return self._affected_by([entry for entry in manifest.entries("rollups") if entry.batch == batch])

    def _affected_by(self, entries: Sequence[Entry]) -> AffectedRange:
        if not entries:
            return NOTHING
        hour = (F.unix_millis("minute") - F.unix_millis("minute") % _HOUR_MS).alias("hour")
        with small_query_settings(self._lake.spark):
            rows = self._lake.read("rollups", ROLLUPS, entries).select("tenant", hour).distinct().collect()
        return AffectedRange(frozenset(row["tenant"] for row in rows), frozenset(row["hour"] for row in rows))

    def publish(self, manifest: Manifest, batch: int, affected: AffectedRange, now: datetime, *, everything: bool = False) -> int:
        """Publish the affected reports, those over time only if they are due or with `everything`. Returns the number of queries.
        Idempotent."""
        with small_query_settings(self._lake.spark):
            return self._publish(manifest, batch, affected, now, everything=everything)

    def _publish(self, manifest: Manifest, batch: int, affected: AffectedRange, now: datetime, *, everything: bool) -> int:
        self._deferred |= affected
        begun = time.monotonic()
        is_due = bool(self._deferred.hours) and (everything or begun >= self._due)
        parts: list[DataFrame] = []
        if is_due:
            parts += self._minutes(manifest, batch, self._deferred, now)
            parts += self._hours_and_days(manifest, batch, self._deferred, now)
        parts += self._snapshot_messages(manifest, batch, now)
        if self._has_cleanups and (is_due or everything):
            parts += self._session_cleanups(manifest, now)
        if parts:
            self._engine.write(reduce(DataFrame.unionByName, parts).coalesce(2))
        if is_due:
            self._deferred = NOTHING
            ended = time.monotonic()
            self._due = ended + max(_PAUSE_SECONDS, _PAUSE_FACTOR * (ended - begun))
        return len(parts)

    def _minutes(self, manifest: Manifest, batch: int, affected: AffectedRange, now: datetime) -> list[DataFrame]:
        entries = [
            entry
            for entry in manifest.entries("rollups")
            if any(entry.overlaps(hour, hour + _HOUR_MS - 1) for hour in affected.hours)
        ]
        rollups = self._rollups(entries, affected)
        hour = F.unix_millis("minute") - F.unix_millis("minute") % _HOUR_MS
        return self._time_messages(rollups.where(hour.isin(*affected.hours)), (Grain.MINUTE,), batch, now)

    def _hours_and_days(self, manifest: Manifest, batch: int, affected: AffectedRange, now: datetime) -> list[DataFrame]:
        entries = [entry for entry in manifest.entries("rollups") if entry.day in affected.days]
        return self._time_messages(self._rollups(entries, affected), _COARSE, batch, now)

    def _snapshot_messages(self, manifest: Manifest, batch: int, now: datetime) -> list[DataFrame]:
        found = []
        for one in self._snapshots:
            look_back = (one.report.look_back or timedelta()) + timedelta(minutes=1)  # a rollup has the start of its minute
            since = int((now - look_back).timestamp() * 1000)
            entries = [entry for entry in manifest.entries("rollups") if entry.last >= since]
            if entries:
                rows = one.rows(self._lake.read("rollups", ROLLUPS, entries), now)
                found.append(report_messages(rows, one.report, None, batch, now))
        return found

    def _session_cleanups(self, manifest: Manifest, now: datetime) -> list[DataFrame]:
        """Requests to check sessions that seem to have expired. They are repeated for two days, in case the service does not know
        the session either."""
        since = (now - _CLEANUP_DAYS).strftime("%Y-%m-%d")
        entries = [entry for entry in manifest.entries("sessions") if entry.day >= since]
        if not entries:
            return []
        states = session_states.merge(self._lake.read("sessions", session_states.STATES, entries))
        return [session_states.cleanup_messages(states, now)]

    def _rollups(self, entries: Sequence[Entry], affected: AffectedRange) -> DataFrame:
        rollups = self._lake.read("rollups", ROLLUPS, entries)
        if len(affected.tenants) <= _TENANTS_MAX:
            rollups = rollups.where(F.col("tenant").isin(*affected.tenants))
        return rollups

    def _time_messages(self, rollups: DataFrame, grains: Iterable[Grain], batch: int, now: datetime) -> list[DataFrame]:
        return [
            report_messages(one.rows(rollups, grain), one.report, grain, batch, now)
            for one in self._time_reports
            for grain in grains
        ]
