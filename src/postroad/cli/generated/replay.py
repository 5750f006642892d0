"""Commands of `postroad replay`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated, Literal

import typer

from postroad.cli.output import AsJson, Wide, connected
from postroad.cli.rendering import show_item, show_list
from postroad.cli.replay import replay


@replay.command("list")
def list_replay(
    state: Annotated[
        Literal["selecting", "selected", "running", "paused", "done", "cancelled", "failed"] | None,
        typer.Option("--state", help="Only replays in this state."),
    ] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List replays. Newest first. Replays are kept for 30 days."""
    with connected() as client:
        show_list(
            list(islice(client.replays.list(state=state, page_size=min(limit, 1000)), limit)),
            as_json,
            ("id", "origin", "state", "counts.selected", "counts.delivered", "counts.remaining", "reason", "created_at"),
            wide=wide,
        )


@replay.command("show")
def show_replay(
    replay: Annotated[str, typer.Argument(help="Id of the replay.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Show a replay and its counts."""
    with connected() as client:
        show_item(client.replays.get(replay), as_json, wide=wide)


@replay.command("cancel")
def cancel_replay(
    replay: Annotated[str, typer.Argument(help="Id of the replay.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Cancel a replay. It stops soon; what is delivered stays delivered. A replay that has ended does not change."""
    with connected() as client:
        show_item(client.replays.cancel(replay), as_json, wide=wide)


@replay.command("pause")
def pause_replay(
    replay: Annotated[str, typer.Argument(help="Id of the replay.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Pause a replay. It stops soon and keeps its position."""
    with connected() as client:
        show_item(client.replays.pause(replay), as_json, wide=wide)


@replay.command("resume")
def resume_replay(
    replay: Annotated[str, typer.Argument(help="Id of the replay.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Resume a replay. Also sends the commands that a dry run has selected."""
    with connected() as client:
        show_item(client.replays.resume(replay), as_json, wide=wide)
