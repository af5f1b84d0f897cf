"""The table of states: what it lists is accepted, and nothing else is."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from anabranch.balance.core.states import NEXT, OVERRIDES, BundleAction, BundleChange, BundleState
from unit.balance.core.changes import SPLIT_OF_WHOLE, A, B, X, before, change, folded, state

STATES: list[BundleState | None] = [None, *BundleState]


def prepared(found: BundleState | None, action: BundleAction) -> BundleChange | None:
    """X in that state, as the action needs it."""
    if (found, action) == (BundleState.ASSIGNING, BundleAction.DISCARD):
        return state(X, BundleState.ASSIGNING, source=A)
    return before(found)


@pytest.mark.parametrize(("found", "action"), sorted(NEXT, key=str))
def test_every_step_of_the_table_is_accepted(found: BundleState | None, action: BundleAction) -> None:
    now = prepared(found, action)
    fold = folded(SPLIT_OF_WHOLE, *([] if now is None else [now]))
    made = change(now, action)
    assert fold.apply(made) is None
    after = fold.get(X)
    assert (None if after is None else after.state) is NEXT[found, action]
    assert fold.accepted == 1


@pytest.mark.parametrize(
    ("found", "action"), [pair for pair in itertools.product(STATES, BundleAction) if pair not in NEXT]
)
def test_every_step_that_is_not_in_the_table_is_rejected(
    found: BundleState | None, action: BundleAction
) -> None:
    now = before(found)
    for after in STATES:
        fold = folded(SPLIT_OF_WHOLE, *([] if now is None else [now]))
        refused = fold.apply(replace(change(now, action), state=after))
        assert refused == f"no {action} of a bundle that is {found or 'unassigned'}"
        assert fold.get(X) == now
        assert fold.rejected == 1


@pytest.mark.parametrize(("found", "action"), sorted(NEXT, key=str))
def test_a_step_of_the_table_leads_nowhere_else(found: BundleState | None, action: BundleAction) -> None:
    now = prepared(found, action)
    for after in STATES:
        if after is not NEXT[found, action]:
            fold = folded(SPLIT_OF_WHOLE, *([] if now is None else [now]))
            assert fold.apply(replace(change(now, action), state=after)) is not None


@pytest.mark.parametrize(("found", "action"), list(itertools.product(STATES, BundleAction)))
def test_the_leader_overrides_any_state_with_two_actions_and_no_others(
    found: BundleState | None, action: BundleAction
) -> None:
    now = before(found)
    fold = folded(*([] if now is None else [now]))
    refused = fold.apply(change(now, action, is_override=True))
    if action in OVERRIDES:
        assert refused is None
        assert fold.bundles[X].state is OVERRIDES[action]
    else:
        assert refused == f"{action} is never an override"


def test_the_owner_is_the_source_until_a_transfer_is_over() -> None:
    moving = state(X, BundleState.ASSIGNING, source=A, to=B)
    assert moving.owner == A
    assert moving.named == {A, B}
    assert moving.is_in_flight
    assert state(X, BundleState.ASSIGNING, to=B).owner is None
    assert state(X, BundleState.ASSIGNED, to=B).owner == B
    for ended in (BundleState.FREED, BundleState.DELETED):
        assert state(X, ended).owner is None
        assert state(X, ended).named == frozenset()
        assert not state(X, ended).is_in_flight
