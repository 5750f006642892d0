"""Commands of `postroad routes`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated, Literal

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected
from postroad.cli.rendering import json_value, show_item, show_list
from postroad.cli.times import ago, from_now

routes = typer.Typer(help="Routes of commands to queues, and the change log of the registry.", no_args_is_help=True)


@routes.command("list")
def list_routes(
    service: Annotated[str | None, typer.Option("--service", help="Only routes of this service.")] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List command routes."""
    with connected() as client:
        show_list(
            list(islice(client.routes.list(service=service, page_size=min(limit, 1000)), limit)),
            as_json,
            ("service", "command", "queue", "sensitivity", "acl_check", "signature", "grants", "expires_at"),
            wide=wide,
        )


@routes.command("put")
def put_routes(
    service: Annotated[str, typer.Argument(help="Name of the service.")],
    command: Annotated[str, typer.Argument(help="Name of the command.")],
    queue: Annotated[str, typer.Argument(help="Queue of the tenant, with dead letters.")],
    sensitivity: Annotated[
        Literal["critical", "moderate", "low"] | None,
        typer.Option("--sensitivity", help="How old a cached grant may be; null for the installation's default."),
    ] = None,
    dedupe_mode: Annotated[
        Literal["none", "strict"] | None,
        typer.Option("--dedupe-mode", help="`none`: at least once; `strict`: each command id once."),
    ] = None,
    dedupe_ttl_seconds: Annotated[
        int | None, typer.Option("--dedupe-ttl-seconds", help="How long a command id is known, with `strict`.")
    ] = None,
    rate_limit: Annotated[str | None, typer.Option("--rate-limit", help="Limit of the route's commands; null for none.")] = None,
    fairness: Annotated[
        str | None, typer.Option("--fairness", help="Fairness between senders, with a rate limit; null: defaults.")
    ] = None,
    expected_drain_seconds: Annotated[
        int | None,
        typer.Option(
            "--expected-drain-seconds",
            help="Usual time until a command is consumed; null: that of the queue, 300 if it has none.",
        ),
    ] = None,
    acl_check: Annotated[
        Literal["cached", "sync"] | None,
        typer.Option("--acl-check", help="`sync`: the grant is read from the engine for every command."),
    ] = None,
    signature: Annotated[
        Literal["optional", "required"] | None,
        typer.Option("--signature", help="`required`: commands need `metadata.signature`."),
    ] = None,
    archive: Annotated[
        bool | None,
        typer.Option("--archive/--no-archive", help="Whether payloads of this route are archived; needed to replay them."),
    ] = None,
    expires_at: Annotated[
        str | None,
        typer.Option(
            "--expires-at",
            help="The route ends then; null for never. A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check, and return the route as it would be; nothing is stored.")
    ] = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Register a command route.

    Commands of this name for this service go to the queue, from senders that have a grant. Grants are kept when a
    route is replaced.
    """
    with connected() as client:
        show_item(
            client.routes.put(
                service,
                command,
                queue,
                sensitivity=sensitivity,
                dedupe_mode=dedupe_mode,
                dedupe_ttl_seconds=dedupe_ttl_seconds,
                rate_limit=json_value(rate_limit, "rate_limit"),
                fairness=json_value(fairness, "fairness"),
                expected_drain_seconds=expected_drain_seconds,
                acl_check=acl_check,
                signature=signature,
                archive=archive,
                expires_at=from_now(expires_at) if expires_at else None,
                dry_run=dry_run,
            ),
            as_json,
            wide=wide,
        )


@routes.command("show")
def show_routes(
    service: Annotated[str, typer.Argument(help="Name of the service.")],
    command: Annotated[str, typer.Argument(help="Name of the command.")],
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Show a command route."""
    with connected() as client:
        show_item(client.routes.get(service, command), as_json, wide=wide)


@routes.command("delete")
def delete_routes(
    service: Annotated[str, typer.Argument(help="Name of the service.")],
    command: Annotated[str, typer.Argument(help="Name of the command.")],
    yes: Yes = False,
) -> None:
    """Delete a command route with its grants and quotas."""
    with connected() as client:
        confirm(f"Delete the route {service}/{command} with its grants and quotas?", yes)
        client.routes.delete(service, command)
        typer.echo(f"deleted the route {service}/{command}")


@routes.command("test")
def test_routes(
    service: Annotated[str, typer.Argument(help="Name of the service.")],
    command: Annotated[str, typer.Argument(help="Name of the command.")],
    source: Annotated[str, typer.Argument(help="`<tenant>/<service>`, or `<service>` of the own tenant.")],
    is_signed: Annotated[bool, typer.Option("--is-signed", help="The command would have a signature.")] = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Test a command route for a sender.

    A dry run: the outcome of each check. Nothing is delivered and no event recorded.
    """
    with connected() as client:
        show_item(client.routes.test(service, command, source, is_signed=is_signed), as_json, wide=wide)


@routes.command("changes")
def changes_routes(
    since: Annotated[
        str | None,
        typer.Option("--from", help="Not before this time. A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", help="Before this time. A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List changes of services, routes and grants.

    Newest first, from the audit log. `nextCursor` continues, also after a page without changes.
    """
    with connected() as client:
        show_list(
            list(
                islice(
                    client.routes.changes(
                        since=ago(since) if since else None, until=ago(until) if until else None, page_size=min(limit, 1000)
                    ),
                    limit,
                )
            ),
            as_json,
            ("at", "action", "target", "actor_key_id", "outcome"),
            wide=wide,
        )


@routes.command("health")
def health_routes(
    status: Annotated[
        Literal["healthy", "unhealthy", "unknown"] | None, typer.Option("--status", help="Only routes with this status.")
    ] = None,
    service: Annotated[str | None, typer.Option("--service", help="Only routes of this service.")] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List the health of command routes.

    Routes of the tenant's services, unhealthy ones first. A status is that of two samples in a row.
    """
    with connected() as client:
        show_list(
            list(islice(client.route_health.list(status=status, service=service, page_size=min(limit, 1000)), limit)),
            as_json,
            ("service", "command", "queue", "status", "problems", "since", "ready", "oldest_age_ms"),
            wide=wide,
        )


@routes.command("misroutes")
def misroutes_routes(as_json: AsJson = False, wide: Wide = False) -> None:
    """List commands without a route.

    Commands of the tenant's services that failed with `route-missing`, counted by target and command.
    """
    with connected() as client:
        show_item(client.route_health.misroutes(), as_json, wide=wide)
