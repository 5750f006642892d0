"""`postroad queues …` and `postroad health`: what the API can do, from a terminal. They use the SDK and nothing else."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected, from_json, print_json, show, show_one, to_json
from postroad.cli.table import Column

if TYPE_CHECKING:
    from postroad.client import Purged, Queue

queues = typer.Typer(help="Queues and their messages.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The queue's name.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count them.")]


def _row(queue: "Queue") -> list[object]:
    settings, paused = queue.settings, "paused" if queue.paused else ""
    lease, limit = settings.visibility_timeout_ms, settings.max_messages or ""
    return [queue.name, lease, settings.max_attempts or "", limit, paused, queue.created_at]


_HEAD = ("name", "lease ms", "attempts", "max", "state", "created")


def _stats_row(queue: "Queue") -> list[object]:
    stats, paused = queue.stats, "paused" if queue.paused else ""
    if stats is None:  # it could not be asked just now
        return [queue.name, *["?"] * 7, paused]
    rates = [f"{stats.in_per_second:.1f}", f"{stats.out_per_second:.1f}"]
    return [queue.name, stats.ready, stats.leased, stats.delayed, stats.dead, _age(stats.oldest_age_ms), *rates, paused]


_STATS_HEAD = ("name", "ready", "leased", "delayed", "dead", "oldest", "in/s", "out/s", Column("state", priority=1))


@queues.command("list")
def list_queues(
    stats: Annotated[bool, typer.Option("--stats", help="With what is in each.")] = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """All queues of the tenant."""
    with connected() as client:
        found = list(client.queues.list(stats=stats))
        show(found, as_json, _STATS_HEAD if stats else _HEAD, _stats_row if stats else _row, wide=wide)


@queues.command("show")
def show_queue(queue: Name, as_json: AsJson = False) -> None:
    """A queue, its settings and what is in it."""
    with connected() as client:
        _show(client.queues.get(queue), as_json)


def _show(queue: "Queue", as_json: bool) -> None:
    settings, stats = queue.settings, queue.stats
    counts: dict[str, object] = {}
    if stats is not None:
        counts = {
            "ready": stats.ready,
            "leased": stats.leased,
            "delayed": stats.delayed,
            "dead": stats.dead,
            "oldest": _age(stats.oldest_age_ms),
            "in_per_second": f"{stats.in_per_second:.1f}",
            "out_per_second": f"{stats.out_per_second:.1f}",
        }
    show_one(
        queue,
        as_json,
        name=queue.name,
        paused=queue.paused,
        **counts,
        visibility_timeout_ms=settings.visibility_timeout_ms,
        max_attempts=settings.max_attempts or "no limit",
        retry_delays_ms=tuple(str(delay) for delay in settings.retry_delays_ms),
        retention_ms=settings.retention_ms or "for ever",
        dedupe_window_ms=settings.dedupe_window_ms,
        max_messages=settings.max_messages or "no limit",
        replicas=settings.replicas,
        geo=settings.geo,
        schema=None if settings.schema is None else to_json(settings.schema).decode(),
        expected_drain_seconds=settings.expected_drain_seconds,
        archive=settings.archive,
        created=queue.created_at,
        updated=queue.updated_at,
    )


def _age(milliseconds: int | None) -> str:
    if milliseconds is None:
        return ""
    seconds = milliseconds // 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


@queues.command("put")
def put_queue(
    queue: Name,
    visibility_timeout_ms: Annotated[int | None, typer.Option(help="How long a pulled message is kept from others.")] = None,
    retention_ms: Annotated[int | None, typer.Option(help="How long a message is kept; 0 is for ever.")] = None,
    dedupe_window_ms: Annotated[int | None, typer.Option(help="How long an idempotency key counts.")] = None,
    max_attempts: Annotated[
        int | None, typer.Option(help="Deliveries before a message goes to the dead letters; 0 is no limit.")
    ] = None,
    retry_delays_ms: Annotated[
        str | None, typer.Option(help="How long to wait after each failed attempt, such as 1000,5000; the last for all further.")
    ] = None,
    max_messages: Annotated[int | None, typer.Option(help="Beyond this, publishing is refused; 0 is no limit.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Copies: 1, 3 or 5.")] = None,
    geo: Annotated[str | None, typer.Option(help="The engine's placement tag.")] = None,
    schema: Annotated[
        typer.FileText | None, typer.Option(help="A file with a JSON Schema that payloads must fit; `-` is standard input.")
    ] = None,
    expected_drain_seconds: Annotated[
        int | None, typer.Option(help="If the oldest message is older, something is wrong.")
    ] = None,
    archive: Annotated[bool | None, typer.Option("--archive/--no-archive", help="Have the pipeline keep payloads, too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a queue, or replace its settings; what is left out takes its default."""
    wanted_schema = json_of(schema.read(), "the schema") if schema else None
    delays = _numbers(retry_delays_ms) if retry_delays_ms is not None else None
    with connected() as client:
        made = client.queues.put(
            queue,
            visibility_timeout_ms=visibility_timeout_ms,
            retention_ms=retention_ms,
            dedupe_window_ms=dedupe_window_ms,
            max_attempts=max_attempts,
            retry_delays_ms=delays,
            max_messages=max_messages,
            replicas=replicas,
            geo=geo,
            schema=wanted_schema,
            expected_drain_seconds=expected_drain_seconds,
            archive=archive,
        )
        _show(made, as_json)


def _numbers(text: str) -> list[int]:
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of milliseconds such as 1000,5000") from None


def json_of(text: str, what: str, read: Callable[[str], Any] = from_json) -> Any:
    try:
        return read(text)
    except ValueError as exc:
        raise typer.BadParameter(f"{what} is not JSON: {exc}") from exc


@queues.command("delete")
def delete_queue(queue: Name, yes: Yes = False) -> None:
    """Delete a queue and all that is in it."""
    with connected() as client:
        stats = client.queues.get(queue).stats
        count = stats.ready + stats.leased + stats.delayed + stats.dead if stats else 0
        confirm(f"Delete {queue} with {count:,} messages?", yes)
        client.queues.delete(queue)
        typer.echo(f"deleted {queue} with {count:,} messages")


@queues.command("purge")
def purge_queue(queue: Name, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Drop all messages that wait, leased and delayed ones, too. Dead letters stay: see `dlq purge`."""
    with connected() as client:
        purged = client.queues.purge(queue, dry_run=True)
        if not dry_run:
            confirm(f"Drop {purged.count:,} messages of {queue}?", yes, err=as_json)
            purged = client.queues.purge(queue)
        tell_purged(purged, as_json, f"messages of {queue}")


def tell_purged(purged: "Purged", as_json: bool, what: str) -> None:
    if as_json:
        print_json(purged)
    else:
        typer.echo(f"{'would drop' if purged.dry_run else 'dropped'} {purged.count:,} {what}")


@queues.command("pause")
def pause_queue(queue: Name, as_json: AsJson = False) -> None:
    """Stop delivering, everywhere, until `resume`. Publishing and settling go on."""
    with connected() as client:
        _tell(client.queues.pause(queue), as_json, f"paused {queue}")


@queues.command("resume")
def resume_queue(queue: Name, as_json: AsJson = False) -> None:
    """Deliver again."""
    with connected() as client:
        _tell(client.queues.resume(queue), as_json, f"{queue} delivers again")


def _tell(queue: "Queue", as_json: bool, said: str) -> None:
    if as_json:
        print_json(queue)
    else:
        typer.echo(said)


def health(as_json: AsJson = False, wide: Wide = False) -> None:
    """What the server says of itself; exit code 5 while it cannot serve."""
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
