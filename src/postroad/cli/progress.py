"""A line that shows how far something is, and what to say to somebody who stops watching."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer


class ProgressLine:
    """On a terminal it is written over itself; elsewhere only what comes after it is seen."""

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
def watched(otherwise: str) -> Iterator[ProgressLine]:
    """A line to show progress on. Ctrl-C ends the command, not what it watches: `otherwise` says how to go on."""
    line = ProgressLine()
    try:
        yield line
    except KeyboardInterrupt:
        line.clear()
        typer.echo(otherwise, err=True)
        raise typer.Exit(130) from None
    finally:
        line.clear()


def share(done: int, total: int) -> str:
    return f"{done:,} of {total:,} ({100 * done // total} %)" if total else f"{done:,}"
