"""Event types of the telemetry queue."""

from typing import ClassVar

from postroad.kernel.event import Event


class TelemetryDropped(Event, frozen=True, kw_only=True, tag="snavio.telemetry.dropped"):
    """Events of the telemetry queue were not read within its retention and are gone. At most one per tenant and day, for the
    whole day. `reason` is `queue_unconsumed`, or `stream_full` if they had to leave earlier, for lack of room in the store.
    `last_received_at` is the time of the last pull that returned events; null if there was none."""

    stream: ClassVar[str] = "COMMANDS"
    table: ClassVar[str] = "command_events"

    version: int = 1
    dropped_events: int
    reason: str = "queue_unconsumed"
    queue_age_seconds: float
    last_received_at: str | None = None


class TelemetryUnconsumed(Event, frozen=True, kw_only=True, tag="telemetry.unconsumed"):
    """The oldest unread event of the telemetry queue is older than a day. At most one per tenant and day."""

    stream: ClassVar[str] = "COMMANDS"
    table: ClassVar[str] = "command_events"

    version: int = 1
    waiting: int
    queue_age_seconds: float
    last_received_at: str | None = None


class TelemetrySampled(Event, frozen=True, kw_only=True, tag="telemetry.sampled"):
    """State of a tenant's telemetry queue, every minute. `waiting` and `leased` are messages, each of which has many events.
    Of the last hour, `delivered` are events and `acknowledged` messages; both count repetitions."""

    version: int = 1
    waiting: int
    leased: int
    oldest_age_ms: int | None = None
    delivered: int
    acknowledged: int
    last_received_at: str | None = None


class TelemetryStalled(Event, frozen=True, kw_only=True, tag="telemetry.stalled"):
    """The oldest unread event of some telemetry queues is older than a week: half of the time after which it is dropped. The
    tenant is `_platform`; at most one per day. `tenants` counts these queues; `waiting` are the messages of the oldest."""

    version: int = 1
    tenants: int
    oldest_tenant: str
    queue_age_seconds: float
    waiting: int


class TelemetryEvicted(Event, frozen=True, kw_only=True, tag="telemetry.evicted"):
    """The events of commands reached their share of the store, and the oldest were removed before their 14 days. The tenant is
    `_platform`. Unread ones are counted as dropped; `uncounted_frames` were removed by the engine before that. `kept_seconds` is
    the age of the oldest that are left, `busiest_share` the part of them that the tenant with most has."""

    version: int = 1
    frames: int
    uncounted_frames: int
    kept_seconds: float
    busiest_tenant: str
    busiest_share: float


EVENTS: tuple[type[Event], ...] = (
    TelemetryDropped,
    TelemetryUnconsumed,
    TelemetrySampled,
    TelemetryStalled,
    TelemetryEvicted,
)
