"""Search of messages over all queues."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from postroad.api.dead_letters import FilterError, FilterErrorGroup, FilterReason
from postroad.api.pages import Limit, Page
from postroad.api.queues import BODY_MAX, AwareTime, MessageFilter, PeekedMessage
from postroad.kernel.clock import Timestamp


class MessageSearchQuery(MessageFilter, frozen=True, kw_only=True):
    queue: Annotated[str, Meta(min_length=1, max_length=80, description="Glob of queue names; `*` is any text.")] | None = None
    state: Annotated[Literal["ready", "delayed", "dead"], Meta(description="`ready` includes leased and retrying.")] | None = None
    reason: FilterReason | None = None
    error: FilterError | None = None
    error_group: FilterErrorGroup | None = None
    since: Annotated[AwareTime, Meta(description="Stored at or after this time.")] | None = msgspec.field(
        name="from", default=None
    )
    until: Annotated[AwareTime, Meta(description="Stored before this time.")] | None = msgspec.field(name="to", default=None)
    body_max: Annotated[
        int, Meta(ge=0, le=BODY_MAX, description="Payloads with more bytes are cut and returned as `payloadStart`.")
    ] = 512
    order: Annotated[Literal["newest", "oldest"], Meta(description="Which messages of a queue come first.")] = "newest"
    limit: Limit = 50
    cursor: Annotated[str, Meta(min_length=1, max_length=128)] | None = None


class FoundMessage(PeekedMessage, frozen=True, kw_only=True):
    """A message and its queue; the last fields are those of a dead letter."""

    queue: str
    reason: str | None = None
    last_error: str | None = None
    attempts: int | None = None
    first_failed_at: Timestamp | None = None
    dead_at: Timestamp | None = None


class MessageSearchPage(Page[FoundMessage], frozen=True, kw_only=True):
    """One page of a search: `scanned` messages were compared in this request. With a `next_cursor` the search is not complete,
    even if nothing matched so far. `queues_done` of `queues_total` queues are searched; `unreadable` could not be."""

    items: list[FoundMessage] = msgspec.field(name="messages")
    next_cursor: str | None
    scanned: int
    matched: int
    queues_total: int
    queues_done: int
    unreadable: tuple[str, ...] = ()
