"""Tables for people, JSON for machines, and exit codes for scripts."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from postroad.client import Postroad
from postroad.kernel.errors import InvalidRequest, Missing, PostroadError, Refused, Unavailable

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

# What a script can tell apart: 2 the call was wrong, 3 not allowed, 4 not there, 5 not now, 1 anything else.
_EXIT_CODES: tuple[tuple[type[PostroadError], int], ...] = ((InvalidRequest, 2), (Refused, 3), (Missing, 4), (Unavailable, 5))


_DEADLINE_SECONDS = 8.0  # somebody sits there and waits


@contextmanager
def connected() -> Iterator[Postroad]:
    """The client that POSTROAD_URL, POSTROAD_KEY and POSTROAD_TENANT describe; its errors become a line and an exit code."""
    try:
        with Postroad(deadline=_DEADLINE_SECONDS) as client:
            yield client
    except PostroadError as problem:
        request = f" (request {problem.request_id})" if problem.request_id else ""
        typer.echo(f"postroad: {problem.title}: {problem.detail or problem.code}{request}", err=True)
        raise typer.Exit(next((code for kind, code in _EXIT_CODES if isinstance(problem, kind)), 1)) from None
    except ValueError as fault:
        typer.echo(f"postroad: {fault}", err=True)
        raise typer.Exit(2) from None


def show(things: Any, as_json: bool, head: Sequence[str], row: Callable[[Any], Sequence[object]]) -> None:
    """One thing or a list of them."""
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(things), indent=2) + b"\n")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in head:
        table.add_column(column, overflow="fold")
    for thing in things if isinstance(things, list) else [things]:
        table.add_row(*[str(cell) for cell in row(thing)])
    Console(highlight=False, soft_wrap=not sys.stdout.isatty()).print(table)
