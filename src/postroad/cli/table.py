"""Tables and details as lines of text that fit a terminal. Pure."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len, set_cell_size

_GAP = "  "
_ELLIPSIS = "…"
_ID_WIDTH_MAX = 36  # a UUID: a word up to this long may be an id, which is useless in part
_TEXT_WIDTH_MIN = 16  # a shortened time; a shorter excerpt of a text is useless
_VALUE_WIDTH_MIN = 20

_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(?::\d\d(?:\.\d+)?)?Z")


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is dropped before those of a higher priority; among equals the rightmost is dropped first."""

    title: str
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Cells of printable text on one line each. `hidden` and `is_truncated` record what `fit` left out."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    hidden: tuple[str, ...] = ()
    is_truncated: bool = False

    def lines(self) -> list[str]:
        """The titles and the rows, padded to the columns' widths."""
        widths = self.widths()
        titles = tuple(column.title for column in self.columns)
        return [_line(cells, widths) for cells in (titles, *self.rows)]

    def widths(self) -> list[int]:
        return [max(map(cell_len, cells)) for cells in self._by_column()]

    def floors(self) -> list[int]:
        """The width below which each column is dropped rather than truncated further."""
        return [max(map(_floor, cells)) for cells in self._by_column()]

    def _by_column(self) -> list[list[str]]:
        return [[column.title, *(row[index] for row in self.rows)] for index, column in enumerate(self.columns)]


def make_table(head: Sequence[str | Column], rows: Iterable[Iterable[object]]) -> Table:
    columns = tuple(one if isinstance(one, Column) else Column(one) for one in head)
    return Table(columns, tuple(tuple(printable(str(cell)) for cell in row) for row in rows))


def printable(text: str) -> str:
    """The text on one line: line ends and other control characters are escaped."""
    return text if text.isprintable() else "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def fit(table: Table, width: int) -> Table:
    """A table that is at most `width` wide.

    Where it is too wide, times are shortened to the minute; then columns are dropped until the others can be truncated to
    fit. A word up to the length of an id is never truncated, except in the first column, which is never dropped.
    """
    if _total(table.widths()) <= width:
        return table
    table = replace(table, rows=tuple(tuple(map(_short_time, row)) for row in table.rows))
    floors = [min(floor, width) for floor in table.floors()]
    kept = _kept(table.columns, floors, width)
    whole = [table.widths()[index] for index in kept]
    widths = _shrunk([min(one, width) for one in whole], [floors[index] for index in kept], width)

    def truncated(cells: Sequence[str]) -> tuple[str, ...]:
        return tuple(_truncated(cells[index], most) for index, most in zip(kept, widths, strict=True))

    titles = truncated([column.title for column in table.columns])
    return Table(
        columns=tuple(replace(table.columns[index], title=title) for index, title in zip(kept, titles, strict=True)),
        rows=tuple(map(truncated, table.rows)),
        hidden=tuple(column.title for index, column in enumerate(table.columns) if index not in kept),
        is_truncated=widths != whole,
    )


def _short_time(cell: str) -> str:
    found = _TIME.fullmatch(cell)
    return f"{found[1]} {found[2]}" if found else cell


def _kept(columns: Sequence[Column], floors: Sequence[int], width: int) -> list[int]:
    kept = list(range(len(columns)))
    while len(kept) > 1 and _total([floors[index] for index in kept]) > width:
        kept.remove(min(kept[1:], key=lambda index: (columns[index].priority, -index)))
    return kept


def _shrunk(widths: Sequence[int], floors: Sequence[int], width: int) -> list[int]:
    """The widest columns give way first, none below its floor."""
    shrunk = list(widths)
    while _total(shrunk) > width:
        shrunk[max((index for index, floor in enumerate(floors) if shrunk[index] > floor), key=shrunk.__getitem__)] -= 1
    return shrunk


def _floor(cell: str) -> int:
    width = cell_len(cell)
    is_id = width <= _ID_WIDTH_MAX and " " not in cell
    return width if is_id else min(width, _TEXT_WIDTH_MIN)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _truncated(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + _ELLIPSIS


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(set_cell_size(cell, width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def details(pairs: Sequence[tuple[str, str]], width: int | None) -> list[str]:
    """A line for each name and value. Values wider than `width` go on below, broken between words; longer words stay whole."""
    indent = max((cell_len(name) for name, _ in pairs), default=0) + len(_GAP)
    return [line for name, value in pairs for line in _wrapped(set_cell_size(name, indent), printable(value), width)]


def _wrapped(name: str, value: str, width: int | None) -> list[str]:
    if width is None:
        return [name + value]
    most = max(width - len(name), _VALUE_WIDTH_MIN)
    lines = textwrap.wrap(value, most, break_long_words=False, break_on_hyphens=False)
    return [(name if number == 0 else " " * len(name)) + line for number, line in enumerate(lines or [""])]
