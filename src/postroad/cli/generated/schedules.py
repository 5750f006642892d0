"""Commands of `postroad schedules`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated, Literal

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected
from postroad.cli.rendering import json_value, show_done, show_item, show_list
from postroad.cli.times import from_now

schedules = typer.Typer(help="Messages published by cron expression or interval.", no_args_is_help=True)


@schedules.command("list")
def list_schedules(
    queue: Annotated[str | None, typer.Option("--queue", help="Only schedules of this queue.")] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List schedules."""
    with connected() as client:
        show_list(
            list(islice(client.schedules.list(queue=queue, page_size=min(limit, 1000)), limit)),
            as_json,
            ("name", "queue", "cron", "every_ms", "time_zone", "state", "next_run_at", "last_run_at"),
            wide=wide,
        )


@schedules.command("put")
def put_schedules(
    schedule: Annotated[str, typer.Argument(help="Name of the schedule.")],
    queue: Annotated[str, typer.Argument(help="Queue that the messages are published to.")],
    cron: Annotated[
        str | None, typer.Option("--cron", help="Minute, hour, day of month, month, day of week; or an alias such as `@hourly`.")
    ] = None,
    every_ms: Annotated[int | None, typer.Option("--every-ms", help="Interval, from `startAt` or the creation on.")] = None,
    time_zone: Annotated[str | None, typer.Option("--time-zone", help="IANA time zone of `cron`.")] = None,
    payload: Annotated[str | None, typer.Option("--payload", help="Payload of each message: any JSON.")] = None,
    headers: Annotated[str | None, typer.Option("--headers", help="Headers of each message.")] = None,
    priority: Annotated[
        Literal["high", "normal", "low"] | None, typer.Option("--priority", help="Priority of each message.")
    ] = None,
    catch_up: Annotated[
        Literal["none", "last", "all"] | None,
        typer.Option("--catch-up", help="Missed ticks that are published: `none`, the `last` one, or `all`."),
    ] = None,
    start_at: Annotated[
        str | None,
        typer.Option(
            "--start-at", help="No run before this time. A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`."
        ),
    ] = None,
    end_at: Annotated[
        str | None,
        typer.Option("--end-at", help="No run after this time. A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`."),
    ] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Create a schedule or replace its settings.

    Settings that are left out get their defaults. The status is 201 if the schedule is new. Equal settings change
    nothing. A change of the queue or of the times applies from now on.
    """
    with connected() as client:
        show_item(
            client.schedules.put(
                schedule,
                queue,
                cron=cron,
                every_ms=every_ms,
                time_zone=time_zone,
                payload=json_value(payload, "payload"),
                headers=json_value(headers, "headers"),
                priority=priority,
                catch_up=catch_up,
                start_at=from_now(start_at) if start_at else None,
                end_at=from_now(end_at) if end_at else None,
            ),
            as_json,
            wide=wide,
        )


@schedules.command("get")
def get_schedules(
    schedule: Annotated[str, typer.Argument(help="Name of the schedule.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Show a schedule."""
    with connected() as client:
        show_item(client.schedules.get(schedule), as_json, wide=wide)


@schedules.command("delete")
def delete_schedules(schedule: Annotated[str, typer.Argument(help="Name of the schedule.")], yes: Yes = False) -> None:
    """Delete a schedule. Messages that it has published stay in the queue."""
    with connected() as client:
        confirm(f"Delete the schedule {schedule}?", yes)
        client.schedules.delete(schedule)
        typer.echo(f"deleted {schedule}")


@schedules.command("pause")
def pause_schedules(schedule: Annotated[str, typer.Argument(help="Name of the schedule.")], as_json: AsJson = False) -> None:
    """Pause a schedule. Ticks until it is resumed are skipped, whatever its catch-up policy is."""
    with connected() as client:
        show_done(client.schedules.pause(schedule), as_json, f"paused {schedule}")


@schedules.command("resume")
def resume_schedules(schedule: Annotated[str, typer.Argument(help="Name of the schedule.")], as_json: AsJson = False) -> None:
    """Resume a schedule."""
    with connected() as client:
        show_done(client.schedules.resume(schedule), as_json, f"resumed {schedule}")


@schedules.command("run")
def run_schedules(
    schedule: Annotated[str, typer.Argument(help="Name of the schedule.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Publish a message of a schedule now. One message besides those of its ticks. Works for a paused schedule, too."""
    with connected() as client:
        show_item(client.schedules.run(schedule), as_json, wide=wide)


@schedules.command("next")
def next_schedules(
    schedule: Annotated[str, typer.Argument(help="Name of the schedule.")],
    count: Annotated[int | None, typer.Option("--count", help="Number of runs.")] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Show the next runs of a schedule."""
    with connected() as client:
        show_item(client.schedules.next(schedule, count=count), as_json, wide=wide)
