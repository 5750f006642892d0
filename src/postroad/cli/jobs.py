"""`postroad jobs …`: the state and history of messages, and the index that serves them."""

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.output import AsJson, Wide, connected, print_json, show, show_one, to_json
from postroad.cli.progress import share, watched
from postroad.cli.table import Column
from postroad.cli.times import ago

if TYPE_CHECKING:
    from postroad.client import Job, JobsProgress

jobs = typer.Typer(help="Jobs: the state and history of each message.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(help="Job id, printed by `queues publish`.")]


def _row(job: "Job") -> list[object]:
    return [job.job_id, job.queue, job.status, job.attempts, job.last_error or "", job.created_at, job.updated_at]


@jobs.command("list")
def list_jobs(
    queue: Annotated[str | None, typer.Option(help="Queue of the jobs.")] = None,
    status: Annotated[
        str | None, typer.Option(help="Status: `queued`, `delayed`, `leased`, `retrying`, `done`, `dead` or `expired`.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Earliest creation: a span such as `12h` ago, or `2027-01-31T12:00:00Z`.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Latest creation, exclusive.")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="Correlation id.")] = None,
    message_id: Annotated[str | None, typer.Option(help="Message id.")] = None,
    limit: Annotated[int, typer.Option(help="Most jobs to show.", min=1)] = 50,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List jobs, newest first."""
    with connected() as client:
        found = client.jobs.list(
            queue=queue,
            status=status,
            since=ago(since) if since else None,
            until=ago(until) if until else None,
            correlation_id=correlation_id,
            message_id=message_id,
            page_size=min(limit, 1000),
        )
        show(
            list(islice(found, limit)),
            as_json,
            ("job", "queue", Column("status", priority=1), "attempts", "error", "created", "updated"),
            _row,
            wide=wide,
        )


@jobs.command("show")
def show_job(job: JobId, as_json: AsJson = False) -> None:
    """Show a job and its state."""
    with connected() as client:
        found = client.jobs.get(job)
        show_one(
            found,
            as_json,
            job=found.job_id,
            message=found.message_id,
            queue=found.queue,
            status=found.status,
            attempts=found.attempts,
            last_error=found.last_error,
            correlation_id=found.correlation_id,
            created=found.created_at,
            updated=found.updated_at,
            due=found.due_at,
            leased_until=found.lease_until,
            expires=found.expires_at,
            archived=found.archived or None,
        )


@jobs.command("events")
def list_events(
    job: JobId,
    limit: Annotated[int, typer.Option(help="Most events to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List the events of a job, oldest first. They are stored if the tenant's audit_mode is `full`. --json prints all fields."""
    with connected() as client:
        events = list(islice(client.jobs.events(job, page_size=min(limit, 1000)), limit))
        show(events, as_json, ("at", "event", "details"), _event_row, wide=wide)


_DETAILS = ("attempt", "delay_ms", "lease_until", "next_at", "processing_ms", "reason", "last_error", "task_id")


def _event_row(event: dict[str, Any]) -> list[object]:
    details = [f"{name}={to_json(event[name]).decode()}" for name in _DETAILS if event.get(name) not in (None, "", 0)]
    return [event.get("timestamp", ""), event.get("event", ""), " ".join(details)]


@jobs.command("status")
def show_status(as_json: AsJson = False) -> None:
    """Show the progress of the job index. Needs a platform key."""
    with connected() as client:
        _show_progress(client.jobs.status(), as_json)


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
        _show_progress(progress, as_json)


def _show_progress(progress: "JobsProgress", as_json: bool) -> None:
    if as_json:
        print_json(progress)
        return
    show_one(
        progress,
        False,
        position=progress.position,
        target=progress.target,
        behind=progress.behind,
        rebuilding=progress.rebuilding,
        rebuilt=None if progress.rebuilt_position is None else share(progress.rebuilt_position, progress.target),
    )
