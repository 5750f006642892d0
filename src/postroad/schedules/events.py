"""Event types of schedules."""

from typing import ClassVar

from postroad.kernel.event import Event


class ScheduleEvent(Event, frozen=True, kw_only=True):
    """An event of one schedule. Keys that are restricted to some queues see the events of schedules of these queues."""

    resource: ClassVar[tuple[str, str] | None] = ("queue", "queue")

    schedule: str
    queue: str


class ScheduleCreated(ScheduleEvent, frozen=True, kw_only=True, tag="schedule.created"):
    """A schedule was created."""

    version: int = 1
    key_id: str = ""
    request_id: str = ""


class ScheduleUpdated(ScheduleEvent, frozen=True, kw_only=True, tag="schedule.updated"):
    """The settings of a schedule were replaced."""

    version: int = 1
    key_id: str = ""
    request_id: str = ""


class ScheduleDeleted(ScheduleEvent, frozen=True, kw_only=True, tag="schedule.deleted"):
    """A schedule was deleted."""

    version: int = 1
    key_id: str = ""
    request_id: str = ""


class SchedulePaused(ScheduleEvent, frozen=True, kw_only=True, tag="schedule.paused"):
    """A schedule was paused."""

    version: int = 1
    key_id: str = ""
    request_id: str = ""


class ScheduleResumed(ScheduleEvent, frozen=True, kw_only=True, tag="schedule.resumed"):
    """A schedule was resumed."""

    version: int = 1
    key_id: str = ""
    request_id: str = ""


class ScheduleFired(ScheduleEvent, frozen=True, kw_only=True, tag="schedule.fired"):
    """The message of the tick `scheduled_at` was published, `lag_ms` after it."""

    version: int = 1
    scheduled_at: str
    lag_ms: int


class ScheduleMissed(ScheduleEvent, frozen=True, kw_only=True, tag="schedule.missed"):
    """`count` ticks were skipped, up to the one at or before `until`."""

    version: int = 1
    count: int
    until: str


class ScheduleFailed(ScheduleEvent, frozen=True, kw_only=True, tag="schedule.failed"):
    """The message of the tick `scheduled_at` cannot be published, because of the error `code`; it is tried again."""

    version: int = 1
    scheduled_at: str
    code: str


EVENTS: tuple[type[Event], ...] = (
    ScheduleCreated,
    ScheduleUpdated,
    ScheduleDeleted,
    SchedulePaused,
    ScheduleResumed,
    ScheduleFired,
    ScheduleMissed,
    ScheduleFailed,
)
