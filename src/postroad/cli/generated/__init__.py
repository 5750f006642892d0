"""Generated commands. Generated from the route table by `make generate`; do not edit."""

import typer

from postroad.cli.generated import invites, keys, queues, queues_dlq, secrets, tasks, tenants, tokens

MODULES = (
    invites,
    keys,
    queues,
    queues_dlq,
    secrets,
    tasks,
    tenants,
    tokens,
)

GROUPS: dict[str, typer.Typer] = {
    "tokens": tokens.tokens,
}
