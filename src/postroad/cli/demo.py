"""`postroad demo`: the command, its progress and its summary."""

import ipaddress
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import urlsplit

import typer

from postroad.cli.output import Yes, confirm, connected, exit_on_error, show, to_json
from postroad.cli.profiles import CREDENTIALS, GlobalOptions, global_options, resolve_target
from postroad.kernel.errors import AuthError, Unavailable

if TYPE_CHECKING:
    from postroad.demo.clock import Stage
    from postroad.demo.counters import TenantTally
    from postroad.demo.run import Played

_LINE_EVERY_SECONDS = 10.0


def demo(
    seconds: Annotated[float, typer.Option(help="How long new things happen; what is in hand is finished after.", min=1)] = 180,
    seed: Annotated[int, typer.Option(help="What happens, and when: the same seed is the same story.")] = 1,
    rate: Annotated[float, typer.Option(help="Messages a second, of all three together, bursts apart.", min=1, max=2000)] = 50,
    json_summary: Annotated[
        Path | None, typer.Option(help="Write the summary, with that of each queue, into this file as JSON.", dir_okay=False)
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep/--delete", help="Leave the tenants with all they have, or delete them at the end.")
    ] = True,
    yes: Yes = False,
) -> None:
    """Play the traffic of three tenants, so that there is something to look at: demo-shop, demo-bank and demo-chat.

    Quick queues and bursts, consumers that fail, dead letters, a redrive, a queue that grows and one that nobody polls, delayed
    messages, streams with readers, sessions that come and go. Needs a running Postroad and the platform's admin key:

      postroad profiles add admin --key-file var/credentials.toml --admin

      postroad --profile admin demo --seconds 60

    Ctrl-C ends it early; what is in hand is finished. The summary counts what the server has acknowledged. Afterwards:
    `postroad insights …` and `postroad report`, with `--tenant demo-shop` before them.
    """
    found = target_for_demo(yes)
    from postroad.demo.run import Wanted, play

    wanted = Wanted(*found, seconds=seconds, seed=seed, rate=rate, is_deleted=not keep)
    with exit_on_error():
        try:
            with _progress(seconds) as look:
                played = play(wanted, look)
        except KeyboardInterrupt:  # before it began, or by a second Ctrl-C
            typer.echo("stopped; what was in hand is not counted, so there is no summary", err=True)
            raise typer.Exit(130) from None
        if json_summary is not None:
            json_summary.write_bytes(to_json(played.view()) + b"\n")
        _tell(played)
        if played.problem is not None:
            raise played.problem


def target_for_demo(yes: bool) -> tuple[str, str]:
    """The server and the platform key, after a look at both. Ends the command where the demo has no business."""
    with exit_on_error():
        found = resolve_target(global_options.get(GlobalOptions()))
    if not is_loopback(found.url):
        confirm(f"{found.url} is not on this machine. Make three tenants there, and send them traffic?", yes)
    with connected() as client:
        try:
            me = client.keys.whoami()
        except (Unavailable, AuthError) as problem:
            start = ": `postroad up` starts one" if isinstance(problem, Unavailable) else ""
            _refuse(f"no demo at {found.url}: {problem.title}, {problem.detail or problem.code}{start}")
    if not me.platform:
        _refuse(
            "the demo makes tenants, and for that it needs the platform's admin key. `postroad up` has written one:\n"
            f"  postroad profiles add admin --key-file {CREDENTIALS} --admin\n"
            "  postroad --profile admin demo"
        )
    return found.url, found.key or ""


def _refuse(why: str) -> NoReturn:
    typer.echo(f"postroad: {why}", err=True)
    raise typer.Exit(1)


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tell(played: "Played") -> None:
    from postroad.demo.counters import ROWS, row

    took = (played.ended_at - played.began_at).total_seconds()
    stopped = {"time": "", "signal": ", stopped", "problem": ", broken off"}[played.ended_by]
    typer.echo(f"seed {played.wanted.seed}, {took:.0f} s, {played.calls:,} calls{stopped}. Acknowledged by the server:")
    names = [tally.tenant for tally in played.tallies]
    show(list(ROWS), False, ("", *names, "all"), lambda name: row(played.tallies, name), wide=True)
    if played.wanted.is_deleted:
        typer.echo("the three tenants are being deleted", err=True)
        return
    typer.echo(
        f"look at it:  postroad --tenant {names[0]} report   (the numbers are there after a few seconds)\n"
        "all of it stays. To delete it:\n" + "\n".join(f"  postroad tenants delete {name}" for name in names),
        err=True,
    )


@contextmanager
def _progress(seconds: float) -> Iterator[Callable[["Stage", tuple["TenantTally", ...]], None]]:
    """A line that moves on a terminal; elsewhere a line every ten seconds."""
    if not sys.stderr.isatty():
        yield _plain_lines(seconds)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns: list[Any] = [BarColumn(bar_width=14), TimeRemainingColumn(compact=True), TextColumn("{task.description}")]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("making tenants", total=seconds)

        def look(stage: "Stage", tallies: tuple["TenantTally", ...]) -> None:
            progress.update(task, completed=min(stage.now, seconds), description=_said(stage, tallies))

        yield look


def _plain_lines(seconds: float) -> Callable[["Stage", tuple["TenantTally", ...]], None]:
    following = _LINE_EVERY_SECONDS

    def look(stage: "Stage", tallies: tuple["TenantTally", ...]) -> None:
        nonlocal following
        if stage.now >= following:
            following += _LINE_EVERY_SECONDS
            typer.echo(f"{min(stage.now, seconds):.0f} of {seconds:.0f} s: {_said(stage, tallies)}", err=True)

    return look


def _said(stage: "Stage", tallies: tuple["TenantTally", ...]) -> str:
    from postroad.demo.counters import total

    counts = " · ".join(f"{total(tallies, name):,} {name}" for name in ("published", "done", "dead"))
    return f"{counts} · {total(tallies, 'sessions'):,} sessions · {stage.calls / max(stage.now, 1):.0f} calls/s"
