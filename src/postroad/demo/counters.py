"""What the server has acknowledged, counted: the numbers that reports are compared with."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_ATTEMPTS_REACHED = "maxAttempts reached"  # the reason of a dead letter that the server gave up by itself

OF_QUEUES = ("published", "delayed", "delivered", "done", "retried", "dead", "redriven", "lost")
OF_TENANTS = (
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
class QueueTally:
    """`dead_reasons` and `first_attempt` tell of the dead ones by what they died of, and how many at their first attempt."""

    counts: Counter[str] = field(default_factory=Counter)
    dead_reasons: Counter[str] = field(default_factory=Counter)
    first_attempt: Counter[str] = field(default_factory=Counter)

    def died(self, reason: str, attempt: int) -> None:
        self.counts["dead"] += 1
        self.dead_reasons[reason] += 1
        if attempt == 1:
            self.first_attempt[reason] += 1

    def view(self) -> dict[str, Any]:
        counts: dict[str, Any] = {name: self.counts[name] for name in OF_QUEUES}
        return counts | {"deadReasons": dict(self.dead_reasons), "firstAttempt": dict(self.first_attempt)}


@dataclass(slots=True)
class TenantTally:
    """Of a tenant: its queues, and what became of its streams and sessions.

    `appends` are calls, `appended` the messages in them; `said` are publishes to sessions, `copied` the copies that were there
    when they were answered; `sessions` those that came, `left` those that went away without a word.
    """

    tenant: str
    queues: dict[str, QueueTally] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def queue(self, name: str) -> QueueTally:
        return self.queues.setdefault(name, QueueTally())

    def total(self, name: str) -> int:
        return self.counts[name] + sum(queue.counts[name] for queue in self.queues.values())

    def view(self) -> dict[str, Any]:
        totals = {name: self.total(name) for name in (*OF_QUEUES, *OF_TENANTS)}
        return totals | {"queues": {name: queue.view() for name, queue in self.queues.items()}}


ROWS = (
    "published",
    "delivered",
    "done",
    "retried",
    "dead",
    "redriven",
    "appended",
    "said",
    "copied",
    "sessions",
    "subscribed",
    "touched",
    "deleted",
    "left",
)


def total(tallies: Sequence[TenantTally], name: str) -> int:
    return sum(tally.total(name) for tally in tallies)


def row(tallies: Sequence[TenantTally], name: str) -> list[object]:
    """What there is to tell of one measure: of each tenant, and of all."""
    return [name, *(f"{tally.total(name):,}" for tally in tallies), f"{total(tallies, name):,}"]
