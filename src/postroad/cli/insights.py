"""`postroad insights …`: a command for each report, as a table with the time of its computation."""

import inspect
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from postroad.api.insights import Grain, Report, Visibility, columns_of
from postroad.api.reports import reports
from postroad.cli.output import AsJson, Wide, connected, print_json, show
from postroad.cli.times import ago
from postroad.report.formatting import column_text, duration

Since = Annotated[
    str | None,
    typer.Option("--from", help="Start: `12h` (ago) or `2027-01-31T12:00:00Z`. Default: one day.", show_default=False),
]
Until = Annotated[str | None, typer.Option("--to", help="End. Default: now.", show_default=False)]
GrainOption = Annotated[
    Grain | None, typer.Option(help="One row for each minute, hour or day. Default: as fits the range.", show_default=False)
]
Queue = Annotated[str | None, typer.Option(help="Only this queue.", show_default=False)]
Service = Annotated[str | None, typer.Option(help="Only this service.", show_default=False)]
Limit = Annotated[int, typer.Option(help="Maximum number of rows.", min=1)]

_PAGE_SIZE_MAX = 1000


def insight_commands(declared: Iterable[Report[Any]]) -> typer.Typer:
    group = typer.Typer(help="Reports of the data pipeline.", no_args_is_help=True)
    for report in declared:
        group.command(report.name, help=f"{report.summary}.\n\n{report.description}".strip())(_command(report))
    return group


def _command(report: Report[Any]) -> Callable[..., None]:
    """A function with the report's options as its signature, which Typer reads."""
    options: dict[str, tuple[Any, object]] = {}
    if not report.is_snapshot:
        options |= {"since": (Since, None), "until": (Until, None), "grain": (GrainOption, None)}
    if report.visibility is Visibility.QUEUE:
        options["queue"] = (Queue, None)
    if report.visibility is Visibility.SERVICE:
        options["service"] = (Service, None)
    options |= {"limit": (Limit, 200), "as_json": (AsJson, False), "wide": (Wide, False)}

    def run(*, limit: int, as_json: bool, wide: bool, **query: Any) -> None:
        _run(report, query, limit, as_json=as_json, wide=wide)

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in options.items()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {name: kind for name, (kind, _) in options.items()}
    return run


def _run(report: Report[Any], query: dict[str, Any], limit: int, *, as_json: bool, wide: bool) -> None:
    query |= {name: ago(query[name]) for name in ("since", "until") if query.get(name)}
    with connected() as client:
        page = _collected(getattr(client.insights, f"{report.identifier}_page"), limit, query)
    if as_json:
        print_json(page)
        return
    if page.items:
        columns = [one for one in columns_of(report.row) if one.is_listed]
        head = [*([] if report.is_snapshot else ["time (UTC)"]), *(one.title for one in columns)]
        show(page.items, False, head, lambda row: [*_time(page, row), *(column_text(row, one) for one in columns)], wide=wide)
    typer.echo(_provenance(page, datetime.now(UTC)), err=True)


def _collected(read_page: Callable[..., Any], limit: int, query: dict[str, Any]) -> Any:
    """Read pages until there are enough rows, and combine them; `computed_at` is that of the newest results."""
    page = read_page(**query, page_size=min(limit, _PAGE_SIZE_MAX))
    pages, rows = [page], [*page.items]
    while page.next_cursor is not None and len(rows) < limit:
        page = read_page(**query, page_size=min(limit - len(rows), _PAGE_SIZE_MAX), cursor=page.next_cursor)
        pages.append(page)
        rows += page.items
    import msgspec

    newest = max(pages, key=lambda one: one.computed_at or "")
    return msgspec.structs.replace(
        page, items=rows, computed_at=newest.computed_at, batch=newest.batch, dropped=sum(one.dropped for one in pages)
    )


def _provenance(page: Any, now: datetime) -> str:
    """When the rows were computed, and whether any are missing."""
    if page.computed_at is None:
        return "no results yet: is the pipeline running? See postroad pipeline status"
    computed_at = datetime.fromisoformat(page.computed_at)
    age = duration(max(0.0, (now - computed_at).total_seconds() * 1000))
    notes = [f"computed {computed_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, {age} ago, by batch {page.batch}"]
    if page.as_of is not None:
        notes.append(f"events up to {datetime.fromisoformat(page.as_of).astimezone(UTC):%H:%M:%S} are counted")
    if not page.items:
        notes.insert(0, "no matching rows")
    if page.next_cursor is not None:
        notes.append("there are more rows: --limit")
    if page.dropped:
        notes.append(f"{page.dropped:,} rows are missing: a result is limited")
    return "; ".join(notes)


def _time(page: Any, row: Any) -> list[str]:
    """The start of a row's time, as far as the grain needs it."""
    if not hasattr(row, "time"):
        return []
    return [row.time[: 10 if page.grain == Grain.DAY else 16].replace("T", " ")]


insights = insight_commands(reports())
