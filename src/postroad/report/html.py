"""HTML elements. Values from outside go through `escaped`; the functions here return markup."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

SERIES_COLOURS = 8  # defined in style.py; further series are grey


def escaped(value: object) -> str:
    """The value as text, also safe in attributes; characters that XML 1.0 does not allow are removed."""
    return escape("".join(one for one in str(value) if one.isprintable() or one in "\n\t"), quote=True)


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell with a right-aligned number, or with `mark`, which is markup before the text."""

    value: str
    is_number: bool = True
    mark: str = ""


def table(head: Sequence[str], rows: Iterable[Sequence[Cell | str]], caption: str = "") -> str:
    """A table; columns with a number in the first row are right-aligned."""
    listed = [[cell if isinstance(cell, Cell) else Cell(cell, is_number=False) for cell in row] for row in rows]
    numbers = [cell.is_number for cell in listed[0]] if listed else [False] * len(head)
    top = "".join(
        f'<th scope="col"{_number_class(is_number)}>{escaped(one)}</th>' for one, is_number in zip(head, numbers, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(f'<td{_number_class(one.is_number)}>{one.mark}{escaped(one.value)}</td>' for one in row)}</tr>"
        for row in listed
    )
    titled = f"<caption>{escaped(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{titled}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _number_class(is_number: bool) -> str:
    return ' class="n"' if is_number else ""


def details(summary: str, content: str) -> str:
    return f"<details><summary>{escaped(summary)}</summary>{content}</details>"


def empty(message: str) -> str:
    return f'<p class="empty">{escaped(message)}</p>'


def section(anchor: str, title: str, lead: str, content: str) -> str:
    paragraph = f'<p class="lead">{escaped(lead)}</p>' if lead else ""
    name = escaped(anchor)
    heading = f'<h3 id="{name}-h">{escaped(title)}</h3>'
    return f'<section id="{name}" aria-labelledby="{name}-h">{heading}{paragraph}{content}</section>'


def figure(title: str, chart: str, legend: str = "", fallback: str = "", *, is_small: bool = False) -> str:
    """A chart with caption and legend, and `fallback`: its numbers as a table, for screen readers and copying."""
    kind = ' class="small"' if is_small else ""
    return f'<figure{kind}><figcaption>{escaped(title)}</figcaption>{legend}<div class="plot">{chart}</div>{fallback}</figure>'


def grid(figures: Iterable[str]) -> str:
    return f'<div class="grid">{"".join(figures)}</div>'


def colour(index: int) -> str:
    """CSS class of the series with this index."""
    return f"s{index}" if index < SERIES_COLOURS else "sx"


def legend(names: Sequence[str], classes: Sequence[str] | None = None) -> str:
    """A legend of buttons that show and hide their series; none for a single series."""
    if len(names) < 2:
        return ""
    chosen = classes or [colour(index) for index in range(len(names))]
    buttons = (
        f'<button type="button" aria-pressed="true" data-series="{index}"><i class="{chosen[index]}"></i>{escaped(name)}</button>'
        for index, name in enumerate(names)
    )
    return f'<div class="legend">{"".join(buttons)}</div>'


def chip(kind: str, word: str) -> str:
    """A state as a coloured word, so that it does not depend on the colour alone."""
    return f'<span class="chip {escaped(kind)}">{escaped(word)}</span>'


def tiles(figures: Sequence[tuple[str, str, str]]) -> str:
    """Key figures: name, value and note."""
    items = (
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}{f'<small>{escaped(about)}</small>' if about else ''}</dd></div>"
        for name, value, about in figures
    )
    return f'<dl class="tiles">{"".join(items)}</dl>'
