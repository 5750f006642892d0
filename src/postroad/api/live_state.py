"""Live state: what is sent to open consoles as it changes."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from postroad.kernel.clock import Timestamp

WATCH_CHARS_MAX = 24_000  # less than the headers of a request may have


class LiveQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    watch: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=WATCH_CHARS_MAX,
            description=(
                "Sections, separated by commas. `queues:orders;emails` are two queues, updated every second; "
                "`queues:*;orders` all queues, of which `orders` is updated every second."
            ),
        ),
    ]


class LiveSectionState(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Rows by key: all of them in a snapshot, those that have changed in other messages. `removed` are the keys of those that
    are gone; with `reset` all rows that are not in the message. `error`: the rows could not be read just now."""

    rows: dict[str, dict[str, Any]]
    removed: tuple[str, ...] = ()
    reset: bool = False
    error: str | None = None
    sample_fields: tuple[str, ...] = ()
    samples: Annotated[
        dict[str, list[list[float]]], Meta(description="By key: time in milliseconds, then the `sampleFields`; -1 for none.")
    ] = {}


class LiveMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """The data of an event `snapshot` or `changes`. `refused` has the scope that each refused section needs."""

    at: Timestamp
    sections: dict[str, LiveSectionState]
    refused: dict[str, str] = {}


class LiveQueue(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    name: str
    paused: bool
    pause_reason: str | None = None
    ready: int = 0
    deferred: int = 0
    leased: int = 0
    overdue: int = 0
    retrying: int = 0
    delayed: int = 0
    dead: int = 0
    waiting: int = 0
    oldest_at: Timestamp | None = None
    expected_drain_seconds: int
    in_per_second: float = 0.0
    out_per_second: float = 0.0


class LiveSubscription(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    topic: str
    name: str | None
    delivery_type: str
    state: str
    summary: str = ""
    lag: int | None = None
    in_flight: int = 0
    retrying: int = 0
    dead: int | None = None
    success_rate: float | None = None
    breaker: str = "closed"
    next_attempt_at: Timestamp | None = None
    last_error: str | None = None


class LiveRoute(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A command route with the state of its queue."""

    service: str
    command: str
    queue: str
    grants: int
    per_second: float = 0.0
    refused_per_second: float = 0.0
    health: Annotated[str, Meta(description="`ok`, `slow` (older than expected), `unpolled` (no consumer) or `missing`.")]


class LiveAlert(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """An alert that is open, or was resolved in the last ten minutes."""

    id: str
    rule: str
    event: str
    group: str
    severity: str
    status: str
    count: int
    summary: str
    opened_at: Timestamp
    last_at: Timestamp
    is_on_dashboard: Annotated[bool, Meta(description="Its rule has the channel `dashboard`, or it is only here.")]
    is_only_here: Annotated[bool, Meta(description="It is critical, and no other channel gets it.")]


class LiveFlow(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Messages from a source to a target, each `<kind>:<name>`, as rates over ten seconds."""

    source: str
    source_name: str
    target: str
    target_name: str
    per_second: float
    failed_per_second: float = 0.0
    since: Timestamp


class LiveCheck(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A check of `/readyz`, as of the process that serves the stream."""

    name: str
    ok: bool
    detail: str


class LiveChange(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """An entry of the audit log."""

    id: str
    at: Timestamp
    action: str
    target: str
    outcome: str
    actor_key_id: str
    actor_name: str
    actor_is_platform: bool


class LiveTenant(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    state: str
    description: str
    queues: int
    keys: int
    in_per_second: float
    out_per_second: float


class LiveProcess(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    worker: str
    role: str
    seen_at: Timestamp
    requests_per_second: float
    client_errors_per_second: float
    server_errors_per_second: float
    open_requests: int
    loop_lag_ms: int
    memory_bytes: int
    events_dropped: int
