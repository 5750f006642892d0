"""Pieces of HTML. Whatever comes from outside goes through `text`; what these functions return is markup already."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

SERIES_COLOURS = 8  # of style.py; what comes after them is grey


def text(value: object) -> str:
    """As it is to be read, wherever it stands: quotes are escaped, too, and what XML 1.0 cannot have is left out."""
    return escape("".join(one for one in str(value) if one.isprintable() or one in "\n\t"), quote=True)


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that is more than its text: a number, which is set to the right, or one with a mark. `mark` is markup."""

    value: str
    is_number: bool = True
    mark: str = ""


def table(head: Sequence[str], rows: Iterable[Sequence[Cell | str]], caption: str = "") -> str:
    """A column is set to the right if its first row has a number there."""
    listed = [[cell if isinstance(cell, Cell) else Cell(cell, is_number=False) for cell in row] for row in rows]
    numbers = [cell.is_number for cell in listed[0]] if listed else [False] * len(head)
    top = "".join(f'<th scope="col"{_right(is_number)}>{text(one)}</th>' for one, is_number in zip(head, numbers, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{_right(one.is_number)}>{one.mark}{text(one.value)}</td>' for one in row)}</tr>" for row in listed
    )
    titled = f"<caption>{text(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{titled}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _right(is_number: bool) -> str:
    return ' class="n"' if is_number else ""


def details(summary: str, content: str) -> str:
    return f"<details><summary>{text(summary)}</summary>{content}</details>"


def empty(said: str) -> str:
    return f'<p class="empty">{text(said)}</p>'


def section(anchor: str, title: str, lead: str, content: str) -> str:
    said = f'<p class="lead">{text(lead)}</p>' if lead else ""
    name = text(anchor)
    heading = f'<h3 id="{name}-h">{text(title)}</h3>'
    return f'<section id="{name}" aria-labelledby="{name}-h">{heading}{said}{content}</section>'


def figure(title: str, chart: str, legend: str = "", fallback: str = "", *, is_small: bool = False) -> str:
    """A chart with its caption, its legend, and its numbers as a table for who cannot or would not see it."""
    kind = ' class="small"' if is_small else ""
    return f'<figure{kind}><figcaption>{text(title)}</figcaption>{legend}<div class="plot">{chart}</div>{fallback}</figure>'


def grid(figures: Iterable[str]) -> str:
    return f'<div class="grid">{"".join(figures)}</div>'


def colour(index: int) -> str:
    """The class of the series with this index."""
    return f"s{index}" if index < SERIES_COLOURS else "sx"


def legend(names: Sequence[str], classes: Sequence[str] | None = None) -> str:
    """Buttons, which show and hide their series; without the script they are a legend all the same."""
    if len(names) < 2:
        return ""
    chosen = classes or [colour(index) for index in range(len(names))]
    buttons = (
        f'<button type="button" aria-pressed="true" data-series="{index}"><i class="{chosen[index]}"></i>{text(name)}</button>'
        for index, name in enumerate(names)
    )
    return f'<div class="legend">{"".join(buttons)}</div>'


def chip(kind: str, word: str) -> str:
    """A state as a word with a colour, never by the colour alone."""
    return f'<span class="chip {text(kind)}">{text(word)}</span>'


def tiles(some: Sequence[tuple[str, str, str]]) -> str:
    """What to know at a glance: a name, a value, and a word about it."""
    made = (
        f"<div><dt>{text(name)}</dt><dd>{text(value)}{f'<small>{text(about)}</small>' if about else ''}</dd></div>"
        for name, value, about in some
    )
    return f'<dl class="tiles">{"".join(made)}</dl>'
