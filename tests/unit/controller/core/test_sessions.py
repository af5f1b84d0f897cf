"""The sessions of a subscription: what is stored, what is said, and who reads what, whatever happens."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from anabranch.controller.core.group import ConsumerGroup
from anabranch.controller.core.sessions import (
    CancelGrace,
    Drained,
    Effect,
    Event,
    Finished,
    GraceExpired,
    JoinAnswer,
    Joined,
    LayoutChanged,
    Left,
    MemberLost,
    Push,
    RefuseJoin,
    RemoveSession,
    Restored,
    StartGrace,
    StoreSession,
    SubscriptionDeleted,
    Undrained,
    WatchDrain,
    step,
)
from anabranch.model.layout import SegmentLayout
from anabranch.model.scalable import ConsumerRecord, SubscriptionKind
from anabranch.model.segments import SegmentId

STREAM, CHECKPOINT, QUEUE = SubscriptionKind.STREAM, SubscriptionKind.CHECKPOINT, SubscriptionKind.QUEUE


def ids(*numbers: int) -> tuple[SegmentId, ...]:
    return tuple(map(SegmentId, numbers))


def some(*numbers: int) -> frozenset[SegmentId]:
    return frozenset(ids(*numbers))


def record(
    name: str, *assigned: int, kind: SubscriptionKind = STREAM, finished: Iterable[int] = ()
) -> ConsumerRecord:
    return ConsumerRecord(name, kind, ids(*assigned), ids(*finished))


def join(name: str, link: str = "", kind: SubscriptionKind = STREAM, consumer_id: int = 7) -> Joined:
    return Joined(name, kind, link or f"{name}-1", consumer_id)


class Story:
    """A group, and what came of the latest event."""

    def __init__(self, layout: SegmentLayout, *events: Event, kind: SubscriptionKind | None = None) -> None:
        self.group = ConsumerGroup(layout, kind)
        self.effects: list[Effect] = []
        self.everything: list[Effect] = []
        self.then(*events)

    def then(self, *events: Event) -> list[Effect]:
        for event in events:
            self.group, self.effects = step(self.group, event)
            self.everything += self.effects
        return self.effects

    @property
    def assigned(self) -> dict[str, list[int]]:
        return {name: list(session.assigned) for name, session in self.group.sessions.items()}

    @property
    def writes(self) -> int:
        return sum(isinstance(effect, StoreSession | RemoveSession) for effect in self.everything)

    @property
    def stored(self) -> tuple[ConsumerRecord, ...]:
        """What a leader that came after all effects of all events would find."""
        found: dict[str, ConsumerRecord] = {}
        for effect in self.everything:
            if isinstance(effect, StoreSession):
                found[effect.record.name] = effect.record
            elif isinstance(effect, RemoveSession):
                del found[effect.name]
        return tuple(found.values())


def four(*events: Event, kind: SubscriptionKind | None = None) -> Story:
    return Story(SegmentLayout.initial(4, 0), *events, kind=kind)


# -- joining


def test_a_join_is_stored_before_it_is_answered() -> None:
    assert four().then(join("ana")) == [
        StoreSession(record("ana", 0, 1, 2, 3)),
        JoinAnswer("ana", 0, ids(0, 1, 2, 3)),
    ]


def test_only_consumers_that_lose_segments_hear_of_a_newcomer() -> None:
    story = Story(SegmentLayout.initial(3, 0), join("ana"), join("bo"))
    assert story.assigned == {"ana": [0, 1], "bo": [2]}
    assert story.then(join("cy")) == [
        StoreSession(record("ana", 0)),
        StoreSession(record("cy", 1)),
        Push("ana-1", 7, 0, ids(0)),
        JoinAnswer("cy", 0, ids(1)),
    ]


def test_with_more_consumers_than_segments_a_join_gets_an_empty_list_and_no_error() -> None:
    story = Story(SegmentLayout.initial(1, 0), join("ana"))
    assert story.then(join("bo")) == [StoreSession(record("bo")), JoinAnswer("bo", 0, ())]
    assert story.then(Left("ana", "ana-1")) == [
        RemoveSession("ana"),
        StoreSession(record("bo", 0)),
        Push("bo-1", 7, 0, ids(0)),
    ]


def test_an_assignment_lists_its_segments_by_range() -> None:
    story = four(LayoutChanged(SegmentLayout.initial(4, 0).split(2, 1)), Drained(some(2)), join("ana"))
    assert story.assigned == {"ana": [0, 1, 4, 5, 3]}


@pytest.mark.parametrize(("first", "second"), [(STREAM, CHECKPOINT), (CHECKPOINT, STREAM)])
def test_stream_and_checkpoint_consumers_do_not_mix_and_the_second_is_told_what_to_do(
    first: SubscriptionKind, second: SubscriptionKind
) -> None:
    story = four(join("ana", kind=first))
    before = story.group
    (refusal,) = story.then(join("bo", kind=second))
    assert isinstance(refusal, RefuseJoin)
    assert refusal.name == "bo"
    assert first in refusal.reason
    assert "another subscription name" in refusal.reason
    assert story.group == before


def test_the_kind_of_the_subscription_outlives_its_members() -> None:
    story = four(join("ana"), Left("ana", "ana-1"))
    assert isinstance(story.then(join("bo", kind=CHECKPOINT))[0], RefuseJoin)
    assert isinstance(four(kind=CHECKPOINT).then(join("bo"))[0], RefuseJoin)


def test_a_queue_consumer_is_told_that_it_need_not_register() -> None:
    (refusal,) = four().then(join("ana", kind=QUEUE))
    assert isinstance(refusal, RefuseJoin)
    assert "do not register" in refusal.reason


# -- the same name again


def test_a_second_connection_of_the_same_name_takes_the_session_over_and_nobody_else_notices() -> None:
    story = four(join("ana"), join("bo"))
    assert story.then(join("ana", "ana-2", consumer_id=9)) == [
        Push("ana-1", 7, 0, ()),  # The older one lets go; it hears nothing ever after.
        JoinAnswer("ana", 0, ids(0, 1)),
    ]
    effects = story.then(Left("bo", "bo-1"))
    assert [e.link for e in effects if isinstance(e, Push)] == ["ana-2"]


@pytest.mark.parametrize("event", [Left("ana", "ana-1"), MemberLost("ana", "ana-1")])
def test_the_end_of_a_connection_that_was_taken_over_means_nothing(event: Event) -> None:
    story = four(join("ana"), join("ana", "ana-2"))
    before = story.group
    assert story.then(event) == []
    assert story.group == before


def test_a_second_consumer_of_the_same_name_on_the_same_connection_takes_over_too() -> None:
    story = four(join("ana"))
    assert story.then(join("ana", consumer_id=8)) == [
        Push("ana-1", 7, 0, ()),
        JoinAnswer("ana", 0, ids(0, 1, 2, 3)),
    ]


def test_a_join_repeated_by_the_same_consumer_is_answered_again_and_changes_nothing() -> None:
    story = four(join("ana"))
    before = story.group
    assert story.then(join("ana")) == [JoinAnswer("ana", 0, ids(0, 1, 2, 3))]
    assert story.group == before


# -- leaving and grace


def test_a_lost_connection_starts_a_grace_timer_and_disturbs_nobody() -> None:
    story = four(join("ana"), join("bo"))
    assert story.then(MemberLost("ana", "ana-1")) == [StartGrace("ana", 1)]
    assert story.assigned == {"ana": [0, 1], "bo": [2, 3]}
    assert not story.group.sessions["ana"].is_connected


def test_back_in_time_a_consumer_resumes_its_assignment_and_nobody_else_is_disturbed() -> None:
    story = four(join("ana"), join("bo"), MemberLost("ana", "ana-1"))
    assert story.then(join("ana", "ana-2")) == [CancelGrace("ana"), JoinAnswer("ana", 0, ids(0, 1))]


def test_when_grace_is_over_the_registration_is_deleted_and_the_others_rebalanced() -> None:
    story = four(join("ana"), join("bo"), MemberLost("ana", "ana-1"))
    assert story.then(GraceExpired("ana", 1)) == [
        RemoveSession("ana"),
        StoreSession(record("bo", 0, 1, 2, 3)),
        Push("bo-1", 7, 0, ids(0, 1, 2, 3)),
    ]


def test_an_explicit_leave_takes_effect_at_once() -> None:
    story = four(join("ana"), join("bo"))
    assert story.then(Left("ana", "ana-1")) == [
        RemoveSession("ana"),
        StoreSession(record("bo", 0, 1, 2, 3)),
        Push("bo-1", 7, 0, ids(0, 1, 2, 3)),
    ]


def test_a_reconnect_that_comes_before_the_expiry_wins_and_the_expiry_means_nothing() -> None:
    story = four(join("ana"), join("bo"), MemberLost("ana", "ana-1"), join("ana", "ana-2"))
    before = story.group
    assert story.then(GraceExpired("ana", 1)) == []
    assert story.group == before


def test_an_expiry_that_comes_before_the_reconnect_wins_and_the_reconnect_is_a_new_member() -> None:
    story = four(join("ana"), join("bo"), MemberLost("ana", "ana-1"), GraceExpired("ana", 1))
    assert story.then(join("ana", "ana-2"))[-1] == JoinAnswer("ana", 0, story.group.sessions["ana"].assigned)
    assert {name: len(held) for name, held in story.assigned.items()} == {"ana": 2, "bo": 2}


def test_the_expiry_of_an_earlier_disconnection_does_not_end_a_later_one() -> None:
    story = four(join("ana"), MemberLost("ana", "ana-1"), join("ana", "ana-2"), MemberLost("ana", "ana-2"))
    assert story.effects == [StartGrace("ana", 2)]
    assert story.then(GraceExpired("ana", 1)) == []
    assert story.then(GraceExpired("ana", 2)) == [RemoveSession("ana")]


def test_a_consumer_away_in_its_grace_period_learns_what_changed_when_it_comes_back() -> None:
    story = four(join("ana"), MemberLost("ana", "ana-1"))
    assert story.then(LayoutChanged(SegmentLayout.initial(4, 0).merge(2, 3, 1)), Drained(some(2, 3))) == [
        StoreSession(record("ana", 0, 1, 4)),
        WatchDrain(()),
    ]
    assert story.then(join("ana", "ana-2")) == [CancelGrace("ana"), JoinAnswer("ana", 1, ids(0, 1, 4))]


# -- layouts and order


def test_a_split_disturbs_nobody_until_the_parent_is_drained() -> None:
    story = four(join("ana"), join("bo"))
    assert story.then(LayoutChanged(story.group.layout.split(0, 1))) == [WatchDrain(ids(0))]
    assert story.then(Drained(some(0))) == [
        StoreSession(record("ana", 4, 5, 1)),
        Push("ana-1", 7, 1, ids(4, 5, 1)),
        WatchDrain(()),
    ]


def test_a_sealed_segment_with_backlog_is_assigned() -> None:
    story = Story(SegmentLayout.initial(1, 0).split(0, 1), join("ana"))
    assert story.effects == [
        StoreSession(record("ana", 0)),
        JoinAnswer("ana", 1, ids(0)),
        WatchDrain(ids(0)),
    ]


def test_a_grandchild_waits_for_every_generation() -> None:
    layout = SegmentLayout.initial(1, 0).split(0, 1).split(1, 2)
    story = Story(layout, join("ana"), Drained(some(1)))
    assert story.assigned == {"ana": [0]}
    story.then(Drained(some(0)))
    assert story.assigned == {"ana": [3, 4, 2]}


def test_a_segment_sealed_empty_is_never_handed_out_once_it_was_asked_about_with_its_parent() -> None:
    layout = SegmentLayout.initial(1, 0).split(0, 1).split(1, 2)
    story = Story(layout, join("ana"))
    assert set(story.group.watched) == {0, 1}
    story.then(Drained(some(0, 1)))
    handed_out = {n for e in story.everything if isinstance(e, Push | JoinAnswer) for n in e.segments}
    assert handed_out == {0, 2, 3, 4}


def test_a_merge_waits_for_both_parents_and_goes_to_one_of_their_readers() -> None:
    story = four(join("ana"), join("bo"), LayoutChanged(SegmentLayout.initial(4, 0).merge(1, 2, 1)))
    assert story.then(Drained(some(1))) == [
        StoreSession(record("ana", 0)),
        Push("ana-1", 7, 1, ids(0)),
        WatchDrain(ids(2)),
    ]
    story.then(Drained(some(2)))
    assert story.assigned == {"ana": [0], "bo": [4, 3]}


def test_a_pruned_segment_counts_as_drained_and_is_forgotten() -> None:
    layout = SegmentLayout.initial(1, 0).split(0, 1)
    story = Story(layout, join("ana"), Drained(some(0)), LayoutChanged(layout.prune([0])))
    assert story.assigned == {"ana": [1, 2]}
    assert story.group.drained == frozenset()


def test_a_segment_marked_for_deletion_is_not_handed_out_and_holds_nobody_up() -> None:
    layout = SegmentLayout.initial(1, 0).split(0, 1)
    story = Story(layout, join("ana"))
    story.then(LayoutChanged(layout.mark_deleting(ids(0))))  # At the same epoch.
    assert story.assigned == {"ana": [1, 2]}


def test_an_older_layout_is_ignored() -> None:
    story = four(join("ana"))
    older = story.group.layout
    story.then(LayoutChanged(older.split(0, 1)), Drained(some(0)))
    assert story.then(LayoutChanged(older)) == []
    assert story.assigned == {"ana": [4, 5, 1, 2, 3]}


def test_that_a_segment_is_drained_may_be_known_before_the_layout_has_it_sealed() -> None:
    story = four(join("ana"), Drained(some(0)))
    assert story.assigned == {"ana": [0, 1, 2, 3]}
    story.then(LayoutChanged(story.group.layout.split(0, 1)))
    assert story.assigned == {"ana": [4, 5, 1, 2, 3]}


def test_a_seek_back_withdraws_descendants_with_effects_to_perform_before_the_seek() -> None:
    layout = SegmentLayout.initial(2, 0).split(0, 1)
    story = Story(layout, Drained(some(0)), join("ana"), join("bo"))
    assert story.assigned == {"ana": [2, 3], "bo": [1]}
    assert story.then(Undrained(some(0))) == [
        StoreSession(record("ana", 0)),
        Push("ana-1", 7, 1, ids(0)),
        WatchDrain(ids(0)),
    ]


def test_nothing_is_watched_without_a_segment_to_wait_for_or_a_consumer_who_waits() -> None:
    layout = SegmentLayout.initial(1, 0).split(0, 1)
    story = Story(layout)
    assert story.then(Drained(frozenset())) == []
    story.then(join("ana"))
    assert story.effects[-1] == WatchDrain(ids(0))
    assert story.then(Left("ana", "ana-1"))[-1] == WatchDrain(())


def test_before_the_first_join_the_shell_can_tell_which_segments_to_ask_about() -> None:
    layout = SegmentLayout.initial(1, 0).split(0, 1).split(1, 2).split(2, 3)
    story = Story(layout.mark_deleting(ids(0)), Drained(some(1)))
    assert story.group.unknown == ids(2)


# -- a new leader


def restored_from(story: Story, **more: frozenset[SegmentId]) -> Story:
    return Story(story.group.layout, Restored(story.stored, **more))


def test_a_new_leader_restores_every_assignment_with_a_fresh_grace_for_everyone() -> None:
    old = four(join("ana"), join("bo"))
    new = restored_from(old)
    assert new.effects == [StartGrace("ana", 1), StartGrace("bo", 2)]
    assert new.assigned == old.assigned
    assert new.then(join("ana", "ana-9")) == [CancelGrace("ana"), JoinAnswer("ana", 0, ids(0, 1))]
    assert new.then(GraceExpired("bo", 2))[:2] == [
        RemoveSession("bo"),
        StoreSession(record("ana", 0, 1, 2, 3)),
    ]


def test_a_new_leader_knows_from_what_is_assigned_that_the_ancestors_are_drained() -> None:
    layout = SegmentLayout.initial(2, 0).split(0, 1).split(2, 2)
    old = Story(layout, Drained(some(0, 2)), join("ana"))
    new = restored_from(old)  # No owner could be asked.
    assert new.assigned == old.assigned
    assert new.effects == [StartGrace("ana", 1)]


def test_a_new_leader_believes_the_owners_more_than_what_is_assigned() -> None:
    """Cursors were set back, and then a leader deposed meanwhile stored what it had decided before."""
    layout = SegmentLayout.initial(2, 0).split(0, 1)
    new = Story(layout, Restored((record("ana", 2, 3, 1),), undrained=some(0)))
    assert new.assigned == {"ana": [0, 1]}
    assert new.effects[0] == StoreSession(record("ana", 0, 1))
    group = Restored((record("ana", 2, 3, 1, kind=CHECKPOINT, finished=[0]),), undrained=some(0))
    assert Story(layout, group).assigned == {"ana": [2, 3, 1]}


def test_a_new_leader_hands_out_what_its_predecessor_published_and_did_not_assign() -> None:
    layout = SegmentLayout.initial(2, 0).split(0, 1)
    new = Story(layout, Restored((record("ana", 0), record("bo", 1)), drained=some(0)))
    assert new.assigned == {"ana": [2, 3], "bo": [1]}
    assert new.effects[0] == StoreSession(record("ana", 2, 3))
    assert not [e for e in new.effects if isinstance(e, Push | JoinAnswer)]


def test_a_segment_stored_with_two_consumers_is_given_to_one() -> None:
    new = Story(SegmentLayout.initial(2, 0), Restored((record("bo", 0, 1), record("ana", 0))))
    assert new.assigned == {"ana": [0], "bo": [1]}


def test_sessions_of_another_kind_than_the_subscriptions_are_cleared_away() -> None:
    new = four(Restored((record("ana", 0), record("bo", 1, kind=CHECKPOINT))), kind=STREAM)
    assert new.effects[0] == RemoveSession("bo")
    assert new.assigned == {"ana": [0, 1, 2, 3]}


def test_timers_of_an_earlier_term_mean_nothing_after_a_restore() -> None:
    story = four(join("ana"), MemberLost("ana", "ana-1"))
    story.then(Restored(story.stored))
    assert story.effects == [StartGrace("ana", 2)]
    assert story.then(GraceExpired("ana", 1)) == []


# -- checkpoint groups


def test_what_any_member_finished_is_stored_with_it_and_lets_the_children_through() -> None:
    layout = SegmentLayout.initial(1, 0).split(0, 1)
    story = Story(layout, join("ana", kind=CHECKPOINT), join("bo", kind=CHECKPOINT))
    assert story.then(Finished("ana", some(0))) == [
        StoreSession(record("ana", 1, kind=CHECKPOINT, finished=[0])),
        StoreSession(record("bo", 2, kind=CHECKPOINT)),
        Push("ana-1", 7, 1, ids(1)),
        Push("bo-1", 7, 1, ids(2)),
        WatchDrain(()),
    ]
    assert story.then(Finished("ana", some(0))) == []


def test_whoever_reports_a_segment_of_another_hears_nothing_unless_its_own_change() -> None:
    layout = SegmentLayout.initial(2, 0)
    story = Story(layout, join("ana", kind=CHECKPOINT), join("bo", kind=CHECKPOINT))
    assert story.assigned == {"ana": [0], "bo": [1]}
    story.then(LayoutChanged(layout.split(0, 1)))
    assert story.then(Finished("bo", some(0))) == [
        StoreSession(record("bo", 1, kind=CHECKPOINT, finished=[0])),
        StoreSession(record("ana", 2, 3, kind=CHECKPOINT)),
        Push("ana-1", 7, 1, ids(2, 3)),
        WatchDrain(()),
    ]


def test_what_a_leaving_member_finished_is_stored_with_another_before_its_record_goes() -> None:
    story = Story(
        SegmentLayout.initial(2, 0).merge(0, 1, 1),
        join("ana", kind=CHECKPOINT),
        join("bo", kind=CHECKPOINT),
        Finished("bo", some(1)),
    )
    assert story.then(Left("bo", "bo-1")) == [
        StoreSession(record("ana", 0, kind=CHECKPOINT, finished=[1])),
        RemoveSession("bo"),
    ]
    new = restored_from(story)
    new.then(Finished("ana", some(0)))
    assert new.assigned == {"ana": [2]}


def test_a_checkpoint_group_is_forgotten_with_its_last_member() -> None:
    layout = SegmentLayout.initial(1, 0).split(0, 1)
    story = Story(layout, join("ana", kind=CHECKPOINT), Finished("ana", some(0)), Left("ana", "ana-1"))
    assert story.stored == ()
    story.then(join("bo", kind=CHECKPOINT))
    assert story.assigned == {"bo": [0]}


def test_a_restored_checkpoint_group_is_forgotten_with_its_last_member_too() -> None:
    layout = SegmentLayout.initial(1, 0).split(0, 1)
    story = Story(
        layout, Restored((record("ana", 1, 2, kind=CHECKPOINT, finished=[0]),)), GraceExpired("ana", 1)
    )
    story.then(join("bo", kind=CHECKPOINT))
    assert story.assigned == {"bo": [0]}


def test_a_segment_seen_to_be_finished_is_stored_like_a_reported_one() -> None:
    layout = SegmentLayout.initial(1, 0).split(0, 1)
    story = Story(layout, join("ana", kind=CHECKPOINT), Drained(some(0)))
    assert story.stored == (record("ana", 1, 2, kind=CHECKPOINT, finished=[0]),)
    restored = Story(layout, Restored((record("ana", 0, kind=CHECKPOINT),), drained=some(0)))
    assert restored.effects[0] == StoreSession(record("ana", 1, 2, kind=CHECKPOINT, finished=[0]))


def test_a_report_of_one_who_has_left_meanwhile_still_counts() -> None:
    layout = SegmentLayout.initial(1, 0).split(0, 1)
    story = Story(layout, join("ana", kind=CHECKPOINT), join("bo", kind=CHECKPOINT), Left("ana", "ana-1"))
    story.then(Finished("ana", some(0)))
    assert story.assigned == {"bo": [1, 2]}


def test_reports_of_finished_segments_mean_nothing_where_cursors_tell() -> None:
    layout = SegmentLayout.initial(1, 0).split(0, 1)
    story = Story(layout, join("ana"))
    assert story.then(Finished("ana", some(0))) == []


def test_facts_about_pruned_segments_cause_no_write_of_their_own_and_go_with_the_next() -> None:
    layout = SegmentLayout.initial(1, 0).split(0, 1)
    story = Story(layout, join("ana", kind=CHECKPOINT), Finished("ana", some(0)))
    assert story.then(LayoutChanged(layout.prune([0]))) == []
    story.then(join("bo", kind=CHECKPOINT))
    assert all(not found.finished for found in story.stored)


# -- the end


def test_deleting_the_subscription_removes_every_session_and_tells_those_connected() -> None:
    story = Story(SegmentLayout.initial(2, 0).split(0, 1), join("ana"), join("bo"), MemberLost("bo", "bo-1"))
    assert story.then(SubscriptionDeleted()) == [
        RemoveSession("ana"),
        RemoveSession("bo"),
        Push("ana-1", 7, 1, ()),
        CancelGrace("bo"),
        WatchDrain(()),
    ]
    assert story.stored == ()
    assert story.then(GraceExpired("bo", 1), MemberLost("ana", "ana-1"), Left("ana", "ana-1")) == []


# -- writes


def test_connections_that_come_and_go_write_nothing() -> None:
    story = four(join("ana"), join("bo"))
    before = story.writes
    for n in range(1, 200):
        story.then(MemberLost("ana", f"ana-{n}"), join("ana", f"ana-{n + 1}"))
        story.then(join("bo", f"bo-{n + 1}"))
    assert story.writes == before


def test_writes_grow_with_joins_leaves_and_rebalances_only() -> None:
    story = Story(SegmentLayout.initial(8, 0))
    counts = []
    events: list[Event] = [
        join("ana"),  # Its own record.
        join("bo"),  # Its own, and ana's.
        LayoutChanged(story.group.layout.split(0, 1)),  # Nobody's: the parent is not drained.
        MemberLost("ana", "ana-1"),
        join("ana", "ana-2"),
        Drained(some(0)),  # Ana's, who reads the children.
        LayoutChanged(story.group.layout.split(0, 1).prune([0])),  # Nobody's.
        Left("bo", "bo-1"),  # Its own, and ana's.
    ]
    for event in events:
        before = story.writes
        story.then(event)
        counts.append(story.writes - before)
    assert counts == [1, 2, 0, 0, 0, 1, 0, 2]


def test_a_segment_owners_restart_shows_as_the_same_layout_again_and_changes_no_assignment() -> None:
    story = four(join("ana"), join("bo"))
    before = story.group
    assert story.then(LayoutChanged(SegmentLayout.initial(4, 0))) == []
    assert story.group == before
