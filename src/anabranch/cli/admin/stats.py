"""`anabranch stats`: a line a topic, once or repeatedly.

One scrape of /metrics has all topics at once. The broker's own rates are means of ten seconds; with --watch, rates are
computed from its counters between two scrapes, so that a burst shows when it happens.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from anabranch.cli.admin.rest import RestRefused, fetch
from anabranch.cli.parsing.options import UsageError
from anabranch.cli.render.dag import aligned, rate, size
from anabranch.cli.render.metrics_text import MetricSample, samples

INTERVAL_MIN_S = 0.2
ANSWER_MAX_S = 10.0
NAME_MIN = 12
_CLEAR = "\x1b[H\x1b[2J"


@dataclass(frozen=True)
class Row:
    """A topic's figures at one moment; a namespace's, where the broker does not report single topics."""

    topic: str
    rate_in: float
    bytes_rate_in: float
    rate_out: float
    bytes_rate_out: float
    backlog: int
    stored_bytes: int
    producers: int
    consumers: int
    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0


_FIELDS = {
    "pulsar_rate_in": "rate_in",
    "pulsar_throughput_in": "bytes_rate_in",
    "pulsar_rate_out": "rate_out",
    "pulsar_throughput_out": "bytes_rate_out",
    "pulsar_msg_backlog": "backlog",
    "pulsar_storage_size": "stored_bytes",
    "pulsar_producers_count": "producers",
    "pulsar_consumers_count": "consumers",
    "pulsar_in_messages_total": "messages_in",
    "pulsar_in_bytes_total": "bytes_in",
    "pulsar_out_messages_total": "messages_out",
    "pulsar_out_bytes_total": "bytes_out",
}
_COUNTED = ("rate_in", "bytes_rate_in", "rate_out", "bytes_rate_out")
_COUNTERS = ("messages_in", "bytes_in", "messages_out", "bytes_out")
_ORDERS = {"in": "bytes_rate_in", "out": "bytes_rate_out", "backlog": "backlog", "stored": "stored_bytes"}


def rows(found: Sequence[MetricSample]) -> dict[str, Row]:
    """The rows by topic. Lines about a single subscription are part of their topic's already."""
    figures: dict[str, dict[str, Any]] = {}
    for sample in found:
        field = _FIELDS.get(sample.name)
        if field is None or "subscription" in sample.labels or "namespace" not in sample.labels:
            continue
        of = sample.labels.get("topic") or sample.labels["namespace"]
        figures.setdefault(of, {})[field] = sample.value if field in _COUNTED else int(sample.value)
    zero = dict.fromkeys(_FIELDS.values(), 0)
    return {topic: Row(topic=topic, **{**zero, **values}) for topic, values in figures.items()}


def measured(before: Mapping[str, Row], after: Mapping[str, Row], seconds: float) -> dict[str, Row]:
    """`after`, with the rates that its counters show. A counter that decreased was restarted."""
    found: dict[str, Row] = {}
    for topic, row in after.items():
        old = before.get(topic)
        rates = {
            name: max(0, getattr(row, counter) - (getattr(old, counter) if old else 0)) / seconds
            for name, counter in zip(_COUNTED, _COUNTERS, strict=True)
        }
        found[topic] = Row(**{**asdict(row), **rates}) if old is not None else row
    return found


def chosen(found: Mapping[str, Row], text: str, order: str, top: int) -> list[Row]:
    kept = [row for row in found.values() if text in row.topic]
    if order == "name":
        kept.sort(key=lambda row: row.topic)
    else:
        # Ties go by stored bytes and by name, so that idle topics keep their places.
        kept.sort(key=lambda row: (-getattr(row, _ORDERS[order]), -row.stored_bytes, row.topic))
    return kept[:top] if top else kept


def page(found: Sequence[Row], total: int, width: int | None = None) -> list[str]:
    """The table, limited to that many columns if given: names are shortened first, from their start."""
    if not found:
        return ["no open topics: a topic is opened by its first use"]
    lines = _table(found, max(len(row.topic) for row in found))
    if width is not None and len(lines[0]) > width:
        longest = max(len(row.topic) for row in found) - (len(lines[0]) - width)
        lines = [line[:width] for line in _table(found, max(NAME_MIN, longest))]
    more = f"and {total - len(found):,} more" if total > len(found) else ""
    return [*lines, *([more] if more else [])]


def _table(found: Sequence[Row], name_max: int) -> list[str]:
    cells = [("TOPIC", "IN msg/s", "IN", "OUT msg/s", "OUT", "BACKLOG", "STORED", "PRODUCERS", "CONSUMERS")]
    cells += [
        (
            row.topic if len(row.topic) <= name_max else "…" + row.topic[1 - name_max :],
            rate(row.rate_in),
            f"{size(row.bytes_rate_in)}/s",
            rate(row.rate_out),
            f"{size(row.bytes_rate_out)}/s",
            f"{row.backlog:,}",
            size(row.stored_bytes),
            str(row.producers),
            str(row.consumers),
        )
        for row in found
    ]
    return aligned(cells, left={0})


# -- requests


def run(arguments: argparse.Namespace) -> int:
    if arguments.interval < INTERVAL_MIN_S:
        raise UsageError(f"--interval {arguments.interval:g}: at least {INTERVAL_MIN_S:g} seconds")
    at, before = _look(arguments)
    _show(before, arguments, is_live=False)
    while arguments.watch:
        time.sleep(arguments.interval)
        try:
            now, after = _look(arguments)
        except RestRefused as refused:
            # A restarting broker comes back; any other error would have occurred the first time.
            print(f"anabranch: {refused}; trying again", file=sys.stderr)
            continue
        _show(measured(before, after, now - at), arguments, is_live=True)
        at, before = now, after
    return 0


def _look(arguments: argparse.Namespace) -> tuple[float, dict[str, Row]]:
    _, data = fetch(arguments.admin_url, "/metrics", timeout=ANSWER_MAX_S)
    return time.monotonic(), rows(samples(data.decode()))


def _show(found: Mapping[str, Row], arguments: argparse.Namespace, *, is_live: bool) -> None:
    total = sum(arguments.filter in topic for topic in found)
    on_screen = arguments.watch and sys.stdout.isatty()
    top, width = arguments.top, None
    if on_screen:
        width, height = shutil.get_terminal_size()
        room = max(1, height - 5)
        top = min(top, room) if top else room
    kept = chosen(found, arguments.filter, arguments.sort, top)
    if arguments.json:
        # One line per scrape, for programs that read them one by one.
        print(json.dumps([asdict(row) for row in kept], indent=None if arguments.watch else 2), flush=True)
        return
    if on_screen:
        sys.stdout.write(_CLEAR)
        print(f"{time.strftime('%H:%M:%S')}   {arguments.admin_url}   Ctrl-C ends"[:width] + "\n")
    elif is_live:
        print()
    print("\n".join(page(kept, total, width)), flush=True)
