"""Prometheus's text format, as far as our own broker writes it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class MetricSample(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float


def samples(text: str) -> list[MetricSample]:
    found: list[MetricSample] = []
    for line in text.splitlines():
        if line.startswith("#") or (match := _LINE.match(line)) is None:
            continue
        labels = {name: _plain(value) for name, value in _LABEL.findall(match[2] or "")}
        found.append(MetricSample(match[1], labels, float(match[3])))
    return found


def _plain(value: str) -> str:
    return re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), value) if "\\" in value else value
