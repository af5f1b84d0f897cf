"""The report holds what it promises, well-formed, and needs nothing from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from anabranch.autoscale.policy import DEFAULT, ScalePolicy
from anabranch.pipelines.replay import svg
from anabranch.pipelines.replay.outcomes import PolicyOutcome, Summary, Weights
from anabranch.pipelines.replay.replay import replay
from anabranch.pipelines.replay.report import Example, Told, differences, report
from anabranch.pipelines.replay.synthetic import Fleet, make

POLICIES = {"default": DEFAULT, "a<b>&c": ScalePolicy(max_segments=8)}


def told() -> Told:
    one = {name: PolicyOutcome(10.0 + n, 5.0 - n, 5.0, 3, 2, 1, 4) for n, name in enumerate(POLICIES)}
    made = make(Fleet(10, 0.1, seed=1, kind="bursts"), 3)
    replayed = {name: replay(made.trace, policy) for name, policy in POLICIES.items()}
    return Told(
        "A title",
        ["Some facts."],
        POLICIES,
        Summary({"cold": 3}, {"cold": one}),
        Weights(),
        [Example(made.name, "cold", made.trace, replayed)],
    )


class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_names_every_policy_and_topic() -> None:
    page = report(told())
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert "a&lt;b&gt;&amp;c" in page
    assert "a<b>" not in page
    assert told().examples[0].topic in page


def test_the_pictures_are_xml_and_the_page_needs_nothing_from_elsewhere() -> None:
    page = report(told())
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) == 4
    for picture in pictures:
        ElementTree.fromstring(picture)
    assert not re.search(r"(src|href)=|url\(|@import|http", page)


def test_a_policy_is_told_by_where_it_is_not_the_default() -> None:
    assert differences(DEFAULT) == "the defaults"
    assert differences(ScalePolicy(max_segments=8, enabled=False)) == "enabled false, maxSegments 8"


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0, 7_300, [0, 2_000, 4_000, 6_000, 8_000]), (9.5, 9.5, None)],
)
def test_ticks_are_round_and_cover_the_range(low: float, high: float, wanted: list[float] | None) -> None:
    found = svg.ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    if wanted is not None:
        assert found == wanted


def test_names_of_points_that_lie_together_do_not_cover_each_other() -> None:
    places = {f"policy {n}": (300.0 + n, 200.0) for n in range(6)}
    heights = sorted(y for _, y, _ in svg.labelled(places).values())
    assert all(later - one >= 14 for one, later in pairwise(heights))
