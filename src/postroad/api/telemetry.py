"""The live stream of events."""

from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.kernel.matching import PATTERN

EventPosition = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="Continue after the event with this id.")]


class EventStreamQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    events: Annotated[
        str, Meta(min_length=1, max_length=256, pattern=PATTERN, description="Pattern of event types, such as `job.*`.")
    ] = ">"
    last_event_id: EventPosition | None = None
