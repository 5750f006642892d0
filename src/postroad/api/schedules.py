"""Schedules: messages published at the times of a cron expression or in an interval."""

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from postroad.api.pages import Limit, page_of
from postroad.api.queues import HeaderName, Priority
from postroad.kernel.clock import AwareDatetime, Timestamp
from postroad.kernel.errors import NotFound

EVERY_MS_MAX = 366 * 86_400 * 1000


class ScheduleNotFound(NotFound, code="schedule-not-found", status=404, title="Schedule not found"):
    """The tenant has no schedule with this name, or the key may not use its queue."""


class CatchUp(StrEnum):
    """What happens to ticks that were missed, because no process ran or the message could not be stored."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class ScheduleState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    FAILING = "failing"
    ENDED = "ended"


QueueName = Annotated[str, Meta(min_length=1, max_length=80, pattern="^[A-Za-z0-9_.:-]+$")]


class ScheduleSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """When a schedule fires, and the message that it publishes. Either `cron` or `everyMs` is required."""

    queue: Annotated[QueueName, Meta(description="Queue that the messages are published to.")]
    cron: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=256,
                description="Minute, hour, day of month, month, day of week; or an alias such as `@hourly`.",
            ),
        ]
        | None
    ) = None
    every_ms: Annotated[int, Meta(ge=1, le=EVERY_MS_MAX, description="Interval, from `startAt` or the creation on.")] | None = (
        None
    )
    time_zone: Annotated[str, Meta(min_length=1, max_length=64, description="IANA time zone of `cron`.")] = "UTC"
    payload: Annotated[msgspec.Raw, Meta(description="Payload of each message: any JSON.")] = msgspec.field(
        default_factory=lambda: msgspec.Raw(b"null")
    )
    headers: Annotated[dict[HeaderName, str], Meta(description="Headers of each message.")] = {}
    priority: Annotated[Priority, Meta(description="Priority of each message.")] = "normal"
    catch_up: Annotated[
        CatchUp,
        Meta(description="Missed ticks that are published: `none`, the `last` one, or `all`."),
    ] = CatchUp.LAST
    start_at: Annotated[AwareDatetime, Meta(description="No run before this time.")] | None = None
    end_at: Annotated[AwareDatetime, Meta(description="No run after this time.")] | None = None


class ScheduleError(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Why the current tick could not be published; it is tried again."""

    code: Annotated[str, Meta(description="Code of the error, such as `queue-not-found`.")]
    detail: str
    since: Timestamp


class Schedule(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A schedule with its state."""

    name: str
    queue: str
    state: ScheduleState
    time_zone: str
    payload: Any
    headers: dict[str, str]
    catch_up: CatchUp
    fired_count: Annotated[int, Meta(description="Ticks that fired since the schedule was created.")]
    missed_count: Annotated[int, Meta(description="Ticks that were skipped; of one downtime at most 1000 are counted.")]
    created_at: Timestamp
    updated_at: Timestamp
    cron: str | None = None
    every_ms: int | None = None
    priority: Priority = "normal"
    start_at: Timestamp | None = None
    end_at: Timestamp | None = None
    last_run_at: Annotated[Timestamp | None, Meta(description="Time of the latest tick that fired.")] = None
    next_run_at: Annotated[Timestamp | None, Meta(description="Time of the next tick, if the schedule is not paused.")] = None
    error: ScheduleError | None = None


class ScheduleQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    queue: Annotated[QueueName, Meta(description="Only schedules of this queue.")] | None = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=80)] | None = None


class NextRunsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=100, description="Number of runs.")] = 5


class NextRuns(msgspec.Struct, frozen=True):
    """The next ticks of a schedule; none if it is paused or has ended."""

    runs: list[Timestamp]


SchedulePage = page_of(Schedule, "schedules")
