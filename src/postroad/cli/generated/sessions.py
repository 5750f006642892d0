"""Commands of `postroad sessions`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected
from postroad.cli.rendering import show_done, show_item, show_list
from postroad.cli.sessions import sessions


@sessions.command("unsubscribe")
def unsubscribe_sessions(
    session: Annotated[str, typer.Argument(help="Id of the session, for example a UUID.")],
    stream: Annotated[str, typer.Argument(help="Id of a stream, or a pattern such as `chat:*`.")],
    project: Annotated[str | None, typer.Option("--project", help="Tenant; default: that of the credential.")] = None,
    as_json: AsJson = False,
) -> None:
    """Unsubscribe a session from a stream or a pattern.

    Like `DELETE`, for clients and proxies that send no body with it. Repeating the call has no effect.
    """
    with connected() as client:
        show_done(client.sessions.unsubscribe(session, stream, project=project), as_json, f"unsubscribed {session} from {stream}")


@sessions.command("fanout")
def fanout_sessions(
    stream: Annotated[str, typer.Argument(help="Stream id, such as `orders/2027`.")],
    project: Annotated[str | None, typer.Option("--project", help="Tenant; default: that of the credential.")] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Show the progress of a stream's fan-out."""
    with connected() as client:
        show_item(client.sessions.fanout(stream, project=project), as_json, wide=wide)


@sessions.command("list")
def list_sessions(
    prefix: Annotated[str | None, typer.Option("--prefix", help="Only ids that begin with this.")] = None,
    project: Annotated[str | None, typer.Option("--project", help="Tenant; default: that of the credential.")] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List sessions.

    In the order of their ids, without expired ones. A key that is restricted to some streams sees the sessions whose
    streams (`session:<id>`) it may use. A page may have fewer items than `limit`; the list ends where `nextCursor` is
    missing.
    """
    with connected() as client:
        show_list(
            list(islice(client.sessions.list(prefix=prefix, project=project, page_size=min(limit, 1000)), limit)),
            as_json,
            ("session_id", "subscriptions", "appends", "last_activity_at", "expires_at_ms"),
            wide=wide,
        )


@sessions.command("show")
def show_sessions(
    session: Annotated[str, typer.Argument(help="Id of the session.")],
    project: Annotated[str | None, typer.Option("--project", help="Tenant; default: that of the credential.")] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Show a session and its subscriptions. This does not prolong it."""
    with connected() as client:
        show_item(client.sessions.get(session, project=project), as_json, wide=wide)


@sessions.command("touch")
def touch_sessions(
    session: Annotated[str, typer.Argument(help="Id of the session.")],
    project: Annotated[str | None, typer.Option("--project", help="Tenant; default: that of the credential.")] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Prolong a session. It then expires after the lifetime of a new one. Reading its stream does not prolong it."""
    with connected() as client:
        show_item(client.sessions.touch(session, project=project), as_json, wide=wide)


@sessions.command("delete")
def delete_sessions(
    session: Annotated[str, typer.Argument(help="Id of the session.")],
    project: Annotated[str | None, typer.Option("--project", help="Tenant; default: that of the credential.")] = None,
    yes: Yes = False,
) -> None:
    """Delete a session and its stream. Its source streams stay."""
    with connected() as client:
        confirm(f"Delete {session} with its stream and subscriptions?", yes)
        client.sessions.delete(session, project=project)
        typer.echo(f"deleted {session}")
