"""A backtest's report in a real browser: it fits wide and narrow windows, and asks for nothing but itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.autoscale.policy import DEFAULT, ScalePolicy
from anabranch.pipelines.backtest import BacktestPlan, judged
from anabranch.pipelines.replay.outcomes import PolicyOutcome, Summary, Weights
from anabranch.pipelines.replay.replay import replay
from anabranch.pipelines.replay.report import Example, Told, report
from anabranch.pipelines.replay.synthetic import Fleet, make
from harness.browser import Page

POLICIES = {
    "default": DEFAULT,
    "a policy with a long name": ScalePolicy(max_segments=8),
    "short": ScalePolicy(max_segments=3),
}


def page_of_one_topic() -> str:
    made = make(Fleet(60, 0.5, seed=7, kind="flash-crowd"), 41)
    rows = judged(BacktestPlan(POLICIES), made.name, 41, made.kind, made.trace)
    names = PolicyOutcome.__dataclass_fields__
    outcomes = {row["policy"]: PolicyOutcome(**{name: row[name] for name in names}) for row in rows}
    replayed = {name: replay(made.trace, policy) for name, policy in POLICIES.items()}
    topic_class = rows[0]["topic_class"]
    return report(
        Told(
            "A backtest",
            ["One topic."],
            POLICIES,
            Summary({topic_class: 1}, {topic_class: outcomes}),
            Weights(),
            [Example(made.name, topic_class, made.trace, replayed)],
        )
    )


@pytest.mark.parametrize("width", [1280, 380])
def test_the_report_fits_the_window_and_needs_nothing_else(
    opened: Callable[..., Page], tmp_path: Path, width: int
) -> None:
    file = tmp_path / "report.html"
    file.write_text(page_of_one_topic(), encoding="utf-8")
    page = opened(file.as_uri())
    page.resize(width, 900)
    page.shows("Which policy for which topics")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    # Every text of a picture lies within it.
    outside = page.evaluate(
        """[...document.querySelectorAll("svg")].flatMap((svg) => {
          const frame = svg.getBoundingClientRect();
          return [...svg.querySelectorAll("text")].filter((text) => {
            const box = text.getBoundingClientRect();
            return box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1;
          }).map((text) => text.textContent);
        })"""
    )
    assert outside == []
    assert [url for url in page.requested() if not url.startswith("file:")] == []
