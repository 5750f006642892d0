"""Purging of the messages of a queue that match a filter."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from postroad.api.purging import PurgeRequest
from postroad.api.queues import AwareTime, MessageFilter


class WaitingFilter(MessageFilter, frozen=True, kw_only=True):
    """Conditions on a message in a queue. All that are given must hold."""

    state: Annotated[Literal["ready", "delayed"], Meta(description="`ready` includes leased and retrying.")] | None = None
    since: Annotated[AwareTime, Meta(description="Stored at or after this time.")] | None = msgspec.field(
        name="from", default=None
    )
    until: Annotated[AwareTime, Meta(description="Stored before this time.")] | None = msgspec.field(name="to", default=None)

    @property
    def is_empty(self) -> bool:
        return self == WaitingFilter()


class QueuePurgeRequest(PurgeRequest, frozen=True, kw_only=True):
    """Delete the messages that match the filter; without a filter, all."""

    filter: WaitingFilter = WaitingFilter()
