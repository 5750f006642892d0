"""The capabilities of Postroad, in dependency order. Adding a capability adds its package to `PACKAGES`.

A package declares its event types in `events.py` (`EVENTS`), its settings in `settings.py` (a `Section`), and everything else in
`capability.py` (`CAPABILITY`). The first two import nothing but the kernel, so the pipeline and the settings load only those.
"""

import importlib
import importlib.util
from functools import cache
from types import ModuleType
from typing import Any

from postroad.kernel.configuration import Section
from postroad.kernel.event import Event

PACKAGES: tuple[str, ...] = (
    "postroad.installation",
    "postroad.governance",
    "postroad.access",
    "postroad.telemetry",
    "postroad.tasks",
    "postroad.manifests",
    "postroad.regions",
    "postroad.queues",
    "postroad.schedules",
    "postroad.topics",
    "postroad.buckets",
    "postroad.commands",
    "postroad.replays",
    "postroad.route_health",
    "postroad.telemetry_queue",
    "postroad.subscriptions",
    "postroad.alerts",
    "postroad.jobs",
    "postroad.streams",
    "postroad.stream_subscriptions",
    "postroad.sessions",
    "postroad.insights",
    "postroad.loadtests",
    "postroad.live_state",
    "postroad.asyncapi",
    "postroad.aws",
    "postroad.console",
    "postroad.tracing",  # last: a collector that does not respond delays no other at the end of a process
)


def capabilities() -> tuple[Any, ...]:
    """The capability classes (`postroad.platform.Capability`)."""
    return tuple(module.CAPABILITY for module in _modules("capability"))


@cache
def event_types() -> tuple[type[Event], ...]:
    return tuple(kind for module in _modules("events") for kind in module.EVENTS)


@cache
def event_types_of(table: str) -> tuple[type[Event], ...]:
    """The event types in a table of the pipeline's lake."""
    return tuple(kind for kind in event_types() if kind.table == table)


@cache
def settings_sections() -> tuple[type[Section], ...]:
    return tuple(
        kind
        for module in _modules("settings")
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Section) and kind is not Section
    )


def _modules(name: str) -> list[ModuleType]:
    found = [f"{package}.{name}" for package in PACKAGES if importlib.util.find_spec(f"{package}.{name}")]
    return [importlib.import_module(module) for module in found]
