"""Current state of each queue, from its samples of the last minutes."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.api.reports.health import REPORT
from postroad.pipeline.aggregates import Measure, aggregate
from postroad.pipeline.rollups import TIME
from postroad.route_health.rules import TREND_SAMPLES, HealthSample, QueueCondition, assess

_LOOK_BACK = REPORT.look_back or timedelta()
_KNOWN_MS = 300_000  # a queue without a sample for longer than this is `unknown`
_PRESENT = QueueCondition()  # the lake has no records of queues: their samples alone count
_LEVELS = ("ready", "leased", "retrying", "delayed", "dead", "waiting", "oldest_age_ms", "expected_drain_seconds")
_MEASURES = {
    **{label: Measure(label, "last") for label in _LEVELS},
    "at": Measure("ready", "last_at"),
    "depth": Measure("ready", "mean"),
    **{f"{label}_max": Measure(label, "top") for label in ("leased", "retrying", "waiting")},
    "out": Measure("out", "total"),
}
_NUMBERS = ("ready", "leased", "retrying", "delayed", "dead", "waiting", "oldestAgeMs", "expectedDrainSeconds")
_SCHEMA = pa.schema(
    [
        ("tenant", pa.string()),
        ("queue", pa.string()),
        ("status", pa.string()),
        ("problems", pa.list_(pa.string())),
        *((name, pa.int64()) for name in _NUMBERS),
        ("growthPerMinute", pa.float64()),
        ("sampledAt", TIME),
    ]
)
_Minutes = Mapping[int, Mapping[str, Any]]  # by age in minutes: 0 is the current one


def rows(rollups: pa.Table, now: datetime) -> pa.Table:
    """A row for each queue with samples in the last ten minutes.

    Only completed minutes are compared. `problems` is empty if the state is unknown; `growthPerMinute` is null unless there are
    two minutes to compare. A queue that is empty now does not grow, and has no oldest message.
    """
    minute = rollups.column("minute")
    since, until = (pa.scalar(at, TIME) for at in (now - _LOOK_BACK, now))
    is_recent = pc.and_(pc.greater_equal(minute, since), pc.less_equal(minute, until))
    chosen = rollups.filter(pc.and_(pc.equal(rollups.column("report"), "backlog"), is_recent))
    queues: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    this_minute = int(now.timestamp()) // 60
    for row in aggregate(chosen, ("tenant", "name", "minute"), _MEASURES).to_pylist():
        age = this_minute - int(row["minute"].timestamp()) // 60
        queues.setdefault((row["tenant"], row["name"]), {})[age] = row
    found = [_row(tenant, queue, minutes, now) for (tenant, queue), minutes in queues.items()]
    return pa.Table.from_pylist(found, schema=_SCHEMA)


def _row(tenant: str, queue: str, minutes: _Minutes, now: datetime) -> dict[str, Any]:
    values = {label: _latest(minutes, label) for label in _LEVELS}
    at = max((one["at"] for one in minutes.values() if one["at"] is not None), default=0)
    is_empty = values["ready"] == 0
    oldest = values["oldest_age_ms"] or 0
    growth = _growth(minutes)
    latest = replace(_sample(minutes.get(0), at), ready=values["ready"] or 0, oldest_age_ms=oldest)
    found = assess(
        _completed(minutes),
        latest,
        values["expected_drain_seconds"] or 0,
        _PRESENT,
        now_ms=int(now.timestamp() * 1000),
        max_age_ms=_KNOWN_MS,
    )
    return {
        "tenant": tenant,
        "queue": queue,
        "status": found.status,
        "problems": list(found.problems),
        **{label: values[label] for label in ("ready", "leased", "delayed", "dead", "waiting")},
        "retrying": values["retrying"] or 0,
        "oldestAgeMs": oldest if oldest > 0 or not is_empty else None,
        "expectedDrainSeconds": values["expected_drain_seconds"],
        "growthPerMinute": min(growth, 0.0) if growth is not None and is_empty else growth,
        "sampledAt": datetime.fromtimestamp(at / 1000, now.tzinfo),
    }


def _completed(minutes: _Minutes) -> list[HealthSample]:
    """The last completed minutes that were sampled, without a gap, oldest first."""
    newest = min((age for age in minutes if age > 0 and _depth(minutes, age) is not None), default=1)
    found: list[HealthSample] = []
    for age in range(newest, newest + TREND_SAMPLES + 1):
        if _depth(minutes, age) is None:
            break
        found.append(_sample(minutes[age], 0))
    return found[::-1]


def _sample(minute: Mapping[str, Any] | None, at_ms: int) -> HealthSample:
    """A minute as a sample: the mean depth, and whether there was any activity. Without measurements there was none."""
    if minute is None:
        return HealthSample(at_ms=at_ms, ready=0)
    leased, retrying, waiting = (minute[f"{label}_max"] or 0 for label in ("leased", "retrying", "waiting"))
    return HealthSample(at_ms, minute["depth"] or 0.0, leased, retrying, waiting, minute["out"] or 0)


def _latest(minutes: _Minutes, label: str) -> int | None:
    values: list[int] = [minutes[age][label] for age in sorted(minutes) if minutes[age][label] is not None]
    return values[0] if values else None


def _depth(minutes: _Minutes, age: int) -> float | None:
    return minutes[age]["depth"] if age in minutes else None


def _growth(minutes: _Minutes) -> float | None:
    """From the first to the last of the completed minutes that are compared."""
    compared = [age for age in range(1, TREND_SAMPLES + 2) if _depth(minutes, age) is not None]
    if len(compared) < 2:
        return None
    last, first = compared[0], compared[-1]
    change = (_depth(minutes, last) or 0.0) - (_depth(minutes, first) or 0.0)
    return round(change / (first - last), 3)
