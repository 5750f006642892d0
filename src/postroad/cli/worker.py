"""`postroad worker`: work a queue off with a program of any kind, one run per message."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import connected
from postroad.cli.queues import Name

if TYPE_CHECKING:
    from postroad.client.worker import Ended, WorkerOptions


def worker(
    queue: Name,
    command: Annotated[str, typer.Option("--exec", help="What to run for each message, by the shell.", metavar="CMD")],
    concurrency: Annotated[int, typer.Option(help="Messages at the same time.", min=1)] = 1,
    visibility_timeout_ms: Annotated[
        int, typer.Option(help="How long a message is kept from others; extended while the command runs.", min=1)
    ] = 30_000,
    drain_seconds: Annotated[
        float,
        typer.Option(help="How long to let commands finish on SIGTERM or Ctrl-C, before their messages are given back.", min=0),
    ] = 20.0,
    once: Annotated[bool, typer.Option("--once", help="End when the queue is empty.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say of every message what became of it.")] = False,
) -> None:
    """Run a command for each message of a queue: the payload on its standard input, the rest in its environment.

    POSTROAD_MESSAGE_ID, POSTROAD_JOB_ID, POSTROAD_ATTEMPT, POSTROAD_QUEUE, POSTROAD_CORRELATION_ID and POSTROAD_HEADERS (JSON).
    The command does not see POSTROAD_KEY, nor anything else of that kind.

    Exit code 0: done. 100: to the dead letters. 75 and all others, and being killed: tried again, by the queue's ladder. The
    last line of its standard error is the reason.

    SIGTERM and Ctrl-C: pull no more, let what runs finish. A second one gives back at once what is not done.
    """
    counts: Counter[str] = Counter()

    def tell(ended: "Ended") -> None:
        counts[ended.outcome.value] += 1
        if verbose or ended.outcome.value not in ("done", "lost"):  # of what is lost it is said below
            why = f": {ended.reason}" if ended.reason else ""
            message = ended.message
            typer.echo(f"{ended.outcome.value} {message.message_id} (attempt {message.attempt}){why}", err=True)

    options: WorkerOptions = {
        "concurrency": concurrency,
        "visibility_timeout_ms": visibility_timeout_ms,
        "drain_seconds": drain_seconds,
        "once": once,
    }
    from postroad.cli.execution import work_off

    with connected() as client:
        work_off(client, queue, command, tell, options)
    told = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())
    typer.echo(told or "nothing to do", err=True)
