"""Lists of queues: filters, order, pages."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from postroad.api.pages import Limit, Page
from postroad.api.queues import Queue

QueueSort = Literal[
    "name",
    "-name",
    "createdAt",
    "-createdAt",
    "updatedAt",
    "-updatedAt",
    "ready",
    "-ready",
    "leased",
    "-leased",
    "overdue",
    "-overdue",
    "delayed",
    "-delayed",
    "dead",
    "-dead",
    "oldestAgeMs",
    "-oldestAgeMs",
    "waiting",
    "-waiting",
    "inPerSecond",
    "-inPerSecond",
    "outPerSecond",
    "-outPerSecond",
]


class QueueQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stats: Annotated[bool, Meta(description="Add the stats of each queue, at most a second old.")] = False
    search: Annotated[str, Meta(min_length=1, max_length=80, description="Text that the name contains.")] | None = None
    prefix: Annotated[str, Meta(min_length=1, max_length=80, description="Text that the name starts with.")] | None = None
    paused: Annotated[bool, Meta(description="Only queues that are paused, or that are not.")] | None = None
    sort: Annotated[
        QueueSort,
        Meta(description="`-` for descending. Above 500 queues, numbers and ages are those of the latest samples."),
    ] = "name"
    limit: Limit = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=128)] | None = None


class QueuePage(Page[Queue], frozen=True, kw_only=True):
    """One page of the queues that match, of which there are `total` (0 from servers of earlier versions)."""

    items: list[Queue] = msgspec.field(name="queues")
    next_cursor: str | None
    total: int = 0
