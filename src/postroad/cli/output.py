"""Tables for people, JSON for machines, and exit codes for scripts.

The client and msgspec are imported where they are used: shell completion needs neither, and they are slow to import.
"""

import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.profiles import GlobalOptions, global_options, missing_key_hint, resolve_target
from postroad.cli.table import Column, Table, details, fit, make_table
from postroad.kernel.errors import AuthError, InvalidRequest, NotFound, PostroadError, RateLimited, Unavailable

if TYPE_CHECKING:
    from postroad.client import Postroad

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Wide = Annotated[bool, typer.Option("--wide", help="Print all columns and whole values, even if wider than the terminal.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

# Exit codes for scripts: 2 invalid call, 3 not allowed, 4 not found, 5 temporarily unavailable, 1 any other error.
_EXIT_CODES: tuple[tuple[type[PostroadError], int], ...] = (
    (RateLimited, 5),
    (InvalidRequest, 2),
    (AuthError, 3),
    (NotFound, 4),
    (Unavailable, 5),
)

_DEADLINE_SECONDS = 8.0  # for a call with its retries: a person waits for the command


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print an error as one line on standard error, and end the command with the error's exit code."""
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
    """A client of the server that the options, the environment or a profile names. Errors end the command."""
    with exit_on_error():
        target = resolve_target(global_options.get(GlobalOptions()))
        if target.key is None and not anonymous:
            raise ValueError(missing_key_hint())
        _skip_command_line_of_httpx()
        from postroad.client import Postroad

        with Postroad(
            target.url,
            None if anonymous else target.key,
            tenant=target.tenant or "",
            deadline=_DEADLINE_SECONDS,
            anonymous=anonymous,
            on_wait=_Announcement(),
            ca_file=target.ca_file,
        ) as client:
            yield client


class _Announcement:
    """Prints on standard error why the command waits, once."""

    def __init__(self) -> None:
        self._is_made = False

    def __call__(self, cause: str) -> None:
        if not self._is_made:
            self._is_made = True
            typer.echo(f"postroad: {cause}; waiting up to {_DEADLINE_SECONDS:.0f} s", err=True)


def _skip_command_line_of_httpx() -> None:
    """Importing httpx also imports its own command line with rich and click, which takes longer than the rest of it."""
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # httpx handles the ImportError of this module


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"postroad: {record.getMessage()}", err=True)


@contextmanager
def echo_warnings() -> Iterator[None]:
    """Print the SDK's warnings on standard error, such as that the server does not answer and the call is retried."""
    log, handler = logging.getLogger("postroad"), _StderrHandler(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def show(
    things: Any,
    as_json: bool,
    head: Sequence[str | Column],
    row: Callable[[Any], Sequence[object]],
    *,
    wide: bool = False,
    keep_values: bool = False,
) -> None:
    """Print a list as a table that fits the terminal, or one thing as a row, or as details where the row does not fit.

    `wide`, and output that is not a terminal, leave the table whole. With `keep_values` a list that does not fit is printed as
    details, too.
    """
    if as_json:
        print_json(things)
        return
    is_list = isinstance(things, list)
    table, width = make_table(head, map(row, things if is_list else [things])), _terminal_width()
    if width is None or wide:
        _print_table(table)
        return
    fitted = fit(table, width)
    if fitted is not table and (keep_values or not is_list):
        titles = [column.title for column in table.columns]
        blocks = ("\n".join(details([*zip(titles, cells, strict=True)], width)) for cells in table.rows)
        typer.echo("\n\n".join(blocks))
        return
    _print_table(fitted)
    if fitted.hidden or fitted.is_truncated:
        hidden = f"hidden columns: {', '.join(fitted.hidden)}; " if fitted.hidden else ""
        typer.echo(f"{hidden}--wide or --json shows everything", err=True)


def show_one(thing: Any, as_json: bool, *, wide: bool = False, **cells: object) -> None:
    """Print the fields of one thing, a line each; empty ones are left out. `wide`: lines are not wrapped."""
    if as_json:
        print_json(thing)
        return
    pairs = [(name.replace("_", " "), _cell(value)) for name, value in cells.items() if value not in (None, "", ())]
    typer.echo("\n".join(details(pairs, None if wide else _terminal_width())))


def show_once(created: Any, as_json: bool, text: str, about: str) -> None:
    """Print a secret that cannot be read again alone on standard output, and its description on standard error."""
    if as_json:
        print_json(created)
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
    """Validated JSON that is sent byte for byte, so that no number is rounded. Raises ValueError."""
    import msgspec

    from_json(text)
    return msgspec.Raw(text.encode())


def confirm(question: str, yes: bool, *, err: bool = False) -> None:
    """End the command unless the answer is yes. With `err` the question is printed on standard error."""
    if not yes:
        typer.confirm(question, abort=True, err=err)


def words(some: Sequence[str]) -> str:
    return " ".join(some)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return words(value) if isinstance(value, tuple) else str(value)


def _print_table(table: Table) -> None:
    head, *rows = table.lines()
    typer.echo("\n".join([typer.style(head, bold=True), *rows]))


def _terminal_width() -> int | None:
    """None if standard output is not a terminal: files and pipes have no width."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
