"""Event types of route health, in the tenant that owns the route."""

from typing import ClassVar

import msgspec

from postroad.kernel.event import Event


class RouteHealthEvent(Event, frozen=True, kw_only=True):
    stream: ClassVar[str] = "COMMANDS"
    resource: ClassVar[tuple[str, str] | None] = ("queue", "queue")

    service: str
    target: str
    command_name: str = msgspec.field(name="command.name")
    queue: str


class RouteUnhealthy(RouteHealthEvent, frozen=True, kw_only=True, tag="route.unhealthy"):
    """The queue of a command route is not drained, or cannot be: `problems` says why. Two samples in a row show it."""

    version: int = 1
    problems: list[str]
    ready: int
    oldest_age_ms: int | None = None
    expected_drain_seconds: int


class RouteRecovered(RouteHealthEvent, frozen=True, kw_only=True, tag="route.recovered"):
    """A command route that was unhealthy is healthy again, for two samples in a row, or was deleted."""

    version: int = 1
    unhealthy_seconds: float
    deleted: bool = False


EVENTS: tuple[type[Event], ...] = (RouteUnhealthy, RouteRecovered)
