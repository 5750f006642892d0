"""Line and bar charts over time as SVG text. Pure.

Colours are CSS classes of the page, so that charts follow its light and dark theme. Each time has an invisible rectangle over the
plot, whose `data-tip` the page's script shows; without the script the figure's table has the same numbers.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from postroad.report.formatting import DAY, NumberFormat, clock, number, short, ticks, time_ticks
from postroad.report.html import colour, escaped

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 12, 24
_DOTS_MAX = 60  # with more points, dots would overlap


@dataclass(frozen=True, slots=True)
class Series:
    """Values by the start of their minute or hour, in milliseconds since 1970. `css` overrides the class of its index."""

    name: str
    values: dict[int, float]
    css: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """Time range of a page's charts, from `start` to `end` in steps of `step` milliseconds, and size of a chart."""

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
    def baseline(self) -> int:
        return self.height - _BOTTOM


@dataclass(frozen=True, slots=True)
class Axis:
    """Formats of values: in full, and as labels of the axis; and the axis' ticks."""

    value_format: NumberFormat = number
    label_format: NumberFormat = short
    ticks: Callable[[float], list[float]] = ticks


def line_chart(frame: Frame, series: Sequence[Series], axis: Axis, title: str, about: str = "") -> str:
    """A line for each series, with gaps where it has no value."""
    top = max((value for one in series for value in one.values.values()), default=0.0)
    marks = axis.ticks(top)
    drawn = "".join(_line(frame, one, _css(one, index), index, marks[-1]) for index, one in enumerate(series))
    return _svg(frame, axis, marks, drawn, _tips(frame, series, axis), title, about)


def _line(frame: Frame, one: Series, css: str, index: int, top: float) -> str:
    half = frame.step / 2
    segments = [
        [(frame.x(at + half), _y(frame, value, top)) for at, value in segment] for segment in _segments(one.values, frame.step)
    ]
    paths = "".join(
        f'<path d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in segment)}"/>' for segment in segments if len(segment) > 1
    )
    has_dots = len(one.values) <= _DOTS_MAX
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>'
        for segment in segments
        if has_dots or len(segment) == 1
        for x, y in segment
    )
    return f'<g class="line {css}" data-series="{index}">{paths}{dots}</g>'


def _segments(values: dict[int, float], step: int) -> Iterable[list[tuple[int, float]]]:
    segment: list[tuple[int, float]] = []
    for at, value in sorted(values.items()):
        if segment and at - segment[-1][0] > step:
            yield segment
            segment = []
        segment.append((at, value))
    if segment:
        yield segment


def bar_chart(
    frame: Frame,
    series: Sequence[Series],
    axis: Axis,
    title: str,
    about: str = "",
    *,
    is_stacked: bool = False,
    spans: Sequence[tuple[int, int]] = (),
) -> str:
    """A bar for each time and series, stacked or side by side. `spans` are times that are marked at the bottom."""
    times = sorted({at for one in series for at in one.values})
    heights = [[one.values.get(at, 0.0) for one in series] for at in times]
    top = max((sum(some) if is_stacked else max(some, default=0.0) for some in heights), default=0.0)
    marks = axis.ticks(top)
    slot = frame.x(frame.start + frame.step) - frame.x(frame.start)
    width = min(slot * 0.8, 56.0)
    each = width if is_stacked else width / max(len(series), 1)
    groups: list[list[str]] = [[] for _ in series]
    for at, some in zip(times, heights, strict=True):
        left, below = frame.x(at) + (slot - width) / 2, 0.0
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
    spanned = [(max(begin, frame.start), min(end, frame.end)) for begin, end in spans]
    marked = "".join(
        _bar(frame.x(begin), frame.baseline - 4, frame.x(end) - frame.x(begin), 4) for begin, end in spanned if begin < end
    )
    if marked:
        drawn += f'<g class="bar sx span">{marked}</g>'
    return _svg(frame, axis, marks, drawn, _tips(frame, series, axis), title, about)


def _bar(x: float, y: float, width: float, height: float) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 0.5):.1f}"/>'


def _css(one: Series, index: int) -> str:
    return one.css or colour(index)


def _y(frame: Frame, value: float, top: float) -> float:
    return frame.baseline - value / top * (frame.baseline - _TOP)


def _svg(frame: Frame, axis: Axis, marks: Sequence[float], drawn: str, tips: str, title: str, about: str) -> str:
    labels = f"<title>{escaped(title)}</title><desc>{escaped(about or 'The table below has the numbers.')}</desc>"
    return (
        f'<svg viewBox="0 0 {frame.width} {frame.height}" role="img">{labels}'
        f'<g class="axis">{_value_axis(frame, axis, marks)}{_time_axis(frame)}</g>{drawn}<g class="hits">{tips}</g></svg>'
    )


def _value_axis(frame: Frame, axis: Axis, marks: Sequence[float]) -> str:
    right = frame.width - _RIGHT
    lines = (
        f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"{_baseline_class(value)}/>'
        f'<text x="{_LEFT - 8}" y="{y + 3.5:.1f}" text-anchor="end">{escaped(axis.label_format(value))}</text>'
        for value in marks
        for y in (_y(frame, value, marks[-1]),)
    )
    return "".join(lines)


def _baseline_class(value: float) -> str:
    return "" if value else ' class="floor"'


def _time_axis(frame: Frame) -> str:
    elements = []
    for at in time_ticks(frame.start, frame.end, max(3, frame.width // 110)):
        x = frame.x(at)
        label = "24:00" if at == frame.end and at % DAY == 0 else clock(at)
        anchor = "end" if x > frame.width - _RIGHT - 16 else "middle"
        elements.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.baseline}" y2="{frame.baseline + 4}"/>')
        elements.append(f'<text x="{x:.1f}" y="{frame.height - 6}" text-anchor="{anchor}">{label}</text>')
    return "".join(elements)


def _tips(frame: Frame, series: Sequence[Series], axis: Axis) -> str:
    """Rectangles with the values of each time, for the script to show."""
    rectangles = []
    for at in sorted({at for one in series for at in one.values}):
        lines = [f"{clock(at)} to {clock(at + frame.step)} UTC"]
        lines += [f"{one.name}: {axis.value_format(one.values[at])}" for one in series if at in one.values]
        x, width = frame.x(at), frame.x(at + frame.step) - frame.x(at)
        tip = "&#10;".join(escaped(line) for line in lines)
        rectangles.append(f'<rect x="{x:.1f}" y="{_TOP}" width="{width:.1f}" height="{frame.baseline - _TOP}" data-tip="{tip}"/>')
    return "".join(rectangles)
