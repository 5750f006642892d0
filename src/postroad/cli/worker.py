"""`postroad worker`: run a command for each message of a queue."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import connected
from postroad.cli.queues import Name

if TYPE_CHECKING:
    from postroad.client.worker import Ended, WorkerOptions


def worker(
    queue: Name,
    command: Annotated[str, typer.Option("--exec", help="Shell command to run for each message.", metavar="CMD")],
    concurrency: Annotated[int, typer.Option(help="Messages processed at the same time.", min=1)] = 1,
    visibility_timeout_ms: Annotated[
        int, typer.Option(help="Lease of a message in milliseconds; extended while the command runs.", min=1)
    ] = 30_000,
    drain_seconds: Annotated[
        float,
        typer.Option(
            help="On SIGTERM or Ctrl-C, seconds to let commands finish before their messages are returned to the queue.", min=0
        ),
    ] = 20.0,
    once: Annotated[bool, typer.Option("--once", help="End when the queue is empty.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print the outcome of every message.")] = False,
) -> None:
    """Run a command for each message of a queue, with the payload on standard input and the rest in the environment.

    The environment has POSTROAD_MESSAGE_ID, POSTROAD_JOB_ID, POSTROAD_ATTEMPT, POSTROAD_QUEUE, POSTROAD_CORRELATION_ID and
    POSTROAD_HEADERS (JSON), but no other POSTROAD_ variable, so neither key nor address.

    Exit code 0 acknowledges the message, 100 moves it to the dead letters, and any other code or a signal retries it after the
    queue's retry delay. The last line of standard error is the reason.

    SIGTERM and Ctrl-C stop pulling and let running commands finish. A second signal ends them and returns their messages at once.
    """
    counts: Counter[str] = Counter()

    def on_end(ended: "Ended") -> None:
        counts[ended.outcome.value] += 1
        if verbose or ended.outcome.value not in ("done", "lost"):  # the SDK logs a warning for each lost lease
            why = f": {ended.reason}" if ended.reason else ""
            message = ended.message
            typer.echo(f"{ended.outcome.value} {message.message_id} (attempt {message.attempt}){why}", err=True)

    options: WorkerOptions = {
        "concurrency": concurrency,
        "visibility_timeout_ms": visibility_timeout_ms,
        "drain_seconds": drain_seconds,
        "once": once,
    }
    from postroad.cli.execution import run_worker

    with connected() as client:
        run_worker(client, queue, command, on_end, options)
    summary = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())
    typer.echo(summary or "no messages", err=True)
