"""A progress line on standard error, and a message for Ctrl-C."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer


class ProgressLine:
    """A line that is overwritten in place on a terminal, and not printed elsewhere."""

    def __init__(self) -> None:
        self._width = 0

    def show(self, text: str) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\r{text.ljust(self._width)}", err=True, nl=False)
            self._width = len(text)

    def clear(self) -> None:
        if self._width:
            typer.echo(f"\r{' ' * self._width}\r", err=True, nl=False)
            self._width = 0


@contextmanager
def watched(on_interrupt: str) -> Iterator[ProgressLine]:
    """A progress line for work that the server does. Ctrl-C prints `on_interrupt` and ends the command, not the work."""
    line = ProgressLine()
    try:
        yield line
    except KeyboardInterrupt:
        line.clear()
        typer.echo(on_interrupt, err=True)
        raise typer.Exit(130) from None
    finally:
        line.clear()


def share(done: int, total: int) -> str:
    """`5 of 20 (25 %)`."""
    return f"{done:,} of {total:,} ({100 * done // total} %)" if total else f"{done:,}"
