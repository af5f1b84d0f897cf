"""A scalable topic as text: its segments over the hash space, and tables of figures. Pure: stats in, lines out.

The picture has the hash space from left to right. Each line of sealed segments is one generation, the oldest on top;
the active segments, which together cover everything, are at the bottom with the traffic of each below its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final

HASHES: Final = 0x10000
WIDTH_MIN: Final = 16
MARGIN: Final = 8


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters of a picture; `levels` from no traffic to the busiest segment's."""

    left: str
    line: str
    right: str
    levels: str
    arrow: str
    more: str


UNICODE: Final = Glyphs("├", "─", "┤", " ▁▂▃▄▅▆▇█", "→", "…")
ASCII: Final = Glyphs("[", "-", "]", " .:-=+*#@", "->", "..")

Stats = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Box:
    """One segment in the picture."""

    id: int
    start: int
    end: int
    is_active: bool
    parents: tuple[int, ...]
    rate: float


def boxes(stats: Stats) -> list[Box]:
    return [
        Box(
            int(number),
            segment["hashRange"]["start"],
            segment["hashRange"]["end"],
            segment["state"] == "ACTIVE",
            tuple(segment["parentIds"]),
            segment.get("msgRateIn", 0.0),
        )
        for number, segment in sorted(stats["segments"].items(), key=lambda item: int(item[0]))
    ]


# -- the whole page


def page(topic: str, stats: Stats, width: int, height: int, glyphs: Glyphs = UNICODE) -> list[str]:
    """The page of `watch`: everything that fits, the present before the past."""
    top = [*heading(topic, stats, glyphs), ""]
    subscriptions = subscription_table(stats)
    active = bar(stats, width, glyphs)
    room = height - len(top) - len(active) - 1
    # A third of the room goes to the past; the tables need the rest.
    past = generations(stats, width, max(1, room // 3), glyphs)
    room -= len(past)
    below = subscriptions[: max(0, room // 2)]
    room -= len(below) + (1 if below else 0)
    table = segment_table(stats, active_only=len(stats["segments"]) + 1 > room)
    if len(table) > room:
        hidden = len(table) - room + 1
        table = [*table[: max(0, room - 1)], f"{glyphs.more} and {hidden} more"] if room > 1 else []
    lines = [*top, *past, *active]
    for part in (table, below):
        lines += ["", *part] if part else []
    return [clip(line, width, glyphs) for line in lines[:height]]


def clip(line: str, width: int, glyphs: Glyphs) -> str:
    return line if len(line) <= width else line[: max(0, width - len(glyphs.more))] + glyphs.more


def heading(topic: str, stats: Stats, glyphs: Glyphs = UNICODE) -> list[str]:
    lines = [
        f"{topic}   epoch {stats['epoch']}   {stats['activeSegments']} active, {stats['sealedSegments']} sealed",
        f"in {rate(stats['msgRateIn'])} msg/s, {size(stats['msgThroughputIn'])}/s   "
        f"out {rate(stats['msgRateOut'])} msg/s, {size(stats['msgThroughputOut'])}/s   "
        f"stored {size(stats['storageSize'])}   controller {stats['controller'] or 'none'}",
    ]
    if (operation := stats.get("operation")) is not None:
        lines.append(f"under way: {operation_text(operation, glyphs)}")
    if advice := (stats.get("routing") or {}).get("advice"):
        lines.append(f"keys are out of order: {advice}")
    return lines


def operation_text(operation: dict[str, Any], glyphs: Glyphs = UNICODE) -> str:
    return f"{operation['kind']} {ids(operation['parentIds'])} {glyphs.arrow} {ids(operation['childIds'])}"


def changes(before: Stats, after: Stats, glyphs: Glyphs = UNICODE) -> list[str]:
    """The changes of segments between two stats, oldest first, including operations on segments made in
    between."""
    was, now = before["segments"], after["segments"]
    made: dict[tuple[int, ...], list[int]] = {}
    for number in sorted(int(n) for n in now if n not in was):
        made.setdefault(tuple(now[str(number)]["parentIds"]), []).append(number)
    told = [
        f"{ids(parents)} {glyphs.arrow} {ids(children)}" if parents else f"new {ids(children)}"
        for parents, children in made.items()
    ]
    gone = sorted(int(n) for n in was if n not in now)
    return [*told, f"{ids(gone)} removed"] if gone else told


def summary(stats: Stats, glyphs: Glyphs = UNICODE) -> str:
    """One line for piped output."""
    active = sorted((b for b in boxes(stats) if b.is_active), key=lambda b: b.start)
    shown = " ".join(f"{b.id}[{b.start:04x}-{b.end:04x}]" for b in active)
    backlog = sum(s["msgBacklog"] for s in stats["subscriptions"].values())
    return (
        f"active {shown}; {stats['sealedSegments']} sealed; in {rate(stats['msgRateIn'])} msg/s, "
        f"out {rate(stats['msgRateOut'])} msg/s, backlog {backlog}"
    )


# -- the picture


def depths(found: Sequence[Box]) -> dict[int, int]:
    """The number of generations before each segment. Parents are older, so they come first by id."""
    depth: dict[int, int] = {}
    for box in sorted(found, key=lambda b: b.id):
        depth[box.id] = 1 + max((depth[p] for p in box.parents if p in depth), default=-1)
    return depth


def generations(stats: Stats, width: int, rows_max: int, glyphs: Glyphs = UNICODE) -> list[str]:
    """Sealed segments, a line for each generation, oldest first; the oldest are left out when there is no room."""
    found = boxes(stats)
    depth = depths(found)
    lanes: list[tuple[int, list[Box]]] = []
    for box in sorted((b for b in found if not b.is_active), key=lambda b: (depth[b.id], b.start, b.id)):
        # Segments of one generation share a line unless they overlap, as the partitions of a classic topic do.
        lane = next((row for d, row in lanes if d == depth[box.id] and row[-1].end < box.start), None)
        if lane is None:
            lanes.append((depth[box.id], [box]))
        else:
            lane.append(box)
    shown = lanes[-rows_max:] if len(lanes) > rows_max else lanes
    if len(shown) < len(lanes):
        shown = shown[1:]
        hidden = sum(len(row) for _, row in lanes) - sum(len(row) for _, row in shown)
        return [f"{'':{MARGIN}}{glyphs.more} {hidden} older", *_lane_lines(shown, width, glyphs)]
    return _lane_lines(shown, width, glyphs)


def _lane_lines(lanes: Iterable[tuple[int, list[Box]]], width: int, glyphs: Glyphs) -> list[str]:
    return [_labelled("sealed", _boxed(row, _span(width), glyphs)) for _, row in lanes]


def bar(stats: Stats, width: int, glyphs: Glyphs = UNICODE) -> list[str]:
    """The active segments: the scale, their numbers, and the traffic of each relative to the busiest."""
    span = _span(width)
    active = sorted((b for b in boxes(stats) if b.is_active), key=lambda b: b.start)
    busiest = max((b.rate for b in active), default=0.0)
    heat = [" "] * span
    for box in active:
        left, right = _columns(box, span)
        level = glyphs.levels[0]
        if busiest > 0 and box.rate > 0:
            level = glyphs.levels[max(1, round(box.rate / busiest * (len(glyphs.levels) - 1)))]
        heat[left:right] = level * (right - left)
        if right - left > 1:
            heat[right - 1] = " "
    middle = span // 2
    scale = f"{'0000':<{middle}}{'8000':<{max(4, span - middle - 4)}}ffff"
    return [
        _labelled("active", _boxed(active, span, glyphs)),
        _labelled("traffic", "".join(heat)),
        _labelled("", scale[:span] if len(scale) > span else scale),
    ]


def _labelled(label: str, text: str) -> str:
    return f"{label:<{MARGIN}}{text}".rstrip()


def _span(width: int) -> int:
    return max(WIDTH_MIN, width - MARGIN)


def _columns(box: Box, span: int) -> tuple[int, int]:
    left = box.start * span // HASHES
    return left, max(left + 1, (box.end + 1) * span // HASHES)


def _boxed(row: Iterable[Box], span: int, glyphs: Glyphs) -> str:
    cells = [" "] * span
    for box in row:
        left, right = _columns(box, span)
        cells[left:right] = _box(str(box.id), right - left, glyphs)
    return "".join(cells)


def _box(label: str, width: int, glyphs: Glyphs) -> str:
    if width == 1:
        return glyphs.left
    inner = width - 2
    if len(label) > inner:
        return glyphs.left + glyphs.line * inner + glyphs.right
    text = f" {label} " if len(label) + 2 <= inner else label
    return glyphs.left + text.center(inner, glyphs.line) + glyphs.right


# -- tables


def segment_table(stats: Stats, *, active_only: bool = False) -> list[str]:
    found = sorted(stats["segments"].items(), key=lambda item: _order(item[1]))
    # Most topics have one entry bucket a segment, and no column for it. An older broker does not tell.
    has_buckets = any(segment.get("entryBuckets", 1) > 1 for _, segment in found)
    names = ("ID", "RANGE", "STATE", "FROM", "IN msg/s", "OUT msg/s", "STORED", "PRODUCERS")
    rows = [(*names, *(["BUCKETS"] if has_buckets else []), "BACKLOG")]
    for number, segment in found:
        if active_only and segment["state"] != "ACTIVE":
            continue
        *figures, backlog = _segment_row(segment)
        buckets = [str(segment.get("entryBuckets", 1))] if has_buckets else []
        rows.append((number, *figures, *buckets, backlog))
    return aligned(rows, left={1, 2, 3, len(rows[0]) - 1})


def _order(segment: dict[str, Any]) -> tuple[bool, int, int]:
    """Active segments first, by range; then the sealed ones, the latest first."""
    is_sealed = segment["state"] != "ACTIVE"
    return is_sealed, -segment["sealedAtMs"], segment["hashRange"]["start"]


def _segment_row(segment: dict[str, Any]) -> tuple[str, ...]:
    span = f"{segment['hashRange']['start']:04x}-{segment['hashRange']['end']:04x}"
    state = "deleting" if segment["deleting"] else segment["state"].lower()
    origin = ids(segment["parentIds"]) or "-"
    if not segment["available"]:
        return span, state, origin, "?", "?", "?", "?", "its owner does not answer"
    backlog = ", ".join(
        f"{name} {'drained' if cursor['drained'] else cursor['msgBacklog']}"
        for name, cursor in segment["subscriptions"].items()
    )
    return (
        span,
        state,
        origin,
        rate(segment["msgRateIn"]),
        rate(segment["msgRateOut"]),
        size(segment["storageSize"]),
        str(segment["producerCount"]),
        backlog or "-",
    )


def subscription_table(stats: Stats) -> list[str]:
    if not stats["subscriptions"]:
        return []
    rows = [("SUBSCRIPTION", "TYPE", "BACKLOG", "OUT msg/s", "CONSUMERS")]
    for name, subscription in stats["subscriptions"].items():
        consumers = "; ".join(_consumer_text(consumer) for consumer in subscription["consumers"])
        rows.append(
            (
                name,
                "deleting" if subscription["deleting"] else subscription["type"].lower(),
                str(subscription["msgBacklog"]),
                rate(subscription["msgRateOut"]),
                f"{subscription['consumerCount']}{f': {consumers}' if consumers else ''}",
            )
        )
    return aligned(rows, left={0, 1, 4})


def _consumer_text(consumer: dict[str, Any]) -> str:
    away = "" if consumer["connected"] else " (away)"
    shares = consumer.get("assignedBuckets", {})
    read = ", ".join(
        f"{number} ({bucket_text(shares[str(number)])})" if str(number) in shares else str(number)
        for number in consumer["assignedSegments"]
    )
    return f"{consumer['consumerName']}{away} reads {read or 'nothing'}"


def aligned(rows: Sequence[Sequence[str]], left: set[int]) -> list[str]:
    """Columns two spaces apart; those not in `left` are numbers and are right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(widths[column]) if column in left else cell.rjust(widths[column])
            for column, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


# -- figures


def ids(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in numbers)


def bucket_text(numbers: Sequence[int]) -> str:
    """`bucket 2` or `buckets 0-3`, as far as they are neighbours."""
    if len(numbers) == 1:
        return f"bucket {numbers[0]}"
    is_run = list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    return f"buckets {numbers[0]}-{numbers[-1]}" if is_run else f"buckets {ids(numbers)}"


def rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def size(value: float) -> str:
    """Bytes in decimal units, as in settings and rates."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:,.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Drawing characters, if the terminal's encoding has them."""
    try:
        "".join(astuple(UNICODE)).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE
