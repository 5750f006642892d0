"""`postroad jobs rebuild`: rebuild the job index and show the progress."""

from typing import Annotated

import typer

from postroad.cli.output import AsJson, connected
from postroad.cli.progress import share, watched
from postroad.cli.rendering import show_item

jobs = typer.Typer(help="Jobs: the state and history of each message.", no_args_is_help=True)


@jobs.command("rebuild")
def rebuild(
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the rebuild and show its progress.")] = True,
    as_json: AsJson = False,
) -> None:
    """Rebuild the job index from the stored events. Queries use the current index meanwhile. Needs a platform key."""
    with connected() as client:
        progress = client.jobs.rebuild()
        if wait:
            with watched("stopped watching; the rebuild continues. To show its progress: postroad jobs status") as line:
                progress = client.jobs.wait_rebuilt(
                    on_progress=lambda one: line.show(f"rebuilding: {share(one.rebuilt_position or 0, one.target)}")
                )
        show_item(progress, as_json)
