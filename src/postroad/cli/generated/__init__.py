"""Generated commands. Generated from the route table by `make generate`; do not edit."""

import typer

from postroad.cli.generated import (
    invites,
    jobs,
    keys,
    queues,
    queues_dlq,
    schedules,
    secrets,
    sessions,
    streams,
    tasks,
    tenants,
    tokens,
)

MODULES = (
    invites,
    jobs,
    keys,
    queues,
    queues_dlq,
    schedules,
    secrets,
    sessions,
    streams,
    tasks,
    tenants,
    tokens,
)

GROUPS: dict[str, typer.Typer] = {
    "tokens": tokens.tokens,
    "schedules": schedules.schedules,
}
