"""`postroad queues dlq …`: messages that were given up."""

from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.messages import (
    BodyMax,
    CorrelationId,
    Cursor,
    Field,
    Header,
    JobId,
    Limit,
    MessageId,
    Search,
    Since,
    Until,
    payload_of,
    tell_page,
)
from postroad.cli.output import AsJson, Wide, Yes, confirm, connected, print_json, show, show_one, to_json
from postroad.cli.queues import DryRun, Name, tell_purged
from postroad.cli.rendering import show_item
from postroad.cli.table import Column
from postroad.cli.tasks import watch_task
from postroad.cli.times import ago

if TYPE_CHECKING:
    from postroad.client import DeadMessage, Purged

dlq = typer.Typer(help="Dead letters: messages that were given up.", no_args_is_help=True)

Reason = Annotated[str | None, typer.Option(help="Exactly this reason, as `groups` shows it.")]
Letter = Annotated[str, typer.Argument(help="The message's id.")]


@dlq.command("list")
def list_letters(
    queue: Name,
    search: Search = None,
    header: Header = None,
    field: Field = None,
    message_id: MessageId = None,
    job_id: JobId = None,
    correlation_id: CorrelationId = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    body_max: BodyMax = 512,
    limit: Limit = 20,
    cursor: Cursor = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Dead letters, oldest first. All filters that are given must hold."""
    with connected() as client:
        page = client.queues.dead_letters.list_page(
            queue,
            search=search,
            header=header,
            field=field,
            message_id=message_id,
            job_id=job_id,
            correlation_id=correlation_id,
            reason=reason,
            since=ago(since) if since else None,
            until=ago(until) if until else None,
            body_max=body_max,
            page_size=limit,
            cursor=cursor,
        )
        if as_json:
            print_json(page)
            return
        show(
            page.items,
            False,
            ("message", "died", "attempts", Column("reason", priority=1), "last error", "payload"),
            _row,
            wide=wide,
        )
        typer.echo(f"{page.total:,} in all; ", err=True, nl=False)
        tell_page(page.scanned, page.matched, page.next_cursor)


def _row(letter: "DeadMessage") -> list[object]:
    return [letter.message_id, letter.dead_at, letter.attempts, letter.reason, letter.last_error or "", payload_of(letter)]


@dlq.command("groups")
def show_groups(
    queue: Name,
    search: Search = None,
    header: Header = None,
    field: Field = None,
    correlation_id: CorrelationId = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """How many there are of each reason, largest first."""
    with connected() as client:
        found = client.queues.dead_letters.groups(queue, search=search, header=header, field=field, correlation_id=correlation_id)
        if as_json:
            print_json(found)
            return
        show(
            found.groups,
            False,
            ("count", "first", "last", "reason"),
            lambda one: [one.count, one.first_at, one.last_at, one.reason],
            wide=wide,
        )
        typer.echo(f"{found.total:,} in all, {found.matched:,} of them in these groups", err=True)


@dlq.command("show")
def show_letter(queue: Name, message: Letter, as_json: AsJson = False) -> None:
    """A dead letter with its whole payload."""
    with connected() as client:
        letter = client.queues.dead_letters.get(queue, message)
        show_one(
            letter,
            as_json,
            message=letter.message_id,
            job=letter.job_id,
            reason=letter.reason,
            last_error=letter.last_error,
            attempts=letter.attempts,
            enqueued=letter.enqueued_at,
            first_failed=letter.first_failed_at,
            died=letter.dead_at,
            correlation_id=letter.correlation_id,
            traceparent=letter.traceparent,
            headers=to_json(letter.headers).decode() if letter.headers else None,
            payload=payload_of(letter),
        )


@dlq.command("delete")
def delete_letter(queue: Name, message: Letter, yes: Yes = False) -> None:
    """Drop one dead letter."""
    with connected() as client:
        confirm(f"Drop the dead letter {message} of {queue}?", yes)
        client.queues.dead_letters.delete(queue, message)
        typer.echo(f"dropped {message}")


@dlq.command("purge")
def purge_letters(
    queue: Name,
    search: Search = None,
    header: Header = None,
    field: Field = None,
    message_id: MessageId = None,
    job_id: JobId = None,
    correlation_id: CorrelationId = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Drop dead letters: those that fit, or all."""
    with connected() as client:

        def purge(*, dry_run: bool) -> "Purged":
            return client.queues.dead_letters.purge(
                queue,
                search=search,
                header=header,
                field=field,
                message_id=message_id,
                job_id=job_id,
                correlation_id=correlation_id,
                reason=reason,
                dry_run=dry_run,
            )

        purged = purge(dry_run=True)
        if not dry_run:
            confirm(f"Drop {purged.count:,} dead letters of {queue}?", yes, err=as_json)
            purged = purge(dry_run=False)
        tell_purged(purged, as_json, f"dead letters of {queue}")


@dlq.command("redrive")
def redrive(
    queue: Name,
    search: Search = None,
    header: Header = None,
    field: Field = None,
    message_id: MessageId = None,
    job_id: JobId = None,
    correlation_id: CorrelationId = None,
    reason: Reason = None,
    to: Annotated[str | None, typer.Option(help="Into another queue; their own if left out.")] = None,
    rate: Annotated[int, typer.Option(help="At most so many a second.", min=1, max=10_000)] = 100,
    limit: Annotated[int | None, typer.Option(help="At most so many in all.", min=1)] = None,
    dry_run: DryRun = False,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until it is done, and show how far it is.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back, to be delivered again: those that fit, or all. A task of the server does it.

    With --wait the exit code is 1 if it fails or is cancelled. Ctrl-C stops the watching, not the task.
    """
    with connected() as client:
        redriven = client.queues.dead_letters.redrive(
            queue,
            search=search,
            header=header,
            field=field,
            message_id=message_id,
            job_id=job_id,
            correlation_id=correlation_id,
            reason=reason,
            to=to,
            rate_per_second=rate,
            limit=limit,
            dry_run=dry_run,
        )
        task = redriven.task
        if task is None or not wait:
            if as_json:
                print_json(redriven)
            elif task is None:
                typer.echo(f"would put back {redriven.count:,} dead letters of {queue}")
            else:
                typer.echo(f"putting back {redriven.count:,} dead letters of {queue}: the task {task.id}")
                typer.echo(f"to see how far it is: postroad tasks show {task.id}", err=True)
            return
        task = watch_task(client, task)
        show_item(task, as_json)
    if task.state != "done":
        raise typer.Exit(1)
