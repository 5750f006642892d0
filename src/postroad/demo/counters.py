"""Counters of what the server has acknowledged, to compare reports with."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_ATTEMPTS_REACHED = "maxAttempts reached"  # the server's reason for a message without attempts left

_QUEUE_COUNTERS = ("published", "delayed", "delivered", "done", "retried", "dead", "redriven", "lost")
_TENANT_COUNTERS = (
    "appends",
    "appended",
    "read",
    "said",
    "copied",
    "heard",
    "sessions",
    "subscribed",
    "unsubscribed",
    "touched",
    "deleted",
    "left",
)


@dataclass(slots=True)
class QueueCounters:
    """Counters of a queue; dead letters also by reason, and how many of them died at their first attempt."""

    counts: Counter[str] = field(default_factory=Counter)
    dead_reasons: Counter[str] = field(default_factory=Counter)
    first_attempt: Counter[str] = field(default_factory=Counter)

    def count_dead(self, reason: str, attempt: int) -> None:
        self.counts["dead"] += 1
        self.dead_reasons[reason] += 1
        if attempt == 1:
            self.first_attempt[reason] += 1

    def summary(self) -> dict[str, Any]:
        counts: dict[str, Any] = {name: self.counts[name] for name in _QUEUE_COUNTERS}
        return counts | {"deadReasons": dict(self.dead_reasons), "firstAttempt": dict(self.first_attempt)}


@dataclass(slots=True)
class TenantCounters:
    """Counters of a tenant's queues, streams and sessions.

    `appends` are calls, `appended` the messages in them, `read` those that the live reader received. `said` are publishes to
    sessions, `copied` the copies made when they returned, `heard` those that readers of sessions received. `left` are sessions
    left to expire.
    """

    tenant: str
    queues: dict[str, QueueCounters] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def queue(self, name: str) -> QueueCounters:
        return self.queues.setdefault(name, QueueCounters())

    def total(self, name: str) -> int:
        return self.counts[name] + sum(queue.counts[name] for queue in self.queues.values())

    def summary(self) -> dict[str, Any]:
        totals = {name: self.total(name) for name in (*_QUEUE_COUNTERS, *_TENANT_COUNTERS)}
        return totals | {"queues": {name: queue.summary() for name, queue in self.queues.items()}}


SUMMARY_ROWS = {
    "published": "published",
    "delivered": "delivered",
    "done": "done",
    "retried": "retried",
    "dead": "dead",
    "redriven": "redriven",
    "appended": "appended to streams",
    "said": "published to sessions",
    "copied": "copied to sessions",
    "sessions": "sessions created",
    "subscribed": "subscribed",
    "touched": "touched",
    "deleted": "sessions deleted",
    "left": "sessions left to expire",
}


def total(counters: Sequence[TenantCounters], name: str) -> int:
    return sum(one.total(name) for one in counters)


def summary_row(counters: Sequence[TenantCounters], name: str) -> list[object]:
    """A counter's label, its value for each tenant, and the sum."""
    return [SUMMARY_ROWS[name], *(f"{one.total(name):,}" for one in counters), f"{total(counters, name):,}"]
