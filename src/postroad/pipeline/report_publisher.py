"""Computes the reports that a batch affects, and publishes them.

Snapshots are published after every batch. The minutes, hours and days of a report are published together, from the same batch, so
that a table of the day agrees with its chart. Hours and days are sums over many rows, so this happens only from time to time: for
at most a twentieth of the time, or a third while reports are being read.
"""

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.api.insights import Grain
from postroad.pipeline import session_states
from postroad.pipeline.delta_table import DataFile
from postroad.pipeline.jetstream import Engine
from postroad.pipeline.lake import Lake
from postroad.pipeline.messages import OutgoingMessage
from postroad.pipeline.report_messages import report_messages
from postroad.pipeline.reports import ReportSettings, computed_reports
from postroad.pipeline.rollups import floored, merge, millis_of

_COARSE = (Grain.HOUR, Grain.DAY)
_PAUSE_FACTOR = 20  # of the time that the last publication of time reports took
_REQUESTED_PAUSE_FACTOR = 2
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


def affected_by(measures: Any) -> AffectedRange:
    """By rollups (`MEASURES`)."""
    hours = millis_of(floored(measures.column("minute"), _HOUR_MS // 1000))
    return AffectedRange(frozenset(pc.unique(measures.column("tenant")).to_pylist()), frozenset(pc.unique(hours).to_pylist()))


class ReportPublisher:
    """Publishes the reports with these names, and requests to clean up sessions if `has_cleanups`."""

    def __init__(
        self, lake: Lake, engine: Engine, names: Collection[str], settings: ReportSettings, *, has_cleanups: bool
    ) -> None:
        self._lake, self._engine, self._has_cleanups = lake, engine, has_cleanups
        chosen = [one for one in computed_reports(settings) if one.report.name in names]
        self._time_reports = [one for one in chosen if not one.report.is_snapshot]
        self._snapshots = [one for one in chosen if one.report.is_snapshot]
        self._deferred = NOTHING  # whose time reports are not published yet
        self._due = self._requested_due = 0.0

    @property
    def has_deferred(self) -> bool:
        return bool(self._deferred.hours)

    def resume(self) -> None:
        """Schedule the reports of recent batches: a driver that died may not have published them."""
        recent = [file for file in self._lake.files("rollups") if file.batch >= 0]
        if recent:
            self._deferred = affected_by(self._lake.read_rollups(recent))

    def defer(self, affected: AffectedRange) -> None:
        self._deferred |= affected

    def publish(
        self, batch: int, affected: AffectedRange, now: datetime, *, everything: bool = False, is_requested: bool = False
    ) -> int:
        """Publish the affected reports, those over time only if they are due or with `everything`; they are due earlier if they
        are being read. Idempotent. Returns the number of messages."""
        self._deferred |= affected
        begun = time.monotonic()
        is_due = self.has_deferred and (everything or begun >= (self._requested_due if is_requested else self._due))
        messages: list[OutgoingMessage] = []
        if is_due:
            messages += self._time_messages(batch, self._deferred, now)
        messages += self._snapshot_messages(batch, now)
        if self._has_cleanups and (is_due or everything):
            messages += self._session_cleanups(now)
        self._engine.publish(messages)
        if is_due:
            self._deferred = NOTHING
            ended = time.monotonic()
            self._due = ended + _PAUSE_FACTOR * (ended - begun)
            self._requested_due = ended + _REQUESTED_PAUSE_FACTOR * (ended - begun)
        return len(messages)

    def _time_messages(self, batch: int, affected: AffectedRange, now: datetime) -> list[OutgoingMessage]:
        rollups = merge(self._of_tenants(self._lake.table("rollups").files_of_days(affected.days), affected.tenants))
        hours = millis_of(floored(rollups.column("minute"), _HOUR_MS // 1000))
        of_hours = rollups.filter(pc.is_in(hours, pa.array(list(affected.hours), pa.int64())))
        chosen = [(Grain.MINUTE, of_hours), *((grain, rollups) for grain in _COARSE)]
        return [
            message
            for one in self._time_reports
            for grain, some in chosen
            for message in report_messages(one.rows(some, grain), one.report, grain, batch, now)
        ]

    def _of_tenants(self, files: Iterable[DataFile], tenants: frozenset[str]) -> Any:
        rollups = self._lake.read_rollups(files)
        return rollups.filter(pc.is_in(rollups.column("tenant"), pa.array(list(tenants), pa.string())))

    def _snapshot_messages(self, batch: int, now: datetime) -> list[OutgoingMessage]:
        found: list[OutgoingMessage] = []
        for one in self._snapshots:
            look_back = (one.report.look_back or timedelta()) + timedelta(minutes=1)  # a rollup has the start of its minute
            since = int((now - look_back).timestamp() * 1000)
            files = [file for file in self._lake.files("rollups") if file.last >= since]
            if files:
                rows = one.rows(self._lake.read_rollups(files), now)
                found += report_messages(rows, one.report, None, batch, now)
        return found

    def _session_cleanups(self, now: datetime) -> list[OutgoingMessage]:
        """Requests to check sessions that seem to have expired. They are repeated for two days, in case the service does not know
        the session either."""
        since = (now - _CLEANUP_DAYS).strftime("%Y-%m-%d")
        tables = self._lake.read_files("sessions", [file for file in self._lake.files("sessions") if file.day >= since])
        if not tables:
            return []
        return session_states.cleanup_messages(session_states.merge(pa.concat_tables(tables)), now)
