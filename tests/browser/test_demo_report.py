"""The demo's report in a real browser: it fits wide and narrow windows, and asks for nothing but itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.cli.demo.core.clickstream import Clickstream
from anabranch.cli.demo.core.past import TopicPast
from anabranch.cli.demo.core.ran import Killed, MicroBatch, Moment, Ran
from anabranch.cli.demo.core.report import report
from browser.hour import tidal
from harness.browser import Page

END_MS = 1_800_003_600_000
BEGIN_MS = END_MS - 3_600_000


def page_of_an_hour() -> str:
    past = TopicPast()
    past.take(tidal(END_MS), END_MS)
    ran = Ran(
        Clickstream(1_000_000, 3600),
        {"maxSegments": 16},
        past,
        readers="two Spark queries",
        software="Spark 4",
    )
    ran.start_ms, ran.end_ms, ran.done_ms = BEGIN_MS, END_MS, END_MS
    ran.moments = [
        Moment(BEGIN_MS + 1000 * at, 277 * at, {"raw": 270 * at, "sessions": 200 * at})
        for at in range(0, 3600, 10)
    ]
    ran.batches = {
        "raw": [MicroBatch(BEGIN_MS + at * 1000, 4000, 2700) for at in range(0, 3600, 10)],
        "sessions": [MicroBatch(BEGIN_MS + at * 1000, 9000, 2700) for at in range(0, 3600, 10)],
    }
    # Near the end, where its word has to turn to the left.
    ran.killed = Killed(END_MS - 200_000, END_MS - 199_000, 960_000)
    ran.checks = [("1,000,000 raw rows for 1,000,000 events: each exactly once, under its key", True)]
    ran.sessions = 19_515
    return report(ran)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (380, False), (1280, True), (380, True)])
def test_the_report_fits_the_window_and_needs_nothing_else(
    opened: Callable[..., Page], tmp_path: Path, width: int, *, dark: bool
) -> None:
    file = tmp_path / "report.html"
    file.write_text(page_of_an_hour(), encoding="utf-8")
    page = opened(file.as_uri(), width=width, dark=dark)
    page.shows("The river of segments")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    seen = "[...document.querySelectorAll('svg')].filter((svg) => svg.getBoundingClientRect().width > 0)"
    # The river, three charts and the two marks of the legend: of each pair the one for this window.
    page.until(f"{seen}.length == 6")
    # Every text of a picture lies within it, and is large enough to be read.
    outside = page.evaluate(
        f"""{seen}.flatMap((svg) => {{
          const frame = svg.getBoundingClientRect();
          return [...svg.querySelectorAll("text")].filter((text) => {{
            const box = text.getBoundingClientRect();
            const isInside = box.left > frame.left - 1 && box.right < frame.right + 1 && box.top > frame.top - 1;
            return text.textContent && !(isInside && Math.max(box.height, box.width) >= 10);
          }}).map((text) => text.textContent);
        }})"""
    )
    assert outside == []
    # No figure of a tile is cut off.
    assert page.evaluate(
        "[...document.querySelectorAll('.tiles b')].every((b) => b.scrollWidth <= b.clientWidth)"
    )
    assert [url for url in page.requested() if not url.startswith("file:")] == []
