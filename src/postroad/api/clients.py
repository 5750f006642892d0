"""Clients of queues: which keys publish and consume, and how much."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from postroad.kernel.clock import Timestamp

_NOT_KNOWN = "Null if not in the last 15 minutes."


class QueueConsumer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A key that consumes a queue. Counts are rates over ten seconds."""

    key_id: str
    key_name: str
    last_pull_at: Annotated[Timestamp | None, Meta(description=_NOT_KNOWN)]
    last_ack_at: Annotated[Timestamp | None, Meta(description=_NOT_KNOWN)]
    in_flight: Annotated[int, Meta(description="Messages that it has leased.")]
    overdue: Annotated[
        int, Meta(description="Leases that ended without an ack or nack, of messages that were not delivered again.")
    ]
    pulled_per_second: float
    acked_per_second: float
    failed_per_second: Annotated[float, Meta(description="Rejected with a nack.")]
    mean_processing_ms: Annotated[int | None, Meta(description="From the lease to the ack.")]


class QueueConsumers(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    consumers: list[QueueConsumer]
    waiting: Annotated[int, Meta(description="Pulls that wait for a message.")]
    summary: Annotated[str, Meta(description="One sentence about them.")]


class QueuePublisher(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    key_id: str
    key_name: str
    per_second: float
    since: Annotated[Timestamp, Meta(description="When it began to publish without a pause of a minute.")]
    last_at: Timestamp


class QueuePublishers(msgspec.Struct, frozen=True, kw_only=True):
    publishers: list[QueuePublisher]


class TrafficQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    by: Annotated[
        Literal["key,queue", "key", "queue"],
        Meta(description="What to add up: pairs of key and queue, keys, or queues."),
    ] = "key,queue"
    limit: Annotated[int, Meta(ge=1, le=1000, description="Rows to show, the busiest first.")] = 100


class TrafficRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Messages of a key, a queue, or a pair of them, as rates over ten seconds."""

    key_id: str | None = None
    key_name: str | None = None
    queue: str | None = None
    published_per_second: float
    consumed_per_second: float
    failed_per_second: float
    share: Annotated[float, Meta(description="Of all messages that were published and consumed, from 0 to 1.")]
    since: Timestamp
    last_at: Timestamp


class TrafficReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    rows: list[TrafficRow]
    published_per_second: float
    consumed_per_second: float
    total: Annotated[int, Meta(description="Number of rows, also of those that are not shown.")]
