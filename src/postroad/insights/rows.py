"""The pipeline's results as they are stored and shown: one struct for the rows of each report.

Format 1 of decision 0021: `{"v":1,"report","tenant","day","part","batch","computedAt","rows":[…],"dropped"}`.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from postroad.insights.rules import Key, health_key, row_key

VERSION = 1

When = Annotated[datetime, Meta(tz=True)]
Start = Annotated[When, Meta(description="When the minute, hour or day began.")]
Number = int | float
Milliseconds = Annotated[Number, Meta(description="Milliseconds.")]
Batch = int | str


class Report(StrEnum):
    USAGE = "usage"
    LATENCY = "latency"
    HEALTH = "health"
    DEAD_LETTERS = "dead-letters"
    SESSIONS = "sessions"
    BACKLOG = "backlog"


class Row(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What all rows can say of themselves."""

    @property
    def key(self) -> Key:
        raise NotImplementedError

    @property
    def of_queue(self) -> str | None:
        """None: it is about the whole tenant."""
        return None


def _at(when: datetime) -> int:
    return round(when.timestamp() * 1000)


class UsageRow(Row, frozen=True, kw_only=True):
    """What a tenant used."""

    time: Start
    published: Annotated[int, Meta(description="Messages published to queues.")]
    published_bytes: Annotated[int, Meta(description="Their payloads.")]
    deliveries: Annotated[int, Meta(description="Leases, repeated deliveries included.")]
    done: Annotated[int, Meta(description="Messages acknowledged.")]
    dead: Annotated[int, Meta(description="Messages that became dead letters.")]
    requests: Annotated[int, Meta(description="HTTP requests.")]
    bytes_in: Annotated[int, Meta(description="Of requests' bodies.")]
    bytes_out: Annotated[int, Meta(description="Of answers' bodies.")]
    appends: Annotated[int, Meta(description="Appends to durable streams.")]
    append_bytes: int
    fanout_messages: Annotated[int, Meta(description="Copies written to sessions.")]
    storage_byte_hours: Annotated[Number, Meta(description="Bytes stored, times the hours that they were.")]
    stored_bytes: Annotated[Number, Meta(description="Bytes stored at the end.")]

    @property
    def key(self) -> Key:
        return row_key(_at(self.time), "")


class LatencyRow(Row, frozen=True, kw_only=True):
    """How long messages took. Percentiles are within 0.8 %."""

    time: Start
    queue: str
    phase: Annotated[str, Meta(description="`wait`: from publish to the first delivery; `processing`: from a lease to its ack.")]
    count: int
    p50: Milliseconds
    p95: Milliseconds
    p99: Milliseconds
    max: Milliseconds
    mean: Milliseconds

    @property
    def key(self) -> Key:
        return row_key(_at(self.time), self.queue, self.phase)

    @property
    def of_queue(self) -> str | None:
        return self.queue


class DeadLettersRow(Row, frozen=True, kw_only=True):
    """Messages that became dead letters, by reason; the reason `redriven` is those that were put back."""

    time: Start
    queue: str
    reason: str
    count: int
    first_attempt: Annotated[int, Meta(description="Those of them that failed at their first attempt.")]
    last_at: Annotated[When | None, Meta(description="When the last one of them did.")] = None

    @property
    def key(self) -> Key:
        return row_key(_at(self.time), self.queue, self.reason)

    @property
    def of_queue(self) -> str | None:
        return self.queue


class SessionsRow(Row, frozen=True, kw_only=True):
    """What happened to sessions."""

    time: Start
    subscribed: int
    unsubscribed: int
    touched: int
    deleted: int
    expired: int

    @property
    def key(self) -> Key:
        return row_key(_at(self.time), "")


class BacklogRow(Row, frozen=True, kw_only=True):
    """What was in a queue: means of the samples, save for what is called `Max`."""

    time: Start
    queue: str
    ready: Number = 0  # what has no sample is left out of the message
    ready_max: Number = 0
    leased: Number = 0
    delayed: Number = 0
    dead: Number = 0
    oldest_age_ms_max: Annotated[Number | None, Meta(description="Age of the oldest message that was ready.")] = None

    @property
    def key(self) -> Key:
        return row_key(_at(self.time), self.queue)

    @property
    def of_queue(self) -> str | None:
        return self.queue


class HealthRow(Row, frozen=True, kw_only=True):
    """How a queue is, by its last samples."""

    queue: str
    status: Annotated[str, Meta(description="`healthy`, `unhealthy`, or `unknown`: no sample for five minutes.")]
    problems: Annotated[
        list[str],
        Meta(
            description="`old`: the oldest message is older than twice `expectedDrainSeconds`; `growing`: more was ready in each "
            "of the last five minutes; `unpolled`: messages were ready, and nobody asked for them for five minutes."
        ),
    ]
    ready: Number | None = None
    leased: Number | None = None
    delayed: Number | None = None
    dead: Number | None = None
    waiting: Annotated[Number | None, Meta(description="Consumers that wait for messages.")] = None
    oldest_age_ms: Number | None = None
    expected_drain_seconds: Number | None = None
    growth_per_minute: Number | None = None
    sampled_at: When | None = None

    @property
    def key(self) -> Key:
        return health_key(self.status, self.queue)

    @property
    def of_queue(self) -> str | None:
        return self.queue


ROWS: dict[Report, type[Row]] = {
    Report.USAGE: UsageRow,
    Report.LATENCY: LatencyRow,
    Report.HEALTH: HealthRow,
    Report.DEAD_LETTERS: DeadLettersRow,
    Report.SESSIONS: SessionsRow,
    Report.BACKLOG: BacklogRow,
}


class _Stored(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    v: int
    report: str
    tenant: str
    batch: Batch
    computed_at: When
    rows: list[msgspec.Raw]
    dropped: Annotated[int, Meta(ge=0)] = 0


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was read. `rows` are in order, each with its key; `unreadable` says what was left out, and why."""

    batch: Batch | None = None
    computed_at: datetime | None = None
    rows: list[tuple[Key, Any]] = []
    dropped: int = 0
    unreadable: list[str] = []


_stored = msgspec.json.Decoder(_Stored, strict=False)
_rows = {report: msgspec.json.Decoder(kind, strict=False) for report, kind in ROWS.items()}  # sums of Spark may come as 12.0


def read_results(payload: bytes, report: Report, tenant: str) -> Results:
    """Whatever can be made of it: somebody with access to the engine may have put anything there, and no reader shall stumble."""
    try:
        found = _stored.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        return Results(unreadable=[str(problem)])
    if (found.v, found.report, found.tenant) != (VERSION, report, tenant):
        return Results(unreadable=[f"of version {found.v}, report {found.report[:40]!r}, tenant {found.tenant[:40]!r}"])
    rows, unreadable = [], []
    for raw in found.rows:
        try:
            row = _rows[report].decode(raw)
            rows.append((row.key, row))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, ValueError) as problem:
            unreadable.append(str(problem))
    rows.sort(key=lambda one: one[0])
    return Results(
        batch=found.batch,
        computed_at=found.computed_at,
        rows=rows,
        dropped=found.dropped + len(unreadable),
        unreadable=unreadable,
    )
