"""`postroad demo`: the command, its progress and its summary."""

import ipaddress
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import urlsplit

import typer

from postroad.cli.output import Yes, confirm, connected, exit_on_error, show, to_json
from postroad.cli.profiles import CREDENTIALS, GlobalOptions, Target, global_options, resolve_target
from postroad.kernel.errors import AuthError, Unavailable

if TYPE_CHECKING:
    from postroad.demo.clock import DemoClock
    from postroad.demo.counters import TenantCounters
    from postroad.demo.run import DemoResult, OnProgress

_LINE_SECONDS = 10.0


def demo(
    seconds: Annotated[
        float, typer.Option(help="Duration of the traffic; the backlog is consumed afterwards, for at most 15 seconds.", min=1)
    ] = 180,
    seed: Annotated[int, typer.Option(help="Seed of the plan: runs with the same seed publish the same messages.")] = 1,
    rate: Annotated[
        float, typer.Option(help="Messages per second of all tenants together, without bursts.", min=1, max=2000)
    ] = 50,
    json_summary: Annotated[
        Path | None,
        typer.Option(help="Write the summary, with the counters of each queue, to this file as JSON.", dir_okay=False),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep/--delete", help="Keep the tenants and their data, or delete them at the end.")
    ] = True,
    yes: Yes = False,
) -> None:
    """Generate the traffic of three tenants, demo-shop, demo-bank and demo-chat, so that reports and lists have content.

    The traffic contains fast queues and bursts, failing consumers, dead letters, a redrive, a growing queue, a queue without
    consumers, delayed messages, streams with live readers, sessions, and commands between services of the tenants. Needs a
    running Postroad and the platform's admin key:

      postroad profiles add admin --key-file var/credentials.toml --admin

      postroad --profile admin demo --seconds 60

    Ctrl-C ends it early, after the current calls. The summary counts what the server has acknowledged. To see the result:
    `postroad --tenant demo-shop insights …` and `postroad --tenant demo-shop report`.
    """
    target = demo_target(yes)
    from postroad.demo.run import DemoOptions, run_demo

    options = DemoOptions(
        target.url, target.key or "", seconds=seconds, seed=seed, rate=rate, delete_tenants=not keep, ca_file=target.ca_file
    )
    with exit_on_error():
        try:
            with _progress(seconds) as on_progress:
                result = run_demo(options, on_progress)
        except KeyboardInterrupt:  # before the start, or by a second Ctrl-C
            typer.echo("stopped; no summary, as calls in progress were not counted", err=True)
            raise typer.Exit(130) from None
        if json_summary is not None:
            json_summary.write_bytes(to_json(result.summary()) + b"\n")
        _print_summary(result)
        if result.problem is not None:
            raise result.problem


def demo_target(yes: bool) -> Target:
    """The server and its platform key. Ends the command if the server is unavailable, remote and not confirmed, or the key is no
    platform key."""
    with exit_on_error():
        found = resolve_target(global_options.get(GlobalOptions()))
    if not is_loopback(found.url):
        confirm(f"{found.url} is not on this machine. Create three tenants there and generate traffic?", yes)
    with connected() as client:
        try:
            me = client.keys.whoami()
        except (Unavailable, AuthError) as problem:
            start = "; start it with `postroad up`" if isinstance(problem, Unavailable) else ""
            _refuse(f"the demo cannot use {found.url}: {problem.title}: {problem.detail or problem.code}{start}")
    if not me.platform:
        _refuse(
            "the demo creates tenants and needs the platform's admin key, which `postroad up` writes to a file:\n"
            f"  postroad profiles add admin --key-file {CREDENTIALS} --admin\n"
            "  postroad --profile admin demo"
        )
    return found


def _refuse(reason: str) -> NoReturn:
    typer.echo(f"postroad: {reason}", err=True)
    raise typer.Exit(1)


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _print_summary(result: "DemoResult") -> None:
    from postroad.demo.counters import SUMMARY_ROWS, summary_row

    took = (result.ended_at - result.began_at).total_seconds()
    ended = {"time": "", "signal": ", stopped by a signal", "problem": ", ended by an error"}[result.ended_by]
    typer.echo(f"seed {result.options.seed}, {took:.0f} s, {result.calls:,} calls{ended}. Acknowledged by the server:")
    names = [one.tenant for one in result.counters]
    show(list(SUMMARY_ROWS), False, ("", *names, "all"), lambda name: summary_row(result.counters, name), wide=True)
    if result.options.delete_tenants:
        typer.echo("the three tenants are being deleted", err=True)
        return
    profile = global_options.get(GlobalOptions()).profile
    postroad = "postroad" if profile is None else f"postroad --profile {profile}"
    typer.echo(
        f"to see a report, after a few seconds:\n  {postroad} --tenant {names[0]} report\n"
        "to delete the tenants and their data:\n" + "\n".join(f"  {postroad} tenants delete {name}" for name in names),
        err=True,
    )


@contextmanager
def _progress(seconds: float) -> Iterator["OnProgress"]:
    """A progress bar on a terminal; elsewhere a line every ten seconds."""
    if not sys.stderr.isatty():
        yield _plain_lines(seconds)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns: list[Any] = [BarColumn(bar_width=14), TimeRemainingColumn(compact=True), TextColumn("{task.description}")]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("creating tenants", total=seconds)

        def update(clock: "DemoClock", counters: tuple["TenantCounters", ...]) -> None:
            progress.update(task, completed=min(clock.now, seconds), description=_status(clock, counters))

        yield update


def _plain_lines(seconds: float) -> "OnProgress":
    next_at = _LINE_SECONDS

    def update(clock: "DemoClock", counters: tuple["TenantCounters", ...]) -> None:
        nonlocal next_at
        if clock.now >= next_at:
            next_at += _LINE_SECONDS
            typer.echo(f"{min(clock.now, seconds):.0f} of {seconds:.0f} s: {_status(clock, counters)}", err=True)

    return update


def _status(clock: "DemoClock", counters: tuple["TenantCounters", ...]) -> str:
    from postroad.demo.counters import total

    counts = " · ".join(f"{total(counters, name):,} {name}" for name in ("published", "done", "dead"))
    return f"{counts} · {total(counters, 'sessions'):,} sessions · {clock.calls / max(clock.now, 1):.0f} calls/s"
