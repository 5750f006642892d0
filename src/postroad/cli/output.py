"""Tables for people, JSON for machines, and exit codes for scripts.

What costs time to import (the client, rich) is imported where it is used: a shell that completes a word needs neither.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.profiles import GlobalOptions, global_options, missing_key_hint, resolve_target
from postroad.kernel.errors import AuthError, InvalidRequest, NotFound, PostroadError, RateLimited, Unavailable

if TYPE_CHECKING:
    from postroad.client import Postroad

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

# What a script can tell apart: 2 the call was wrong, 3 not allowed, 4 not there, 5 not now, 1 anything else.
_EXIT_CODES: tuple[tuple[type[PostroadError], int], ...] = (
    (RateLimited, 5),
    (InvalidRequest, 2),
    (AuthError, 3),
    (NotFound, 4),
    (Unavailable, 5),
)

_DEADLINE_SECONDS = 8.0  # somebody sits there and waits


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Errors become a line and an exit code."""
    try:
        yield
    except PostroadError as problem:
        request = f" (request {problem.request_id})" if problem.request_id else ""
        typer.echo(f"postroad: {problem.title}: {problem.detail or problem.code}{request}", err=True)
        raise typer.Exit(next((code for kind, code in _EXIT_CODES if isinstance(problem, kind)), 1)) from None
    except ValueError as fault:
        typer.echo(f"postroad: {fault}", err=True)
        raise typer.Exit(2) from None


@contextmanager
def connected(*, anonymous: bool = False) -> Iterator["Postroad"]:
    """A client of the server that the options, the environment or a profile names (`profiles.py`)."""
    with exit_on_error():
        found = resolve_target(global_options.get(GlobalOptions()))
        if found.key is None and not anonymous:
            raise ValueError(missing_key_hint())
        from postroad.client import Postroad

        if anonymous:
            opened = Postroad(found.url, anonymous=True, deadline=_DEADLINE_SECONDS)
        else:
            opened = Postroad(found.url, found.key, tenant=found.tenant or "", deadline=_DEADLINE_SECONDS)
        with opened as client:
            yield client


@contextmanager
def echo_warnings(logger: str) -> Iterator[None]:
    """What the SDK has to say while it keeps trying, such as that the server does not answer."""

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            typer.echo(f"postroad: {record.getMessage()}", err=True)

    log, told = logging.getLogger(logger), Told(logging.WARNING)
    log.addHandler(told)
    try:
        yield
    finally:
        log.removeHandler(told)


def show(things: Any, as_json: bool, head: Sequence[str], row: Callable[[Any], Sequence[object]]) -> None:
    """One thing or a list of them."""
    if as_json:
        print_json(things)
        return
    rows = [[str(cell) for cell in row(thing)] for thing in (things if isinstance(things, list) else [things])]
    _print_table(head, rows)


def show_one(thing: Any, as_json: bool, **cells: object) -> None:
    """One thing with more to say than fits a row: a line for each cell that has something."""
    if as_json:
        print_json(thing)
        return
    _print_table((), [[name.replace("_", " "), _cell(value)] for name, value in cells.items() if value not in (None, "", ())])


def show_once(made: Any, as_json: bool, text: str, about: str) -> None:
    """A secret that cannot be asked for again: alone on standard output, to be copied or piped; what it is, on the other."""
    if as_json:
        print_json(made)
        return
    typer.echo(f"{about}. This is shown once:", err=True)
    typer.echo(text)


def print_json(thing: Any) -> None:
    import msgspec

    sys.stdout.buffer.write(msgspec.json.format(to_json(thing), indent=2) + b"\n")


def to_json(thing: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(thing)


def from_json(text: str) -> Any:
    """Raises ValueError."""
    import msgspec

    return msgspec.json.decode(text)


def raw_json(text: str) -> Any:
    """The JSON text, to be sent to the byte: numbers are not rounded on the way. Raises ValueError."""
    import msgspec

    from_json(text)
    return msgspec.Raw(text.encode())


def confirm(question: str, yes: bool, *, err: bool = False) -> None:
    """Ends the command unless the answer is yes. With `err` standard output is left alone."""
    if not yes:
        typer.confirm(question, abort=True, err=err)


def words(some: Sequence[str]) -> str:
    return " ".join(some)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return words(value) if isinstance(value, tuple) else str(value)


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(head))
    for column in head or ("", ""):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])  # as it is: what people wrote is no markup
    Console(highlight=False, soft_wrap=not sys.stdout.isatty()).print(table)
