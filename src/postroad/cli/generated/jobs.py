"""Commands of `postroad jobs`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated, Literal

import typer

from postroad.cli.jobs import jobs
from postroad.cli.output import AsJson, Wide, Yes, confirm, connected
from postroad.cli.rendering import show_item, show_list
from postroad.cli.times import ago


@jobs.command("list")
def list_jobs(
    queue: Annotated[str | None, typer.Option("--queue", help="Queue of the jobs.")] = None,
    status: Annotated[
        Literal["queued", "delayed", "leased", "retrying", "done", "dead", "expired", "cancelled"] | None,
        typer.Option("--status", help="Only jobs with this status."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--from", help="Created at this time or later. A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--to", help="Created before this time. A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`."),
    ] = None,
    correlation_id: Annotated[str | None, typer.Option("--correlation-id", help="Only jobs with this correlation id.")] = None,
    message_id: Annotated[str | None, typer.Option("--message-id", help="Only jobs of this message.")] = None,
    group_id: Annotated[
        str | None, typer.Option("--group-id", help="Only jobs of messages of this group, without archived ones.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 50,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List jobs. Newest first, including archived jobs. A key that is restricted to some queues gets their jobs."""
    with connected() as client:
        show_list(
            list(
                islice(
                    client.jobs.list(
                        queue=queue,
                        status=status,
                        since=ago(since) if since else None,
                        until=ago(until) if until else None,
                        correlation_id=correlation_id,
                        message_id=message_id,
                        group_id=group_id,
                        page_size=min(limit, 1000),
                    ),
                    limit,
                )
            ),
            as_json,
            ("job_id", "queue", "status", "attempts", "last_error", "created_at", "updated_at"),
            wide=wide,
        )


@jobs.command("show")
def show_jobs(job: Annotated[str, typer.Argument(help="Id of the job.")], as_json: AsJson = False, wide: Wide = False) -> None:
    """Show a job. A job exists as soon as the publish that created it was answered."""
    with connected() as client:
        show_item(client.jobs.get(job), as_json, wide=wide)


@jobs.command("events")
def events_jobs(
    job: Annotated[str, typer.Argument(help="Id of the job.")],
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List the events of a job. Oldest first. Stored if the tenant's `auditMode` is `full`, until the job is archived."""
    with connected() as client:
        show_list(
            list(islice(client.jobs.events(job, page_size=min(limit, 1000)), limit)),
            as_json,
            (
                "timestamp",
                "event",
                "attempt",
                "processing_ms",
                "reason",
                "last_error",
                "delay_ms",
                "lease_until",
                "next_at",
                "task_id",
            ),
            wide=wide,
        )


@jobs.command("cancel")
def cancel_jobs(
    job: Annotated[str, typer.Argument(help="Id of the job.")],
    reason: Annotated[str | None, typer.Option("--reason", help="Stored as the job's last error.")] = None,
    yes: Yes = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Cancel a job.

    Takes the message of an unfinished job out of its queue. A worker that has it learns of it when it extends its
    lease or reports progress; if it acknowledges before, the job is done. Idempotent.
    """
    with connected() as client:
        confirm(f"Cancel the job {job}?", yes)
        show_item(client.jobs.cancel(job, reason=reason), as_json, wide=wide)


@jobs.command("run")
def run_jobs(job: Annotated[str, typer.Argument(help="Id of the job.")], as_json: AsJson = False, wide: Wide = False) -> None:
    """Run a delayed or retrying job now. A job that is ready already stays as it is."""
    with connected() as client:
        show_item(client.jobs.run_now(job), as_json, wide=wide)


@jobs.command("retry")
def retry_jobs(job: Annotated[str, typer.Argument(help="Id of the job.")], as_json: AsJson = False, wide: Wide = False) -> None:
    """Retry a dead or cancelled job.

    The message returns to its queue, and its attempts start at 1 again. The payload of a job that is done or expired
    does not exist any more: 410.
    """
    with connected() as client:
        show_item(client.jobs.retry(job), as_json, wide=wide)


@jobs.command("status")
def status_jobs(as_json: AsJson = False, wide: Wide = False) -> None:
    """Show the progress of the job index. Needs a platform key."""
    with connected() as client:
        show_item(client.jobs.status(), as_json, wide=wide)
