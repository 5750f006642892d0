"""`postroad report`: a day as one HTML page with charts, to look at, to send, to print."""

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
    day: Annotated[str, typer.Option(help="`2026-11-16`, `today` or `yesterday`; days are those of UTC.")] = "today",
    out: Annotated[
        Path | None,
        typer.Option(help="The file; `-` is standard output. postroad-report-….html here if left out.", show_default=False),
    ] = None,
    grain: Annotated[
        Literal["auto", "minute", "hour"],
        typer.Option(help="A point for each minute or hour; `auto` takes minutes if up to three hours of the day have anything."),
    ] = "auto",
) -> None:
    """Write one HTML page about a day: latency, backlog, dead letters, usage, sessions, and how the queues are.

    It has all it needs in it and opens without a network. It is about the tenant of the key; with a platform key about all
    tenants, or the one that `postroad --tenant NAME report` names. The numbers are the pipeline's: `postroad up` runs it.

    The path is printed on standard output.
    """
    now = datetime.now(UTC)
    wanted = day_of(day, now)
    with _clients() as (url, clients):
        from postroad.report.fetch import gather
        from postroad.report.page import page

        written = page(gather(clients, wanted, None if grain == "auto" else grain, url, now))
    if out == Path("-"):
        typer.echo(written, nl=False)
        return
    whose = f"-{clients[0][0]}" if len(clients) == 1 else ""
    path = out or Path(f"postroad-report{whose}-{wanted.isoformat()}.html")
    try:
        path.write_text(written, encoding="utf-8")
    except OSError as problem:
        typer.echo(f"postroad: {path}: {problem.strerror}", err=True)
        raise typer.Exit(1) from None
    typer.echo(path)


def day_of(told: str, now: datetime) -> date:
    today = now.astimezone(UTC).date()
    named = {"today": today, "yesterday": today - timedelta(days=1)}
    try:
        return named[told] if told in named else date.fromisoformat(told)
    except ValueError:
        raise typer.BadParameter(f"{told!r} is not a day such as 2026-11-16, today or yesterday", param_hint="--day") from None


@contextmanager
def _clients() -> Iterator[tuple[str, list[tuple[str, "Postroad"]]]]:
    """A client for each tenant that the report is about: that of the key, or, for a platform key that names none, all."""
    with connected() as client, ExitStack() as opened:
        from postroad.client import Postroad

        me, found = client.keys.whoami(), resolve_target(global_options.get(GlobalOptions()))
        if not me.platform or found.tenant:
            yield found.url, [(me.tenant, client)]
            return
        names = [tenant.id for tenant in client.tenants.list() if tenant.state != "deleting"]
        yield (
            found.url,
            [(name, opened.enter_context(Postroad(found.url, found.key, tenant=name))) for name in names],
        )
