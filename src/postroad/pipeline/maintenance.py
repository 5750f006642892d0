"""What keeps the lake small and quick: few large files instead of many small ones, and nothing that is older than it should be.

The files of a day that is over become few, in order of tenant and event. Those of the present day are merged while they are many,
so that a reader never opens more than a few dozen. Rollups and sessions are added up on the way.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from msgspec.structs import replace
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from postroad.pipeline import job_archive, rollups, session_states
from postroad.pipeline.lake import Entry, Lake, Manifest, with_staged
from postroad.pipeline.schemas import AUDIT, BRONZE, QUARANTINE, events_schema

SMALL_ENTRIES_MAX = 30
_LARGE_BYTES = 128 * 1024 * 1024


def _as_it_is(frame: DataFrame) -> DataFrame:
    return frame


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """How a table is kept: its columns, what merging its files means, the order of its rows, how its rows tell their day, and how
    many days of it are kept."""

    schema: spark.StructType
    order: tuple[str, ...]
    day: str
    days: int
    merge: Callable[[DataFrame], DataFrame] = field(default=_as_it_is)


def tables(bronze_days: int, days: int) -> Mapping[str, TablePolicy]:
    from_time, from_stored, from_minute = (f"date_format({name}, 'yyyy-MM-dd')" for name in ("time", "timestamp", "minute"))
    from_last = "date_format(timestamp_millis(last_at), 'yyyy-MM-dd')"
    return {
        "bronze": TablePolicy(BRONZE, ("stream", "sequence"), from_stored, bronze_days),
        "events": TablePolicy(events_schema(), ("tenant", "event", "time"), from_time, days),
        "quarantine": TablePolicy(QUARANTINE, ("stream", "sequence", "line"), from_time, bronze_days),
        "audit": TablePolicy(AUDIT, ("tenant", "sequence"), from_time, days),
        "rollups": TablePolicy(rollups.ROLLUPS, ("report", "tenant", "minute"), from_minute, days, rollups.merge),
        "sessions": TablePolicy(session_states.STATES, ("tenant", "session_id"), from_last, 30, session_states.merge),
        "job_history": TablePolicy(job_archive.ENDED, ("tenant", "createdAt"), "ended_day", days),
    }


class Upkeep:
    def __init__(self, lake: Lake, kept: Mapping[str, TablePolicy]) -> None:
        self._lake, self._kept = lake, kept

    def compact(self, today: date, *, all_of_it: bool = False) -> int:
        """Merge what should be merged, a day of a table at a time. Returns how many folders less. Raises OtherWriter."""
        fewer = 0
        for table in self._kept:
            for day in sorted({entry.day for entry in self._lake.manifest().entries(table)}):
                fewer += self._compact_day(table, day, is_over=day < today.isoformat(), all_of_it=all_of_it)
        return fewer

    def _compact_day(self, table: str, day: str, *, is_over: bool, all_of_it: bool) -> int:
        manifest = self._lake.manifest()
        entries = [entry for entry in manifest.entries(table) if entry.day == day]
        small = [entry for entry in entries if entry.bytes < _LARGE_BYTES]
        if len(small) < 2 or not (is_over or all_of_it or len(small) > SMALL_ENTRIES_MAX):
            return 0
        self._rewrite(manifest, table, small)
        return len(small) - 1

    def _rewrite(self, manifest: Manifest, table: str, entries: list[Entry]) -> Manifest:
        kept = self._kept[table]
        merged = kept.merge(self._lake.read(table, kept.schema, entries)).withColumn("day", F.expr(kept.day))
        files = max(1, sum(entry.bytes for entry in entries) // _LARGE_BYTES)
        ordered = merged.repartitionByRange(int(files), *kept.order) if files > 1 else merged.coalesce(1)
        folder = self._lake.folder(f"{table}-{entries[0].day}")
        self._lake.write(ordered.sortWithinPartitions("day", *kept.order), folder, "day")
        span = min(entry.first for entry in entries), max(entry.last for entry in entries)
        staged = self._lake.stage(table, folder, span)
        return self._lake.commit(manifest, with_staged(manifest, [staged], without={table: {entry.path for entry in entries}}))

    def forget(self, today: date) -> int:
        """Drop days that are too old. Returns how many folders no longer count."""
        manifest = self._lake.manifest()
        gone: dict[str, set[str]] = {}
        for table, kept in self._kept.items():
            oldest = (today - timedelta(days=kept.days)).isoformat()
            old = {entry.path for entry in manifest.entries(table) if entry.day < oldest}
            if old:
                gone[table] = old
        if gone:
            self._lake.commit(manifest, with_staged(manifest, [], without=gone))
        return sum(map(len, gone.values()))


class History:
    """Jobs that ended, a day at a time, once the day is over."""

    NAME = "job_history"

    def __init__(self, lake: Lake, look_back_days: int = 30) -> None:
        self._lake, self._look_back = lake, look_back_days

    def due(self, manifest: Manifest, now: datetime) -> list[date]:
        """Days that are over for an hour, have events, and were not done yet; the oldest first. On a day without events nothing
        ran that could have ended a job."""
        over = (now - timedelta(hours=1)).astimezone(UTC).date() - timedelta(days=1)
        done = manifest.done.get(self.NAME, "")
        known = sorted({entry.day for entry in manifest.entries("events")})
        return [date.fromisoformat(day) for day in known if done < day <= over.isoformat()]

    def compute(self, ended: date) -> DataFrame:
        """The jobs that ended on this day, written to the lake; and as the messages that tell of them."""
        manifest = self._lake.manifest()
        since = (ended - timedelta(days=self._look_back)).isoformat()
        entries = [entry for entry in manifest.entries("events") if since <= entry.day]
        events = self._lake.read("events", events_schema(), entries).where(F.col("stream") == "JOBS")
        jobs = job_archive.ended_jobs(events, ended)
        folder = self._lake.folder(f"job_history-{ended.isoformat()}")
        self._lake.write(jobs.withColumn("day", F.col("ended_day")).coalesce(2), folder, "day")
        start = int(datetime(ended.year, ended.month, ended.day, tzinfo=UTC).timestamp() * 1000)
        staged = self._lake.stage(self.NAME, folder, (start, start + 86_399_999))
        old = {entry.path for entry in manifest.entries(self.NAME) if entry.day == ended.isoformat()}
        self._lake.commit(manifest, with_staged(manifest, [staged], without={self.NAME: old}))
        return job_archive.history_messages(
            self._lake.read(self.NAME, job_archive.ENDED, staged.entries), ended, ended.isoformat()
        )

    def is_done(self, ended: date) -> None:
        manifest = self._lake.manifest()
        if manifest.done.get(self.NAME, "") < ended.isoformat():
            self._lake.commit(manifest, replace(manifest, done={**manifest.done, self.NAME: ended.isoformat()}))
