"""What the pipeline found out, as the client hands it back. What each field means: docs/insights.md."""

import msgspec

Number = int | float
Batch = int | str


class UsageRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What a tenant used in the minute, hour or day that began at `time`."""

    time: str
    published: int
    published_bytes: int
    deliveries: int
    done: int
    dead: int
    requests: int
    bytes_in: int
    bytes_out: int
    appends: int
    append_bytes: int
    fanout_messages: int
    storage_byte_hours: Number
    stored_bytes: Number


class LatencyRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """In milliseconds. `phase` is `wait` (publish to first delivery) or `processing` (lease to ack)."""

    time: str
    queue: str
    phase: str
    count: int
    p50: Number
    p95: Number
    p99: Number
    max: Number
    mean: Number


class DeadLettersRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`first_attempt` of `count` failed at their first attempt. The reason `redriven` is those that were put back."""

    time: str
    queue: str
    reason: str
    count: int
    first_attempt: int
    last_at: str | None = None


class SessionsRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    time: str
    subscribed: int
    unsubscribed: int
    touched: int
    deleted: int
    expired: int


class BacklogRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Means of the samples, save for `…_max`."""

    time: str
    queue: str
    ready: Number
    ready_max: Number
    leased: Number
    delayed: Number
    dead: Number
    oldest_age_ms_max: Number | None = None


class HealthRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`status` is `healthy`, `unhealthy` or `unknown`; `problems` are of `old`, `growing` and `unpolled`."""

    queue: str
    status: str
    problems: list[str]
    ready: Number | None = None
    leased: Number | None = None
    delayed: Number | None = None
    dead: Number | None = None
    waiting: Number | None = None
    oldest_age_ms: Number | None = None
    expected_drain_seconds: Number | None = None
    growth_per_minute: Number | None = None
    sampled_at: str | None = None


class InsightPage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`computed_at` is when the newest of these results were computed; None: none were yet."""

    report: str
    computed_at: str | None
    batch: Batch | None
    dropped: int
    next_cursor: str | None


class TimePage(InsightPage, frozen=True, kw_only=True, rename={"since": "from", "until": "to"}):
    grain: str
    since: str
    until: str


class UsagePage(TimePage, frozen=True, kw_only=True):
    items: list[UsageRow]


class LatencyPage(TimePage, frozen=True, kw_only=True):
    items: list[LatencyRow]


class DeadLettersPage(TimePage, frozen=True, kw_only=True):
    items: list[DeadLettersRow]


class SessionsPage(TimePage, frozen=True, kw_only=True):
    items: list[SessionsRow]


class BacklogPage(TimePage, frozen=True, kw_only=True):
    items: list[BacklogRow]


class HealthPage(InsightPage, frozen=True, kw_only=True):
    items: list[HealthRow]


class SourceProgress(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """How far the pipeline is in one stream."""

    stream: str
    sequence: int
    last_sequence: int
    lag: int


class PipelineStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`state` is `running`, `behind` (its last batch is older than three periods) or `off` (nothing was ever heard of it).

    `age` and `period` are seconds, `lag` is in messages as of now, `quarantined` counts lines that are no events, by reason.
    """

    state: str
    batch: Batch | None
    computed_at: str | None
    age: Number | None
    period: Number | None
    lag: int
    streams: list[SourceProgress]
    events: int | None
    seconds: Number | None
    quarantined: dict[str, int]
    late: int | None
    duplicates: int | None
