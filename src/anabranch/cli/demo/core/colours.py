"""The heat scale of the live page, for reports: the colour of a segment at a share of its split limit. Pure.

One scale for each theme, with equal visual steps: anchors in OKLCH are joined in OKLab at constant speed. Hotter
colours always differ more from the background, in greys and for the colour-blind too.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

Point = tuple[float, float, float]

STEPS: Final = 16
ANCHORS: Final = {
    "dark": (
        (0.43, 0.09, 236),
        (0.53, 0.125, 258),
        (0.6, 0.16, 305),
        (0.67, 0.18, 5),
        (0.76, 0.16, 50),
        (0.89, 0.15, 92),
    ),
    "light": (
        (0.71, 0.1, 232),
        (0.66, 0.13, 252),
        (0.6, 0.16, 285),
        (0.55, 0.19, 330),
        (0.48, 0.19, 12),
        (0.37, 0.14, 28),
    ),
}
_DENSE: Final = 100


def variables(theme: str) -> str:
    """`--h0:#…;--h1:#…`, from idle to the limit."""
    return ";".join(f"--h{step}:{code}" for step, code in enumerate(scale(ANCHORS[theme])))


def step_of(heat: float) -> int:
    """The step of a heat: 1 is the limit, and any heat above it has the last colour."""
    return round(min(1.0, max(0.0, heat)) * STEPS)


def scale(anchors: tuple[tuple[float, float, float], ...]) -> list[str]:
    """`STEPS + 1` colours, the same distance apart along the anchors."""
    points = [_oklab(*anchor) for anchor in anchors]
    dense = [
        _between(points[i], points[i + 1], j / _DENSE) for i in range(len(points) - 1) for j in range(_DENSE)
    ]
    dense.append(points[-1])
    travelled = [0.0]
    for one, other in pairwise(dense):
        travelled.append(travelled[-1] + math.dist(one, other))
    found, at = [], 0
    for step in range(STEPS + 1):
        wanted = travelled[-1] * step / STEPS
        while at + 1 < len(dense) - 1 and travelled[at + 1] < wanted:
            at += 1
        share = (wanted - travelled[at]) / ((travelled[at + 1] - travelled[at]) or 1)
        found.append(_code(_between(dense[at], dense[at + 1], min(1.0, share))))
    return found


def _oklab(lightness: float, chroma: float, hue: float) -> Point:
    return lightness, chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))


def _between(one: Point, other: Point, share: float) -> Point:
    a, b, c = (x + (y - x) * share for x, y in zip(one, other, strict=True))
    return a, b, c


def _code(point: Point) -> str:
    lightness, a, b = point
    x = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    y = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    z = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3
    linear = (
        4.0767416621 * x - 3.3077115913 * y + 0.2309699292 * z,
        -1.2684380046 * x + 2.6097574011 * y - 0.3413193965 * z,
        -0.0041960863 * x - 0.7034186147 * y + 1.707614701 * z,
    )
    return "#" + "".join(f"{_coded(one):02x}" for one in linear)


def _coded(linear: float) -> int:
    inside = min(1.0, max(0.0, linear))
    return round(255 * (12.92 * inside if inside <= 0.0031308 else 1.055 * inside ** (1 / 2.4) - 0.055))
