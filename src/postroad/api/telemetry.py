"""The live stream of events."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from postroad.kernel.clock import Timestamp
from postroad.kernel.matching import PATTERN
from postroad.kernel.names import SERVICE, TENANT

_SERVICE_OF = rf"^({TENANT.pattern}/)?{SERVICE.pattern}$"

EventPosition = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="Continue after the event with this id.")]


class EventStreamQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    events: Annotated[
        str, Meta(min_length=1, max_length=256, pattern=PATTERN, description="Pattern of event types, such as `job.*`.")
    ] = ">"
    source: (
        Annotated[str, Meta(max_length=128, pattern=_SERVICE_OF, description="Only events of commands from this service.")] | None
    ) = None
    target: (
        Annotated[str, Meta(max_length=128, pattern=_SERVICE_OF, description="Only events of commands to this service.")] | None
    ) = None
    queue: Annotated[str, Meta(min_length=1, max_length=80, description="Only events of this queue.")] | None = None
    key: Annotated[str, Meta(min_length=1, max_length=80, description="Only events that the key with this id caused.")] | None = (
        None
    )
    max_per_second: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=100_000,
                description="Leave out events above this rate; an event `telemetry.thinned` has the number of them.",
            ),
        ]
        | None
    ) = None
    format: Annotated[
        Literal["postroad", "cloudevents"],
        Meta(description="`cloudevents`: each event is a CloudEvents 1.0 event in the JSON format, and its data is the event."),
    ] = "postroad"
    last_event_id: EventPosition | None = None


class TelemetryStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """State of the telemetry queue. Each of its messages has the events of a moment."""

    waiting: Annotated[int, Meta(description="Messages that were not delivered yet.")]
    leased: Annotated[int, Meta(description="Messages that were delivered and not acknowledged.")]
    oldest_age_ms: Annotated[int, Meta(description="Age of the oldest message that was not acknowledged.")] | None
    delivered_last_hour: Annotated[int, Meta(description="Events delivered in the last hour.")]
    acknowledged_last_hour: Annotated[int, Meta(description="Messages acknowledged in the last hour.")]
    last_received_at: Annotated[Timestamp, Meta(description="Last pull that returned events, to the minute.")] | None
    dropped_today: Annotated[int, Meta(description="Events of this day (UTC) that aged out unread.")] = 0
