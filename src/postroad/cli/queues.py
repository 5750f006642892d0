"""`postroad queues list`, `update` and `delete`, and `postroad health`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected, from_json, print_json, raw_json, show
from postroad.cli.rendering import show_item
from postroad.cli.table import Column

if TYPE_CHECKING:
    from postroad.client import Purged, Queue

queues = typer.Typer(help="Queues and their messages.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Queue name.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count the messages.")]


def _row(queue: "Queue") -> list[object]:
    settings, paused = queue.settings, "paused" if queue.paused else ""
    lease, limit = settings.visibility_timeout_ms, settings.max_messages or ""
    return [queue.name, lease, settings.max_attempts or "", limit, paused, queue.created_at]


_HEAD = ("name", "lease ms", "attempts", "max", "state", "created")


def _stats_row(queue: "Queue") -> list[object]:
    stats, paused = queue.stats, "paused" if queue.paused else ""
    if stats is None:  # the server could not read them
        return [queue.name, *["?"] * 9, paused]
    rates = [f"{stats.in_per_second:.1f}", f"{stats.out_per_second:.1f}"]
    counts = [stats.ready, stats.overdue, stats.leased, stats.retrying, stats.delayed, stats.dead]
    return [queue.name, *counts, _age(stats.oldest_age_ms), *rates, paused]


_STATS_HEAD = (
    "name",
    "ready",
    Column("overdue", priority=-1),
    "leased",
    Column("retrying", priority=-1),
    "delayed",
    "dead",
    "oldest",
    "in/s",
    "out/s",
    Column("state", priority=1),
)


@queues.command("list")
def list_queues(
    stats: Annotated[bool, typer.Option("--stats", help="Show message counts and rates.")] = False,
    search: Annotated[str | None, typer.Option(help="Text that the name contains.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Text that the name starts with.")] = None,
    paused: Annotated[bool | None, typer.Option("--paused/--not-paused", help="Only queues that are paused, or not.")] = None,
    sort: Annotated[str, typer.Option(help="Such as `name`, `-ready`, `-dead`, `oldestAgeMs`, `-createdAt`.")] = "name",
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List the queues of the tenant."""
    order: Any = sort  # the server names the valid ones
    with connected() as client:
        found = list(client.queues.list(stats=stats, search=search, prefix=prefix, paused=paused, sort=order))
        show(found, as_json, _STATS_HEAD if stats else _HEAD, _stats_row if stats else _row, wide=wide)


@queues.command("update")
def update_queue(
    queue: Name,
    pairs: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...", help="Settings, such as `max_attempts=5 retry_delays_ms=[1000,5000]`; `none` resets one."
        ),
    ],
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Change settings of a queue; the others stay unchanged."""
    chosen = dict(_setting(text) for text in pairs)
    with connected() as client:
        show_item(client.queues.update(queue, **chosen), as_json, wide=wide)


def _setting(text: str) -> tuple[str, Any]:
    """The name in snake case, and the value: JSON, or text. Raises BadParameter."""
    from msgspec.structs import fields

    from postroad.api.queues import QueueSettings

    name, equals, value = text.partition("=")
    known = {one.encode_name: one.name for one in fields(QueueSettings)} | {one.name: one.name for one in fields(QueueSettings)}
    if not equals or name.replace("-", "_") not in known:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE with one of these names: {', '.join(sorted(set(known.values())))}")
    if value in ("none", "null"):
        return known[name.replace("-", "_")], None
    try:
        return known[name.replace("-", "_")], from_json(value)
    except ValueError:
        return known[name.replace("-", "_")], value


def _age(milliseconds: int | None) -> str:
    if milliseconds is None:
        return ""
    seconds = milliseconds // 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def json_of(text: str, what: str) -> Any:
    """Validated JSON, as `raw_json`. Raises BadParameter."""
    try:
        return raw_json(text)
    except ValueError as exc:
        raise typer.BadParameter(f"{what} is not JSON: {exc}") from exc


@queues.command("delete")
def delete_queue(queue: Name, yes: Yes = False) -> None:
    """Delete a queue with its messages and dead letters."""
    with connected() as client:
        stats = client.queues.get(queue).stats
        count = stats.ready + stats.leased + stats.retrying + stats.delayed + stats.dead if stats else 0
        confirm(f"Delete {queue} with {count:,} messages?", yes)
        client.queues.delete(queue)
        typer.echo(f"deleted {queue} with {count:,} messages")


def print_purged(purged: "Purged", as_json: bool, what: str) -> None:
    if as_json:
        print_json(purged)
    else:
        typer.echo(f"{'would delete' if purged.dry_run else 'deleted'} {purged.count:,} {what}")


def health(as_json: AsJson = False, wide: Wide = False) -> None:
    """Show the readiness checks of the server. The exit code is 5 while it is not ready."""
    with connected(anonymous=True) as client:
        ready = client.health.ready()
    if as_json:
        print_json(ready)
        return
    checks: list[Any] = list(ready.checks.items())
    show(
        checks,
        False,
        ("check", "state", "detail"),
        lambda one: [one[0], "ok" if one[1].ok else "failing", one[1].detail],
        wide=wide,
    )
