"""Charts as SVG text: lines and bars over time. Pure: the same rows are the same text.

Colours are classes of the page's style, so that a chart follows the light and the dark look. Each moment has an invisible
rectangle over the plot, whose `data-tip` the page's script shows; without the script nothing is missing, as the figure has a
table.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from postroad.report.formatting import DAY, Write, clock, number, short, ticks, time_ticks
from postroad.report.html import colour, text

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 12, 24
_DOTS_MAX = 60  # beyond that many points, dots would be a second line


@dataclass(frozen=True, slots=True)
class Series:
    """A name and its values by the start of their minute or hour, in milliseconds since 1970."""

    name: str
    values: dict[int, float]
    css: str = ""  # a class of its own; else by its place


@dataclass(frozen=True, slots=True)
class Frame:
    """What the charts of a page share: the time from `start` to `end`, in steps of `step` milliseconds; and the plot's size."""

    start: int
    end: int
    step: int
    width: int = 1040
    height: int = 240

    def sized(self, width: int, height: int) -> "Frame":
        return Frame(self.start, self.end, self.step, width, height)

    def x(self, at: float) -> float:
        return _LEFT + (at - self.start) / (self.end - self.start) * (self.width - _LEFT - _RIGHT)

    @property
    def floor(self) -> int:
        return self.height - _BOTTOM


@dataclass(frozen=True, slots=True)
class Axis:
    """How the values are written: in full, and beside the axis."""

    write: Write = number
    mark: Write = short
    ticks: Callable[[float], list[float]] = ticks


def line_chart(frame: Frame, series: Sequence[Series], axis: Axis, title: str, about: str = "") -> str:
    """A line for each series, broken where a moment has no value."""
    top = max((value for one in series for value in one.values.values()), default=0.0)
    marks = axis.ticks(top)
    drawn = "".join(_line(frame, one, _css(one, index), index, marks[-1]) for index, one in enumerate(series))
    return _svg(frame, axis, marks, drawn, _tips(frame, series, axis), title, about)


def _line(frame: Frame, one: Series, css: str, index: int, top: float) -> str:
    half = frame.step / 2
    pieces = [[(frame.x(at + half), _y(frame, value, top)) for at, value in piece] for piece in _unbroken(one.values, frame.step)]
    paths = "".join(f'<path d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in piece)}"/>' for piece in pieces if len(piece) > 1)
    has_dots = len(one.values) <= _DOTS_MAX
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for piece in pieces if has_dots or len(piece) == 1 for x, y in piece
    )
    return f'<g class="line {css}" data-series="{index}">{paths}{dots}</g>'


def _unbroken(values: dict[int, float], step: int) -> Iterable[list[tuple[int, float]]]:
    piece: list[tuple[int, float]] = []
    for at, value in sorted(values.items()):
        if piece and at - piece[-1][0] > step:
            yield piece
            piece = []
        piece.append((at, value))
    if piece:
        yield piece


def bar_chart(
    frame: Frame, series: Sequence[Series], axis: Axis, title: str, about: str = "", *, is_stacked: bool = False
) -> str:
    """At each moment a bar for each series: on top of each other if they are parts of a whole, else side by side."""
    moments = sorted({at for one in series for at in one.values})
    heights = [[one.values.get(at, 0.0) for one in series] for at in moments]
    top = max((sum(some) if is_stacked else max(some, default=0.0) for some in heights), default=0.0)
    marks = axis.ticks(top)
    slot = frame.x(frame.start + frame.step) - frame.x(frame.start)
    room = min(slot * 0.8, 56.0)
    each = room if is_stacked else room / max(len(series), 1)
    groups: list[list[str]] = [[] for _ in series]
    for at, some in zip(moments, heights, strict=True):
        left, below = frame.x(at) + (slot - room) / 2, 0.0
        for index, value in enumerate(some):
            if value > 0:
                high, low = _y(frame, below + value, marks[-1]), _y(frame, below, marks[-1])
                x = left if is_stacked else left + index * each
                groups[index].append(_bar(x, high, max(each - 0.5, 0.5), low - high))
            below += value if is_stacked else 0.0
    drawn = "".join(
        f'<g class="bar {_css(one, index)}" data-series="{index}">{"".join(groups[index])}</g>'
        for index, one in enumerate(series)
    )
    return _svg(frame, axis, marks, drawn, _tips(frame, series, axis), title, about)


def _bar(x: float, y: float, width: float, height: float) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 0.5):.1f}"/>'


def _css(one: Series, index: int) -> str:
    return one.css or colour(index)


def _y(frame: Frame, value: float, top: float) -> float:
    return frame.floor - value / top * (frame.floor - _TOP)


def _svg(frame: Frame, axis: Axis, marks: Sequence[float], drawn: str, tips: str, title: str, about: str) -> str:
    said = f"<title>{text(title)}</title><desc>{text(about or 'The table below has the numbers.')}</desc>"
    return (
        f'<svg viewBox="0 0 {frame.width} {frame.height}" role="img">{said}'
        f'<g class="axis">{_levels(frame, axis, marks)}{_times(frame)}</g>{drawn}<g class="hits">{tips}</g></svg>'
    )


def _levels(frame: Frame, axis: Axis, marks: Sequence[float]) -> str:
    right = frame.width - _RIGHT
    lines = (
        f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"{_floor(value)}/>'
        f'<text x="{_LEFT - 8}" y="{y + 3.5:.1f}" text-anchor="end">{text(axis.mark(value))}</text>'
        for value in marks
        for y in (_y(frame, value, marks[-1]),)
    )
    return "".join(lines)


def _floor(value: float) -> str:
    return "" if value else ' class="floor"'


def _times(frame: Frame) -> str:
    made = []
    for at in time_ticks(frame.start, frame.end, max(3, frame.width // 110)):
        x = frame.x(at)
        said = "24:00" if at == frame.end and at % DAY == 0 else clock(at)
        where = "end" if x > frame.width - _RIGHT - 16 else "middle"
        made.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.floor}" y2="{frame.floor + 4}"/>')
        made.append(f'<text x="{x:.1f}" y="{frame.height - 6}" text-anchor="{where}">{said}</text>')
    return "".join(made)


def _tips(frame: Frame, series: Sequence[Series], axis: Axis) -> str:
    """For each moment that has something: the time, and what each series has then."""
    made = []
    for at in sorted({at for one in series for at in one.values}):
        lines = [f"{clock(at)} to {clock(at + frame.step)} UTC"]
        lines += [f"{one.name}: {axis.write(one.values[at])}" for one in series if at in one.values]
        x, width = frame.x(at), frame.x(at + frame.step) - frame.x(at)
        tip = "&#10;".join(text(line) for line in lines)
        made.append(f'<rect x="{x:.1f}" y="{_TOP}" width="{width:.1f}" height="{frame.floor - _TOP}" data-tip="{tip}"/>')
    return "".join(made)
