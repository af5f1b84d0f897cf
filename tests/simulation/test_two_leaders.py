"""Two brokers that both believe they lead: what the simulator once found, each as a claim of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.controller.core import events as e
from anabranch.controller.core.errors import SegmentRefused, SegmentUnavailable, TooBusy
from anabranch.controller.core.operations import ControlledTopic
from anabranch.controller.core.step import resume, step
from anabranch.model.layout import SegmentLayout
from anabranch.model.scalable import (
    InitialPosition,
    PlanKind,
    ReshapePlan,
    ScalableTopic,
    SubscriptionKind,
    SubscriptionRecord,
)
from anabranch.model.segments import SegmentId

TOPIC = ScalableTopic(SegmentLayout.initial(2, 1), generation=1)
BILLING = SubscriptionRecord("billing", SubscriptionKind.STREAM, 1, InitialPosition.EARLIEST)


def split(topic: ScalableTopic, number: int) -> ScalableTopic:
    return topic.planned(ReshapePlan(PlanKind.SPLIT, (SegmentId(number),), topic.layout.split(number, 1)))


def test_a_plan_that_another_leader_finished_is_over_even_if_the_next_one_has_begun() -> None:
    planned = split(TOPIC, 0)
    state, effects = resume(ControlledTopic(planned, 1))
    assert effects == [e.ReadSubscriptions()]
    then = split(planned.published(), 1)
    failed = e.EffectFailed(effects[0], SegmentUnavailable("the store does not answer"))
    state, _ = step(state, failed)
    state, effects = step(state, e.TopicRead(then, 3))
    assert effects == [e.TellConsumers(then.layout), e.ReadSubscriptions()]
    assert state.topic == then


def test_cursors_are_made_only_after_a_look_for_plans_of_another_leader() -> None:
    state, _ = step(
        ControlledTopic(TOPIC, 0),
        e.SubscriptionRequested(1, "billing", SubscriptionKind.STREAM, InitialPosition.EARLIEST),
    )
    state, effects = step(state, e.SubscriptionsRead(()))
    assert effects == [e.StoreSubscription(BILLING)]
    state, effects = step(state, e.Done())
    assert effects == [e.ReadSubscriptions()], "another leader may have stored it with another position"
    state, effects = step(state, e.SubscriptionsRead((BILLING,)))
    assert effects == [e.ReadTopic()]
    planned = split(TOPIC, 0)
    state, effects = step(state, e.TopicRead(planned, 1))
    assert effects == [e.ReadSubscriptions()]
    assert state.waiting, "the plan goes first, and then the subscription"


def test_the_cursors_of_a_deleted_subscription_go_from_segments_that_another_leader_made() -> None:
    state, _ = step(ControlledTopic(TOPIC, 0), e.SubscriptionDeletionRequested(1, "billing"))
    state, _ = step(state, e.SubscriptionsRead((replace(BILLING, is_deleting=True),)))
    state, effects = step(state, e.Done())
    assert effects == [e.ReadTopic()]
    there = split(TOPIC, 0).published()
    state, effects = step(state, e.TopicRead(there, 2))
    assert effects == [
        e.TellConsumers(there.layout),
        e.DeleteCursors("billing", tuple(there.layout.segments.values())),
    ]


def test_an_owner_that_refuses_a_cursor_makes_the_subscription_be_read_again() -> None:
    state, _ = step(ControlledTopic(TOPIC, 0), e.SubscriptionFound("billing"))
    state, _ = step(state, e.SubscriptionsRead((BILLING,)))
    state, effects = step(state, e.TopicRead(TOPIC, 0))
    state, _ = step(state, e.EffectFailed(effects[0], SegmentRefused("there is no such subscription")))
    state, effects = step(state, e.TopicRead(TOPIC, 0))
    assert effects == [e.ReadSubscriptions()]
    state, effects = step(state, e.SubscriptionsRead(()))
    assert (state.doing, effects) == (None, [])


def test_a_subscription_that_is_deleted_while_it_is_made_is_not_said_to_be_there() -> None:
    request = e.SubscriptionRequested(1, "billing", SubscriptionKind.STREAM, InitialPosition.EARLIEST)
    state, _ = step(ControlledTopic(TOPIC, 0), request)
    state, _ = step(state, e.SubscriptionsRead(()))
    state, _ = step(state, e.Done())
    _, effects = step(state, e.SubscriptionsRead(()))
    assert isinstance(effects[0], e.Refuse)
    assert isinstance(effects[0].error, TooBusy)


def test_a_reminder_of_a_deletion_does_not_delete_what_was_made_since() -> None:
    state, _ = step(ControlledTopic(TOPIC, 0), e.SubscriptionDeletionRequested(0, "billing"))
    state, effects = step(state, e.SubscriptionsRead((BILLING,)))
    assert (state.doing, effects) == (None, [])


@pytest.mark.parametrize("request_", [e.RepairRequested(), e.SubscriptionFound("billing")])
def test_what_nobody_would_ask_for_again_is_tried_until_it_is_done(request_: e.Request) -> None:
    state, effects = step(ControlledTopic(TOPIC, 0), request_)
    for _ in range(3):
        state, effects = step(state, e.EffectFailed(effects[0], SegmentUnavailable("not now")))
        assert effects[-1] == e.ReadTopic()
        state, effects = step(state, e.TopicRead(TOPIC, 0))
        assert state.doing is not None


def test_a_repair_gives_way_to_a_plan_of_another_leader() -> None:
    state, effects = step(ControlledTopic(TOPIC, 0), e.RepairRequested())
    state, _ = step(state, e.EffectFailed(effects[0], SegmentRefused("segment 0 is not to be made")))
    state, effects = step(state, e.TopicRead(split(TOPIC, 0), 1))
    assert effects == [e.ReadSubscriptions()]


def test_segments_are_not_collected_while_a_plan_of_another_leader_is_pending() -> None:
    """Its layout, worked out before, would bring back a segment whose storage is gone."""
    sealed = split(TOPIC, 0).published()
    state, effects = step(ControlledTopic(sealed, 2), e.SegmentsExpired((SegmentId(0),)))
    state, effects = step(state, e.Unneeded((SegmentId(0),)))
    assert isinstance(effects[0], e.StoreTopic)
    state, effects = step(state, e.TopicRead(split(sealed, 1), 3))
    assert effects == [e.ReadSubscriptions()]
    assert state.waiting == (e.SegmentsExpired((SegmentId(0),)),)
