"""Event types of alerts."""

from typing import ClassVar

from postroad.kernel.event import Event


class AlertEvent(Event, frozen=True, kw_only=True):
    stream: ClassVar[str] = "COMMANDS"

    alert_id: str
    rule: str
    alert_event: str
    group: str
    severity: str
    count: int
    summary: str


class AlertOpened(AlertEvent, frozen=True, kw_only=True, tag="alert.opened"):
    """An alert opened: events of the type `alert_event` matched the rule."""

    version: int = 1


class AlertResolved(AlertEvent, frozen=True, kw_only=True, tag="alert.resolved"):
    """An alert ended. `resolved_by` is `event`, `quiet`, or the id of the key that resolved it."""

    version: int = 1
    resolved_by: str


class ChannelFailing(Event, frozen=True, kw_only=True, tag="alert.channel_failing"):
    """Notifications of a channel fail: three attempts in a row, then every tenth. The tenant is `_platform`."""

    version: int = 1
    channel: str
    failures: int
    error: str


class PipelineLagging(Event, frozen=True, kw_only=True, tag="pipeline.lagging"):
    """The pipeline has not published a batch for longer than it should. The tenant is `_platform`. At most every five minutes."""

    version: int = 1
    seconds: float
    expected_seconds: float


class DeadLettersGrowing(Event, frozen=True, kw_only=True, tag="queue.dead_letters_growing"):
    """The number of dead letters of a queue rose by `added` within five minutes. At most every five minutes for each queue."""

    resource: ClassVar[tuple[str, str] | None] = ("queue", "queue")

    version: int = 1
    queue: str
    dead: int
    added: int
    seconds: float


EVENTS: tuple[type[Event], ...] = (AlertOpened, AlertResolved, ChannelFailing, PipelineLagging, DeadLettersGrowing)
