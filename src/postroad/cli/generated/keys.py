"""Commands of `postroad keys`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated

import typer

from postroad.cli.keys import keys
from postroad.cli.output import AsJson, Wide, Yes, confirm, connected
from postroad.cli.rendering import nullable, show_item, show_list, show_secret
from postroad.cli.times import from_now, seconds
from postroad.kernel.identity import Scope


@keys.command("list")
def list_keys(
    platform: Annotated[
        bool, typer.Option("--platform", help="List the platform keys instead of the tenant's. Platform keys only.")
    ] = False,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List keys."""
    with connected() as client:
        show_list(
            list(islice(client.keys.list(platform=platform, page_size=min(limit, 1000)), limit)),
            as_json,
            ("id", "name", "scopes", "enabled", "expires_at", "last_used_at", "created_at"),
            wide=wide,
        )


@keys.command("create")
def create_keys(
    name: Annotated[str, typer.Argument(help="Name for people, such as the service that uses the key.")],
    scopes: Annotated[list[Scope], typer.Option("--scope", help="Operations that the key allows.")],
    allowed_queues: Annotated[list[str] | None, typer.Option("--queue", help="Names; `*` matches any run of characters.")] = None,
    allowed_topics: Annotated[list[str] | None, typer.Option("--topic", help="Names; `*` matches any run of characters.")] = None,
    allowed_buckets: Annotated[
        list[str] | None, typer.Option("--bucket", help="Names; `*` matches any run of characters.")
    ] = None,
    allowed_streams: Annotated[
        list[str] | None, typer.Option("--stream", help="Names; `*` matches any run of characters.")
    ] = None,
    allowed_services: Annotated[
        list[str] | None, typer.Option("--allowed-service", help="Names; `*` matches any run of characters.")
    ] = None,
    expires_at: Annotated[
        str | None, typer.Option("--expires", help="A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`.")
    ] = None,
    max_requests_per_second: Annotated[
        int | None,
        typer.Option(
            "--max-requests-per-second",
            help="Requests per second and worker; 0 for no limit, null for the installation's default.",
        ),
    ] = None,
    max_live_connections: Annotated[
        int | None,
        typer.Option(
            "--max-live-connections", help="Waiting long polls and streamed responses per worker; 0 or null for no limit."
        ),
    ] = None,
    platform: Annotated[bool, typer.Option("--platform", help="Create a platform key. Platform keys only.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create a key.

    The text of the key is shown once. A key grants no resources that it may not use itself, and an expiring key
    cannot create a key that expires later. A platform key has all scopes.
    """
    with connected() as client:
        show_secret(
            client.keys.create(
                name,
                scopes,
                allowed_queues=allowed_queues,
                allowed_topics=allowed_topics,
                allowed_buckets=allowed_buckets,
                allowed_streams=allowed_streams,
                allowed_services=allowed_services,
                expires_at=from_now(expires_at) if expires_at else None,
                max_requests_per_second=max_requests_per_second,
                max_live_connections=max_live_connections,
                platform=platform,
            ),
            as_json,
            "key",
        )


@keys.command("show")
def show_keys(
    key: Annotated[str, typer.Argument(help="Key id, as `keys list` shows it; not the text of the key.")],
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Show a key."""
    with connected() as client:
        show_item(client.keys.get(key), as_json, wide=wide)


@keys.command("update")
def update_keys(
    key: Annotated[str, typer.Argument(help="Key id, as `keys list` shows it; not the text of the key.")],
    name: Annotated[str | None, typer.Option("--name", help="Name for people, such as the service that uses the key.")] = None,
    scopes: Annotated[list[Scope] | None, typer.Option("--scope", help="Operations that the key allows.")] = None,
    allowed_queues: Annotated[list[str] | None, typer.Option("--queue", help="Names; `*` matches any run of characters.")] = None,
    allowed_topics: Annotated[list[str] | None, typer.Option("--topic", help="Names; `*` matches any run of characters.")] = None,
    allowed_buckets: Annotated[
        list[str] | None, typer.Option("--bucket", help="Names; `*` matches any run of characters.")
    ] = None,
    allowed_streams: Annotated[
        list[str] | None, typer.Option("--stream", help="Names; `*` matches any run of characters.")
    ] = None,
    allowed_services: Annotated[
        list[str] | None, typer.Option("--allowed-service", help="Names; `*` matches any run of characters.")
    ] = None,
    expires_at: Annotated[
        str | None,
        typer.Option("--expires", help="A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`. `none` removes it."),
    ] = None,
    max_requests_per_second: Annotated[
        str | None,
        typer.Option(
            "--max-requests-per-second",
            help="Requests per second and worker; 0 for no limit, null for the installation's default. `none` removes it.",
        ),
    ] = None,
    max_live_connections: Annotated[
        str | None,
        typer.Option(
            "--max-live-connections",
            help="Waiting long polls and streamed responses per worker; 0 or null for no limit. `none` removes it.",
        ),
    ] = None,
    enabled: Annotated[bool | None, typer.Option("--enabled/--no-enabled", help="Every gateway refuses a disabled key.")] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Update, disable or enable a key. Takes effect on every gateway in less than a second."""
    with connected() as client:
        show_item(
            client.keys.update(
                key,
                name=name,
                scopes=scopes,
                allowed_queues=allowed_queues,
                allowed_topics=allowed_topics,
                allowed_buckets=allowed_buckets,
                allowed_streams=allowed_streams,
                allowed_services=allowed_services,
                expires_at=nullable(expires_at, from_now),
                max_requests_per_second=nullable(max_requests_per_second, int),
                max_live_connections=nullable(max_live_connections, int),
                enabled=enabled,
            ),
            as_json,
            wide=wide,
        )


@keys.command("rotate")
def rotate_keys(
    key: Annotated[str, typer.Argument(help="Key id, as `keys list` shows it; not the text of the key.")],
    grace_seconds: Annotated[
        str | None, typer.Option("--grace", help="Seconds that the previous text stays valid. Such as `90s`, `12h`, `7d`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rotate a key.

    Replaces the text of the key; its id, scopes and history stay. The previous text stays valid for the grace period;
    then live streams, long polls and stream tokens that it opened end.
    """
    with connected() as client:
        show_secret(client.keys.rotate(key, grace_seconds=seconds(grace_seconds)), as_json, "key")


@keys.command("delete")
def delete_keys(
    key: Annotated[str, typer.Argument(help="Key id, as `keys list` shows it; not the text of the key.")], yes: Yes = False
) -> None:
    """Delete a key."""
    with connected() as client:
        confirm(f"Delete the key {key}?", yes)
        client.keys.delete(key)
        typer.echo(f"deleted the key {key}")
