"""Messages of a queue by state."""

from typing import Annotated

import msgspec
from msgspec import Meta


class QueueStats(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Messages of a queue by state."""

    ready: Annotated[int, Meta(description="Can be pulled now: new, requeued, due for a retry, or overdue.")]
    leased: Annotated[int, Meta(description="Leased to a consumer.")]
    overdue: Annotated[int, Meta(description="Those of the ready ones whose lease ended without an ack or nack.")] = 0
    deferred: Annotated[
        int, Meta(description="Those of the ready ones that are held back, because their group has more than its share.")
    ] = 0
    retrying: Annotated[int, Meta(description="Returned with a nack, and not due yet.")] = 0
    delayed: Annotated[int, Meta(description="Published with a delay, and not due yet.")]
    dead: Annotated[int, Meta(description="Dead letters.")]
    waiting: Annotated[int, Meta(description="Pulls that wait for a message.")] = 0
    oldest_age_ms: Annotated[
        int | None, Meta(description="Age of the oldest ready, leased or retrying message; null if there is none.")
    ]
    in_per_second: Annotated[float, Meta(description="Messages published, over the last seconds.")]
    out_per_second: Annotated[float, Meta(description="Messages acknowledged or dead-lettered, over the last seconds.")]
