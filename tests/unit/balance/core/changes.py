"""Bundles, brokers and changes for tests of the bundle state channel's core."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from anabranch.balance.core.fold import Fold
from anabranch.balance.core.states import (
    NEXT,
    OF_THE_LEADER,
    OVERRIDES,
    BrokerRun,
    BundleAction,
    BundleChange,
    BundleFlow,
    BundleState,
)
from anabranch.model.bundles import BundleName

A, B, C = (BrokerRun(f"{name}:6650", f"{name}-1") for name in "abc")
FORMER_A = BrokerRun("a:6650", "a-0")
X = BundleName.parse("acme/sales/0x00000000_0x80000000")
Y = BundleName.parse("acme/sales/0x80000000_0xffffffff")
CHILDREN = (
    BundleName.parse("acme/sales/0x00000000_0x40000000"),
    BundleName.parse("acme/sales/0x40000000_0x80000000"),
)
TERM = 7


def state(
    bundle: BundleName,
    found: BundleState,
    *,
    source: BrokerRun | None = None,
    to: BrokerRun | None = None,
    version: int = 4,
    children: tuple[BundleName, ...] = (),
    at_ms: int = 0,
    parent: BundleName | None = None,
) -> BundleChange:
    """A bundle that is in that state, for tests that do not ask how it got there."""
    return BundleChange(
        bundle,
        BundleFlow.ASSIGNMENT,
        BundleAction.OWN,
        found,
        version,
        A,
        source,
        to,
        at_ms=at_ms,
        children=children,
        parent=parent,
    )


def folded(*states: BundleChange, term: int = TERM) -> Fold:
    return Fold.restored(term, states)


def before(found: BundleState | None) -> BundleChange | None:
    """The bundle X in that state, at A if it has an owner."""
    match found:
        case None:
            return None
        case BundleState.ASSIGNING:
            return state(X, found, to=A)
        case BundleState.SPLITTING:
            return state(X, found, to=A, children=CHILDREN)
        case BundleState.ASSIGNED:
            return state(X, found, to=A)
        case _:
            return state(X, found)


def change(now: BundleChange | None, action: BundleAction, *, is_override: bool = False) -> BundleChange:
    """A change of X with all that the action needs, after that state, whether the state allows it or not."""
    expected = OVERRIDES.get(action) if is_override else None
    if expected is None:
        expected = NEXT.get((None if now is None else now.state, action), BundleState.ASSIGNED)
    found = BundleChange(
        X,
        BundleFlow.ASSIGNMENT,
        action,
        expected,
        1 if now is None else now.version + 1,
        A,
        term=TERM if is_override or action in OF_THE_LEADER else 0,
        is_override=is_override,
    )
    match action:
        case BundleAction.OWN | BundleAction.RETURN:
            return replace(found, to=A)
        case BundleAction.TRANSFER:
            return replace(found, source=A, to=B)
        case BundleAction.UNLOAD:
            return replace(found, source=A)
        case BundleAction.SPLIT:
            return replace(found, to=A, children=CHILDREN)
        case BundleAction.CREATE:
            return replace(found, to=A, parent=WHOLE)
        case _:
            return found


# What X is a child of, where a child is created.
WHOLE = BundleName.parse("acme/sales/0x00000000_0xffffffff")
SPLIT_OF_WHOLE = state(WHOLE, BundleState.SPLITTING, to=A, children=(X, Y))

# -- any values at all

runs = st.builds(BrokerRun, st.sampled_from(["a:6650", "b:6650", "c:6650"]), st.sampled_from(["1", "2"]))
bundles = st.sampled_from([X, Y, *CHILDREN, WHOLE])
any_changes = st.builds(
    BundleChange,
    bundle=bundles,
    flow=st.sampled_from(BundleFlow),
    action=st.sampled_from(BundleAction),
    state=st.none() | st.sampled_from(BundleState),
    version=st.integers(1, 6),
    author=runs,
    source=st.none() | runs,
    to=st.none() | runs,
    term=st.integers(0, 4),
    is_override=st.booleans(),
    at_ms=st.integers(0, 2**53),
    reason=st.text(max_size=20),
    parent=st.none() | bundles,
    children=st.sampled_from([(), CHILDREN, (X, Y)]),
)
