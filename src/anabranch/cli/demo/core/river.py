"""The river of a report: the course, width and heat of each segment's stream, as SVG text. Pure.

As on the live page, time runs to the right and the hash space from top to bottom; each segment has the lane of its
range, and in it a stream as wide as its rate, on one scale for all. Where segments split or merge, both sides meet in
one cross-section, so no edge jumps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from anabranch.cli.demo.core.colours import STEPS, step_of
from anabranch.cli.demo.core.past import PastChange, SegmentPast, TopicPast

Floats = NDArray[np.float64]

HASHES: Final = 65536
STRETCH: Final = 0.6  # Narrow ranges get more height than their share.
FILL: Final = 0.88  # How much of the tightest lane a stream may fill.
THIN: Final = 2.0
STEP: Final = 3.0
SMOOTHINGS: Final = 4
JOIN_MIN, JOIN_MAX, JOIN_STEEPNESS = 14.0, 90.0, 2.0
COLOUR_EVERY: Final = 3  # The columns from one stop of a gradient to the next.
HEAT_WINDOW_MS: Final = 2000
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 12, 30


@dataclass(frozen=True, slots=True)
class RiverView:
    """The shown stretch of time, and the size of the picture."""

    from_ms: int
    to_ms: int
    width: int
    height: int

    def x(self, at_ms: float) -> float:
        return _LEFT + (at_ms - self.from_ms) / (self.to_ms - self.from_ms) * (self.width - _LEFT - _RIGHT)

    def y(self, share: float) -> float:
        return _TOP + share * (self.height - _TOP - _BOTTOM)

    def times(self, xs: Floats) -> Floats:
        span = self.width - _LEFT - _RIGHT
        return self.from_ms + (xs - _LEFT) / span * (self.to_ms - self.from_ms)


@dataclass(slots=True)
class RiverStream:
    """A segment's course: a middle line and half a width at each x, and its heat there."""

    segment: SegmentPast
    xs: Floats
    rate: Floats
    heat: Floats
    top: float
    bottom: float
    middle: Floats = field(default_factory=lambda: np.empty(0))
    half: Floats = field(default_factory=lambda: np.empty(0))
    begin: tuple[float, float] | None = None  # The middle and the half width at its join.
    end: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Join:
    parents: Sequence[RiverStream]
    children: Sequence[RiverStream]
    x: float
    y: float

    @property
    def kind(self) -> str:
        if len(self.parents) > len(self.children):
            return "merge"
        return "rebucket" if len(self.parents[0].segment.children) == 1 else "split"


def places(segments: Sequence[SegmentPast]) -> dict[int, float]:
    """The height, 0 to 1, of every boundary between ranges."""
    edges = sorted({0, HASHES, *(s.start for s in segments), *(s.end + 1 for s in segments)})
    steps = [((b - a) / HASHES) ** STRETCH for a, b in pairwise(edges)]
    heights = np.concatenate(([0.0], np.cumsum(steps))) / sum(steps)
    return dict(zip(edges, heights.tolist(), strict=True))


def braid(past: TopicPast, view: RiverView) -> tuple[list[RiverStream], list[Join]]:
    shown = [s for s in sorted(past.segments.values(), key=lambda s: s.id) if _is_seen(s, view)]
    heights = places(shown)
    streams = {s.id: _rough(s, view, heights, past.split_limit) for s in shown}
    tightest = max((float(s.rate.max()) / (s.bottom - s.top) for s in streams.values()), default=0.0)
    scale = FILL / tightest if tightest > 0 else 0.0
    for stream in streams.values():
        lane = stream.bottom - stream.top
        stream.half = np.clip(stream.rate * scale, THIN, lane) / 2
        stream.middle = np.full(len(stream.xs), (stream.top + stream.bottom) / 2)
    joins = _joins(streams)
    for stream in streams.values():
        _bend(stream)
    return list(streams.values()), joins


def _is_seen(segment: SegmentPast, view: RiverView) -> bool:
    return segment.created_ms < view.to_ms and (segment.sealed_ms or view.to_ms) > view.from_ms


def _rough(segment: SegmentPast, view: RiverView, heights: Mapping[int, float], limit: float) -> RiverStream:
    first = view.x(max(segment.created_ms, view.from_ms))
    last = view.x(min(segment.sealed_ms or view.to_ms, view.to_ms))
    xs = np.append(np.arange(first, max(first, last - 0.5), STEP), max(last, first + 0.5))
    times = view.times(xs)
    at = np.array([sample[0] for sample in segment.samples] or [segment.created_ms], dtype=float)
    rates = np.array([sample[1] for sample in segment.samples] or [0.0])
    heat = np.array([rates[(at > t - HEAT_WINDOW_MS) & (at <= t)].mean() for t in at]) / (limit or 1.0)
    return RiverStream(
        segment,
        xs,
        _eased(np.interp(times, at, rates)),
        _eased(np.interp(times, at, heat)),
        view.y(heights[segment.start]),
        view.y(heights[segment.end + 1]),
    )


def _eased(values: Floats) -> Floats:
    """Applies a weighted mean with the neighbours several times, to remove corners."""
    for _ in range(SMOOTHINGS):
        if len(values) > 2:
            values = np.concatenate(
                ([values[0]], (values[:-2] + 2 * values[1:-1] + values[2:]) / 4, [values[-1]])
            )
    return values


def _joins(streams: Mapping[int, RiverStream]) -> list[Join]:
    """Finds where segments split or merged, and sets the ends of both sides to where they meet."""
    groups: dict[tuple[int, ...], list[RiverStream]] = {}
    for stream in streams.values():
        heirs = tuple(number for number in stream.segment.children if number in streams)
        if stream.segment.sealed_ms and heirs:
            groups.setdefault(heirs, []).append(stream)
    found = []
    for heirs, parents in groups.items():
        children = sorted((streams[number] for number in heirs), key=lambda s: s.top)
        found.append(_meet(sorted(parents, key=lambda s: s.top), children))
    return found


def _meet(parents: Sequence[RiverStream], children: Sequence[RiverStream]) -> Join:
    before = [float(stream.half[-1]) * 2 for stream in parents]
    after = [float(stream.half[0]) * 2 for stream in children]
    whole = (sum(before) + sum(after)) / 2
    if len(parents) == 1:
        middle = float(parents[0].middle[-1])
    else:
        middle = float(np.mean([stream.middle[0] for stream in children]))
    for streams, widths, is_end in ((parents, before, True), (children, after, False)):
        at = middle - whole / 2
        for stream, width in zip(streams, widths, strict=True):
            part = whole * width / sum(widths)
            place = (at + part / 2, part / 2)
            if is_end:
                stream.end = place
            else:
                stream.begin = place
            at += part
    return Join(parents, children, float(children[0].xs[0]), middle)


def _bend(stream: RiverStream) -> None:
    """Leads both ends of the stream into their joins."""
    xs, length = stream.xs, float(stream.xs[-1] - stream.xs[0])
    room = length / 2 if stream.begin and stream.end else length
    for place, away in ((stream.begin, xs - xs[0]), (stream.end, xs[-1] - xs)):
        if place is None:
            continue
        steep = JOIN_STEEPNESS * abs(place[0] - float(stream.top + stream.bottom) / 2)
        over = max(1e-6, min(room, max(JOIN_MIN, min(JOIN_MAX, steep))))
        u = np.clip(away / over, 0.0, 1.0)
        u = u * u * (3 - 2 * u)
        stream.middle = place[0] + (stream.middle - place[0]) * u
        stream.half = place[1] + (stream.half - place[1]) * u


# -- drawing


def picture(
    past: TopicPast, view: RiverView, *, origin_ms: int, notes: Mapping[int, str] | None = None
) -> str:
    """Draws the river. `notes` are moments that get a line and a word. Times are shown as seconds since `origin_ms`."""
    streams, joins = braid(past, view)
    ident = f"r{view.width}"
    parts = [_axes(past, view, origin_ms)]
    gradients = "".join(_gradient(stream, ident) for stream in streams)
    parts += [_water(stream, ident, past.split_limit) for stream in streams]
    parts += [_note(at, text, view) for at, text in (notes or {}).items()]
    parts += [_mark(join, past, origin_ms) for join in joins]
    return (
        f'<svg viewBox="0 0 {view.width} {view.height}" role="img" class="river" '
        f'aria-label="The segments of the topic over time"><defs>{gradients}</defs>{"".join(parts)}</svg>'
    )


def _axes(past: TopicPast, view: RiverView, origin_ms: int) -> str:
    right, bottom = view.width - _RIGHT, view.height - _BOTTOM
    parts = [
        f'<rect x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{bottom - _TOP}" class="bed" rx="6"/>'
    ]
    heights = places(list(past.segments.values()))
    for edge in (0, 0x4000, 0x8000, 0xC000, HASHES):
        known = heights.get(edge, edge / HASHES)
        text = f"{min(edge, HASHES - 1):04x}"
        y = view.y(known)
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="tick end">{text}</text>')
        if 0 < edge < HASHES:
            parts.append(f'<path d="M{_LEFT} {y:.1f}H{right}" class="grid"/>')
    step = next(
        s
        for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, 3600)
        if (right - _LEFT) / 70 * s * 1000 >= view.to_ms - view.from_ms
    )
    for second in range(0, int((view.to_ms - origin_ms) / 1000) + 1, step):
        x = view.x(origin_ms + second * 1000)
        if _LEFT <= x <= right:
            parts.append(f'<path d="M{x:.1f} {_TOP}V{bottom}" class="grid"/>')
            parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" class="tick mid">{second} s</text>')
    return "".join(parts)


def _gradient(stream: RiverStream, ident: str) -> str:
    xs = stream.xs
    width = float(xs[-1] - xs[0]) or 1.0
    stops, before = [], -1
    for number in range(0, len(xs), COLOUR_EVERY):
        step = step_of(float(stream.heat[number]))
        if step != before or number + COLOUR_EVERY >= len(xs):
            share = float(xs[number] - xs[0]) / width
            stops.append(f'<stop offset="{share:.3f}" style="stop-color:var(--h{step})"/>')
            before = step
    return (
        f'<linearGradient id="{ident}-{stream.segment.id}" gradientUnits="userSpaceOnUse" x1="{xs[0]:.1f}" '
        f'x2="{xs[-1]:.1f}" y1="0" y2="0">{"".join(stops)}</linearGradient>'
    )


def _water(stream: RiverStream, ident: str, limit: float) -> str:
    xs, upper, lower = stream.xs, stream.middle - stream.half, stream.middle + stream.half
    there = "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, upper, strict=True))
    back = "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs[::-1], lower[::-1], strict=True))
    segment = stream.segment
    most = max((rate for _, rate in segment.samples), default=0.0)
    share = f", {most / limit:.0%} of its split limit" if limit else ""
    told = f"segment {segment.id}, hashes {segment.start:04x} to {segment.end:04x}: up to {most:,.0f} events/s{share}"
    return (
        f'<path d="M{there}L{back}Z" fill="url(#{ident}-{segment.id})"><title>{escape(told)}</title></path>'
    )


def _note(at_ms: int, text: str, view: RiverView) -> str:
    x = view.x(at_ms)
    at, end = (x - 5, " end") if x > view.width * 0.8 else (x + 5, "")
    return (
        f'<path d="M{x:.1f} {_TOP}V{view.height - _BOTTOM}" class="note"/>'
        f'<text x="{at:.1f}" y="{_TOP + 14}" class="noted{end}">{escape(text)}</text>'
    )


_GLYPHS: Final = {
    "split": "M-5 0H-1C1.5 0 1.5-3.5 5-3.5M-1 0C1.5 0 1.5 3.5 5 3.5",
    "merge": "M5 0H1C-1.5 0-1.5-3.5-5-3.5M1 0C-1.5 0-1.5 3.5-5 3.5",
    "rebucket": "M-5 0H5M-1.8-3.4V3.4M1.8-3.4V3.4",
}
_VERBS: Final = {"split": "split into", "merge": "merged into", "rebucket": "replaced by"}


def _mark(join: Join, past: TopicPast, origin_ms: int) -> str:
    parents = [stream.segment.id for stream in join.parents]
    children = [stream.segment.id for stream in join.children]
    change = _because(past, join.kind, parents)
    at_ms = change.at_ms if change else join.children[0].segment.created_ms
    told = f"{(at_ms - origin_ms) / 1000:.1f} s: {_list(parents)} {_VERBS[join.kind]} {_list(children)}"
    if change:
        told += f". {change.because[:1].upper()}{change.because[1:]}"
    shape = (
        '<rect x="-8" y="-8" width="16" height="16" rx="4"/>' if join.kind == "merge" else '<circle r="8.5"/>'
    )
    return (
        f'<g class="mark" transform="translate({join.x:.1f} {join.y:.1f})">{shape}'
        f'<path d="{_GLYPHS[join.kind]}"/><title>{escape(told)}</title></g>'
    )


def _because(past: TopicPast, kind: str, parents: Sequence[int]) -> PastChange | None:
    found = [c for c in past.changes.values() if c.kind == kind and set(c.segments) & set(parents)]
    return found[0] if found else None


def _list(ids: Sequence[int]) -> str:
    return " and ".join(map(str, ids))


def legend() -> str:
    """The meaning of colours and marks."""
    stops = "".join(f'<i style="background:var(--h{step})"></i>' for step in range(0, STEPS + 1, 2))
    glyphs = {
        kind: '<svg viewBox="-10 -10 20 20" class="glyph mark" aria-hidden="true">'
        f'{shape}<path d="{_GLYPHS[kind]}"/></svg>'
        for kind, shape in (
            ("split", '<circle r="8.5"/>'),
            ("merge", '<rect x="-8" y="-8" width="16" height="16" rx="4"/>'),
        )
    }
    return (
        f'<p class="legend"><span>idle <span class="scale">{stops}</span> split limit</span>'
        f"<span>{glyphs['split']} split</span><span>{glyphs['merge']} merge</span></p>"
    )
