"""`anabranch stats`: a line a topic, or a line a segment, once or repeatedly.

One scrape of /metrics has all topics of a broker at once; of several brokers, each is asked. Their own rates are means
of ten seconds; with --watch, rates are computed from their counters between two scrapes, so that a burst shows when it
happens.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from anabranch.cli.admin.rest import RestRefused, call, fetch
from anabranch.cli.parsing.options import UsageError
from anabranch.cli.render.dag import aligned, rate, size
from anabranch.cli.render.metrics_text import MetricSample, samples

INTERVAL_MIN_S = 0.2
ANSWER_MAX_S = 10.0
NAME_MIN = 12
_CLEAR = "\x1b[H\x1b[2J"


@dataclass(frozen=True)
class Row:
    """A topic's figures at one moment, or a segment's; a namespace's, where the broker does not report single
    topics."""

    topic: str
    rate_in: float
    bytes_rate_in: float
    rate_out: float
    bytes_rate_out: float
    backlog: int
    # None if the broker does not know: the topic has not been opened since its start.
    stored_bytes: int | None
    producers: int
    consumers: int
    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    # The segment of the topic that the row is about; "" for all of it.
    segment: str = ""

    @property
    def name(self) -> str:
        return f"{self.topic}  {self.segment}" if self.segment else self.topic


Key = tuple[str, str]

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
_CLIENTS = {
    "anabranch_scalable_topic_producers": "producers",
    "anabranch_scalable_topic_consumers": "consumers",
}
_ORDERS = {"in": "bytes_rate_in", "out": "bytes_rate_out", "backlog": "backlog", "stored": "stored_bytes"}


def rows(found: Sequence[MetricSample]) -> dict[Key, Row]:
    """The rows by topic and segment. Lines about a single subscription are part of their topic's already."""
    figures: dict[Key, dict[str, Any]] = {}
    for sample in found:
        field = _FIELDS.get(sample.name)
        if field is None or "subscription" in sample.labels or "namespace" not in sample.labels:
            continue
        of = sample.labels.get("topic") or sample.labels["namespace"], sample.labels.get("segment", "")
        figures.setdefault(of, {})[field] = sample.value if field in _COUNTED else int(sample.value)
    zero: dict[str, Any] = dict.fromkeys(_FIELDS.values(), 0)
    zero["stored_bytes"] = None
    return {
        (topic, segment): Row(topic=topic, segment=segment, **{**zero, **values})
        for (topic, segment), values in figures.items()
    }


def clients(found: Sequence[MetricSample]) -> dict[str, dict[str, Any]]:
    """Producers and consumers of each scalable topic: the sums over its segments count them more than once."""
    told: dict[str, dict[str, Any]] = {}
    for sample in found:
        if (field := _CLIENTS.get(sample.name)) is not None:
            told.setdefault(sample.labels["topic"], {})[field] = int(sample.value)
    return told


def by_topic(found: Iterable[Row], told: Mapping[str, Mapping[str, Any]]) -> dict[Key, Row]:
    """One row for each topic: the figures of its segments together."""
    summed: dict[Key, Row] = {}
    for row in found:
        key = row.topic, ""
        known = summed.get(key)
        summed[key] = replace(row, segment="") if known is None else _together(known, row)
    return {key: replace(row, **told.get(row.topic, {})) for key, row in summed.items()}


def _together(one: Row, other: Row) -> Row:
    sums: dict[str, Any] = {
        field: _sum(getattr(one, field), getattr(other, field)) for field in _FIELDS.values()
    }
    return replace(one, **sums)


def _sum(one: float | None, other: float | None) -> float | None:
    """What is not known of a part is not known of the whole."""
    return None if one is None or other is None else one + other


def measured(before: Mapping[Key, Row], after: Mapping[Key, Row], seconds: float) -> dict[Key, Row]:
    """`after`, with the rates that its counters show. A counter that decreased was restarted."""
    found: dict[Key, Row] = {}
    for topic, row in after.items():
        old = before.get(topic)
        rates = {
            name: max(0, getattr(row, counter) - (getattr(old, counter) if old else 0)) / seconds
            for name, counter in zip(_COUNTED, _COUNTERS, strict=True)
        }
        found[topic] = Row(**{**asdict(row), **rates}) if old is not None else row
    return found


def is_asked_for(topic: str, text: str) -> bool:
    """Whether the name has that text in it. The brokers' own topics are shown only if the text is in their local
    names: a user has not made them, and they would be all that a new broker shows."""
    local = topic.rpartition("/")[2]
    if local.startswith("__"):  # As `TopicName.is_system` has it; a row may be that of a namespace.
        return bool(text) and text in local
    return text in topic


def chosen(found: Mapping[Key, Row], text: str, order: str, top: int) -> list[Row]:
    kept = [row for row in found.values() if is_asked_for(row.topic, text)]
    if order == "name":
        kept.sort(key=lambda row: row.name)
    else:
        # Ties go by stored bytes and by name, so that idle topics keep their places.
        kept.sort(key=lambda row: (-(getattr(row, _ORDERS[order]) or 0), -(row.stored_bytes or 0), row.name))
    return kept[:top] if top else kept


def page(found: Sequence[Row], total: int, width: int | None = None) -> list[str]:
    """The table, limited to that many columns if given: columns are left out before names become the same."""
    if not found:
        return ["no open topics: a topic is opened by its first use"]
    names = [row.name for row in found]
    lines = _table(found, names, _COLUMNS)
    if width is not None and len(lines[0]) > width:
        lines = _narrowed(found, names, width)
    more = f"and {total - len(found):,} more" if total > len(found) else ""
    return [*lines, *([more] if more else [])]


def _narrowed(found: Sequence[Row], names: Sequence[str], width: int) -> list[str]:
    columns, dropped = _COLUMNS, [*_DISPENSABLE]
    while True:
        others = len(_table(found, [""] * len(found), columns)[0]) - len("TOPIC")
        short = shortened(names, max(NAME_MIN, width - others))
        fits = others + max(map(len, short)) <= width
        if (fits and len(set(short)) == len(set(names))) or not dropped:
            return [line[:width] for line in _table(found, short, columns)]
        gone = dropped.pop(0)
        columns = {title: cell for title, cell in columns.items() if title != gone}


def shortened(names: Sequence[str], longest: int) -> list[str]:
    """The names in so many columns each: cut at their start, or in the middle if that keeps more of them apart."""
    head = max(1, longest // 2 - 1)
    # What all names begin with is what the first and the last of them begin with.
    pairs = zip(min(names), max(names), strict=False)
    same = next((n for n, (one, other) in enumerate(pairs) if one != other), 0)

    def ends(name: str) -> str:
        return "…" + name[1 - longest :]

    def middles(name: str) -> str:
        return f"{name[:head]}…{name[head + 1 - longest :]}"

    def differences(name: str) -> str:
        return f"…{name[same : same + head]}…{name[head + 2 - longest :]}"

    found = [
        [name if len(name) <= longest else cut(name) for name in names]
        for cut in (ends, middles, differences)
    ]
    return max(found, key=lambda short: len(set(short)))


_COLUMNS: dict[str, Callable[[Row], str]] = {
    "IN msg/s": lambda row: rate(row.rate_in),
    "IN": lambda row: f"{size(row.bytes_rate_in)}/s",
    "OUT msg/s": lambda row: rate(row.rate_out),
    "OUT": lambda row: f"{size(row.bytes_rate_out)}/s",
    "BACKLOG": lambda row: f"{row.backlog:,}",
    "STORED": lambda row: "?" if row.stored_bytes is None else size(row.stored_bytes),
    "PRODUCERS": lambda row: str(row.producers),
    "CONSUMERS": lambda row: str(row.consumers),
}
# What is left out on a narrow screen, in this order.
_DISPENSABLE = ("PRODUCERS", "CONSUMERS", "OUT", "IN", "STORED")


def _table(
    found: Sequence[Row], names: Sequence[str], columns: Mapping[str, Callable[[Row], str]]
) -> list[str]:
    cells = [("TOPIC", *columns)]
    cells += [
        (name, *(cell(row) for cell in columns.values())) for name, row in zip(names, found, strict=True)
    ]
    return aligned(cells, left={0})


# -- requests


def run(arguments: argparse.Namespace) -> int:
    if arguments.interval < INTERVAL_MIN_S:
        raise UsageError(f"--interval {arguments.interval:g}: at least {INTERVAL_MIN_S:g} seconds")
    at, before, told = _look(arguments)
    _show(before, told, arguments, is_live=False)
    while arguments.watch:
        time.sleep(arguments.interval)
        try:
            now, after, told = _look(arguments)
        except RestRefused as refused:
            # A restarting broker comes back; any other error would have occurred the first time.
            print(f"anabranch: {refused}; trying again", file=sys.stderr)
            continue
        _show(measured(before, after, now - at), told, arguments, is_live=True)
        at, before = now, after
    return 0


def _look(arguments: argparse.Namespace) -> tuple[float, dict[Key, Row], dict[str, dict[str, Any]]]:
    found: dict[Key, Row] = {}
    told: dict[str, dict[str, Any]] = {}
    for scraped in _scraped(arguments.admin_url):
        for key, row in rows(scraped).items():
            # Namespaces have a row at each broker.
            found[key] = row if key not in found else _together(found[key], row)
        for topic, counts in clients(scraped).items():
            known = told.setdefault(topic, {})
            known.update({name: max(count, known.get(name, 0)) for name, count in counts.items()})
    return time.monotonic(), found, told


def _scraped(url: str) -> list[list[MetricSample]]:
    """The page of each broker that answers."""
    pages, refusals = [], []
    for one in _brokers(url):
        try:
            _, data = fetch(one, "/metrics", timeout=ANSWER_MAX_S)
            pages.append(samples(data.decode()))
        except RestRefused as refused:
            refusals.append(refused)
    if not pages:
        raise refusals[0]
    for silent in refusals:
        print(f"anabranch: without the topics of one broker: {silent}", file=sys.stderr)
    return pages


def _brokers(url: str) -> list[str]:
    """The admin URLs of all brokers; the given one if there is no other, or if the user may not list them."""
    scheme, _, _ = url.partition("://")
    try:
        found = call(url, "GET", "/admin/v2/brokers")
    except RestRefused as refused:
        if refused.status not in (401, 403, 404):
            raise
        found = None
    if not isinstance(found, list) or len(found) < 2:
        return [url]
    return [f"{scheme}://{address}" for address in found]


def _show(
    found: Mapping[Key, Row],
    told: Mapping[str, Mapping[str, Any]],
    arguments: argparse.Namespace,
    *,
    is_live: bool,
) -> None:
    if not arguments.segments:
        found = by_topic(found.values(), told)
    total = sum(is_asked_for(row.topic, arguments.filter) for row in found.values())
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
