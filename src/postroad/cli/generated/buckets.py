"""Commands of `postroad buckets`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated, Literal

import typer

from postroad.cli.buckets import buckets
from postroad.cli.output import AsJson, Wide, Yes, confirm, connected
from postroad.cli.rendering import nullable, show_item, show_list


@buckets.command("list")
def list_buckets(
    name: Annotated[
        str | None, typer.Option("--name", help="Only buckets whose names match; `*` is any run of characters.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List buckets."""
    with connected() as client:
        show_list(
            list(islice(client.buckets.list(name=name, page_size=min(limit, 1000)), limit)),
            as_json,
            ("name", "settings.history", "settings.ttl_seconds", "settings.max_bytes", "replicas", "created_at"),
            wide=wide,
        )


@buckets.command("create")
def create_buckets(
    name: Annotated[str, typer.Argument(help="Name of the bucket: letters, digits and `_ . : -`.")],
    history: Annotated[int | None, typer.Option("--history", help="Revisions that are kept of each key.")] = None,
    ttl_seconds: Annotated[
        int | None, typer.Option("--ttl-seconds", help="How long a value is kept after it was written; 0: without limit.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", help="Bytes that the bucket holds, which are reserved for it; 0: no limit.")
    ] = None,
    max_value_bytes: Annotated[
        int | None, typer.Option("--max-value-bytes", help="Size of a value; 0: the tenant's limit of a message.")
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas", help="Copies of the bucket. The installation's default if left out. A single server keeps one."
        ),
    ] = None,
    geo: Annotated[
        str | None, typer.Option("--geo", help="Place: `auto`, a geo (`na sa eu ap oc af`), a region or a tag of servers.")
    ] = None,
    change_stream_topic: Annotated[
        str | None,
        typer.Option(
            "--change-stream-topic", help="Topic that gets each change as a message, with the key as its subject. It is created."
        ),
    ] = None,
    change_stream_from: Annotated[
        Literal["new", "all"] | None,
        typer.Option(
            "--change-stream-from", help="What a change stream starts with: changes from then on, or `all` current values."
        ),
    ] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Create a bucket.

    Settings that are left out get their defaults. The status is 200 if the bucket exists with the same settings.
    """
    with connected() as client:
        show_item(
            client.buckets.create(
                name,
                history=history,
                ttl_seconds=ttl_seconds,
                max_bytes=max_bytes,
                max_value_bytes=max_value_bytes,
                replicas=replicas,
                geo=geo,
                change_stream_topic=change_stream_topic,
                change_stream_from=change_stream_from,
            ),
            as_json,
            wide=wide,
        )


@buckets.command("show")
def show_buckets(
    bucket: Annotated[str, typer.Argument(help="Name of the bucket.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Show a bucket and its stats."""
    with connected() as client:
        show_item(client.buckets.get(bucket), as_json, wide=wide)


@buckets.command("update")
def update_buckets(
    bucket: Annotated[str, typer.Argument(help="Name of the bucket.")],
    history: Annotated[
        str | None, typer.Option("--history", help="Revisions that are kept of each key. `none` removes it.")
    ] = None,
    ttl_seconds: Annotated[
        str | None,
        typer.Option("--ttl-seconds", help="How long a value is kept after it was written; 0: without limit. `none` removes it."),
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            "--max-bytes", help="Bytes that the bucket holds, which are reserved for it; 0: no limit. `none` removes it."
        ),
    ] = None,
    max_value_bytes: Annotated[
        str | None,
        typer.Option("--max-value-bytes", help="Size of a value; 0: the tenant's limit of a message. `none` removes it."),
    ] = None,
    replicas: Annotated[str | None, typer.Option("--replicas", help="Copies of the bucket. `none` removes it.")] = None,
    geo: Annotated[
        str | None,
        typer.Option(
            "--geo", help="Place: `auto`, a geo (`na sa eu ap oc af`), a region or a tag of servers. `none` removes it."
        ),
    ] = None,
    change_stream_topic: Annotated[
        str | None,
        typer.Option(
            "--change-stream-topic",
            help="Topic that gets each change as a message, with the key as its subject. It is created. `none` removes it.",
        ),
    ] = None,
    change_stream_from: Annotated[
        str | None,
        typer.Option(
            "--change-stream-from",
            help="What a change stream starts with: changes from then on, or `all` current values. `none` removes it.",
        ),
    ] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Change settings of a bucket.

    Settings that are left out keep their values. A lower `history` drops the oldest revisions. Another `geo` moves
    the bucket while it is in use: a task `move-placement` shows the progress.
    """
    with connected() as client:
        show_item(
            client.buckets.update(
                bucket,
                history=nullable(history, int),
                ttl_seconds=nullable(ttl_seconds, int),
                max_bytes=nullable(max_bytes, int),
                max_value_bytes=nullable(max_value_bytes, int),
                replicas=nullable(replicas, int),
                geo=nullable(geo, str),
                change_stream_topic=nullable(change_stream_topic, str),
                change_stream_from=nullable(change_stream_from, str),
            ),
            as_json,
            wide=wide,
        )


@buckets.command("delete")
def delete_buckets(bucket: Annotated[str, typer.Argument(help="Name of the bucket.")], yes: Yes = False) -> None:
    """Delete a bucket with its values."""
    with connected() as client:
        confirm(f"Delete the bucket {bucket} with its values?", yes)
        client.buckets.delete(bucket)
        typer.echo(f"deleted the bucket {bucket}")
