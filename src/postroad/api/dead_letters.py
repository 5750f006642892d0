"""Dead letters: search, purge, redrive."""

from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.api.pages import Page
from postroad.api.queues import AwareTime, DryRun, MessageFilter, PeekedMessage, PeekQuery, PurgeRequest
from postroad.api.tasks import Task
from postroad.kernel.clock import Timestamp
from postroad.kernel.names import QUEUE

FilterReason = Annotated[str, Meta(min_length=1, max_length=1000, description="Exactly this reason.")]
FilterError = Annotated[str, Meta(min_length=1, max_length=256, description="Text that the last error contains.")]
# The pattern is documentation: the look-up of the queue checks the name, with a more specific error.
TargetQueue = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=80,
        description="Another queue. The queue of the dead letters if left out.",
        extra_json_schema={"pattern": f"^{QUEUE.pattern}$"},
    ),
]


FilterErrorGroup = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=200,
        description="Exactly this group of `groupBy=error`: the last error, with digits and ids as `#`.",
    ),
]


FilterRedrive = Annotated[
    str, Meta(min_length=1, max_length=80, description="Messages that died again after the redrive of this task.")
]


MessageIds = Annotated[
    list[Annotated[str, Meta(pattern="^[0-9A-Za-z-]{1,64}$")]],
    Meta(min_length=1, max_length=100, description="Ids of messages, one of which it has: a selection of single dead letters."),
]


class DeadLetterFilter(MessageFilter, frozen=True, kw_only=True):
    """Conditions on a dead letter. All that are given must hold."""

    message_ids: MessageIds | None = None
    reason: FilterReason | None = None
    error: FilterError | None = None
    error_group: FilterErrorGroup | None = None
    redrive: FilterRedrive | None = None
    since: Annotated[AwareTime, Meta(description="Dead-lettered at or after this time.")] | None = msgspec.field(
        name="from", default=None
    )
    until: Annotated[AwareTime, Meta(description="Dead-lettered before this time.")] | None = msgspec.field(
        name="to", default=None
    )

    @property
    def is_empty(self) -> bool:
        return self == DeadLetterFilter()


class DeadLetterQuery(PeekQuery, frozen=True, kw_only=True):
    reason: FilterReason | None = None
    error: FilterError | None = None
    error_group: FilterErrorGroup | None = None
    redrive: FilterRedrive | None = None
    group_by: (
        Annotated[
            str,
            Meta(
                max_length=262,
                pattern="^(reason|error|header:.{1,256}|field:.{1,256})$",
                description=(
                    "Counts instead of dead letters: by `reason`, by `error` (the last error with digits and ids as `#`), by "
                    "`header:<name>` or by `field:<path>` of the payload."
                ),
            ),
        ]
        | None
    ) = None


class DeadMessage(PeekedMessage, frozen=True, kw_only=True):
    """A dead letter: the message, and why it was dead-lettered. `reason` is the last error, if a consumer reported one."""

    reason: str
    last_error: str | None
    attempts: int
    first_failed_at: Timestamp | None
    dead_at: Timestamp


class DeadPage(Page[DeadMessage], frozen=True, kw_only=True):
    """One page of a search in the dead letters of a queue, of which there are `total`."""

    items: list[DeadMessage] = msgspec.field(name="messages")
    next_cursor: str | None
    scanned: int
    matched: int
    total: int


class Histogram(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Counts in intervals of `bucketMs`, the first of which begins at `start`."""

    start: Timestamp | None
    bucket_ms: int
    counts: list[int]


class DeadGroup(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Dead letters with the same reason, error, header or field. `reason` is the group, as in earlier versions."""

    reason: str
    group: Annotated[str | None, Meta(description="Null for dead letters without the header or field.")] = None
    count: int
    first_at: Timestamp
    last_at: Timestamp
    sample_id: Annotated[str, Meta(description="Message id of the newest dead letter of the group.")] = ""
    sample: Annotated[str, Meta(description="Its last error, or the reason.")] = ""
    counts: Annotated[list[int], Meta(description="By the intervals of the histogram.")] = []


class DeadGroups(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Dead letters by group, largest group first. `matched` of the `total` are counted: one search compares a limited number."""

    groups: list[DeadGroup]
    others: Annotated[int, Meta(description="Dead letters in groups that are not listed: the first 200 are.")] = 0
    histogram: Histogram | None = None
    next_cursor: str | None
    scanned: int
    matched: int
    total: int


class DeadLetterPurgeRequest(PurgeRequest, frozen=True, kw_only=True):
    """Delete the dead letters that match the filter; without a filter, all."""

    filter: DeadLetterFilter = DeadLetterFilter()


class RedriveRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Move the dead letters that match the filter back to a queue; without a filter, all."""

    filter: DeadLetterFilter = DeadLetterFilter()
    to: TargetQueue | None = None
    rate_per_second: Annotated[int, Meta(ge=1, le=10_000)] = 100
    limit: Annotated[int, Meta(ge=1, le=10**9, description="Maximum number of dead letters to move.")] | None = None
    dry_run: DryRun = False


class MoveRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Move the messages of a queue to another one; without `to`, each dead letter to the queue that it comes from."""

    to: TargetQueue | None = None
    rate_per_second: Annotated[int, Meta(ge=1, le=500, description="Messages per second.")] = 100


class Redriven(msgspec.Struct, frozen=True, kw_only=True):
    """Number of matching dead letters, and the task that moves them; no task after a dry run."""

    count: int
    task: Task | None
