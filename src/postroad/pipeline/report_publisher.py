"""From rollups to what the service is told: the reports of the time that a batch was about, the queues' health, sessions to end.

Minutes and health are told after every batch. Hours and days are sums over much more, so they have their turn when they have not
been worked out for a while: for at most a twentieth of the time.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from postroad.pipeline import session_states
from postroad.pipeline.jetstream import Engine
from postroad.pipeline.lake import Entry, Lake, Manifest
from postroad.pipeline.reports import REPORTS, health, messages
from postroad.pipeline.rollups import ROLLUPS
from postroad.pipeline.spark_session import small_query_settings

_COARSE = ("hour", "day")
_COARSE_EVERY_SECONDS = 60.0
_SHARE = 20
_TENANTS_MAX = 500
_ASKED_FOR = timedelta(days=2)
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class AffectedRange:
    """Whose reports a batch has changed, and of which hours (their first milliseconds)."""

    tenants: frozenset[str]
    hours: frozenset[int]

    @property
    def days(self) -> frozenset[str]:
        return frozenset(datetime.fromtimestamp(hour / 1000, UTC).strftime("%Y-%m-%d") for hour in self.hours)

    def __or__(self, other: "AffectedRange") -> "AffectedRange":
        return AffectedRange(self.tenants | other.tenants, self.hours | other.hours)


NOTHING = AffectedRange(frozenset(), frozenset())


class Answers:
    def __init__(self, lake: Lake, engine: Engine, reports: Collection[str]) -> None:
        self._lake, self._engine = lake, engine
        self._reports = [report for name, report in REPORTS.items() if name in reports]
        self._has_health, self._has_sessions = health.NAME in reports, "sessions" in reports
        self._waiting = NOTHING  # what hours and days have still to be told of
        self._coarse_due = 0.0

    def resume(self, manifest: Manifest) -> None:
        """A driver that died may have owed hours and days of what its last batches were about."""
        self._waiting = self._touched_in([entry for entry in manifest.entries("rollups") if entry.batch >= 0])

    def owe(self, touched: AffectedRange) -> None:
        self._waiting |= touched

    def tell_owed(self, manifest: Manifest, now: datetime) -> None:
        """All that is owed, at once."""
        self.tell(manifest, max(manifest.batches.values(), default=0), self._waiting, now, everything=True)

    def touched(self, manifest: Manifest, batch: int) -> AffectedRange:
        return self._touched_in([entry for entry in manifest.entries("rollups") if entry.batch == batch])

    def _touched_in(self, entries: Sequence[Entry]) -> AffectedRange:
        if not entries:
            return NOTHING
        hour = (F.unix_millis("minute") - F.unix_millis("minute") % _HOUR_MS).alias("hour")
        with small_query_settings(self._lake.spark):
            rows = self._lake.read("rollups", ROLLUPS, entries).select("tenant", hour).distinct().collect()
        return AffectedRange(frozenset(row["tenant"] for row in rows), frozenset(row["hour"] for row in rows))

    def tell(self, manifest: Manifest, batch: int, touched: AffectedRange, now: datetime, *, everything: bool = False) -> int:
        """Returns how many kinds of results were told. Told again, the results are the same or newer."""
        with small_query_settings(self._lake.spark):
            return self._tell(manifest, batch, touched, now, everything=everything)

    def _tell(self, manifest: Manifest, batch: int, touched: AffectedRange, now: datetime, *, everything: bool) -> int:
        self._waiting |= touched
        parts = self._of_minutes(manifest, batch, touched, now)
        begun = time.monotonic()
        is_coarse = bool(self._waiting.hours) and (everything or begun >= self._coarse_due)
        if is_coarse:
            parts += self._of_hours_and_days(manifest, batch, self._waiting, now)
        if self._has_health:
            parts += self._of_health(manifest, batch, now)
        if self._has_sessions and (is_coarse or everything):
            parts += self._of_sessions(manifest, now)
        if parts:
            self._engine.send(reduce(DataFrame.unionByName, parts).coalesce(2))
        if is_coarse:
            self._waiting = NOTHING
            took = time.monotonic() - begun
            self._coarse_due = time.monotonic() + max(_COARSE_EVERY_SECONDS, _SHARE * took)
        return len(parts)

    def _of_minutes(self, manifest: Manifest, batch: int, touched: AffectedRange, now: datetime) -> list[DataFrame]:
        if not touched.hours:
            return []
        entries = [
            entry
            for entry in manifest.entries("rollups")
            if any(entry.overlaps(hour, hour + _HOUR_MS - 1) for hour in touched.hours)
        ]
        rollups = self._rollups(entries, touched)
        hour = F.unix_millis("minute") - F.unix_millis("minute") % _HOUR_MS
        return self._messages(rollups.where(hour.isin(*touched.hours)), ("minute",), batch, now)

    def _of_hours_and_days(self, manifest: Manifest, batch: int, touched: AffectedRange, now: datetime) -> list[DataFrame]:
        entries = [entry for entry in manifest.entries("rollups") if entry.day in touched.days]
        return self._messages(self._rollups(entries, touched), _COARSE, batch, now)

    def _of_health(self, manifest: Manifest, batch: int, now: datetime) -> list[DataFrame]:
        since = int((now - health.LOOK_BACK - timedelta(minutes=1)).timestamp() * 1000)
        entries = [entry for entry in manifest.entries("rollups") if entry.last >= since]
        if not entries:
            return []
        rows = health.rows(self._lake.read("rollups", ROLLUPS, entries), now)
        return [messages(rows, health.NAME, "all", batch, now)]

    def _of_sessions(self, manifest: Manifest, now: datetime) -> list[DataFrame]:
        """Sessions that should be over and of whose end nothing was heard: the service is asked to look at them. One that it
        knows nothing of either is asked about for two days."""
        since = (now - _ASKED_FOR).strftime("%Y-%m-%d")
        entries = [entry for entry in manifest.entries("sessions") if entry.day >= since]
        if not entries:
            return []
        states = session_states.merge(self._lake.read("sessions", session_states.STATES, entries))
        return [session_states.overdue(states, now)]

    def _rollups(self, entries: Sequence[Entry], touched: AffectedRange) -> DataFrame:
        rollups = self._lake.read("rollups", ROLLUPS, entries)
        if len(touched.tenants) <= _TENANTS_MAX:
            rollups = rollups.where(F.col("tenant").isin(*touched.tenants))
        return rollups

    def _messages(self, rollups: DataFrame, grains: Sequence[str], batch: int, now: datetime) -> list[DataFrame]:
        return [
            messages(report.rows(rollups, grain), report.name, grain, batch, now)
            for report in self._reports
            for grain in grains
            if grain in report.grains
        ]
