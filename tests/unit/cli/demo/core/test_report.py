"""What the demo heard of a topic, and the report that it makes of it."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from anabranch.cli.demo.core.clickstream import Clickstream
from anabranch.cli.demo.core.colours import ANCHORS, STEPS, scale, step_of
from anabranch.cli.demo.core.past import TopicPast
from anabranch.cli.demo.core.ran import Killed, MicroBatch, Moment, Ran
from anabranch.cli.demo.core.report import batch_rates, report, stored_rates
from anabranch.cli.demo.core.river import RiverView, braid, picture
from browser.hour import NIMBLE, answer, play, tide

END_MS = 1_800_003_600_000
BEGIN_MS = END_MS - 3_600_000


@pytest.fixture(scope="module")
def told() -> Any:
    """An hour with splits and merges, as a broker tells its page."""
    return answer(play(tide, NIMBLE, end_ms=END_MS), end_ms=END_MS, policy=NIMBLE)


@pytest.fixture
def past(told: Any) -> TopicPast:
    found = TopicPast()
    found.take(told, END_MS)
    return found


def test_changes_are_new_once_and_stay_when_the_broker_forgot(told: Any) -> None:
    past = TopicPast()
    assert past.question == "since=0&layout="
    fresh = past.take(told, END_MS)
    assert {change.kind for change in fresh} == {"split", "merge"}
    before = {number: list(one.samples) for number, one in past.segments.items()}
    # Killed and back: no samples, no layout that is new, no decisions.
    assert past.take(told | {"layout": None, "samples": {}, "decisions": []}, END_MS) == []
    assert past.take(told, END_MS) == []
    assert {number: one.samples for number, one in past.segments.items()} == before
    assert past.count("split") + past.count("merge") == len(fresh)
    assert past.question.startswith(f"since={END_MS}&layout=1.")


def test_what_the_store_dates_ahead_of_the_clock_counts_from_when_it_was_heard_of(told: Any) -> None:
    """After `kill -9` the store's time stands ahead: the demo told of a merge 12 s before it could have been."""
    whole = TopicPast()
    changes = whole.take(told, END_MS)
    heard_ms = max(change.at_ms for change in changes) - 12_000
    past = TopicPast()
    fresh = past.take(told, heard_ms)
    assert max(change.at_ms for change in fresh) == heard_ms
    assert max(one.created_ms for one in past.segments.values()) == heard_ms
    assert max(at for at, _ in past.active_at()) <= heard_ms
    # Neither new nor of another time when it is told again.
    assert past.take(told, heard_ms + 1_000) == []
    assert max(one.sealed_ms for one in past.segments.values()) == heard_ms


def test_the_brokers_of_active_segments_are_counted_as_the_last_answer_has_them(told: Any) -> None:
    past = TopicPast()
    past.take(told, END_MS)
    assert past.active_by_owner() == {}
    numbers = [one.id for one in past.active]
    owners = {str(number): f"127.0.0.1:{6660 + number % 2}" for number in numbers}
    past.take(told | {"owners": owners}, END_MS)
    assert sum(past.active_by_owner().values()) == len(numbers)
    past.take(told | {"owners": {str(numbers[0]): "127.0.0.1:6661"}}, END_MS)
    assert past.active_by_owner() == {"127.0.0.1:6661": 1}


def test_active_segments_are_counted_over_time(past: TopicPast) -> None:
    counts = past.active_at()
    assert counts[-1][1] == len(past.active)
    assert max(count for _, count in counts) > 3
    assert all(at < then for (at, _), (then, _) in pairwise(counts))


def test_streams_stay_in_their_picture_and_meet_where_they_join(past: TopicPast) -> None:
    streams, joins = braid(past, RiverView(BEGIN_MS, END_MS, 900, 400))
    assert len(streams) == len(past.segments)
    assert {join.kind for join in joins} == {"split", "merge"}
    for stream in streams:
        assert np.isfinite(stream.middle).all()
        assert (stream.half > 0).all()
        assert (stream.middle - stream.half).min() > 0
        assert (stream.middle + stream.half).max() < 400
    for join in joins:
        before = [(one.middle[-1], one.half[-1]) for one in join.parents]
        after = [(one.middle[0], one.half[0]) for one in join.children]
        # The same cross-section from both sides.
        assert before[0][0] - before[0][1] == pytest.approx(after[0][0] - after[0][1], abs=0.01)
        assert before[-1][0] + before[-1][1] == pytest.approx(after[-1][0] + after[-1][1], abs=0.01)


def test_the_river_marks_every_join_with_its_reason(past: TopicPast) -> None:
    drawn = picture(
        past, RiverView(BEGIN_MS, END_MS, 900, 400), origin_ms=BEGIN_MS, notes={END_MS - 5000: "kill -9"}
    )
    _, joins = braid(past, RiverView(BEGIN_MS, END_MS, 900, 400))
    assert drawn.count('class="mark"') == len(joins)
    assert "of its split limit" in drawn
    assert "kill -9" in drawn


def ran(past: TopicPast, *, holds: bool = True) -> Ran:
    found = Ran(
        Clickstream(1000, 3600), {"maxSegments": 16}, past, readers="two Spark queries", software="Spark"
    )
    found.start_ms, found.end_ms, found.done_ms = BEGIN_MS, END_MS - 60_000, END_MS
    found.moments = [
        Moment(BEGIN_MS + 1000 * at, min(1000, at), {"raw": min(1000, at // 2), "sessions": 0})
        for at in range(0, 3600, 20)
    ]
    found.batches = {"raw": [MicroBatch(BEGIN_MS + 1000, 500, 30)], "sessions": []}
    found.killed = Killed(BEGIN_MS + 300_000, BEGIN_MS + 300_700, 300)
    found.checks = [("1,000 of 1,000 <events> have a receipt", True), ("each exactly once", holds)]
    found.sessions = 77
    return found


def test_the_report_holds_what_it_shows_and_asks_for_nothing_else(past: TopicPast) -> None:
    page = report(ran(past))
    assert "all 2 checks held" in page
    assert "&lt;events&gt;" in page
    assert page.count("<svg") >= 8
    assert not re.findall(r"(?:src|href)=|url\((?!#)|@import|https?://", page)
    used = set(re.findall(r"var\((--\w+)\)", page))
    assert used <= set(re.findall(r"(--\w+):", page))


def test_the_report_names_the_broker_of_several_that_was_killed(past: TopicPast) -> None:
    told = ran(past)
    told.brokers = 3
    told.killed = Killed(BEGIN_MS + 300_000, BEGIN_MS + 300_700, 300, "broker-1", "2 of 5 segments")
    page = report(told)
    assert "3 brokers on one machine, one scalable topic" in page
    assert "kill -9 of broker-1</text>" in page
    assert "<b>0.7 s</b><small>kill -9 survived</small>" in page
    assert told.killed.claim == (
        "kill -9 of broker-1, which served 2 of 5 segments, after 300 receipts; they were served again 0.7 s later: "
        "nothing is missing"
    )


def test_a_check_that_failed_is_the_first_thing_that_the_report_says(past: TopicPast) -> None:
    page = report(ran(past, holds=False))
    assert "1 of 2 checks failed" in page
    assert '<li class="failed">each exactly once</li>' in page
    assert "checks held" not in page


def test_a_run_that_was_cut_short_still_has_a_report() -> None:
    assert "0 of 0 checks failed" in report(
        Ran(Clickstream(1000, 45), {}, start_ms=BEGIN_MS, end_ms=BEGIN_MS)
    )


def test_rates_are_what_came_in_over_the_time_it_took(past: TopicPast) -> None:
    rates = stored_rates(ran(past))
    assert rates[10][1] == pytest.approx(1.0)
    batches = [
        MicroBatch(BEGIN_MS, 1000, 500),
        MicroBatch(BEGIN_MS + 2000, 1000, 300),
        MicroBatch(BEGIN_MS + 3000, 100, 0),
    ]
    assert batch_rates(batches, BEGIN_MS) == [(0.0, 500.0), (1.0, 150.0), (3.0, 0.0), (3.1, 0.0)]


@pytest.mark.parametrize(("theme", "rises"), [("dark", True), ("light", False)])
def test_hotter_is_always_further_from_the_ground(theme: str, *, rises: bool) -> None:
    codes = scale(ANCHORS[theme])
    assert len(codes) == STEPS + 1
    light = [[(int(code[at : at + 2], 16) / 255) ** 2.2 for at in (1, 3, 5)] for code in codes]
    grey = [red * 0.2126 + green * 0.7152 + blue * 0.0722 for red, green, blue in light]
    assert grey == sorted(grey, reverse=not rises)
    assert [step_of(heat) for heat in (-1, 0, 0.5, 1, 9)] == [0, 0, STEPS // 2, STEPS, STEPS]
