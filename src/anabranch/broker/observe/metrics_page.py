"""Prometheus's text format: lines gathered by metric, so that the lines of each metric are together, as it requires."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from anabranch.broker.observe.metric_names import METRICS, Metric
from anabranch.model.histogram import Histogram

# The most lines in a piece of the page, so that one metric of many topics does not block the event loop.
LINES_PER_PIECE = 2000
_UNKNOWN = Metric("untyped", "")


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Page:
    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def add(self, name: str, labels: str, value: float) -> None:
        self._lines.setdefault(name, []).append(f"{name}{{{labels}}} {value!r}\n")

    def add_all(self, labels: str, figures: Mapping[str, float]) -> None:
        lines = self._lines
        for name, value in figures.items():
            line = f"{name}{{{labels}}} {value!r}\n"
            if name in lines:
                lines[name].append(line)
            else:
                lines[name] = [line]

    def add_histogram(self, name: str, labels: str, histogram: Histogram) -> None:
        # A copy: another thread may be counting.
        below = list(accumulate(histogram.counts))
        lines = self._lines.setdefault(name, [])
        for bound, count in zip(histogram.bounds, below, strict=False):
            lines.append(f'{name}_bucket{{{labels},le="{bound:g}"}} {count}\n')
        lines.append(f'{name}_bucket{{{labels},le="+Inf"}} {below[-1]}\n')
        lines.append(f"{name}_sum{{{labels}}} {histogram.sum!r}\n")
        lines.append(f"{name}_count{{{labels}}} {below[-1]}\n")

    def add_summary(
        self, name: str, labels: str, quantiles: Mapping[float, float], total: float, count: int
    ) -> None:
        lines = self._lines.setdefault(name, [])
        # The format uses NaN where there is no value.
        lines += [f'{name}{{{labels},quantile="{q}"}} {_number(value)}\n' for q, value in quantiles.items()]
        lines += [f"{name}_sum{{{labels}}} {total!r}\n", f"{name}_count{{{labels}}} {count}\n"]

    def pieces(self) -> Iterator[bytes]:
        for name, lines in self._lines.items():
            metric = METRICS.get(name, _UNKNOWN)
            head = f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n"
            for at in range(0, len(lines), LINES_PER_PIECE):
                yield (head + "".join(lines[at : at + LINES_PER_PIECE])).encode()
                head = ""


def _number(value: float) -> str:
    return "NaN" if value != value else repr(value)
