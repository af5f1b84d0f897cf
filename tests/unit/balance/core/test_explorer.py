"""Whichever broker dies between any two steps of any flow, each bundle ends with one living owner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.balance.core.states import BrokerRun, BundleState
from anabranch.balance.core.transfer import LeaderHand, owned, split
from anabranch.model.bundles import BundleName
from unit.balance.core.changes import WHOLE, A, B, C, X, Y, state
from unit.balance.core.explorer import Explorer, World

HALVES = (X, Y)
AT_A = state(WHOLE, BundleState.ASSIGNED, to=A)
HAND = LeaderHand(C, 1)
CALM = World((AT_A,), frozenset((WHOLE,)), frozenset((A, B, C)), C, 1)

FLOWS = {
    "assign": replace(CALM, states=()).with_pending(
        owned(WHOLE, 1, B, A, 0, ""), owned(WHOLE, 1, A, B, 0, "")
    ),
    "transfer": CALM.with_pending(HAND.transfer(AT_A, B, 0, "")),
    "unload": CALM.with_pending(HAND.unload(AT_A, 0, "")),
    "split": CALM.with_pending(split(AT_A, HALVES, A, 0, "")),
    "split of a bundle that is moved": CALM.with_pending(
        split(AT_A, HALVES, A, 0, ""), HAND.transfer(AT_A, B, 0, "")
    ),
    "split after one that was given up": replace(
        CALM, states=(state(X, BundleState.DELETED), AT_A)
    ).with_pending(split(AT_A, HALVES, A, 0, "")),
}


TROUBLES = [{"kills": 2}, {"kills": 1, "restarts": 1}, {"kills": 1, "delays": 1}]


@pytest.mark.parametrize(
    ("flow", "trouble"),
    [
        *((flow, trouble) for flow in ("assign", "transfer", "unload", "split") for trouble in TROUBLES),
        # These differ from a split in their first step alone.
        ("split of a bundle that is moved", TROUBLES[1]),
        ("split after one that was given up", TROUBLES[1]),
    ],
    ids=str,
)
def test_every_bundle_ends_with_one_living_owner(flow: str, trouble: dict[str, int]) -> None:
    explorer = Explorer(is_prompt="delays" not in trouble)
    explorer.explore(FLOWS[flow].with_troubles(**trouble))
    assert len(explorer.seen) > 100


@pytest.mark.parametrize(
    ("flow", "owners"),
    [
        ("assign", {WHOLE: B}),
        ("transfer", {WHOLE: B}),
        ("unload", {WHOLE: A}),
        ("split", {X: A, Y: A}),
        ("split after one that was given up", {X: A, Y: A}),
    ],
)
def test_every_flow_comes_to_its_end_where_nothing_goes_wrong(
    flow: str, owners: dict[BundleName, BrokerRun]
) -> None:
    world = Explorer(is_prompt=True).settle(FLOWS[flow])
    assert {now.bundle: now.owner for now in world.states if now.owner is not None} == owners
    assert world.term == 1
