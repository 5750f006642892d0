"""`postroad buckets get`, `put`, `remove`, `keys`, `history` and `watch`."""

import sys
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import AsJson, Wide, connected, print_json, show
from postroad.cli.table import Column

if TYPE_CHECKING:
    from postroad.client import BucketEntry

buckets = typer.Typer(help="Buckets: values by key, with revisions.", no_args_is_help=True)

Bucket = Annotated[str, typer.Argument(help="Bucket name.")]
Key = Annotated[str, typer.Argument(help="Key, such as `cart.42`.")]
IfRevision = Annotated[int | None, typer.Option(help="Only if the key has this revision.", min=1)]
Prefix = Annotated[str | None, typer.Option(help="Only keys that start with this text.")]
Limit = Annotated[int, typer.Option(help="Most entries to show.", min=1)]
_HEAD = ("key", "revision", "time", "operation", Column("value", priority=1))


@buckets.command("get")
def get(bucket: Bucket, key: Key, revision: Annotated[int | None, typer.Option(help="At this revision.", min=1)] = None) -> None:
    """Print a value as it is."""
    with connected() as client:
        value = client.buckets.get_value(bucket, key, revision=revision)
        sys.stdout.buffer.write(value.data)
        sys.stdout.buffer.flush()


@buckets.command("put")
def put(
    bucket: Bucket,
    key: Key,
    value: Annotated[str | None, typer.Argument(help="Value as text.", show_default=False)] = None,
    file: Annotated[
        typer.FileBinaryRead | None, typer.Option(help="Read the value from this file; `-` is standard input.")
    ] = None,
    content_type: Annotated[
        str | None, typer.Option(help="Content type; `text/plain; charset=utf-8` of an argument.", show_default=False)
    ] = None,
    ttl_seconds: Annotated[int | None, typer.Option(help="Seconds after which it expires.", min=1)] = None,
    if_revision: IfRevision = None,
    if_absent: Annotated[bool, typer.Option("--if-absent", help="Only if the key does not exist.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a value: an argument, a file, or standard input. Returns once it is stored durably."""
    if value is not None and file is not None:
        raise typer.BadParameter("give a value or --file, not both")
    if if_absent and if_revision is not None:
        raise typer.BadParameter("give --if-revision or --if-absent, not both")
    data = value.encode() if value is not None else (file or sys.stdin.buffer).read()
    kind = content_type or ("text/plain; charset=utf-8" if value is not None else None)
    with connected() as client:
        written = client.buckets.put_value(
            bucket, key, data, content_type=kind, ttl_seconds=ttl_seconds, if_revision=if_revision, if_absent=if_absent
        )
        show(written, as_json, ("key", "revision"), lambda one: [one.key, one.revision])


@buckets.command("remove")
def remove(bucket: Bucket, key: Key, if_revision: IfRevision = None, as_json: AsJson = False) -> None:
    """Delete a value."""
    with connected() as client:
        written = client.buckets.delete_value(bucket, key, if_revision=if_revision)
        show(written, as_json, ("key", "revision"), lambda one: [one.key, one.revision])


@buckets.command("keys")
def keys(
    bucket: Bucket,
    prefix: Prefix = None,
    values: Annotated[bool, typer.Option("--values", help="Show the values.")] = False,
    limit: Limit = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List the keys that have a value, in the order of their revisions."""
    with connected() as client:
        found = client.buckets.keys(bucket, prefix=prefix, values=values, page_size=min(limit, 1000))
        show(list(islice(found, limit)), as_json, _HEAD, _row, wide=wide)


@buckets.command("history")
def history(bucket: Bucket, key: Key, limit: Limit = 100, as_json: AsJson = False, wide: Wide = False) -> None:
    """Show the kept revisions of a key, oldest first."""
    with connected() as client:
        found = client.buckets.history(bucket, key, page_size=min(limit, 1000))
        show(list(islice(found, limit)), as_json, _HEAD, _row, wide=wide)


@buckets.command("watch")
def watch(
    bucket: Bucket,
    prefix: Prefix = None,
    limit: Annotated[int | None, typer.Option(help="Stop after this many events.", min=1, show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per event.")] = False,
) -> None:
    """Show the current values, then each change as it is made, until interrupted."""
    with connected() as client, closing(client.buckets.watch(bucket, prefix=prefix)) as changes:
        for change in islice(changes, limit):
            if as_json:
                print_json({"event": change.kind, "id": change.id, "entry": change.entry})
            elif change.entry is None:
                typer.echo(change.kind)
            else:
                typer.echo(f"{change.kind:<7} {change.entry.revision:>8} {change.entry.key}  {_text(change.entry)}".rstrip())


def _row(entry: "BucketEntry") -> list[object]:
    return [entry.key, entry.revision, entry.timestamp, entry.operation, _text(entry)]


def _text(entry: "BucketEntry") -> str:
    try:
        return entry.body.decode()
    except UnicodeDecodeError:
        return f"({len(entry.body):,} bytes)"
