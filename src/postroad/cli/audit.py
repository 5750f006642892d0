"""`postroad audit`: who changed what."""

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import AsJson, Wide, connected, show
from postroad.cli.times import ago

if TYPE_CHECKING:
    from postroad.client import AuditEntry


def audit(
    since: Annotated[str | None, typer.Option(help="Not before: `12h` ago, or `2027-01-31T12:00:00Z`.")] = None,
    until: Annotated[str | None, typer.Option(help="Before.")] = None,
    action: Annotated[str | None, typer.Option(help="Such as `key.create`; `key.*` for all that begin so.")] = None,
    actor: Annotated[str | None, typer.Option(help="The id of the key that did it.")] = None,
    target: Annotated[str | None, typer.Option(help="The id of what it was done to.")] = None,
    request_id: Annotated[str | None, typer.Option(help="The request that did it.")] = None,
    tenant: Annotated[
        str | None, typer.Option(help="One tenant's entries, or `_platform`; all if left out. Platform keys only.")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 50,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """The audit log, newest first. A tenant's admin sees the tenant's entries, a platform key all. --json has the details."""
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
    return [entry.at, entry.tenant, entry.action, entry.target, by, entry.outcome, _changed(entry)]


def _changed(entry: "AuditEntry") -> str:
    """The fields that the change gave another value; nothing for what was made or deleted as a whole."""
    before, after = entry.before, entry.after
    if before is None or after is None:
        return ""
    names = [name for name in {**before, **after} if name != "updatedAt" and before.get(name) != after.get(name)]
    return " ".join(f"{name}={after.get(name)}" for name in names)
