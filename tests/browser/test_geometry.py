"""The shape of the river and its colours, worked out in the browser and judged here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from browser.hour import HOUR_MS, crowded, flooded, tidal
from browser.told import Told
from harness.browser import Page

NOW = 1_700_000_000_000
Opened = Callable[..., Page]


@pytest.fixture
def page(opened: Opened) -> Iterator[Page]:
    with Told({"overview": lambda _: (200, _EMPTY)}) as told:
        shown = opened(told.url)
        shown.shows("No topics yet")
        yield shown


_EMPTY = {
    "now": NOW,
    "topicCount": 0,
    "matching": 0,
    "segmentCount": 0,
    "topics": [],
    "totals": [],
    "brokers": [],
}

_BRAID = """(async () => {
  const { TopicModel } = await import("/ui/river/model.js");
  const { braid } = await import("/ui/river/geometry.js");
  const model = new TopicModel("t");
  model.take(%s);
  const picture = braid([...model.segments.values()], { from: %d, to: %d, width: 1000, height: 480 });
  return {
    scale: picture.scale,
    joins: picture.joins.map((j) => [j.kind, j.parents.map((s) => s.id), j.children.map((s) => s.id)]),
    streams: [...picture.streams.values()].map((s) => ({
      id: s.id, top: s.top, bottom: s.bottom, xs: [...s.xs],
      middle: [...s.middle], half: [...s.half], rate: [...s.rate],
    })),
  };
})()"""


def braided(page: Page, answer: Any) -> Any:
    return page.evaluate(_BRAID % (json.dumps(answer), NOW - HOUR_MS, NOW))


def edges(stream: Any, index: int) -> tuple[float, float]:
    return stream["middle"][index] - stream["half"][index], stream["middle"][index] + stream["half"][index]


def test_a_segment_that_took_anothers_place_is_joined_to_it_as_a_rebucket(page: Page) -> None:
    answer = crowded(NOW)
    told = {(d["segments"][0]): d["kind"] for d in answer["decisions"] if d["kind"] != "stay"}
    kinds = {
        parents[0]: kind for kind, parents, children in braided(page, answer)["joins"] if len(parents) == 1
    }
    assert list(kinds.values()).count("rebucket") >= 2
    assert kinds == {number: told[number] for number in kinds}


def test_a_migrated_classic_topic_is_no_rebucket(page: Page) -> None:
    answer = crowded(NOW)
    for segment in answer["layout"]["segments"]:
        segment["classic"] = True
    assert {kind for kind, *_ in braided(page, answer)["joins"]} <= {"split", "merge"}


@pytest.mark.parametrize("make", [tidal, flooded, crowded], ids=["tide", "flood", "crowd"])
def test_streams_of_active_segments_fill_the_height_in_the_order_of_their_hashes(
    page: Page, make: Callable[[int], Any]
) -> None:
    answer = make(NOW)
    streams = {s["id"]: s for s in braided(page, answer)["streams"]}
    active = [s for s in answer["layout"]["segments"] if not s["sealed"]]
    lanes = [streams[s["id"]] for s in sorted(active, key=lambda s: int(s["start"]))]
    assert (lanes[0]["top"], lanes[-1]["bottom"]) == (pytest.approx(0), pytest.approx(480))
    assert all(a["bottom"] == pytest.approx(b["top"]) for a, b in pairwise(lanes))


@pytest.mark.parametrize("make", [tidal, flooded], ids=["tide", "flood"])
def test_both_sides_of_every_split_and_merge_meet_in_one_cross_section(
    page: Page, make: Callable[[int], Any]
) -> None:
    found = braided(page, make(NOW))
    streams = {s["id"]: s for s in found["streams"]}
    assert len(found["joins"]) > 5
    for _, parents, children in found["joins"]:
        before = [edges(streams[n], -1) for n in parents]
        after = [edges(streams[n], 0) for n in children]
        for side in (before, after):
            assert all(a[1] == pytest.approx(b[0], abs=0.01) for a, b in pairwise(side))
        assert before[0][0] == pytest.approx(after[0][0], abs=0.01)
        assert before[-1][1] == pytest.approx(after[-1][1], abs=0.01)


def test_no_edge_ever_jumps(page: Page) -> None:
    for stream in braided(page, tidal(NOW))["streams"]:
        for side in (0, 1):
            for i in range(1, len(stream["xs"])):
                step = max(0.5, stream["xs"][i] - stream["xs"][i - 1])
                slope = abs(edges(stream, i)[side] - edges(stream, i - 1)[side]) / step
                assert slope < 3.5, (stream["id"], stream["xs"][i], slope)


def test_width_is_rate_on_one_scale_and_stays_within_the_lane(page: Page) -> None:
    found = braided(page, tidal(NOW))
    fullest = 0.0
    for stream in found["streams"]:
        lane = stream["bottom"] - stream["top"]
        middle = len(stream["xs"]) // 2
        wide = 2 * stream["half"][middle]
        if stream["xs"][-1] - stream["xs"][0] > 300:  # Longer than both its joins: the middle is its own.
            assert wide == pytest.approx(max(2.0, stream["rate"][middle] * found["scale"]), rel=0.01)
        fullest = max(fullest, *(2 * half / lane for half in stream["half"]))
    assert 0.8 < fullest <= 1.0


def test_a_narrow_range_gets_more_height_than_its_due(page: Page) -> None:
    heights = page.evaluate("""(async () => {
      const { stretched } = await import("/ui/river/geometry.js");
      const y = stretched([{ start: 0, end: 32767 }, { start: 32768, end: 32831 }, { start: 32832, end: 65535 }]);
      return [y(0), y(32768), y(32832), y(65536)];
    })()""")
    assert (heights[0], heights[3]) == (0, 1)
    assert heights == sorted(heights)
    assert heights[2] - heights[1] > 64 / 65536 * 8


# -- colours

_SCALE = """(async () => {
  const { points, rgb } = await import("/ui/colour.js");
  return points("%s").map((lab) => ({ lab, rgb: rgb(lab) }));
})()"""

# Linear RGB as people without one kind of cones see it (Machado, Oliveira and Fernandes, 2009; severity 1).
_EYES = {
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def _lightness(rgb: list[int], eyes: str | None = None) -> float:
    """CIE L* of a colour, as those eyes see it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in rgb)]
    if eyes is not None:
        linear = [sum(m * c for m, c in zip(row, linear, strict=True)) for row in _EYES[eyes]]
    y = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * (y ** (1 / 3)) - 16 if y > 0.008856 else 903.3 * max(0.0, y)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_equal_steps_of_heat_are_equal_steps_of_colour(page: Page, theme: str) -> None:
    scale = page.evaluate(_SCALE % theme)
    steps = [math.dist(a["lab"], b["lab"]) for a, b in pairwise(scale)]
    assert max(steps) < 1.2 * min(steps)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eyes", [None, *_EYES])
def test_hotter_stands_out_more_from_the_ground_whoever_looks(
    page: Page, theme: str, eyes: str | None
) -> None:
    scale = page.evaluate(_SCALE % theme)
    lightness = [_lightness(one["rgb"], eyes) for one in scale[::8]]
    assert lightness == sorted(lightness, reverse=theme == "light")
    assert abs(lightness[-1] - lightness[0]) > 30
