"""Which sources the auditor would have banned on a past day, with other thresholds. Reads rollups only, without Spark."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from postroad.pipeline.delta_table import LakeTable
from postroad.pipeline.fairness_auditor import dispatches_by_minute
from postroad.pipeline.fairness_rules import Counts, RouteShare, Thresholds, flagged_sources
from postroad.pipeline.rollups import loaded_rollups
from postroad.pipeline.storage import Storage
from postroad.pipeline.tables import table_formats

_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class FlaggedSource:
    """A source that would have been banned: in how many minutes it was flagged, its bans, and its largest share."""

    source: str
    first: datetime
    minutes: int
    bans: int
    largest: RouteShare


def rollups_of_day(storage: Storage, day: str) -> pa.Table:
    """`MEASURES` of a day. Raises LakeBroken."""
    table = LakeTable(storage, table_formats()["rollups"])
    schema = table.format.schema
    return loaded_rollups(storage.read_table(f"rollups/{file.path}", schema) for file in table.files_of_days({day}))


def evaluate(rollups: Any, thresholds: Thresholds, ban_seconds: int) -> list[FlaggedSource]:
    """Most bans first. The dispatches are those that took place: a ban would have changed some of them."""
    return _evaluate(dispatches_by_minute(rollups), thresholds, timedelta(seconds=ban_seconds))


def _evaluate(minutes: Mapping[datetime, Counts], thresholds: Thresholds, ban: timedelta) -> list[FlaggedSource]:
    flagged: dict[str, list[tuple[datetime, list[RouteShare]]]] = {}
    for minute in sorted(minutes):
        for source, shares in flagged_sources(minutes[minute], thresholds).items():
            flagged.setdefault(source, []).append((minute, shares))
    found = [
        FlaggedSource(
            source,
            each[0][0],
            len(each),
            _bans((minute for minute, _ in each), ban),
            max((one for _, shares in each for one in shares), key=lambda one: one.share),
        )
        for source, each in flagged.items()
    ]
    return sorted(found, key=lambda one: (-one.bans, -one.minutes, one.source))


def _bans(minutes: Iterable[datetime], ban: timedelta) -> int:
    """A source that is banned is not banned again until that ban ends."""
    count, until = 0, None
    for minute in minutes:
        ended = minute + _MINUTE
        if until is None or ended >= until:
            count, until = count + 1, ended + ban
    return count
