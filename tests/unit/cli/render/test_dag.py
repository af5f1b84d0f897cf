"""The picture and the tables of a scalable topic, from stats written down here."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.cli.render import dag as dag_view
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import Segment

TOPIC = "topic://public/default/orders"


def figures(segment: Segment, rate: float) -> dict[str, Any]:
    return {
        "name": f"segment://public/default/orders/{segment.descriptor}",
        "state": segment.state.value,
        "hashRange": {"start": segment.range.start, "end": segment.range.end},
        "parentIds": list(segment.parents),
        "childIds": list(segment.children),
        "createdAtMs": segment.created_ms,
        "sealedAtMs": segment.sealed_ms,
        "deleting": segment.is_deleting,
        "available": True,
        "msgRateIn": rate,
        "msgThroughputIn": rate * 100,
        "msgRateOut": 0.0,
        "msgThroughputOut": 0.0,
        "storageSize": 2048,
        "producerCount": 1,
        "subscriptions": {"s": {"msgBacklog": 7, "drained": segment.is_sealed, "consumerCount": 1}},
    }


def stats(layout: SegmentLayout, rates: dict[int, float] | None = None) -> dict[str, Any]:
    rates = rates or {}
    return {
        "epoch": layout.epoch,
        "totalSegments": len(layout.segments),
        "activeSegments": len(layout.active),
        "sealedSegments": len(layout.sealed),
        "msgRateIn": sum(rates.values()),
        "msgThroughputIn": 0.0,
        "msgRateOut": 0.0,
        "msgThroughputOut": 0.0,
        "storageSize": 3 * 1024**2,
        "controller": "pulsar://127.0.0.1:6650",
        "operation": None,
        "segments": {str(n): figures(s, rates.get(n, 0.0)) for n, s in layout.segments.items()},
        "subscriptions": {},
    }


def test_each_line_of_sealed_segments_is_a_generation_and_the_active_ones_cover_the_bottom() -> None:
    layout = SegmentLayout.initial(2, 1).split(0, 2).merge(3, 1, 3)
    shown = dag_view.generations(stats(layout), 40, 10) + dag_view.bar(stats(layout), 40)
    assert shown == [
        "sealed  ├───── 0 ──────┤├───── 1 ──────┤",
        "sealed          ├─ 3 ──┤",
        "active  ├─ 2 ──┤├───────── 4 ──────────┤",
        "traffic",
        "        0000            8000        ffff",
    ]


def test_the_busiest_segment_fills_its_column_and_others_stand_beside_it_in_proportion() -> None:
    layout = SegmentLayout.initial(4, 1)
    traffic = dag_view.bar(stats(layout, {0: 800.0, 1: 400.0, 2: 1.0}), 40)[1]
    assert traffic == "traffic ███████ ▄▄▄▄▄▄▄ ▁▁▁▁▁▁▁"


def test_without_drawing_characters_the_picture_is_plain_ascii() -> None:
    layout = SegmentLayout.initial(2, 1).split(0, 2)
    lines = dag_view.page(TOPIC, stats(layout, {1: 5.0}), 60, 30, dag_view.ASCII)
    assert "\n".join(lines).isascii()


def test_partitions_of_a_migrated_topic_overlap_and_get_a_line_each() -> None:
    layout = SegmentLayout.migrated(["persistent://a/b/c-partition-0", "persistent://a/b/c-partition-1"], 1)
    assert len(dag_view.generations(stats(layout), 40, 10)) == 2


@pytest.mark.parametrize("width", [10, 24, 40, 80, 200])
@pytest.mark.parametrize("height", [3, 8, 24, 60])
@pytest.mark.parametrize("segments", [1, 3, 300])
def test_a_page_never_exceeds_the_terminal(width: int, height: int, segments: int) -> None:
    layout = SegmentLayout.initial(segments, 1)
    for number in range(6):
        layout = layout.split(layout.active[0].id, number)
    page = dag_view.page(TOPIC, stats(layout), width, height)
    assert len(page) <= height
    assert all(len(line) <= width for line in page)


def test_what_does_not_fit_is_counted() -> None:
    layout = SegmentLayout.initial(100, 1)
    for number in range(8):
        layout = layout.split(layout.active[0].id, number)
    page = "\n".join(dag_view.page(TOPIC, stats(layout), 100, 24))
    assert "older" in page
    assert "more" in page


def test_the_table_has_active_segments_by_range_then_the_sealed_latest_first() -> None:
    layout = SegmentLayout.initial(2, 1).split(1, 2).split(0, 3)
    table = dag_view.segment_table(stats(layout))
    assert [line.split()[0] for line in table] == ["ID", "4", "5", "2", "3", "0", "1"]
    assert table[1].split() == ["4", "0000-3fff", "active", "0", "0", "0", "2.0", "kB", "1", "s", "7"]
    assert table[-1].endswith("s drained")


def test_a_segment_whose_owner_is_silent_says_so() -> None:
    found = stats(SegmentLayout.initial(1, 1))
    found["segments"]["0"] = {
        k: v for k, v in found["segments"]["0"].items() if not k.startswith(("msg", "prod", "stor", "sub"))
    } | {"available": False}
    assert "does not answer" in dag_view.segment_table(found)[1]
    assert dag_view.page(TOPIC, found, 80, 24)


def test_consumers_are_shown_with_what_they_read_and_whether_they_are_there() -> None:
    found = stats(SegmentLayout.initial(2, 1))
    found["subscriptions"]["s"] = {
        "type": "STREAM",
        "consumerCount": 2,
        "msgBacklog": 14,
        "msgRateOut": 2.5,
        "deleting": False,
        "consumers": [
            {"consumerName": "one", "connected": True, "assignedSegments": [0, 1]},
            {"consumerName": "two", "connected": False, "assignedSegments": []},
        ],
    }
    line = dag_view.subscription_table(found)[1]
    assert line == "s             stream       14        2.5  2: one reads 0, 1; two (away) reads nothing"


def test_changes_name_splits_merges_and_what_was_removed() -> None:
    before = SegmentLayout.initial(2, 1)
    after = before.split(0, 2).merge(3, 1, 3).prune([0])
    assert dag_view.changes(stats(before), stats(after)) == ["new 2, 3", "3, 1 → 4", "0 removed"]
    assert dag_view.changes(stats(before), stats(before.split(0, 2))) == ["0 → 2, 3"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 B"), (999, "999 B"), (1536, "1.5 kB"), (200_000, "200 kB"), (5 * 10**12, "5,000 GB")],
)
def test_sizes_are_short(value: int, shown: str) -> None:
    assert dag_view.size(value) == shown


def test_rates_keep_a_digit_only_while_they_are_small() -> None:
    assert [dag_view.rate(v) for v in (0, 0.25, 99.94, 100.0, 12345.6)] == [
        "0",
        "0.2",
        "99.9",
        "100",
        "12,346",
    ]


def test_producers_that_route_by_different_halves_are_in_the_heading_with_what_to_do() -> None:
    found = stats(SegmentLayout.initial(2, 1))
    assert len(dag_view.heading(TOPIC, found)) == 2
    found["routing"] = {"kind": "high", "advice": None}
    assert len(dag_view.heading(TOPIC, found)) == 2
    found["routing"] = {"kind": "mixed", "advice": "have all producers route alike"}
    assert dag_view.heading(TOPIC, found)[2] == "keys are out of order: have all producers route alike"


def test_a_consumer_that_shares_a_segment_is_shown_with_its_buckets() -> None:
    found = stats(SegmentLayout.initial(2, 1))
    found["subscriptions"]["s"] = {
        "type": "STREAM",
        "consumerCount": 2,
        "msgBacklog": 0,
        "msgRateOut": 0,
        "deleting": False,
        "consumers": [
            {
                "consumerName": "one",
                "connected": True,
                "assignedSegments": [0, 1],
                "assignedBuckets": {"1": [0, 1]},
            },
            {
                "consumerName": "two",
                "connected": True,
                "assignedSegments": [1],
                "assignedBuckets": {"1": [2]},
            },
        ],
    }
    line = dag_view.subscription_table(found)[1]
    assert line.endswith("2: one reads 0, 1 (buckets 0-1); two reads 1 (bucket 2)")


def test_buckets_that_are_no_neighbours_are_listed() -> None:
    assert dag_view.bucket_text([0, 2, 3]) == "buckets 0, 2, 3"
