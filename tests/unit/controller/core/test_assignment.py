"""Who reads which segment: balance, fewest moves, order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.controller.core.assignment import assign, frontier, range_order, ready
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import HashRange, Segment, SegmentId
from unit.model.layouts import histories, layouts, roots

Problem = tuple[list[Segment], list[str], dict[SegmentId, str], dict[SegmentId, str]]

NAMES = ["ana", "bo", "cy", "di"]


def ids(segments: Sequence[Segment]) -> list[SegmentId]:
    return [segment.id for segment in segments]


def moves(last: Mapping[SegmentId, str], chosen: Mapping[SegmentId, str], consumers: list[str]) -> int:
    """Segments taken from a consumer that is still there."""
    return sum(last.get(number) in consumers and last[number] != name for number, name in chosen.items())


def inherited(
    last: Mapping[SegmentId, str],
    chosen: Mapping[SegmentId, str],
    consumers: list[str],
    inherit: Mapping[SegmentId, str],
) -> int:
    return sum(last.get(n) not in consumers and inherit.get(n) == name for n, name in chosen.items())


def is_balanced(chosen: Mapping[SegmentId, str], consumers: list[str]) -> bool:
    counts = [list(chosen.values()).count(name) for name in consumers]
    return max(counts) - min(counts) <= 1


def every_balanced(segments: Sequence[Segment], consumers: list[str]) -> Iterator[dict[SegmentId, str]]:
    for names in product(consumers, repeat=len(segments)):
        chosen = dict(zip(ids(segments), names, strict=True))
        if is_balanced(chosen, consumers):
            yield chosen


@st.composite
def problems(draw: st.DrawFn, segments_max: int = 40, consumers_max: int = 9) -> Problem:
    count = draw(st.integers(0, segments_max))
    segments = [Segment(SegmentId(n), span) for n, span in enumerate(HashRange.even(count or 1))][:count]
    everyone = [f"c{n}" for n in range(consumers_max)]
    consumers = draw(st.lists(st.sampled_from(everyone), min_size=1, unique=True))
    some = (
        st.dictionaries(st.sampled_from(ids(segments)), st.sampled_from(everyone))
        if segments
        else st.just({})
    )
    return segments, consumers, draw(some), draw(some)


@given(problems())
def test_every_segment_gets_one_consumer_and_counts_differ_by_one_at_most(problem: Problem) -> None:
    segments, consumers, last, inherit = problem
    chosen = assign(segments, consumers, last, inherit)
    assert list(chosen) == ids(segments)
    assert set(chosen.values()) <= set(consumers)
    assert is_balanced(chosen, consumers)


@settings(max_examples=150)
@given(problems(segments_max=6, consumers_max=3))
def test_no_balanced_assignment_moves_fewer_segments_or_leaves_more_children_with_their_parents_reader(
    problem: Problem,
) -> None:
    segments, consumers, last, inherit = problem
    chosen = assign(segments, consumers, last, inherit)
    ours = (moves(last, chosen, consumers), -inherited(last, chosen, consumers, inherit))
    assert ours == min(
        (moves(last, other, consumers), -inherited(last, other, consumers, inherit))
        for other in every_balanced(segments, consumers)
    )


@given(problems())
def test_the_same_facts_in_any_order_give_the_same_assignment(problem: Problem) -> None:
    segments, consumers, last, inherit = problem
    assert assign(segments[::-1], consumers[::-1], dict(reversed(last.items())), inherit) == assign(
        segments, set(consumers), last, dict(reversed(inherit.items()))
    )


@given(problems())
def test_an_assignment_made_again_moves_nothing(problem: Problem) -> None:
    segments, consumers, last, inherit = problem
    chosen = assign(segments, consumers, last, inherit)
    assert assign(segments, consumers, chosen, {}) == chosen


def test_a_first_assignment_is_dealt_round_in_range_order_by_name() -> None:
    layout = SegmentLayout.initial(5, 0)
    assert assign(layout.active, ["bo", "ana"], {}, {}) == {0: "ana", 1: "bo", 2: "ana", 3: "bo", 4: "ana"}


def test_range_order_not_age_decides_the_dealing() -> None:
    layout = SegmentLayout.initial(2, 0).split(0, 1)  # By range: 2, 3, 1.
    assert assign(layout.active, NAMES[:3], {}, {}) == {2: "ana", 3: "bo", 1: "cy"}


@given(st.integers(1, 30), st.integers(1, 8))
def test_a_newcomer_costs_no_more_moves_than_its_share(segments: int, consumers: int) -> None:
    active = SegmentLayout.initial(segments, 0).active
    before = [f"c{n}" for n in range(consumers)]
    last = assign(active, before, {}, {})
    after = assign(active, [*before, "new"], last, {})
    assert moves(last, after, before) == list(after.values()).count("new") == segments // (consumers + 1)


@given(st.integers(1, 30), st.integers(2, 8))
def test_when_one_leaves_only_its_segments_go_to_others(segments: int, consumers: int) -> None:
    active = SegmentLayout.initial(segments, 0).active
    before = [f"c{n}" for n in range(consumers)]
    last = assign(active, before, {}, {})
    after = assign(active, before[1:], last, {})
    assert moves(last, after, before[1:]) == 0


def test_with_more_consumers_than_segments_some_have_nothing() -> None:
    active = SegmentLayout.initial(2, 0).active
    assert Counter(assign(active, NAMES, {}, {}).values()) == {"ana": 1, "bo": 1}


def test_without_segments_or_without_consumers_nothing_is_assigned() -> None:
    assert assign((), NAMES, {}, {}) == {}
    assert assign(SegmentLayout.initial(2, 0).active, [], {}, {}) == {}


def test_a_child_stays_with_its_parents_reader_if_that_costs_neither_balance_nor_a_move() -> None:
    layout = SegmentLayout.initial(2, 0).split(0, 1)
    last = {SegmentId(0): "bo", SegmentId(1): "ana"}
    heirs = {SegmentId(2): "bo", SegmentId(3): "bo"}
    # Dealt by name alone, ana would have been given one of them.
    assert assign(layout.active, ["ana", "bo"], last, heirs) == {2: "bo", 3: "bo", 1: "ana"}


def test_a_child_leaves_its_parents_reader_for_the_sake_of_balance() -> None:
    layout = SegmentLayout.initial(4, 0).split(0, 1)
    last = {SegmentId(1): "ana", SegmentId(2): "bo", SegmentId(3): "bo"}
    heirs = {SegmentId(4): "bo", SegmentId(5): "bo"}
    chosen = assign(layout.active, ["ana", "bo"], last, heirs)
    assert moves(last, chosen, ["ana", "bo"]) == 0
    assert Counter(chosen.values()) == {"ana": 2, "bo": 3}
    assert chosen[SegmentId(4)] == "bo"


def test_a_saved_move_counts_more_than_a_child_with_its_parents_reader() -> None:
    active = SegmentLayout.initial(4, 0).active
    last = {SegmentId(0): "bo", SegmentId(1): "bo"}
    heirs = {SegmentId(2): "ana", SegmentId(3): "ana"}
    # One of three gets two: bo, who has them, not ana, who would inherit them.
    assert assign(active, NAMES[:3], last, heirs) == {0: "bo", 1: "bo", 2: "ana", 3: "cy"}


# -- what may be read


def by_definition(layout: SegmentLayout, drained: set[SegmentId]) -> list[SegmentId]:
    """All ancestors of every generation drained, itself not, and not about to be deleted."""
    done = drained | {s.id for s in layout.segments.values() if s.is_deleting}
    open_now = [
        s
        for s in layout.segments.values()
        if layout.ancestors(s.id) <= done and not s.is_deleting and (s.is_active or s.id not in done)
    ]
    return ids(sorted(open_now, key=range_order))


@st.composite
def readings(draw: st.DrawFn) -> tuple[SegmentLayout, set[SegmentId]]:
    """A layout and the sealed segments of it that are drained, not all of them reachable in order."""
    layout = draw(layouts())
    if not layout.sealed:
        return layout, set()
    sealed = st.sampled_from(ids(layout.sealed))
    marked = [n for n in draw(st.lists(sealed, unique=True)) if n in roots(layout)]
    return layout.mark_deleting(marked), draw(st.sets(sealed))


@given(readings())
def test_a_segment_is_ready_once_all_its_ancestors_of_every_generation_are_drained(
    reading: tuple[SegmentLayout, set[SegmentId]],
) -> None:
    layout, drained = reading
    assert ids(ready(layout, drained.__contains__)) == by_definition(layout, drained)


@given(readings())
def test_segments_that_are_ready_together_share_no_key(reading: tuple[SegmentLayout, set[SegmentId]]) -> None:
    layout, drained = reading
    handed_out = ready(layout, drained.__contains__)
    assert not [
        (one.id, other.id)
        for one in handed_out
        for other in handed_out
        if one is not other and one.range.overlaps(other.range)
    ]


@given(histories())
def test_reading_what_is_ready_to_its_end_reaches_every_active_segment(history: list[SegmentLayout]) -> None:
    layout, drained = history[-1], set[SegmentId]()
    for _ in layout.sealed:
        front = frontier(layout, drained.__contains__)
        waiting = [s for s in front.ready if s.is_sealed]
        assert set(ids(waiting)) <= set(ids(front.watched))  # Else nobody would learn that it is drained.
        if waiting:
            drained.add(waiting[0].id)
    assert ready(layout, drained.__contains__) == layout.active


@given(readings())
def test_only_sealed_undrained_segments_are_watched_and_of_two_generations_at_most(
    reading: tuple[SegmentLayout, set[SegmentId]],
) -> None:
    layout, drained = reading
    for segment in frontier(layout, drained.__contains__).watched:
        assert segment.is_sealed
        assert not segment.is_deleting
        assert segment.id not in drained
        above = [
            a for a in layout.ancestors(segment.id) if a not in drained and not layout.segment(a).is_deleting
        ]
        assert not any(layout.ancestors(one) & set(above) for one in above)


def test_a_drained_segment_whose_own_parent_is_not_drained_does_not_let_its_child_through() -> None:
    layout = SegmentLayout.initial(1, 0).split(0, 1).split(1, 2)
    assert ids(ready(layout, {SegmentId(1)}.__contains__)) == [0]


def test_a_merged_segment_waits_for_both_parents() -> None:
    layout = SegmentLayout.initial(2, 0).merge(0, 1, 1)
    assert ids(ready(layout, {SegmentId(0)}.__contains__)) == [1]
    assert ids(ready(layout, {SegmentId(0), SegmentId(1)}.__contains__)) == [2]


@pytest.mark.parametrize("partitions", [1, 4])
def test_the_partitions_of_a_classic_topic_are_all_ready_at_once(partitions: int) -> None:
    layout = SegmentLayout.synthetic([f"persistent://a/b/c-partition-{n}" for n in range(partitions)], 0)
    assert ids(ready(layout, lambda _: False)) == list(range(partitions))


def test_each_sealed_segment_is_asked_about_once_however_many_ways_lead_to_it() -> None:
    layout = SegmentLayout.initial(1, 0)
    for n in range(200):  # Split and merge over and over: the number of ways through doubles each time.
        layout = layout.split(layout.active[0].id, n)
        layout = layout.merge(layout.active[0].id, layout.active[1].id, n)
    asked: Counter[SegmentId] = Counter()

    def is_drained(number: SegmentId) -> bool:
        asked[number] += 1
        return True

    assert ready(layout, is_drained) == layout.active
    assert asked == Counter(ids(layout.sealed))
