"""`postroad live` and `postroad topology`: the state of the tenant as it changes, and of the installation."""

from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import AsJson, Wide, connected, print_json, show, to_json

if TYPE_CHECKING:
    from postroad.client.live_state import LiveUpdate


def live(
    watch: Annotated[
        list[str], typer.Argument(help="Sections, such as `queues`, `queues:orders;emails`, `tasks`, `flow`, `changes`.")
    ],
    platform: Annotated[bool, typer.Option("--platform", help="The state of the installation: `tenants`, `processes`.")] = False,
    limit: Annotated[int | None, typer.Option(help="Stop after this many messages.", min=1, show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per message.")] = False,
) -> None:
    """Show rows of the live state, then each change, until interrupted."""
    with connected() as client, closing(client.live_state.follow(*watch, platform=platform)) as updates:
        for update in islice(updates, limit):
            if as_json:
                print_json({"event": update.kind, "at": update.message.at, "sections": update.message.sections})
            else:
                _print(update)


def _print(update: "LiveUpdate") -> None:
    for section, state in update.message.sections.items():
        for key, row in state.rows.items():
            shown = {name: value for name, value in row.items() if value not in (None, 0, 0.0, False, "") and value != key}
            typer.echo(f"{update.message.at[11:19]} {section} {key} {to_json(shown).decode()}")
        for key in state.removed:
            typer.echo(f"{update.message.at[11:19]} {section} {key} removed")


def topology(as_json: AsJson = False, wide: Wide = False) -> None:
    """Show the processes and NATS servers of the installation, and streams that are not healthy. Needs a platform key."""
    with connected() as client:
        found = client.live_state.topology()
        if as_json:
            print_json(found)
            return
        show(
            found.processes,
            False,
            ("process", "role", "requests/s", "lag ms", "memory"),
            lambda one: [one.worker, one.role, one.requests_per_second, one.loop_lag_ms, one.memory_bytes],
            wide=wide,
        )
        show(
            found.servers,
            False,
            ("server", "up", "leads", "copies", "critical streams"),
            lambda one: [one.name, one.is_up, one.leaders, one.replicas, one.critical],
            wide=wide,
        )
        lost = f"{found.without_leader:,} without a leader, {found.without_quorum:,} without a quorum"
        typer.echo(f"{found.streams_total:,} streams, {lost}", err=True)
