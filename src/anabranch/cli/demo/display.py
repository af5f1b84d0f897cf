"""The demo's display while the stream runs: a few lines that are redrawn on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LINE_EVERY_S: Final = 5.0
STRIP_COLUMNS: Final = 30  # The whole line fits into 80 columns.
# From idle to the limit at which a segment splits.
HEAT: Final = ("#1d5f8a", "#5b78d6", "#a866d9", "#e3629b", "#f59a52", "#ffd75e")
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class ShownReader:
    """A query, or its substitute."""

    name: str
    rows: int
    behind: int
    batches: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    doing: str
    elapsed_s: float
    stored: int
    events: int
    rate: float
    segments: Sequence[tuple[int, int, float]]  # First and last hash, share of the split limit.
    splits: int
    merges: int
    readers: Sequence[ShownReader]
    # The active segments of each broker, if there are several.
    brokers: Mapping[str, int] = field(default_factory=dict)


class Display:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._told = float("-inf")

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context for the time in which snapshots come."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    @contextmanager
    def waiting(self, doing: str) -> Iterator[None]:
        """A context for work that only takes time."""
        if self._console.is_terminal:
            with self._console.status(f"{escape(doing)} …"):
                yield
        else:
            self.say(f"{doing} …")
            yield

    def say(self, text: str, style: str = "") -> None:
        self._console.print(f"   {escape(text)}", style=style, soft_wrap=True, highlight=False)

    def show(self, seen: Snapshot) -> None:
        if self._live is not None:
            self._live.update(drawn(seen), refresh=True)
        elif time.monotonic() - self._told >= LINE_EVERY_S:
            self._told = time.monotonic()
            self.say(line(seen))


def line(seen: Snapshot) -> str:
    """The snapshot in one line."""
    readers = "".join(f"; {one.name} {one.rows:,} ({one.behind:,} behind)" for one in seen.readers)
    spread = f" ({' + '.join(map(str, seen.brokers.values()))} by broker)" if seen.brokers else ""
    return (
        f"{seen.elapsed_s:5.1f} s  {seen.stored:,} of {seen.events:,} stored, {seen.rate:,.0f}/s; "
        f"{counted(len(seen.segments), 'segment')}{spread}{readers}"
    )


def drawn(seen: Snapshot) -> Group:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", min_width=9)
    rows.add_column()
    bar = Table.grid(padding=(0, 2))
    bar.add_row(
        ProgressBar(total=seen.events, completed=seen.stored, width=STRIP_COLUMNS),
        f"{seen.stored:,} of {seen.events:,}   [b]{seen.rate:,.0f}[/]/s",
    )
    rows.add_row("   events", bar)
    strip = Table.grid(padding=(0, 2))
    changes = f"{counted(seen.splits, 'split')}, {counted(seen.merges, 'merge')}"
    strip.add_row(segments_strip(seen.segments), f"{counted(len(seen.segments), 'segment')}   {changes}")
    rows.add_row("   segments", strip)
    if seen.brokers:
        told = ", ".join(f"{name} {count or '-'}" for name, count in seen.brokers.items())
        rows.add_row("   brokers", f"segments of each: {told}")
    for one in seen.readers:
        rows.add_row(
            f"   {one.name}",
            f"{one.rows:,} rows in {counted(one.batches, 'batch', 'batches')}, {one.behind:,} behind",
        )
    return Group(rows, Text(f"   {seen.elapsed_s:.0f} s: {seen.doing}", style="dim"))


def segments_strip(segments: Sequence[tuple[int, int, float]], columns: int = STRIP_COLUMNS) -> Text:
    """The hash space from left to right: height and colour of each segment show how close it is to its split limit."""
    strip = Text()
    at = 0
    for number, (_, last, heat) in enumerate(segments):
        upto = max(at + 1, round((last + 1) / 65536 * columns))
        level = min(1.0, max(0.0, heat))
        block = _BLOCKS[max(1, round(level * (len(_BLOCKS) - 1)))]
        wide = upto - at - (number + 1 < len(segments))
        strip.append(block * max(1, wide), style=HEAT[round(level * (len(HEAT) - 1))])
        if number + 1 < len(segments) and wide >= 1:
            strip.append(" ")
        at = upto
    return strip


def counted(count: int, one: str, more: str = "") -> str:
    return f"{count:,} {one if count == 1 else more or one + 's'}"
