"""What progress events tell of a query's lag: what lags most, and sums, however many topics there are."""

from __future__ import annotations

import json

from anabranch.model.cut import BEGINNING, Cut, Place
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import SegmentId
from anabranch.spark.driver.lags import SHOWN_MAX, told
from anabranch.spark.plan.plan import Known, TopicView

LAYOUT = SegmentLayout.initial(2, 0)
ZERO, ONE = SegmentId(0), SegmentId(1)


def view(zero: int, one: int) -> TopicView:
    return TopicView(LAYOUT, Cut(), Known({ZERO: (5, zero, 0), ONE: (6, one, 0)}))


def read(zero: int, one: int) -> Cut:
    places = [Place.of(LAYOUT.segments[n]) for n in (ZERO, ONE)]
    return Cut((places[0].moved((5, zero, 0)), places[1].moved((6, one, 0))))


def test_each_segment_has_its_end_and_how_many_entries_it_is_behind() -> None:
    found = told({"a": view(9, 4)}, {"a": read(2, 4)})
    assert found["topics"]["a"]["segments"] == {
        "0": {"end": [5, 9, 0], "entriesBehind": 7, "read": [5, 2, 0]},
        "1": {"end": [6, 4, 0], "entriesBehind": 0, "read": [6, 4, 0]},
    }
    assert found["sums"] == {
        "entriesBehind": 7,
        "segments": 2,
        "segmentsBehind": 1,
        "segmentsNotCounted": 0,
        "topics": 1,
    }


def test_of_many_topics_those_are_shown_that_lag_most_and_all_are_in_the_sums() -> None:
    count = 2000
    views = {f"topic-{n:04}": view(n, 1) for n in range(count)}
    found = told(views, dict.fromkeys(views, read(0, 1)))
    assert sorted(found["topics"]) == [f"topic-{n:04}" for n in range(count - SHOWN_MAX, count)]
    assert found["sums"]["entriesBehind"] == count * (count - 1) // 2
    assert found["sums"]["segments"] == 2 * count
    assert found["sums"]["segmentsBehind"] == count - 1
    assert len(json.dumps(found)) < 10_000


def test_what_is_behind_in_another_ledger_is_not_counted_and_is_shown_first() -> None:
    found = told({"a": view(9, 4), "b": view(9, 4)}, {"a": read(2, 4), "b": Cut()})
    assert found["topics"]["b"]["segments"]["0"] == {
        "end": [5, 9, 0],
        "entriesBehind": None,
        "read": list(BEGINNING),
    }
    assert found["sums"]["segmentsNotCounted"] == 2
    assert found["sums"]["segmentsBehind"] == 3


def test_a_segment_that_is_over_is_not_told() -> None:
    layout = LAYOUT.split(ZERO, 0)
    known = Known({n: (5 + n, 3, 0) for n in layout.segments})
    over = Place.of(layout.segments[ZERO]).over(layout.segments[ZERO].sealed_epoch)
    found = told({"a": TopicView(layout, Cut(), known)}, {"a": Cut((over,))})
    assert "0" not in found["topics"]["a"]["segments"]
    assert found["sums"]["segments"] == 3
