"""`postroad tasks`: the group of the generated commands, and the progress line of a running task."""

from typing import TYPE_CHECKING

import typer

from postroad.cli.progress import share, watched

if TYPE_CHECKING:
    from postroad.client import Postroad, Task

tasks = typer.Typer(help="Long-running work on the server, such as a redrive.", no_args_is_help=True)


def watch_task(client: "Postroad", task: "Task") -> "Task":
    """Show the progress of the task until it has ended."""
    otherwise = f"stopped watching; the task continues. To cancel it: postroad tasks cancel {task.id}"
    with watched(otherwise) as line:
        typer.echo(f"task {task.id}", err=True)
        return client.tasks.wait(
            task, on_progress=lambda one: line.show(f"{one.state}: {share(one.progress.moved, one.progress.total)}")
        )
