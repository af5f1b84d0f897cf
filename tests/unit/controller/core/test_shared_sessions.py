"""Sessions of consumers that share segments: who is told, what is stored when, and when sharing ends."""

from __future__ import annotations

import pytest

from anabranch.controller.core.group import ConsumerGroup
from anabranch.controller.core.sessions import (
    Drained,
    Effect,
    Event,
    FenceSession,
    Finished,
    GraceExpired,
    JoinAnswer,
    Joined,
    LayoutChanged,
    Left,
    MemberLost,
    Push,
    RemoveSession,
    Restored,
    SettlingOver,
    SharingRefused,
    StartGrace,
    StartSettling,
    StopSettling,
    StoreSession,
    step,
)
from anabranch.model.buckets import BucketBudget
from anabranch.model.layout import SegmentLayout
from anabranch.model.scalable import ConsumerRecord, SubscriptionKind
from anabranch.model.segments import SegmentId

STREAM, CHECKPOINT = SubscriptionKind.STREAM, SubscriptionKind.CHECKPOINT
S0 = SegmentId(0)
Told = dict[str, dict[int, tuple[int, ...]]]


def join(name: str, link: int = 1, *, knows: bool = True, kind: SubscriptionKind = STREAM) -> Joined:
    return Joined(name, kind, f"{name}-{link}", 7, knows)


def left(name: str) -> Left:
    return Left(name, f"{name}-1")


def one_segment(buckets: int = 4) -> SegmentLayout:
    return SegmentLayout.initial(1, 0, budget=BucketBudget(buckets))


class Story:
    def __init__(self, layout: SegmentLayout, *events: Event, shares_sealed: bool = True) -> None:
        self.group = ConsumerGroup(layout, shares_sealed=shares_sealed)
        self.effects: list[Effect] = []
        self.then(*events)

    def then(self, *events: Event) -> list[Effect]:
        for event in events:
            self.group, self.effects = step(self.group, event)
        return self.effects

    @property
    def held(self) -> Told:
        return {name: {int(n): b for n, b in s.holding().items()} for name, s in self.group.sessions.items()}

    @property
    def stored(self) -> list[tuple[str, dict[int, tuple[int, ...]]]]:
        """What the last event stored, in this order."""
        return [
            (e.record.name, {n: e.record.shares.get(n, ()) for n in e.record.assigned})
            for e in self.effects
            if isinstance(e, StoreSession)
        ]

    @property
    def records(self) -> tuple[ConsumerRecord, ...]:
        return tuple(s.record(STREAM) for s in self.group.sessions.values())


def test_who_gives_buckets_away_is_stored_before_who_gets_them() -> None:
    story = Story(one_segment(), join("ana"))
    assert story.held == {"ana": {0: ()}}
    assert story.then(join("bo")) == [
        StoreSession(ConsumerRecord("ana", STREAM, (S0,), (), {S0: (0, 1)}, True)),
        StoreSession(ConsumerRecord("bo", STREAM, (S0,), (), {S0: (2, 3)}, True)),
        Push("ana-1", 7, 0, (S0,), {S0: (0, 1)}),
        JoinAnswer("bo", 0, (S0,), {S0: (2, 3)}),
    ]


def test_a_sharer_whose_buckets_change_is_stored_and_need_not_be_told() -> None:
    story = Story(one_segment(), join("ana"), join("bo"), join("cy"))
    assert story.held == {"ana": {0: (0, 1)}, "bo": {0: (2,)}, "cy": {0: (3,)}}
    assert story.stored == [("bo", {0: (2,)}), ("cy", {0: (3,)})]
    assert not [e for e in story.effects if isinstance(e, Push)]


def test_who_is_left_alone_goes_on_sharing_until_the_group_has_settled() -> None:
    story = Story(one_segment(), join("ana"), join("bo"))
    assert story.then(left("bo")) == [
        RemoveSession("bo"),
        StoreSession(ConsumerRecord("ana", STREAM, (S0,), (), {S0: (0, 1, 2, 3)}, True)),
        StartSettling(1),
    ]
    assert story.then(SettlingOver(1)) == [
        StoreSession(ConsumerRecord("ana", STREAM, (S0,), (), {}, True)),
        Push("ana-1", 7, 0, (S0,)),
    ]


def test_who_comes_before_the_group_has_settled_changes_nobodys_way_of_reading() -> None:
    story = Story(one_segment(), join("ana"), join("bo"), left("bo"))
    effects = story.then(join("cy"))
    assert StopSettling() in effects
    assert not [e for e in effects if isinstance(e, Push)]
    assert story.then(SettlingOver(1)) == []


def test_the_next_leader_settles_what_the_last_one_had_not() -> None:
    story = Story(one_segment(), join("ana"), join("bo"), left("bo"))
    new = Story(one_segment(), Restored(story.records))
    assert new.held == story.held
    assert [type(e) for e in new.effects] == [FenceSession, StartSettling, StartGrace]
    assert new.then(SettlingOver(new.group.settling)) == [
        StoreSession(ConsumerRecord("ana", STREAM, (S0,), (), {}, True))
    ]


def test_the_next_leader_has_the_same_shares_and_knows_who_can_share() -> None:
    story = Story(one_segment(), join("ana"), join("bo"), join("cy", knows=False))
    assert story.held == {"ana": {0: (0, 1)}, "bo": {0: (2, 3)}, "cy": {}}
    new = Story(one_segment(), Restored(story.records))
    assert new.held == story.held
    # Each is stored as it was: the last leader can store none of them after that.
    assert [e.record for e in new.effects if isinstance(e, FenceSession)] == list(story.records)


def test_the_next_leader_stores_nothing_where_no_segment_can_be_shared() -> None:
    story = Story(one_segment(1), join("ana"), join("bo"))
    effects = Story(one_segment(1), Restored(story.records)).effects
    assert not [e for e in effects if isinstance(e, StoreSession | FenceSession)]


def test_a_lost_sharer_keeps_its_buckets_until_its_grace_period_ends() -> None:
    story = Story(one_segment(), join("ana"), join("bo"))
    assert story.then(MemberLost("bo", "bo-1")) == [StartGrace("bo", 1)]
    assert story.held == {"ana": {0: (0, 1)}, "bo": {0: (2, 3)}}
    story.then(GraceExpired("bo", 1))
    assert story.held == {"ana": {0: (0, 1, 2, 3)}}


def test_who_comes_back_is_answered_with_its_buckets() -> None:
    story = Story(one_segment(), join("ana"), join("bo"), MemberLost("bo", "bo-1"))
    assert story.then(join("bo", 2))[-1] == JoinAnswer("bo", 0, (S0,), {S0: (2, 3)})


def test_who_comes_back_with_a_client_that_cannot_share_is_given_no_share() -> None:
    story = Story(one_segment(), join("ana"), join("bo"), MemberLost("bo", "bo-1"))
    story.then(join("bo", 2, knows=False))
    assert story.held == {"ana": {0: (0, 1, 2, 3)}, "bo": {}}
    assert story.stored == [("bo", {}), ("ana", {0: (0, 1, 2, 3)})]
    story.then(join("bo", 3))
    assert story.held == {"ana": {0: (0, 1)}, "bo": {0: (2, 3)}}


def test_who_refuses_to_share_is_given_no_share_and_stored_so() -> None:
    story = Story(one_segment(), join("ana"), join("bo"))
    assert story.then(SharingRefused("bo", "bo-0")) == [], "over a connection that was taken over"
    story.then(SharingRefused("bo", "bo-1"))
    assert story.held == {"ana": {0: (0, 1, 2, 3)}, "bo": {}}
    assert [r.knows_buckets for r in story.records] == [True, False]
    assert story.then(SharingRefused("bo", "bo-1")) == []


def test_the_children_of_a_shared_segment_wait_for_all_of_it() -> None:
    layout = one_segment()
    story = Story(layout, join("ana"), join("bo"), LayoutChanged(layout.split(0, 1)))
    assert story.held == {"ana": {0: (0, 1)}, "bo": {0: (2, 3)}}
    assert story.group.draining == {0}
    story.then(Drained(frozenset({S0})))
    assert story.held == {"ana": {1: ()}, "bo": {2: ()}}
    assert story.group.draining == frozenset()


def test_the_sharers_of_a_segment_go_on_to_share_its_successor() -> None:
    layout = one_segment()
    story = Story(layout, join("ana"), join("bo"), LayoutChanged(layout.rebucket(S0, 8, 1)))
    story.then(Drained(frozenset({S0})))
    assert story.held == {"ana": {1: (0, 1, 2, 3)}, "bo": {1: (4, 5, 6, 7)}}


def room(story: Story) -> int:
    """How many of the present consumers can read the first segment at once."""
    return story.group.room(story.group.layout.segment(S0)) if story.group.knows_buckets else 1


def test_a_sealed_segment_is_read_whole_where_sharing_a_backlog_is_switched_off() -> None:
    layout = one_segment()
    story = Story(layout, join("ana"), join("bo"), shares_sealed=False)
    assert story.held == {"ana": {0: (0, 1)}, "bo": {0: (2, 3)}}
    assert room(story) == 4
    story.then(LayoutChanged(layout.split(0, 1)))
    assert story.held == {"ana": {0: ()}, "bo": {}}
    assert story.stored == [("bo", {}), ("ana", {0: ()})]
    assert room(story) == 1


# -- checkpoint groups


def member(name: str, *, knows: bool = True) -> Joined:
    return join(name, knows=knows, kind=CHECKPOINT)


def finished(name: str, *buckets: int) -> Finished:
    return Finished(name, frozenset(), {S0: frozenset(buckets)})


def sealed(buckets: int = 4) -> SegmentLayout:
    """Segment 0 is replaced by segment 1."""
    return one_segment(buckets).rebucket(S0, 2 * buckets, 1)


def test_the_members_of_a_checkpoint_group_share_and_are_told_their_buckets() -> None:
    story = Story(one_segment(), member("ana"))
    effects = story.then(member("bo"))
    assert story.held == {"ana": {0: (0, 1)}, "bo": {0: (2, 3)}}
    assert Push("ana-1", 7, 0, (S0,), {S0: (0, 1)}) in effects
    assert JoinAnswer("bo", 0, (S0,), {S0: (2, 3)}) in effects
    # Other than those of a stream, a member is told whenever its buckets change.
    assert Push("bo-1", 7, 0, (S0,), {S0: (2,)}) in story.then(member("cy"))
    assert room(story) == 4


def test_members_that_do_not_know_buckets_have_whole_segments() -> None:
    story = Story(one_segment(), member("java", knows=False), member("ana"), member("bo"))
    shared = {name: held for name, held in story.held.items() if held}
    assert shared == {"ana": {0: (0, 1)}, "bo": {0: (2, 3)}}
    story = Story(one_segment(), member("java", knows=False), member("m1", knows=False))
    assert story.held == {"java": {0: ()}, "m1": {}}
    assert room(story) == 1


def test_children_are_read_once_all_buckets_of_a_segment_are_finished_by_whichever_members() -> None:
    story = Story(sealed(), member("ana"), member("bo"))
    assert story.held == {"ana": {0: (0, 1)}, "bo": {0: (2, 3)}}
    effects = story.then(finished("ana", 0, 1))
    # It is not told to read them again.
    assert Push("ana-1", 7, 1, (), {}) in effects
    assert ("ana", {0: (0, 1)}) in story.stored
    assert story.group.finished == frozenset()
    story.then(finished("bo", 2))
    assert Push("bo-1", 7, 1, (S0,), {S0: (3,)}) in story.effects
    story.then(finished("bo", 3))
    assert story.group.finished == {S0}
    assert {n for held in story.held.values() for n in held} == {1}


def test_a_newcomer_is_not_told_of_buckets_that_others_have_finished() -> None:
    story = Story(sealed(), member("ana"), member("bo"), finished("ana", 0, 1))
    story.then(member("cy"), member("di"))
    told = {name: story.group.told(session)[1] for name, session in story.group.sessions.items()}
    assert sorted(bucket for shares in told.values() for bucket in shares.get(S0, ())) == [2, 3]


def test_who_is_left_alone_is_never_given_what_others_have_finished() -> None:
    story = Story(sealed(), member("ana"), member("bo"), finished("ana", 0, 1), left("ana"))
    (bo,) = story.group.sessions.values()
    assert story.group.told(bo) == ((S0,), {S0: (2, 3)})
    assert not story.group.settling
    story.then(finished("bo", 2, 3))
    assert story.held == {"bo": {1: ()}}


def test_finished_buckets_outlive_their_reader_and_the_leader() -> None:
    story = Story(sealed(), member("ana"), member("bo"), finished("ana", 0, 1))
    story.then(left("ana"))
    assert story.group.finished_buckets == {S0: {0, 1}}
    records = tuple(
        ConsumerRecord.decode(s.record(CHECKPOINT).encode()) for s in story.group.sessions.values()
    )
    new = Story(sealed(), Restored(records))
    assert new.group.finished_buckets == {S0: {0, 1}}
    new.then(finished("bo", 2, 3))
    assert new.group.finished == {S0}


def test_reports_of_buckets_that_there_are_not_count_for_nothing() -> None:
    story = Story(sealed(), member("ana"), member("bo"))
    before = story.group
    story.then(finished("ana", 4, 9), Finished("bo", frozenset(), {SegmentId(99): frozenset({0})}))
    assert story.group.finished_buckets == {}
    assert story.group.sessions == before.sessions


def test_a_group_without_members_has_finished_nothing() -> None:
    story = Story(sealed(), member("ana"), member("bo"), finished("ana", 0, 1), left("ana"), left("bo"))
    assert story.group.finished_buckets == {}
    story.then(member("cy"))
    assert story.held == {"cy": {0: ()}}


@pytest.mark.parametrize(("names", "capacity"), [("", 4), ("a", 4), ("ab", 4), ("abM", 1)])
def test_one_member_that_cannot_share_leaves_a_segment_room_for_one(names: str, capacity: int) -> None:
    story = Story(one_segment(), *(join(name, knows=name != "M") for name in names))
    assert room(story) == capacity


def test_who_both_loses_and_gains_is_stored_with_what_it_keeps_first() -> None:
    # A leader of another release has stored what this one would not: it is put right without a contradiction.
    layout = SegmentLayout.initial(2, 0, budget=BucketBudget(8))
    s1 = SegmentId(1)
    records = (
        ConsumerRecord("ana", STREAM, (S0, s1), (), {S0: (0, 1), s1: (0,)}, True),
        ConsumerRecord("bo", STREAM, (S0, s1), (), {S0: (2,), s1: (1, 2, 3)}, True),
    )
    story = Story(layout, Restored(records))
    assert story.held == {"ana": {0: (0, 1, 2, 3)}, "bo": {1: (0, 1, 2, 3)}}
    assert story.stored == [
        ("ana", {0: (0, 1)}),
        ("bo", {1: (1, 2, 3)}),
        ("ana", {0: (0, 1, 2, 3)}),
        ("bo", {1: (0, 1, 2, 3)}),
    ]
