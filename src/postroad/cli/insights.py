"""`postroad insights …`: what the pipeline found out, as tables that say when it was computed."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.output import AsJson, Wide, connected, print_json, show
from postroad.cli.times import ago

if TYPE_CHECKING:
    from postroad.client import BacklogRow, DeadLettersRow, HealthRow, LatencyRow, SessionsRow, UsageRow

insights = typer.Typer(
    help="What the pipeline found out: usage, latency, backlog, dead letters, sessions, and how the queues are.",
    no_args_is_help=True,
)


class Grain(StrEnum):
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"


Since = Annotated[
    str | None,
    typer.Option("--from", help="`12h` ago, or `2027-01-31T12:00:00Z`; a day before the end if left out.", show_default=False),
]
Until = Annotated[str | None, typer.Option("--to", help="The end; now if left out.", show_default=False)]
AskedGrain = Annotated[
    Grain | None, typer.Option(help="A row for each minute, hour or day; as fits the range if left out.", show_default=False)
]
Queue = Annotated[str | None, typer.Option(help="Of this queue.", show_default=False)]
Limit = Annotated[int, typer.Option(help="At most so many rows.", min=1)]


@insights.command("usage")
def usage(
    since: Since = None,
    until: Until = None,
    grain: AskedGrain = None,
    limit: Limit = 200,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """What the tenant used: messages, deliveries, requests, appends, storage."""
    head = ("published", "bytes", "deliveries", "done", "dead", "requests", "in", "out", "appends", "fan-out", "stored")

    def cells(row: "UsageRow") -> list[object]:
        return [
            _count(row.published),
            _size(row.published_bytes),
            *map(_count, (row.deliveries, row.done, row.dead, row.requests)),
            *map(_size, (row.bytes_in, row.bytes_out)),
            *map(_count, (row.appends, row.fanout_messages)),
            _size(row.stored_bytes),
        ]

    _over_time("usage", head, cells, limit, as_json, wide, **_range(since, until, grain))


@insights.command("latency")
def latency(
    since: Since = None,
    until: Until = None,
    grain: AskedGrain = None,
    queue: Queue = None,
    limit: Limit = 200,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """How long messages waited for their first delivery, and how long their processing took."""
    head = ("queue", "phase", "count", "p50", "p95", "p99", "max", "mean")

    def cells(row: "LatencyRow") -> list[object]:
        return [row.queue, row.phase, _count(row.count), *map(_duration, (row.p50, row.p95, row.p99, row.max, row.mean))]

    _over_time("latency", head, cells, limit, as_json, wide, **_range(since, until, grain), queue=queue)


@insights.command("dead-letters")
def dead_letters(
    since: Since = None,
    until: Until = None,
    grain: AskedGrain = None,
    queue: Queue = None,
    limit: Limit = 200,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Messages that became dead letters, by reason. Those that failed at once have a consumer that is set up wrongly."""
    head = ("queue", "reason", "count", "at first attempt", "last")

    def cells(row: "DeadLettersRow") -> list[object]:
        return [row.queue, row.reason, _count(row.count), _count(row.first_attempt), row.last_at or ""]

    _over_time("dead_letters", head, cells, limit, as_json, wide, **_range(since, until, grain), queue=queue)


@insights.command("sessions")
def sessions(
    since: Since = None,
    until: Until = None,
    grain: AskedGrain = None,
    limit: Limit = 200,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Sessions that came, lived on and went."""
    head = ("subscribed", "unsubscribed", "touched", "deleted", "expired")

    def cells(row: "SessionsRow") -> list[object]:
        return [*map(_count, (row.subscribed, row.unsubscribed, row.touched, row.deleted, row.expired))]

    _over_time("sessions", head, cells, limit, as_json, wide, **_range(since, until, grain))


@insights.command("backlog")
def backlog(
    since: Since = None,
    until: Until = None,
    grain: AskedGrain = None,
    queue: Queue = None,
    limit: Limit = 200,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """What was in the queues: means, and the most that was ready."""
    head = ("queue", "ready", "most", "leased", "delayed", "dead", "oldest")

    def cells(row: "BacklogRow") -> list[object]:
        numbers = (row.ready, row.ready_max, row.leased, row.delayed, row.dead)
        return [row.queue, *map(_count, numbers), _duration(row.oldest_age_ms_max)]

    _over_time("backlog", head, cells, limit, as_json, wide, **_range(since, until, grain), queue=queue)


@insights.command("health")
def health(queue: Queue = None, limit: Limit = 200, as_json: AsJson = False, wide: Wide = False) -> None:
    """How the queues are, the worst first."""
    head = ("queue", "status", "problems", "ready", "leased", "delayed", "dead", "waiting", "oldest", "expected", "growth/min")

    def cells(row: "HealthRow") -> list[object]:
        expected = None if row.expected_drain_seconds is None else row.expected_drain_seconds * 1000
        numbers = (row.ready, row.leased, row.delayed, row.dead, row.waiting)
        times = (row.oldest_age_ms, expected)
        words = ", ".join(row.problems)
        return [row.queue, row.status, words, *map(_count, numbers), *map(_duration, times), _count(row.growth_per_minute)]

    with connected() as client:
        _show(_collected(client.insights.health_page, limit, queue=queue), as_json, wide, head, cells, lambda _: [])


def _range(since: str | None, until: str | None, grain: Grain | None) -> dict[str, Any]:
    return {
        "since": ago(since) if since else None,
        "until": ago(until) if until else None,
        "grain": grain.value if grain else None,
    }


def _over_time(
    name: str, head: Sequence[str], cells: Callable[[Any], list[object]], limit: int, as_json: bool, wide: bool, **asked: Any
) -> None:
    with connected() as client:
        page = _collected(getattr(client.insights, f"{name}_page"), limit, **asked)
    chars = 10 if page.grain == "day" else 16
    _show(page, as_json, wide, ("time (UTC)", *head), cells, lambda row: [row.time[:chars].replace("T", " ")])


def _collected(ask: Callable[..., Any], limit: int, **asked: Any) -> Any:
    """Pages until there are enough rows, as one: of the newest results that any of them was of."""
    page = ask(**asked, page_size=min(limit, 1000))
    pages, rows = [page], [*page.items]
    while page.next_cursor is not None and len(rows) < limit:
        page = ask(**asked, page_size=min(limit - len(rows), 1000), cursor=page.next_cursor)
        pages.append(page)
        rows += page.items
    import msgspec

    newest = max(pages, key=lambda one: one.computed_at or "")
    return msgspec.structs.replace(
        page, items=rows, computed_at=newest.computed_at, batch=newest.batch, dropped=sum(one.dropped for one in pages)
    )


def _show(
    page: Any,
    as_json: bool,
    wide: bool,
    head: Sequence[str],
    cells: Callable[[Any], list[object]],
    first: Callable[[Any], list[object]],
) -> None:
    """The table; and, apart from it, how much it is to be believed."""
    if as_json:
        print_json(page)
        return
    if page.items:
        show(page.items, False, head, lambda row: [*first(row), *cells(row)], wide=wide)
    typer.echo(_about(page, datetime.now(UTC)), err=True)


def _about(page: Any, now: datetime) -> str:
    if page.computed_at is None:
        return "nothing computed yet: is the pipeline running? postroad pipeline status"
    computed_at = datetime.fromisoformat(page.computed_at)
    since = _duration(max(0.0, (now - computed_at).total_seconds() * 1000))
    said = [f"computed {computed_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, {since} ago, by batch {page.batch}"]
    if not page.items:
        said.insert(0, "no rows for what was asked")
    if page.next_cursor is not None:
        said.append("there are more rows: --limit")
    if page.dropped:
        said.append(f"{page.dropped:,} rows were too many to be kept")
    return "; ".join(said)


def _count(number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:,}" if isinstance(number, int) else f"{number:,.1f}".removesuffix(".0")


def _size(count: float) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"))


def _duration(millis: float | None) -> str:
    """`7 ms`, `1.5 s`, `2.3 h`."""
    if millis is None:
        return ""
    unit = next(((size, name) for size, name in _UNITS if millis >= size), None)
    return f"{millis / unit[0]:.1f} {unit[1]}" if unit else f"{millis:.1f}".removesuffix(".0") + " ms"
