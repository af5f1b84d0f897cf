"""Micro-batches over topics with any history: every row once, in the order of its key, and the same when run again."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.cut import BEGINNING, BadCheckpoint, Cut, MessagePosition, Place
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import SegmentId
from anabranch.spark.plan.limit import UNLIMITED, Limit, Step, Steps
from anabranch.spark.plan.plan import (
    Known,
    Ordering,
    SegmentSlice,
    TopicView,
    lost,
    plan,
    reach,
    reach_all,
    reach_and_short,
    rows_to_come,
)
from unit.model.readings import Message, Topic

# Not Hypothesis's own, which is slow: a failure names its seed.
chances = st.integers(0, 2**32).map(random.Random)
limits = st.builds(Limit, st.none() | st.integers(1, 9), st.none() | st.integers(1, 900))

Row = tuple[SegmentId, MessagePosition, Message]
ROW_BYTES = 100
# An entry's time is that of its first message, and it has no more messages than are published at once.
BATCH_MS = 5


def known_of(topic: Topic) -> Known:
    ends, steps = {}, {}
    for number in topic.layout.segments:
        log = topic.logs.get(number, [])
        ends[number] = end = log[-1][1] if log else BEGINNING
        entries = [list(items) for _, items in groupby(log, key=lambda item: item[0][:2])]
        found = [Step(items[0][0], len(items), ROW_BYTES * len(items), items[0][2][1]) for items in entries]
        steps[number] = Steps(found, end)
    return Known(ends, steps)


def rows_of(topic: Topic, slices: list[SegmentSlice]) -> list[Row]:
    return [
        (one.segment, at, message)
        for one in slices
        for at, _, message in topic.logs.get(one.segment, [])
        if (one.start or BEGINNING) <= at and (one.end is None or at < one.end)
    ]


@dataclass
class Query:
    """A streaming query that never runs the tasks: it plans, and notes which rows they would give."""

    topic: Topic
    ordering: Ordering = "key"
    skew_ms: int | None = None
    cut: Cut = field(default_factory=Cut)
    batches: list[tuple[Cut, Cut, list[Row]]] = field(default_factory=list)

    def trigger(self, limit: Limit = UNLIMITED, target: Cut | None = None) -> bool:
        """Whether there was anything to do."""
        layout = self.topic.layout
        end = reach(
            layout,
            self.cut,
            known_of(self.topic),
            target=target,
            limit=limit,
            ordering=self.ordering,
            skew_ms=self.skew_ms,
        )
        if end == self.cut:
            return False
        assert not lost(layout, self.cut, end)
        # Spark stores offsets as text.
        end = Cut.decode(end.encode())
        self.batches.append((self.cut, end, rows_of(self.topic, plan(layout, self.cut, end))))
        self.cut = end
        return True

    def catch_up(self, limit: Limit = UNLIMITED, target: Cut | None = None) -> None:
        while self.trigger(limit, target):
            pass

    @property
    def rows(self) -> list[Message]:
        """As a program sees them that sorts each batch by position."""
        return [row[2] for *_, rows in self.batches for row in sorted(rows)]


def lived(chance: random.Random, query: Query, limit: Limit, *, prunes: bool = False) -> None:
    """Triggers between the changes of a topic."""
    for _ in range(chance.randrange(1, 9)):
        query.topic.live(chance.randrange(3))
        for _ in range(chance.randrange(3)):
            query.trigger(limit)
        if prunes:
            prune_what_was_read(query)
    query.catch_up(limit)


def prune_what_was_read(query: Query) -> None:
    topic = query.topic
    known = known_of(topic)
    unread = {one.segment for one in plan(topic.layout, query.cut, reach(topic.layout, query.cut, known))}
    for segment in topic.layout.sealed:
        over = query.cut.get(segment.id)
        if segment.id not in unread and over is not None and over.is_over:
            end = known.ends[segment.id][:2]
            topic.layout = topic.layout.mark_deleting([segment.id], {segment.id: end}).prune([segment.id])


def assert_every_row_once_in_order(topic: Topic, rows: list[Message]) -> None:
    assert len(rows) == len(set(rows)) == topic.published
    by_key: dict[int, list[int]] = defaultdict(list)
    for key, number in rows:
        by_key[key].append(number)
    for numbers in by_key.values():
        assert numbers == sorted(numbers)


@given(chances, limits)
def test_every_row_comes_once_and_in_the_order_of_its_key(chance: random.Random, limit: Limit) -> None:
    query = Query(Topic(chance))
    lived(chance, query, limit)
    assert_every_row_once_in_order(query.topic, query.rows)


@given(chances, limits)
def test_pruning_what_was_read_loses_nothing(chance: random.Random, limit: Limit) -> None:
    query = Query(Topic(chance))
    lived(chance, query, limit, prunes=True)
    assert_every_row_once_in_order(query.topic, query.rows)


@given(chances, limits)
def test_a_childs_rows_come_in_a_later_batch_than_those_of_all_its_ancestors(
    chance: random.Random, limit: Limit
) -> None:
    query = Query(Topic(chance))
    lived(chance, query, limit)
    last: dict[SegmentId, int] = {}
    first: dict[SegmentId, int] = {}
    for number, (*_, rows) in enumerate(query.batches):
        for segment, *_ in rows:
            first.setdefault(segment, number)
            last[segment] = number
    layout = query.topic.layout
    for segment, begun in first.items():
        assert all(last.get(ancestor, -1) < begun for ancestor in layout.ancestors(segment))


@given(chances, limits, st.sampled_from(["key", "none"]))
def test_a_batch_that_runs_again_has_the_same_rows_whatever_the_layout_has_become(
    chance: random.Random, limit: Limit, ordering: Ordering
) -> None:
    query = Query(Topic(chance), ordering)
    lived(chance, query, limit)
    query.topic.live(4)
    for start, end, rows in query.batches:
        assert rows_of(query.topic, plan(query.topic.layout, start, end)) == rows


@given(chances, limits)
def test_without_order_every_row_still_comes_once(chance: random.Random, limit: Limit) -> None:
    query = Query(Topic(chance), "none")
    lived(chance, query, limit)
    assert sorted(query.rows) == sorted(query.topic.messages)


@given(chances)
def test_without_order_one_batch_takes_all_generations(chance: random.Random) -> None:
    query = Query(Topic(chance), "none")
    query.topic.live(5)
    assert query.trigger()
    assert sorted(query.rows) == sorted(query.topic.messages)
    assert not query.trigger()


@given(chances, limits)
def test_both_limits_hold_and_the_query_never_stands_still(chance: random.Random, limit: Limit) -> None:
    query = Query(Topic(chance))
    lived(chance, query, limit)
    for *_, rows in query.batches:
        assert limit.rows is None or len(rows) <= limit.rows
        assert limit.bytes is None or len(rows) <= max(1, limit.bytes // ROW_BYTES)


@given(chances, limits)
def test_what_is_available_now_is_read_and_nothing_that_comes_later(
    chance: random.Random, limit: Limit
) -> None:
    query = Query(Topic(chance))
    query.topic.live(3)
    active = [segment.id for segment in query.topic.layout.active]
    ends = known_of(query.topic).ends
    segments = query.topic.layout.segments
    target = Cut(tuple(Place.of(segments[number]).moved(ends[number]) for number in active))
    there = query.topic.messages
    for _ in range(3):
        query.trigger(limit, target)
        query.topic.live(2)
    query.catch_up(limit, target)
    assert sorted(query.rows) == sorted(there)


@given(chances, limits)
def test_a_classic_topic_is_read_through_its_migration(chance: random.Random, limit: Limit) -> None:
    query = Query(Topic.classic(chance, 3))
    lived(chance, query, limit)
    assert sorted(query.rows) == sorted(query.topic.messages)
    if query.topic.is_ordered:
        assert_every_row_once_in_order(query.topic, query.rows)


@given(chances)
def test_what_is_pruned_between_the_cuts_of_a_batch_is_lost_and_what_is_behind_them_is_not_yet(
    chance: random.Random,
) -> None:
    topic = Topic(chance)
    topic.publish(20)
    query = Query(topic)
    one = topic.layout.active[0].id
    topic.layout = topic.layout.split(one, 0)
    query.catch_up(Limit(rows=5))
    end = known_of(topic).ends[one][:2]
    later = topic.layout.mark_deleting([one], {one: end}).prune([one])
    for start, until, rows in query.batches:
        is_hit = any(segment == one for segment, *_ in rows)
        assert bool(lost(later, start, until)) == is_hit


@given(chances, limits, st.integers(1, 12), st.sampled_from(["key", "none"]))
def test_no_row_is_older_than_one_of_an_earlier_batch_by_more_than_the_skew(
    chance: random.Random, limit: Limit, skew_ms: int, ordering: Ordering
) -> None:
    # A message's number is also its time.
    query = Query(Topic(chance), ordering, skew_ms)
    lived(chance, query, limit)
    assert sorted(query.rows) == sorted(query.topic.messages)
    newest = 0
    for *_, rows in query.batches:
        times = [number for *_, (_, number) in rows]
        assert all(time >= newest - skew_ms - BATCH_MS for time in times)
        newest = max([newest, *times])


@given(chances, limits, st.integers(1, 4), st.none() | st.integers(1, 9))
def test_topics_share_a_limit_and_each_is_read_as_if_alone(
    chance: random.Random, limit: Limit, count: int, skew_ms: int | None
) -> None:
    topics = {f"t{n}": Topic(chance) for n in range(count)}
    cuts = dict.fromkeys(topics, Cut())
    rows: dict[str, list[Message]] = {name: [] for name in topics}
    for topic in topics.values():
        topic.live(chance.randrange(4))
    while True:
        views = {name: TopicView(topic.layout, cuts[name], known_of(topic)) for name, topic in topics.items()}
        ends = reach_all(views, limit=limit, skew_ms=skew_ms)
        if ends == cuts:
            break
        taken = 0
        for name, topic in topics.items():
            found = rows_of(topic, plan(topic.layout, cuts[name], ends[name]))
            rows[name] += [row[2] for row in sorted(found)]
            taken += len(found)
        assert limit.rows is None or taken <= limit.rows
        assert limit.bytes is None or taken <= max(1, limit.bytes // ROW_BYTES)
        cuts = ends
    for name, topic in topics.items():
        assert_every_row_once_in_order(topic, rows[name])


@given(chances)
def test_the_rows_to_come_are_those_of_the_next_batch_unless_more_waits(chance: random.Random) -> None:
    query = Query(Topic(chance))
    query.topic.live(4)
    while True:
        views = {"t": TopicView(query.topic.layout, query.cut, known_of(query.topic))}
        expected, short = rows_to_come(views, "key")
        assert not short
        if not query.trigger():
            assert expected == 0
            return
        assert expected is None or expected == len(query.batches[-1][2])


@given(chances, limits, st.integers(0, 6), st.none() | st.integers(0, 60))
def test_a_batch_that_is_measured_in_part_is_right_or_names_where_more_is_to_be_measured(
    chance: random.Random, limit: Limit, depth: int, skew_ms: int | None
) -> None:
    topic = Topic(chance)
    topic.live(4)
    whole = TopicView(topic.layout, Cut(), known_of(topic))
    some = {n: Steps(s.steps[:depth], _cut_at(s, depth)) for n, s in whole.known.steps.items()}
    view = TopicView(topic.layout, Cut(), replace(whole.known, steps=some))
    right = reach_all({"t": whole}, limit=limit, skew_ms=skew_ms)
    found, short = reach_and_short({"t": view}, limit=limit, skew_ms=skew_ms)
    assert short or found == right
    measured = {n: whole.known.steps[n] if n in short.get("t", ()) else s for n, s in some.items()}
    while short:
        view = TopicView(topic.layout, Cut(), replace(whole.known, steps=measured))
        found, short = reach_and_short({"t": view}, limit=limit, skew_ms=skew_ms)
        measured |= {n: whole.known.steps[n] for n in short.get("t", ())}
    assert found == right


def _cut_at(steps: Steps, depth: int) -> MessagePosition:
    return steps.until if depth >= len(steps.steps) else steps.steps[depth].at


# -- by example

RIVER = SegmentLayout.initial(1, 0).split(0, 0)  # 0 becomes 1 and 2.


def ends(**positions: MessagePosition) -> Known:
    return Known({SegmentId(int(name[1:])): at for name, at in positions.items()})


def test_a_split_takes_two_batches() -> None:
    known = ends(s0=(5, 3, 0), s1=(6, 2, 0), s2=BEGINNING)
    one = reach(RIVER, Cut(), known)
    assert plan(RIVER, Cut(), one) == [SegmentSlice(SegmentId(0), None, None)]
    two = reach(RIVER, one, known)
    assert plan(RIVER, one, two) == [SegmentSlice(SegmentId(1), BEGINNING, (6, 2, 0))]
    assert reach(RIVER, two, known) == two


def test_a_sealed_segment_that_hides_messages_is_not_over() -> None:
    told = ends(s0=(5, 3, 0), s1=(6, 2, 0), s2=BEGINNING)
    hiding = replace(told, hiding=frozenset({SegmentId(0)}))
    one = reach(RIVER, Cut(), hiding)
    assert plan(RIVER, Cut(), one) == [SegmentSlice(SegmentId(0), None, (5, 3, 0))]
    assert reach(RIVER, one, hiding) == one, "its children wait"
    shown = ends(s0=(5, 4, 0), s1=(6, 2, 0), s2=BEGINNING)
    two = reach(RIVER, one, shown)
    assert plan(RIVER, one, two) == [SegmentSlice(SegmentId(0), (5, 3, 0), None)]


def test_empty_generations_are_passed_at_once() -> None:
    layout = RIVER.merge(1, 2, 0)
    known = ends(s0=BEGINNING, s1=BEGINNING, s2=BEGINNING, s3=(9, 1, 0))
    end = reach(layout, Cut(), known)
    assert [place.segment for place in end.places] == [3]


def test_a_limit_is_spent_on_the_oldest_messages() -> None:
    old = Steps([Step((5, n, 0), 10, 1000, time_ms=n) for n in range(3)], (5, 3, 0))
    new = Steps([Step((6, n, 0), 10, 1000, time_ms=100 + n) for n in range(3)], (6, 3, 0))
    layout = SegmentLayout.initial(2, 0)
    one, two = SegmentId(0), SegmentId(1)
    known = Known({one: (5, 3, 0), two: (6, 3, 0)}, {one: old, two: new})
    end = reach(layout, Cut(), known, limit=Limit(rows=34))
    assert plan(layout, Cut(), end) == [
        SegmentSlice(one, None, (5, 3, 0)),
        SegmentSlice(two, None, (6, 0, 4)),
    ]


def test_a_segment_without_wanted_rows_is_passed_at_once() -> None:
    known = replace(ends(s0=(5, 3, 0), s1=(6, 2, 0), s2=(7, 2, 0)), unwanted=frozenset({SegmentId(0)}))
    end = reach(RIVER, Cut(), known)
    assert [(place.segment, place.at) for place in end.places] == [(1, ((6, 2, 0),)), (2, ((7, 2, 0),))]


def test_a_batch_does_not_run_ahead_of_what_waits_for_the_end_of_a_segment() -> None:
    layout = SegmentLayout.initial(2, 0).split(0, 0)  # 0 becomes 2 and 3; 1 goes on.
    old = Steps([Step((5, 0, 0), 1, 100, time_ms=10)], (5, 1, 0))
    new = Steps([Step((6, n, 0), 1, 100, time_ms=10 * n) for n in range(5)], (6, 5, 0))
    known = Known(ends(s0=(5, 1, 0), s1=(6, 5, 0)).ends, {SegmentId(0): old, SegmentId(1): new})
    end = reach(layout, Cut(), known, skew_ms=15)
    assert plan(layout, Cut(), end) == [
        SegmentSlice(SegmentId(0), None, None),
        SegmentSlice(SegmentId(1), None, (6, 3, 0)),
    ]


def test_a_segment_whose_end_is_not_known_is_left_for_later() -> None:
    layout = SegmentLayout.initial(2, 0)
    end = reach(layout, Cut(), ends(s1=(6, 2, 0)))
    assert plan(layout, Cut(), end) == [SegmentSlice(SegmentId(1), None, (6, 2, 0))]


def test_a_layout_that_is_older_than_the_offset_is_refused() -> None:
    known = ends(s0=(5, 3, 0), s1=(6, 2, 0), s2=(7, 2, 0))
    end = reach(RIVER, reach(RIVER, Cut(), known), known)
    with pytest.raises(BadCheckpoint):
        plan(SegmentLayout.initial(1, 0), Cut(), end)


def test_a_target_behind_the_last_message_is_reached_with_that() -> None:
    layout = SegmentLayout.initial(1, 0)
    target = Cut((Place.of(layout.segments[SegmentId(0)]).moved((9, 0, 0)),))
    assert reach(layout, Cut(), ends(s0=BEGINNING), target=target) == Cut()
    end = reach(layout, Cut(), ends(s0=(5, 3, 0)), target=target)
    assert plan(layout, Cut(), end) == [SegmentSlice(SegmentId(0), None, (5, 3, 0))]
