"""What the demo shows while it runs, on a terminal and in a pipe."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from anabranch.cli.demo.display import (
    STRIP_COLUMNS,
    Display,
    ShownReader,
    Snapshot,
    drawn,
    line,
    segments_strip,
)

SEEN = Snapshot(
    "clicks are flowing",
    12.3,
    250_000,
    1_000_000,
    31_204.4,
    [(0, 0x7FFF, 0.2), (0x8000, 0xBFFF, 1.4), (0xC000, 0xFFFF, 0.0)],
    2,
    1,
    [ShownReader("raw", 240_000, 10_000, 12), ShownReader("sessions", 0, 250_000, 1)],
)


def test_a_line_says_how_far_everything_is() -> None:
    told = line(SEEN)
    assert "250,000 of 1,000,000 stored, 31,204/s; 3 segments" in told
    assert "raw 240,000 (10,000 behind)" in told


def test_several_brokers_are_shown_with_their_segments() -> None:
    seen = replace(SEEN, brokers={"broker-0": 2, "broker-1": 0, "broker-2": 1})
    assert "3 segments (2 + 0 + 1 by broker); raw" in line(seen)
    page = io.StringIO()
    Console(file=page, width=80).print(drawn(seen))
    assert "segments of each: broker-0 2, broker-1 -, broker-2 1" in page.getvalue()


def test_in_a_pipe_there_is_a_line_now_and_then_and_no_drawing() -> None:
    page = io.StringIO()
    display = Display(Console(file=page, width=200))
    with display.running():
        display.show(SEEN)
        display.show(SEEN)
    assert page.getvalue().count("250,000 of 1,000,000") == 1
    assert "\x1b" not in page.getvalue()


def test_on_a_terminal_the_lines_are_redrawn_and_gone_in_the_end() -> None:
    page = io.StringIO()
    display = Display(Console(file=page, width=80, force_terminal=True, legacy_windows=False))
    with display.running():
        display.show(SEEN)
        display.say("12.0 s  split of 0: because")
    shown = page.getvalue()
    assert "3 segments   2 splits, 1 merge" in shown
    assert "250,000 of 1,000,000" in shown
    assert "…" not in shown
    assert "in 1 batch, 250,000 behind" in shown
    assert "split of 0: because" in shown
    assert "\x1b[2K" in shown


def test_the_strip_has_a_part_for_each_segment_as_wide_as_its_range() -> None:
    strip = segments_strip(SEEN.segments)
    parts = strip.plain.split(" ")
    assert len(strip.plain) == STRIP_COLUMNS
    assert [len(part) for part in parts] == [14, 6, 8]
    assert [part[0] for part in parts] == ["▂", "█", "▁"]


def test_many_narrow_segments_each_have_a_place() -> None:
    edges = range(0, 65536, 65536 // 64)
    strip = segments_strip([(start, start + 1023, 0.5) for start in edges])
    assert sum(one != " " for one in strip.plain) == 64
