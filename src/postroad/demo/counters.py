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
    "telemetryRead",
    "events",
    "valuesWritten",
)
_SERVICE_COUNTERS = ("sent", "delivered", "duplicate", "failed", "invalid")


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
class ServiceCounters:
    """Outcomes of the commands of a service; those that failed or were invalid also by reason."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def summary(self) -> dict[str, Any]:
        return {name: self.counts[name] for name in _SERVICE_COUNTERS} | {"reasons": dict(self.reasons)}


@dataclass(slots=True)
class TenantCounters:
    """Counters of a tenant's queues, streams, sessions, and services that send commands.

    `appends` are calls, `appended` the messages in them, `read` those that the live reader received. `said` are publishes to
    sessions, `copied` the copies made when they returned, `heard` those that readers of sessions received. `left` are sessions
    left to expire. `telemetryRead` are events from the telemetry queue, `events` those
    published to topics, `valuesWritten` changes of buckets. The total of `commands.sent` is that of all services.
    """

    tenant: str
    queues: dict[str, QueueCounters] = field(default_factory=dict)
    services: dict[str, ServiceCounters] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def queue(self, name: str) -> QueueCounters:
        return self.queues.setdefault(name, QueueCounters())

    def service(self, name: str) -> ServiceCounters:
        return self.services.setdefault(name, ServiceCounters())

    def total(self, name: str) -> int:
        kind, _, outcome = name.partition(".")
        if kind == "commands":
            return sum(service.counts[outcome] for service in self.services.values())
        return self.counts[name] + sum(queue.counts[name] for queue in self.queues.values())

    def summary(self) -> dict[str, Any]:
        totals: dict[str, Any] = {name: self.total(name) for name in (*_QUEUE_COUNTERS, *_TENANT_COUNTERS)}
        totals["commands"] = {name: self.total(f"commands.{name}") for name in _SERVICE_COUNTERS}
        totals["queues"] = {name: queue.summary() for name, queue in self.queues.items()}
        return totals | {"services": {name: service.summary() for name, service in self.services.items()}}


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
    "commands.sent": "commands sent",
    "commands.delivered": "commands delivered",
    "commands.duplicate": "commands known before",
    "commands.failed": "commands refused",
    "commands.invalid": "commands invalid",
    "telemetryRead": "telemetry read",
    "events": "published to topics",
    "valuesWritten": "values written",
}


def total(counters: Sequence[TenantCounters], name: str) -> int:
    return sum(one.total(name) for one in counters)


def summary_row(counters: Sequence[TenantCounters], name: str) -> list[object]:
    """A counter's label, its value for each tenant, and the sum."""
    return [SUMMARY_ROWS[name], *(f"{one.total(name):,}" for one in counters), f"{total(counters, name):,}"]
