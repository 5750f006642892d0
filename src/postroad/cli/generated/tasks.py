"""Commands of `postroad tasks`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated, Literal

import typer

from postroad.cli.output import AsJson, Wide, connected
from postroad.cli.rendering import show_item, show_list
from postroad.cli.tasks import tasks


@tasks.command("list")
def list_tasks(
    state: Annotated[
        Literal["queued", "running", "paused", "done", "failed", "cancelled"] | None,
        typer.Option("--state", help="Only tasks in this state."),
    ] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List tasks. Newest first. Tasks are kept for a week after they ended."""
    with connected() as client:
        show_list(
            list(islice(client.tasks.list(state=state, page_size=min(limit, 1000)), limit)),
            as_json,
            ("id", "kind", "target", "state", "progress.moved", "progress.total", "error", "created_at"),
            wide=wide,
        )


@tasks.command("show")
def show_tasks(task: Annotated[str, typer.Argument(help="Id of the task.")], as_json: AsJson = False, wide: Wide = False) -> None:
    """Show a task and its progress."""
    with connected() as client:
        show_item(client.tasks.get(task), as_json, wide=wide)


@tasks.command("cancel")
def cancel_tasks(
    task: Annotated[str, typer.Argument(help="Id of the task.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Cancel a task. The task stops soon; completed work is not undone. A task that has ended does not change."""
    with connected() as client:
        show_item(client.tasks.cancel(task), as_json, wide=wide)


@tasks.command("pause")
def pause_tasks(
    task: Annotated[str, typer.Argument(help="Id of the task.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Pause a task. The task stops soon and keeps its position."""
    with connected() as client:
        show_item(client.tasks.pause(task), as_json, wide=wide)


@tasks.command("resume")
def resume_tasks(
    task: Annotated[str, typer.Argument(help="Id of the task.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Resume a task. A paused task goes on from its position."""
    with connected() as client:
        show_item(client.tasks.resume(task), as_json, wide=wide)
