"""`postroad report`: a day as one HTML page with charts."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from postroad.cli.output import connected
from postroad.cli.profiles import GlobalOptions, global_options, resolve_target

if TYPE_CHECKING:
    from postroad.client import Postroad


def report(
    day: Annotated[str, typer.Option(help="`2026-11-16`, `today` or `yesterday`, in UTC.")] = "today",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Output file; `-` is standard output. Default: postroad-report-….html in the current directory.",
            show_default=False,
        ),
    ] = None,
    grain: Annotated[
        Literal["auto", "minute", "hour"],
        typer.Option(help="One point per minute or hour; `auto` uses minutes if at most three hours of the day have data."),
    ] = "auto",
) -> None:
    """Write one HTML page about a day: queue health, latency, backlog, dead letters, usage and sessions.

    The page is self-contained and opens offline. It covers the tenant of the key; with a platform key all tenants, or the one of
    `postroad --tenant NAME report`. The pipeline computes the numbers; `postroad up` runs it.

    The path is printed on standard output.
    """
    now = datetime.now(UTC)
    report_day = parse_day(day, now)
    with _clients() as (url, clients):
        from postroad.report.fetch import fetch_day
        from postroad.report.page import render_page

        html = render_page(fetch_day(clients, report_day, None if grain == "auto" else grain, url, now))
    if out == Path("-"):
        typer.echo(html, nl=False)
        return
    tenant = f"-{clients[0][0]}" if len(clients) == 1 else ""
    path = out or Path(f"postroad-report{tenant}-{report_day.isoformat()}.html")
    try:
        path.write_text(html, encoding="utf-8")
    except OSError as problem:
        typer.echo(f"postroad: {path}: {problem.strerror}", err=True)
        raise typer.Exit(1) from None
    typer.echo(path)


def parse_day(text: str, now: datetime) -> date:
    today = now.astimezone(UTC).date()
    named = {"today": today, "yesterday": today - timedelta(days=1)}
    try:
        return named[text] if text in named else date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a day such as 2026-11-16, today or yesterday", param_hint="--day") from None


@contextmanager
def _clients() -> Iterator[tuple[str, list[tuple[str, "Postroad"]]]]:
    """The server, and a client for each tenant of the report: the key's tenant or, with a platform key and no --tenant, all."""
    with connected() as client, ExitStack() as opened:
        from postroad.client import Postroad

        me, found = client.keys.whoami(), resolve_target(global_options.get(GlobalOptions()))
        if not me.platform or found.tenant:
            yield found.url, [(me.tenant, client)]
            return
        names = [tenant.id for tenant in client.tenants.list() if tenant.state != "deleting"]
        yield (
            found.url,
            [(name, opened.enter_context(Postroad(found.url, found.key, tenant=name, ca_file=found.ca_file))) for name in names],
        )
