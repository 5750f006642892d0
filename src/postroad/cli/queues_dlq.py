"""`postroad queues dlq …`: list, group, show, purge and redrive dead letters."""

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
    OfGroup,
    OfPriority,
    Search,
    payload_of,
    print_scan_summary,
)
from postroad.cli.output import AsJson, Wide, Yes, confirm, connected, print_json, show
from postroad.cli.queues import DryRun, Name, print_purged, queues
from postroad.cli.rendering import show_item
from postroad.cli.table import Column
from postroad.cli.tasks import watch_task
from postroad.cli.times import Since, Until, ago

if TYPE_CHECKING:
    from postroad.client import DeadMessage, Purged

queues_dlq = typer.Typer(help="Dead letters: messages that were rejected or failed too often.", no_args_is_help=True)
queues.add_typer(queues_dlq, name="dlq")

MessageIds = Annotated[list[str] | None, typer.Option("--message-id", help="Message id; repeat it for several, up to 100.")]
Reason = Annotated[str | None, typer.Option(help="Exact reason, as `groups --by reason` shows it.")]
Error = Annotated[str | None, typer.Option(help="Text that the last error contains.")]
ErrorGroup = Annotated[str | None, typer.Option(help="Exactly this group, as `groups` shows it.")]


@queues_dlq.command("list")
def list_dead_letters(
    queue: Name,
    search: Search = None,
    header: Header = None,
    field: Field = None,
    message_id: MessageId = None,
    job_id: JobId = None,
    correlation_id: CorrelationId = None,
    priority: OfPriority = None,
    group_id: OfGroup = None,
    reason: Reason = None,
    error: Error = None,
    error_group: ErrorGroup = None,
    since: Since = None,
    until: Until = None,
    body_max: BodyMax = 512,
    newest: Annotated[bool, typer.Option("--newest", help="Newest first.")] = False,
    limit: Limit = 20,
    cursor: Cursor = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List dead letters, oldest first. A dead letter must match all filters."""
    with connected() as client:
        page = client.queues.dead_letters.list_page(
            queue,
            search=search,
            header=header,
            field=field,
            message_id=message_id,
            job_id=job_id,
            correlation_id=correlation_id,
            priority=priority,
            group_id=group_id,
            reason=reason,
            error=error,
            error_group=error_group,
            since=ago(since) if since else None,
            until=ago(until) if until else None,
            body_max=body_max,
            order="newest" if newest else "oldest",
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
        typer.echo(f"{page.total:,} in total; ", err=True, nl=False)
        print_scan_summary(page.scanned, page.matched, page.next_cursor)


def _row(letter: "DeadMessage") -> list[object]:
    return [letter.message_id, letter.dead_at, letter.attempts, letter.reason, letter.last_error or "", payload_of(letter)]


@queues_dlq.command("groups")
def list_groups(
    queue: Name,
    search: Search = None,
    header: Header = None,
    field: Field = None,
    correlation_id: CorrelationId = None,
    priority: OfPriority = None,
    group_id: OfGroup = None,
    error: Error = None,
    error_group: ErrorGroup = None,
    since: Since = None,
    until: Until = None,
    by: Annotated[str, typer.Option(help="`error`, `reason`, `header:NAME` or `field:PATH`.")] = "error",
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Count dead letters by cause, largest group first: the last error, with digits and ids as `#`."""
    with connected() as client:
        found = client.queues.dead_letters.groups(
            queue,
            search=search,
            header=header,
            field=field,
            correlation_id=correlation_id,
            priority=priority,
            group_id=group_id,
            error=error,
            error_group=error_group,
            since=ago(since) if since else None,
            until=ago(until) if until else None,
            group_by=by,
        )
        if as_json:
            print_json(found)
            return
        show(
            found.groups,
            False,
            ("count", "first", "last", by),
            lambda one: [one.count, one.first_at, one.last_at, one.group or one.reason],
            wide=wide,
        )
        typer.echo(f"{found.total:,} in total, {found.matched:,} in these groups", err=True)


@queues_dlq.command("purge")
def purge_dead_letters(
    queue: Name,
    search: Search = None,
    header: Header = None,
    field: Field = None,
    message_ids: MessageIds = None,
    job_id: JobId = None,
    correlation_id: CorrelationId = None,
    priority: OfPriority = None,
    group_id: OfGroup = None,
    reason: Reason = None,
    error: Error = None,
    error_group: ErrorGroup = None,
    since: Since = None,
    until: Until = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete the dead letters that match; without a filter, all."""
    with connected() as client:

        def purge(*, dry_run: bool) -> "Purged":
            return client.queues.dead_letters.purge(
                queue,
                search=search,
                header=header,
                field=field,
                message_ids=message_ids or None,
                job_id=job_id,
                correlation_id=correlation_id,
                priority=priority,
                group_id=group_id,
                reason=reason,
                error=error,
                error_group=error_group,
                since=ago(since) if since else None,
                until=ago(until) if until else None,
                dry_run=dry_run,
            )

        purged = purge(dry_run=True)
        if not dry_run:
            confirm(f"Delete {purged.count:,} dead letters of {queue}?", yes, err=as_json)
            purged = purge(dry_run=False)
        print_purged(purged, as_json, f"dead letters of {queue}")


@queues_dlq.command("redrive")
def redrive_dead_letters(
    queue: Name,
    search: Search = None,
    header: Header = None,
    field: Field = None,
    message_ids: MessageIds = None,
    job_id: JobId = None,
    correlation_id: CorrelationId = None,
    priority: OfPriority = None,
    group_id: OfGroup = None,
    reason: Reason = None,
    error: Error = None,
    error_group: ErrorGroup = None,
    since: Since = None,
    until: Annotated[str | None, typer.Option("--before", help="Latest time, exclusive.")] = None,
    to: Annotated[str | None, typer.Option(help="Target queue; the original queue if left out.")] = None,
    rate: Annotated[int, typer.Option(help="Messages per second.", min=1, max=10_000)] = 100,
    limit: Annotated[int | None, typer.Option(help="Most dead letters to redrive.", min=1)] = None,
    dry_run: DryRun = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the task and show its progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move dead letters back to their queue, as a task on the server: those that match, or all without a filter.

    With --wait the exit code is 1 if the task fails or is cancelled. Ctrl-C stops waiting; the task continues.
    """
    with connected() as client:
        redriven = client.queues.dead_letters.redrive(
            queue,
            search=search,
            header=header,
            field=field,
            message_ids=message_ids or None,
            job_id=job_id,
            correlation_id=correlation_id,
            priority=priority,
            group_id=group_id,
            reason=reason,
            error=error,
            error_group=error_group,
            since=ago(since) if since else None,
            until=ago(until) if until else None,
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
                typer.echo(f"would redrive {redriven.count:,} dead letters of {queue}")
            else:
                typer.echo(f"redriving {redriven.count:,} dead letters of {queue}: task {task.id}")
                typer.echo(f"to show the progress: postroad tasks show {task.id}", err=True)
            return
        task = watch_task(client, task)
        show_item(task, as_json)
    if task.state != "done":
        raise typer.Exit(1)
