"""Health of command routes."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from postroad.api.pages import Limit, page_of
from postroad.kernel.clock import Timestamp
from postroad.kernel.names import COMMAND, SERVICE

HealthStatus = Literal["healthy", "unhealthy", "unknown"]
Problem = Literal["old", "growing", "unpolled", "missing-queue", "paused", "not-dead-lettering", "full"]


class RouteHealthEntry(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The health of a route. `ready` and `oldestAgeMs` are those of the sample that last changed it."""

    service: str
    command: str
    target: Annotated[str, Meta(description="`<tenant>/<service>`.")]
    queue: str
    status: HealthStatus
    problems: list[Problem]
    expected_drain_seconds: int
    since: Annotated[Timestamp, Meta(description="When the status was found.")] | None = None
    ready: int | None = None
    oldest_age_ms: int | None = None


class RouteHealthQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    status: Annotated[HealthStatus, Meta(description="Only routes with this status.")] | None = None
    service: Annotated[str, Meta(pattern=f"^{SERVICE.pattern}$", description="Only routes of this service.")] | None = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(pattern=rf"^[0-2]/{SERVICE.pattern}/{COMMAND.pattern}$")] | None = None


RouteHealthEntryPage = page_of(RouteHealthEntry, "routes")


class Misroute(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Commands that had no route."""

    target: Annotated[str, Meta(description="`<tenant>/<service>`.")]
    command: str
    count: int
    first_at: Timestamp
    last_at: Timestamp
    last_source: Annotated[str, Meta(description="`<tenant>/<service>` that sent the latest of them.")]


class Misroutes(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Most frequent first. `others` counts the commands of targets that are not listed any more, because there were too many."""

    misroutes: list[Misroute]
    others: int = 0
