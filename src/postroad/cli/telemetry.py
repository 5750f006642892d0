"""`postroad telemetry tail`. `postroad telemetry status` is generated."""

import sys
from typing import Annotated

import msgspec
import typer

from postroad.cli.output import connected, echo_warnings

telemetry = typer.Typer(help="Events of the tenant, live and from its telemetry queue.", no_args_is_help=True)


@telemetry.command("tail")
def tail_telemetry(
    events: Annotated[str, typer.Option("--events", help="Pattern of event types, such as `snavio.command.*`.")] = ">",
    source: Annotated[str | None, typer.Option("--source", help="Only events of commands from this service.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="Only events of commands to this service.")] = None,
    of_queue: Annotated[str | None, typer.Option("--of-queue", help="Only events of this queue.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only events that the key with this id caused.")] = None,
    max_per_second: Annotated[
        int | None, typer.Option("--max-per-second", help="Leave out events above this rate; some say how many.", min=1)
    ] = None,
    from_queue: Annotated[
        bool, typer.Option("--queue", help="Take the events from the telemetry queue and acknowledge them.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="With --queue: end when the queue is empty.")] = False,
) -> None:
    """Print the tenant's events as JSON lines: as they happen, or with --queue those that wait in the telemetry queue.

    The queue has the events about commands (`snavio.*`), and is not filtered. A line that was printed is acknowledged when
    the next one is.
    """
    if from_queue and (events != ">" or any((source, target, of_queue, key, max_per_second))):
        raise typer.BadParameter("--queue excludes filters: what it takes from the telemetry queue, nobody else gets")
    try:
        with connected() as client, echo_warnings():
            if from_queue:
                found = client.telemetry.consume(stop_when_empty=once)
            else:
                found = client.telemetry.follow(
                    events=events, source=source, target=target, queue=of_queue, key=key, max_per_second=max_per_second
                )
            for event in found:
                typer.echo(msgspec.json.encode(event).decode())
                sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
