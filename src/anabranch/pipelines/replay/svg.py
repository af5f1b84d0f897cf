"""Small plots as SVG text, for reports without external parts: points, bars and lines over axes. Pure.

Colours come from the page (`--ink`, `--faint`, `--line`), those of series from a palette that the colour-blind can tell
apart too. Every mark has a title, so that a pointer over it shows the figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

PALETTE: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c6d31")
WIDTH: Final = 720
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 20, 14, 44
_NAME_MAX: Final = 36


def colour(number: int) -> str:
    return PALETTE[number % len(PALETTE)]


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers that cover the range, at about the wanted number of steps."""
    if not high > low:
        high = low + 1
    raw = (high - low) / wanted
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * n for n in (1, 2, 5, 10) if size * n >= raw * 0.999)
    first = math.floor(low / step)
    last = math.ceil(high / step - 1e-9)
    return [n * step for n in range(first, last + 1)]


def short(value: float) -> str:
    """`12.5k`, `3M`, `0.25`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values to places along one side."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


@dataclass(frozen=True, slots=True)
class Frame:
    """Two axes with their ticks, and the marks between them."""

    x: Axis
    y: Axis
    height: int
    back: str
    width: int = WIDTH

    def svg(self, marks: str, label: str) -> str:
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(label)}">'
            f"{self.back}{marks}</svg>"
        )


def frame(
    xs: Sequence[float],
    ys: Sequence[float],
    labels: tuple[str, str],
    *,
    height: int = 320,
    told: Callable[[float], str] = short,
    x_ticks: Sequence[float] | None = None,
    width: int = WIDTH,
) -> Frame:
    """Axes over those ticks: the first and the last are the ends."""
    x = Axis(xs[0], xs[-1], _LEFT, width - _RIGHT)
    y = Axis(ys[0], ys[-1], height - _BOTTOM, _TOP)
    parts = []
    for value in ys:
        at = y(value)
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{width - _RIGHT}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" class="tick end">{short(value)}</text>')
    for value in x_ticks if x_ticks is not None else xs:
        at = x(value)
        parts.append(
            f'<text x="{at:.1f}" y="{height - _BOTTOM + 18}" class="tick mid">{escape(told(value))}</text>'
        )
    middle = (_TOP + height - _BOTTOM) / 2
    parts.append(
        f'<text x="{(_LEFT + width - _RIGHT) / 2}" y="{height - 6}" class="axis mid">{escape(labels[0])}</text>'
        f'<text transform="translate(16 {middle}) rotate(-90)" class="axis mid">{escape(labels[1])}</text>'
    )
    return Frame(x, y, height, "".join(parts), width)


def scatter(points: Mapping[str, tuple[float, float]], joined: Sequence[str], labels: tuple[str, str]) -> str:
    """Named points; those of `joined` are linked by a line, in the order of x."""
    xs = ticks(min(p[0] for p in points.values()), max(p[0] for p in points.values()))
    ys = ticks(0, max(p[1] for p in points.values()) or 1)
    made = frame(xs, ys, labels)
    line = sorted(points[name] for name in joined)
    marks = []
    if len(line) > 1:
        path = "L".join(f"{made.x(a):.1f} {made.y(b):.1f}" for a, b in line)
        marks.append(f'<path d="M{path}" class="front"/>')
    places = {name: (made.x(a), made.y(b)) for name, (a, b) in points.items()}
    for number, (name, (x, y, is_right)) in enumerate(labelled(places).items()):
        (dot_x, dot_y), (a, b) = places[name], points[name]
        faded = "" if name in joined else ' class="off"'
        marks.append(
            f'<circle cx="{dot_x:.1f}" cy="{dot_y:.1f}" r="6" fill="{colour(number)}"{faded}>'
            f"<title>{escape(name)}: {a:,.1f} {escape(labels[0])}, {b:,.1f} {escape(labels[1])}</title></circle>"
            f'<text x="{x:.1f}" y="{y:.1f}" class="name{" end" if is_right else ""}">{escape(name)}</text>'
        )
    return made.svg("".join(marks), f"{labels[1]} against {labels[0]}")


def labelled(places: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float, bool]]:
    """Where to write each point's name, and whether the name ends there: beside the point, clear of the other names."""
    taken: list[tuple[float, float, float]] = []  # Start, end and line of each name.
    found = {}
    for name, (x, y) in places.items():
        is_right = x > WIDTH * 0.7
        at = x + (-11 if is_right else 11)
        low, high = (at - 8 * len(name), at) if is_right else (at, at + 8 * len(name))
        shifts = (-8, *(shift for n in range(1, 12) for shift in (-8 - 15 * n, -8 + 15 * n)))
        line = next(
            (
                y + shift
                for shift in shifts
                if all(b < low or a > high or abs(other - y - shift) >= 14 for a, b, other in taken)
            ),
            y - 8,
        )
        taken.append((low, high, line))
        found[name] = at, line, is_right
    return found


def stacked(rows: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """A bar for each row, of parts with the same names in all rows; the total stands at its end."""
    shown = {name: name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 1]}…" for name in rows}
    left, line = 24 + 8 * max(map(len, shown.values()), default=0), 34
    height = len(rows) * line + 14
    most = max((sum(parts.values()) for parts in rows.values()), default=0) or 1
    scale = (WIDTH - left - 90) / most
    marks = []
    for number, (name, parts) in enumerate(rows.items()):
        y, x = 8 + number * line, float(left)
        marks.append(f'<text x="{left - 10}" y="{y + 16}" class="name end">{escape(shown[name])}</text>')
        for at, (part, value) in enumerate(parts.items()):
            width = value * scale
            if width > 0:
                marks.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="22" fill="{colour(at)}">'
                    f"<title>{escape(name)}, {escape(part)}: {value:,.1f} {escape(unit)}</title></rect>"
                )
            x += width
        marks.append(f'<text x="{x + 8:.1f}" y="{y + 16}" class="tick">{short(sum(parts.values()))}</text>')
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(unit)}">{"".join(marks)}</svg>'
    )


def legend(names: Sequence[str]) -> str:
    items = (
        f'<span><i style="background:{colour(number)}"></i>{escape(name)}</span>'
        for number, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(items)}</p>'


@dataclass(frozen=True, slots=True)
class Line:
    """Points from left to right; a step holds each value until the next point."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    is_step: bool = False
    is_filled: bool = False


def lines(
    drawn: Sequence[Line],
    labels: tuple[str, str],
    told: Callable[[float], str],
    *,
    height: int = 200,
    width: int = WIDTH,
    ends: tuple[float, float] | None = None,
    x_ticks: Sequence[float] | None = None,
    marked: Mapping[float, str] | None = None,
) -> str:
    """`ends` of the x axis default to those of the lines; `marked` are places with a line and a word."""
    xs = [x for line in drawn for x, _ in line.points]
    ys = ticks(0, max((y for line in drawn for _, y in line.points), default=1) or 1, 4)
    low, high = ends or (min(xs), max(xs))
    made = frame(
        (low, high),
        ys,
        labels,
        height=height,
        told=told,
        x_ticks=x_ticks if x_ticks is not None else _quarters(low, high),
        width=width,
    )
    marks = []
    for line in drawn:
        path = _path(line, made)
        if line.is_filled:
            (first, _), (last, _) = line.points[0], line.points[-1]
            base = made.y(0)
            area = f"M{made.x(first):.1f} {base:.1f}L{path}L{made.x(last):.1f} {base:.1f}Z"
            marks.append(f'<path d="{area}" fill="{line.colour}" opacity=".16"/>')
        marks.append(
            f'<path d="M{path}" stroke="{line.colour}" class="line"><title>{escape(line.name)}</title></path>'
        )
    marks += [_marked(made, at, text) for at, text in (marked or {}).items()]
    return made.svg("".join(marks), labels[1])


def _marked(made: Frame, at: float, text: str) -> str:
    x = made.x(at)
    beside, end = (x - 5, " end") if x > made.width * 0.8 else (x + 5, "")
    return (
        f'<path d="M{x:.1f} {_TOP}V{made.height - _BOTTOM}" class="note"/>'
        f'<text x="{beside:.1f}" y="{_TOP + 10}" class="noted{end}">{escape(text)}</text>'
    )


def _quarters(low: float, high: float) -> list[float]:
    return [low + (high - low) * n / 4 for n in range(5)]


def _path(line: Line, made: Frame) -> str:
    parts: list[str] = []
    for number, (x, y) in enumerate(line.points):
        if line.is_step and number:
            parts.append(f"{made.x(x):.1f} {made.y(line.points[number - 1][1]):.1f}")
        parts.append(f"{made.x(x):.1f} {made.y(y):.1f}")
    return "L".join(parts)
