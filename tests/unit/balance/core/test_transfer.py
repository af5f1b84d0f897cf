"""What a broker has to do, and which change says that it is done."""

from __future__ import annotations

import pytest

from anabranch.balance.core.states import BrokerRun, BundleChange, BundleState
from anabranch.balance.core.transfer import Duty, DutyKind, LeaderHand, duty_of, ended, must_wait_for_source
from unit.balance.core.changes import CHILDREN, FORMER_A, TERM, A, B, C, X, folded, state

MOVING = state(X, BundleState.ASSIGNING, source=A, to=B)


@pytest.mark.parametrize(
    ("now", "me", "kind", "other"),
    [
        (state(X, BundleState.ASSIGNING, to=A), A, DutyKind.TAKE, None),
        (state(X, BundleState.ASSIGNING, source=A, to=A), A, DutyKind.TAKE, None),
        (MOVING, B, DutyKind.RECEIVE, A),
        (MOVING, A, DutyKind.HAND_OVER, B),
        (state(X, BundleState.ASSIGNING, source=A), A, DutyKind.UNLOAD, None),
        (state(X, BundleState.SPLITTING, to=A, children=CHILDREN), A, DutyKind.SPLIT, None),
    ],
)
def test_a_state_gives_each_broker_that_it_names_its_duty(
    now: BundleChange, me: BrokerRun, kind: DutyKind, other: BrokerRun | None
) -> None:
    assert duty_of(me, now) == Duty(kind, X, now.version, other, now.children)


@pytest.mark.parametrize("found", BundleState)
def test_a_broker_that_is_not_named_and_a_former_run_have_none(found: BundleState) -> None:
    now = state(X, found, source=A, to=B, children=CHILDREN)
    assert duty_of(C, now) is None
    assert duty_of(FORMER_A, now) is None
    if found in (BundleState.ASSIGNED, BundleState.FREED, BundleState.DELETED):
        assert duty_of(A, now) is duty_of(B, now) is None


@pytest.mark.parametrize(
    ("now", "me"),
    [
        (state(X, BundleState.ASSIGNING, to=A), A),
        (MOVING, B),
        (state(X, BundleState.ASSIGNING, source=A), A),
        (state(X, BundleState.SPLITTING, to=A, children=CHILDREN), A),
    ],
)
def test_the_end_of_a_duty_is_a_valid_change_once(now: BundleChange, me: BrokerRun) -> None:
    duty = duty_of(me, now)
    assert duty is not None
    fold = folded(now)
    made = ended(duty, now, me, 5)
    assert fold.apply(made) is None
    assert made.at_ms == 5
    assert duty_of(me, made) is None
    assert fold.apply(made) is not None


def test_a_source_does_not_end_a_transfer() -> None:
    duty = duty_of(A, MOVING)
    assert duty is not None
    with pytest.raises(AssertionError):
        ended(duty, MOVING, A, 0)


def test_a_destination_waits_for_a_source_that_lives_and_has_not_let_go() -> None:
    duty = duty_of(B, MOVING)
    assert duty is not None
    assert must_wait_for_source(duty, {A.broker: A.run}, False)
    assert not must_wait_for_source(duty, {A.broker: A.run}, True)
    assert not must_wait_for_source(duty, {A.broker: "another run"}, False)
    assert not must_wait_for_source(duty, {}, False)


@pytest.mark.parametrize("found", BundleState)
def test_what_a_leader_makes_is_valid_for_every_state_that_it_is_for(found: BundleState) -> None:
    now = state(X, found, to=A, children=CHILDREN)
    fold, hand = folded(now), LeaderHand(C, TERM)
    assert fold.why_not(hand.reassign(now, B, 0, "")) is None
    assert fold.why_not(hand.reassign(now, A, 0, "")) is None
    assert fold.why_not(hand.remove(now, 0, "")) is None
    is_assigned = found is BundleState.ASSIGNED
    assert (fold.why_not(hand.transfer(now, B, 0, "")) is None) is is_assigned
    assert (fold.why_not(hand.unload(now, 0, "")) is None) is is_assigned
    is_over = found in (BundleState.FREED, BundleState.DELETED)
    assert (fold.why_not(hand.forget(now, 0, "")) is None) is is_over


def test_an_owner_that_lives_hands_over_what_the_leader_takes_from_it() -> None:
    hand = LeaderHand(C, TERM)
    taken = hand.reassign(state(X, BundleState.ASSIGNED, to=A), B, 0, "")
    assert (taken.source, taken.to) == (A, B)
    kept = hand.reassign(MOVING, A, 0, "")
    assert (kept.source, kept.to) == (None, A)
