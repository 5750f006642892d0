"""Health of a queue from its last samples. Pure: no I/O, no clock. The pipeline's report `health` uses the same rule.

A sample is one measurement of the sampler, or a minute of measurements: then `ready` is their mean, and `leased`, `retrying`,
`waiting` and `settled` show whether there was any activity in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from postroad.api.route_health import HealthStatus, Problem

TREND_SAMPLES = 5  # `growing` and `unpolled` need so many samples in a row
DRAINS_MAX = 2  # a queue is `old` if its oldest message is older than this many expected drain times
CONFIRMING_SAMPLES = 2  # a status changes when so many samples in a row show the new one


@dataclass(frozen=True, slots=True)
class HealthSample:
    """`settled` are messages acknowledged or dead-lettered since the previous sample."""

    at_ms: int
    ready: float
    leased: float = 0
    retrying: float = 0
    waiting: float = 0
    settled: float = 0
    oldest_age_ms: int | None = None

    @property
    def has_consumer(self) -> bool:
        return bool(self.leased or self.retrying or self.waiting or self.settled)


@dataclass(frozen=True, slots=True)
class QueueCondition:
    """What is known about a queue without a sample. `is_full`: it takes no more messages."""

    exists: bool = True
    is_paused: bool = False
    has_dead_letters: bool = True
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class Assessment:
    """`is_conclusive` is false if there are too few samples to exclude `growing` and `unpolled`."""

    status: HealthStatus
    problems: tuple[Problem, ...] = ()
    is_conclusive: bool = True


def assess(
    samples: Sequence[HealthSample],
    latest: HealthSample | None,
    expected_drain_seconds: float,
    condition: QueueCondition,
    *,
    now_ms: int,
    max_age_ms: int,
) -> Assessment:
    """The health of a queue. `samples` are consecutive ones of equal length, oldest first; `latest` is the newest measurement,
    which may be shorter than they are. Without a measurement of the last `max_age_ms` only the condition counts."""
    problems = _problems_of(condition)
    if latest is None or now_ms - latest.at_ms > max_age_ms:
        return Assessment("unhealthy" if problems else "unknown", problems)
    is_empty = latest.ready == 0
    if (latest.oldest_age_ms or 0) > expected_drain_seconds * 1000 * DRAINS_MAX:
        problems = (*problems, "old")
    if not is_empty and is_growing(samples):
        problems = (*problems, "growing")
    if not is_empty and is_unpolled(samples, latest):
        problems = (*problems, "unpolled")
    is_conclusive = is_empty or len(samples) > TREND_SAMPLES
    return Assessment("unhealthy" if problems else "healthy", problems, is_conclusive)


def is_growing(samples: Sequence[HealthSample]) -> bool:
    """Each of the last samples has more ready messages than the one before it."""
    recent = samples[-TREND_SAMPLES - 1 :]
    return len(recent) > TREND_SAMPLES and all(earlier.ready < later.ready for earlier, later in pairwise(recent))


def is_unpolled(samples: Sequence[HealthSample], latest: HealthSample) -> bool:
    """Messages were ready in each of the last samples, and no consumer leased, waited for or settled one."""
    recent = samples[-TREND_SAMPLES:]
    are_ready = len(recent) == TREND_SAMPLES and all(one.ready > 0 for one in recent)
    return are_ready and not latest.has_consumer and not any(one.has_consumer for one in recent)


def _problems_of(condition: QueueCondition) -> tuple[Problem, ...]:
    if not condition.exists:
        return ("missing-queue",)
    checks: tuple[tuple[Problem, bool], ...] = (
        ("paused", condition.is_paused),
        ("not-dead-lettering", not condition.has_dead_letters),
        ("full", condition.is_full),
    )
    return tuple(problem for problem, is_so in checks if is_so)


@dataclass(frozen=True, slots=True)
class RouteState:
    """The confirmed health of a route, and what the last samples show instead. `since_ms`: when the status was confirmed."""

    status: HealthStatus = "unknown"
    problems: tuple[Problem, ...] = ()
    since_ms: int = 0
    pending: HealthStatus | None = None
    pending_count: int = 0


def next_state(state: RouteState, found: Assessment, now_ms: int) -> RouteState:
    """The state after one more sample. A status changes when two samples in a row show it. Without samples, or with too few to
    exclude a trend that it had, a route stays unhealthy. Problems of a route that stays unhealthy change at once."""
    if state.status == "unhealthy" and found.status != "unhealthy":
        has_trend = "growing" in state.problems or "unpolled" in state.problems
        if found.status == "unknown" or (has_trend and not found.is_conclusive):
            return state
    if found.status == state.status:
        return RouteState(state.status, found.problems, state.since_ms)
    count = state.pending_count + 1 if state.pending == found.status else 1
    if count < CONFIRMING_SAMPLES:
        return RouteState(state.status, state.problems, state.since_ms, found.status, count)
    return RouteState(found.status, found.problems, now_ms)


_RANKS: dict[HealthStatus, int] = {"unhealthy": 0, "unknown": 1, "healthy": 2}
rank_of: Callable[[HealthStatus], int] = _RANKS.__getitem__
