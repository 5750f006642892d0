"""`postroad tasks …`: work that the server does by itself."""

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import AsJson, connected, show, show_one, to_json
from postroad.cli.progress import share, watched

if TYPE_CHECKING:
    from postroad.client import Postroad, Task

tasks = typer.Typer(help="Work that the server does by itself, such as putting dead letters back.", no_args_is_help=True)

TaskId = Annotated[str, typer.Argument(help="The task's id.")]


def _row(task: "Task") -> list[object]:
    progress = share(task.progress.moved, task.progress.total)
    return [task.id, task.kind, task.target, task.state, progress, task.error or "", task.created_at]


@tasks.command("list")
def list_tasks(
    state: Annotated[str | None, typer.Option(help="`queued`, `running`, `done`, `failed` or `cancelled`.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 50,
    as_json: AsJson = False,
) -> None:
    """The tenant's tasks, newest first."""
    with connected() as client:
        found = list(islice(client.tasks.list(state=state, page_size=min(limit, 1000)), limit))
        show(found, as_json, ("id", "kind", "target", "state", "moved", "error", "created"), _row)


@tasks.command("show")
def show_task(task: TaskId, as_json: AsJson = False) -> None:
    """A task and how far it is."""
    with connected() as client:
        print_task(client.tasks.get(task), as_json)


@tasks.command("cancel")
def cancel_task(task: TaskId, as_json: AsJson = False) -> None:
    """Ask a task to stop; what it has done stays done."""
    with connected() as client:
        print_task(client.tasks.cancel(task), as_json)


def print_task(task: "Task", as_json: bool) -> None:
    show_one(
        task,
        as_json,
        id=task.id,
        kind=task.kind,
        target=task.target,
        wanted=to_json({name: value for name, value in task.wanted.items() if value is not None}).decode(),
        state=task.state + (", to be cancelled" if task.is_cancel_wanted and not task.has_ended else ""),
        moved=share(task.progress.moved, task.progress.total),
        failed=task.progress.failed or None,
        error=task.error,
        made_by=task.created_by,
        created=task.created_at,
        started=task.started_at,
        ended=task.ended_at,
    )


def watch_task(client: "Postroad", task: "Task") -> "Task":
    """The task once it has ended."""
    otherwise = f"stopped watching; the task goes on. To cancel it: postroad tasks cancel {task.id}"
    with watched(otherwise) as line:
        typer.echo(f"task {task.id}", err=True)
        return client.tasks.wait(
            task, on_progress=lambda one: line.show(f"{one.state}: {share(one.progress.moved, one.progress.total)}")
        )
