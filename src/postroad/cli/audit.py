"""`postroad audit`: list the audit log. `postroad audit verify`: compare it with its checkpoints."""

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import AsJson, Wide, connected, print_json, show
from postroad.cli.times import Since, Until, ago

if TYPE_CHECKING:
    from postroad.client import AuditEntry


audit = typer.Typer(invoke_without_command=True)


@audit.callback()
def list_entries(
    context: typer.Context,
    since: Since = None,
    until: Until = None,
    action: Annotated[str | None, typer.Option(help="Action, such as `key.create`, or a prefix, such as `key.*`.")] = None,
    actor: Annotated[str | None, typer.Option(help="Id of the key that made the change.")] = None,
    target: Annotated[str | None, typer.Option(help="Id of the changed resource.")] = None,
    request_id: Annotated[str | None, typer.Option(help="Id of the request.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Tenant id, or `_platform`; all if left out. Needs a platform key.")] = None,
    limit: Annotated[int, typer.Option(help="Most entries to show.", min=1)] = 50,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List the audit log, newest first. Tenant keys see their tenant's entries, platform keys all. --json prints all fields."""
    if context.invoked_subcommand is not None:
        return
    with connected() as client:
        entries = client.audit.list(
            since=ago(since) if since else None,
            until=ago(until) if until else None,
            action=action,
            actor=actor,
            target=target,
            request_id=request_id,
            tenant=tenant,
            page_size=min(limit, 1000),
        )
        head = ("at", "tenant", "action", "target", "by", "outcome", "changed")
        show(list(islice(entries, limit)), as_json, head, _row, wide=wide)


def _row(entry: "AuditEntry") -> list[object]:
    by = entry.actor_key_id + (" (platform)" if entry.actor_is_platform else "")
    return [entry.at, entry.tenant, entry.action, entry.target, by, entry.outcome, _changes(entry)]


def _changes(entry: "AuditEntry") -> str:
    """The changed fields and their new values; empty if the resource was created or deleted."""
    before, after = entry.before, entry.after
    if before is None or after is None:
        return ""
    names = [name for name in {**before, **after} if name != "updatedAt" and before.get(name) != after.get(name)]
    return " ".join(f"{name}={after.get(name)}" for name in names)


@audit.command("verify")
def verify(as_json: AsJson = False) -> None:
    """Compare the audit log with its signed checkpoints. Needs a platform key. The exit status is 1 if it was damaged."""
    with connected() as client:
        found = client.audit.verify()
        if as_json:
            print_json(found)
        else:
            for finding in found.findings:
                typer.echo(f"{finding.at}  {finding.kind}: {finding.detail}")
            state = "intact" if found.intact else "damaged"
            typer.echo(
                f"the audit log is {state}: {found.verified} entries verified, {found.unverified} not covered by a checkpoint"
            )
            if found.checkpoint is not None:
                newest = found.checkpoint
                typer.echo(f"checkpoint {newest.number} at {newest.at}: sequence {newest.sequence}, hash {newest.hash}")
        if not found.intact:
            raise typer.Exit(1)
