"""A record that outgrows the store must not hold up what would make it smaller."""

from __future__ import annotations

from dataclasses import replace

from anabranch.controller.core import events as e
from anabranch.controller.core.operations import ControlledTopic
from anabranch.controller.core.step import step
from anabranch.metadata.errors import ValueTooLarge
from anabranch.metadata.port import VALUE_BYTES_MAX
from anabranch.model.layout import SegmentLayout
from anabranch.model.scalable import PlanKind, ReshapePlan, ScalableTopic


def test_a_plan_that_does_not_fit_is_refused_and_the_next_request_begins() -> None:
    state = ControlledTopic(ScalableTopic(SegmentLayout.initial(1, 0), generation=1), version=1)
    state, effects = step(state, e.SplitRequested(e.Ticket(1), 0, 5))
    state, _ = step(state, e.SubscriptionDeletionRequested(e.Ticket(2), "s"))
    (store,) = effects
    assert isinstance(store, e.StoreTopic)
    error = ValueTooLarge("too large")
    state, effects = step(state, e.EffectFailed(store, error))
    assert effects[0] == e.Refuse(e.Ticket(1), error)
    assert state.topic.plan is None
    assert effects[1:] == [e.ReadSubscriptions()]


def test_a_thousand_segments_with_a_long_past_fit_into_one_record() -> None:
    layout = SegmentLayout.initial(2, 0)
    while len(layout.segments) < 1000:
        left, right = layout.active
        merged = layout.merge(left.id, right.id, 1_700_000_000_000 + layout.epoch)
        layout = merged.split(merged.active[0].id, 1_700_000_000_000 + layout.epoch)
    assert len(layout.active[0].merged_ms) == 64
    plan = ReshapePlan(
        PlanKind.SPLIT, (layout.active[0].id,), layout.split(layout.active[0].id, 1_700_000_000_000)
    )
    record = replace(ScalableTopic(layout, generation=1), plan=plan)
    assert len(record.encode()) < VALUE_BYTES_MAX
