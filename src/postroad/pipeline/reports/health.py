"""Current state of each queue, from its samples of the last minutes."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.api.reports.health import REPORT
from postroad.pipeline.aggregates import Measure, aggregate
from postroad.pipeline.rollups import TIME

_LOOK_BACK = REPORT.look_back or timedelta()
_WATCHED_MINUTES = 5
_DRAINS_MAX = 2  # a queue is `old` if its oldest message is older than this many expected drain times
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
    latest = {label: _latest(minutes, label) for label in _LEVELS}
    at = max((one["at"] for one in minutes.values() if one["at"] is not None), default=0)
    is_empty = latest["ready"] == 0
    oldest = latest["oldest_age_ms"] or 0
    growth = _growth(minutes)
    is_unknown = at < int((now - timedelta(minutes=_WATCHED_MINUTES)).timestamp() * 1000)
    checks = {
        "old": oldest > (latest["expected_drain_seconds"] or 0) * 1000 * _DRAINS_MAX,
        "growing": _rose(minutes) and not is_empty,
        "unpolled": _is_unpolled(minutes) and not is_empty,
    }
    problems = [] if is_unknown else [problem for problem, is_so in checks.items() if is_so]
    return {
        "tenant": tenant,
        "queue": queue,
        "status": "unknown" if is_unknown else "unhealthy" if problems else "healthy",
        "problems": problems,
        **{label: latest[label] for label in ("ready", "leased", "delayed", "dead", "waiting")},
        "retrying": latest["retrying"] or 0,
        "oldestAgeMs": oldest if oldest > 0 or not is_empty else None,
        "expectedDrainSeconds": latest["expected_drain_seconds"],
        "growthPerMinute": min(growth, 0.0) if growth is not None and is_empty else growth,
        "sampledAt": datetime.fromtimestamp(at / 1000, now.tzinfo),
    }


def _latest(minutes: _Minutes, label: str) -> int | None:
    values: list[int] = [minutes[age][label] for age in sorted(minutes) if minutes[age][label] is not None]
    return values[0] if values else None


def _depth(minutes: _Minutes, age: int) -> float | None:
    return minutes[age]["depth"] if age in minutes else None


def _rose(minutes: _Minutes) -> bool:
    """The mean depth of each of the last completed minutes was above that of the previous one."""
    depths = [_depth(minutes, age) for age in range(1, _WATCHED_MINUTES + 2)]
    return all(later is not None and earlier is not None and later > earlier for later, earlier in pairwise(depths))


def _is_unpolled(minutes: _Minutes) -> bool:
    """Messages were ready in each of the last completed minutes, without consumer activity in them or since."""
    are_ready = all((_depth(minutes, age) or 0) > 0 for age in range(1, _WATCHED_MINUTES + 1))
    activity = sum(
        sum(one[name] or 0 for name in ("leased_max", "retrying_max", "waiting_max", "out"))
        for age, one in minutes.items()
        if age <= _WATCHED_MINUTES
    )
    return are_ready and activity == 0


def _growth(minutes: _Minutes) -> float | None:
    """From the first to the last of the completed minutes that are compared."""
    compared = [age for age in range(1, _WATCHED_MINUTES + 2) if _depth(minutes, age) is not None]
    if len(compared) < 2:
        return None
    last, first = compared[0], compared[-1]
    change = (_depth(minutes, last) or 0.0) - (_depth(minutes, first) or 0.0)
    return round(change / (first - last), 3)
