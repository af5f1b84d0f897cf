"""Segments that a topic forgot stay in the picture for as long as it shows them, with their links."""

from __future__ import annotations

from anabranch.broker.ui.memory import LayoutMemory
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.scalable import ScalableTopic
from anabranch.model.segments import SegmentId

TOPIC = TopicName.parse("topic://public/default/t")
HOUR = 3_600_000
SPLIT = SegmentLayout.initial(1, 0).split(0, 1_000)


def record(layout: SegmentLayout, generation: int = 1) -> ScalableTopic:
    return ScalableTopic(layout, generation)


def test_a_pruned_segment_is_still_known_with_its_children() -> None:
    memory = LayoutMemory(HOUR)
    memory.see(TOPIC, record(SPLIT), 2_000)
    shown = memory.segments(TOPIC, record(SPLIT.prune([0])), 3_000)
    assert [s.id for s in shown] == [0, 1, 2]
    assert shown[0].children == (1, 2)
    assert all(s.parents == (0,) for s in shown[1:])


def test_what_was_sealed_longer_ago_than_is_kept_goes() -> None:
    memory = LayoutMemory(HOUR)
    memory.see(TOPIC, record(SPLIT), 2_000)
    pruned = record(SPLIT.prune([0]))
    assert [s.id for s in memory.segments(TOPIC, pruned, 1_001 + HOUR)] == [1, 2]
    memory.forget(1_001 + HOUR)
    assert len(memory) == 0


def test_a_segment_that_the_topic_still_has_is_shown_however_old_it_is() -> None:
    memory = LayoutMemory(HOUR)
    memory.see(TOPIC, record(SPLIT), 2_000)
    assert [s.id for s in memory.segments(TOPIC, record(SPLIT), 100 * HOUR)] == [0, 1, 2]


def test_a_topic_made_again_under_the_same_name_has_no_past() -> None:
    memory = LayoutMemory(HOUR)
    memory.see(TOPIC, record(SPLIT), 2_000)
    again = record(SegmentLayout.initial(1, 5_000), generation=2)
    assert [s.id for s in memory.segments(TOPIC, again, 6_000)] == [0]
    assert len(memory) == 0


def test_topics_that_never_split_cost_nothing() -> None:
    memory = LayoutMemory(HOUR)
    for number in range(1_000):
        name = TopicName.parse(f"topic://public/default/t{number}")
        memory.see(name, record(SegmentLayout.initial(4, 0)), 1_000)
    assert len(memory) == 0


def test_a_topic_nobody_has_shown_for_as_long_as_is_kept_is_forgotten() -> None:
    memory = LayoutMemory(HOUR)
    memory.see(TOPIC, record(SPLIT), 2_000)
    memory.forget(2_001 + HOUR)
    assert len(memory) == 0


def test_links_to_merged_parents_outlive_them() -> None:
    layout = SPLIT.merge(1, 2, 2_000)
    memory = LayoutMemory(HOUR)
    memory.see(TOPIC, record(layout), 2_500)
    pruned = layout.prune([0]).prune([1, 2])
    shown = {s.id: s for s in memory.segments(TOPIC, record(pruned), 3_000)}
    assert shown[SegmentId(3)].parents == (1, 2)
    assert [shown[SegmentId(n)].children for n in (1, 2)] == [(3,), (3,)]
