"""The first valid change wins, for every reader alike, from whichever snapshot it starts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.balance.core.codec import decode_change, encode_change
from anabranch.balance.core.fold import Fold
from anabranch.balance.core.states import NEXT, BrokerRun, BundleAction, BundleChange, BundleFlow, BundleState
from anabranch.balance.core.transfer import DutyKind, LeaderHand, child_of, duty_of, ended, owned, split
from anabranch.model.bundles import BundleName
from unit.balance.core.changes import (
    CHILDREN,
    FORMER_A,
    SPLIT_OF_WHOLE,
    TERM,
    A,
    B,
    C,
    X,
    Y,
    before,
    change,
    folded,
    runs,
    state,
)


def returned(now: BundleChange, me: BrokerRun) -> BundleChange:
    duty = duty_of(me, now)
    assert duty is not None
    return ended(duty, now, me, 0)


def own(to: BrokerRun, version: int = 1, author: BrokerRun | None = None) -> BundleChange:
    return owned(X, version, to, author or to, 0, "a lookup")


# -- the specification's examples of conflicts


def test_of_two_assignments_the_first_one_counts() -> None:
    """(own, to:B), (own, to:A), (return, to:B)"""
    fold = Fold()
    assert fold.apply(own(B)) is None
    assert fold.apply(own(A)) is not None
    assert fold.apply(returned(own(A), A)) is not None
    assert fold.apply(returned(own(B), B)) is None
    assert fold.bundles[X].owner == B
    assert (fold.accepted, fold.rejected) == (2, 2)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_an_assignment_of_an_assigned_bundle_is_ignored(version: int) -> None:
    """(own, to:B), (return, to:B), (own, to:A)"""
    fold = Fold()
    for one in (own(B), returned(own(B), B)):
        assert fold.apply(one) is None
    assert fold.apply(own(A, version)) is not None
    assert fold.bundles[X].owner == B


def test_a_change_that_does_not_follow_from_the_state_is_rejected_and_the_next_one_is_not() -> None:
    """For each A[i] and S: reject A[i] if no arrow leads from S, else accept it."""
    hand = LeaderHand(C, 1)
    fold = Fold()
    fold.lead(1)
    assigned = returned(own(B), B)
    moving = hand.transfer(assigned, A, 0, "")
    for one, is_valid in [
        (returned(own(B), B), False),
        (own(B), True),
        (hand.transfer(own(B), A, 0, ""), False),
        (assigned, True),
        (moving, True),
        (hand.unload(assigned, 0, ""), False),
        (returned(moving, A), True),
    ]:
        assert (fold.apply(one) is None) is is_valid, one
    assert fold.bundles[X].owner == A


# -- versions, runs, terms


@pytest.mark.parametrize("version", [1, 3, 4, 6, 7])
def test_only_the_next_version_counts(version: int) -> None:
    fold = folded(state(X, BundleState.FREED, version=4))
    assert (fold.apply(own(A, version)) is None) is (version == 5)


def test_an_unassigned_bundle_takes_any_version_from_one_on() -> None:
    assert folded().why_not(own(A, 9)) is None
    assert folded().why_not(own(A, 0)) == "version 0 is less than 1"
    assert folded().next_version(X) == 1
    assert folded(state(X, BundleState.FREED, version=4)).next_version(X) == 5


def test_a_broker_that_was_started_again_may_not_end_what_its_former_run_was_to_do() -> None:
    for now, action in [
        (state(X, BundleState.ASSIGNING, to=FORMER_A), BundleAction.RETURN),
        (state(X, BundleState.ASSIGNING, source=FORMER_A), BundleAction.DISCARD),
        (state(X, BundleState.ASSIGNED, to=FORMER_A), BundleAction.SPLIT),
        (state(X, BundleState.SPLITTING, to=FORMER_A, children=CHILDREN), BundleAction.DISCARD),
    ]:
        made = change(now, action)
        assert made.author == A
        refused = folded(now).why_not(made)
        assert refused is not None
        assert "a-0" in refused
        its = None if made.to is None else FORMER_A
        assert folded(now).why_not(replace(made, author=FORMER_A, to=its)) is None


@pytest.mark.parametrize("action", [BundleAction.TRANSFER, BundleAction.UNLOAD])
@pytest.mark.parametrize("term", [0, TERM - 1, TERM, TERM + 1])
def test_a_leader_of_an_earlier_term_moves_nothing(action: BundleAction, term: int) -> None:
    now = before(BundleState.ASSIGNED)
    assert now is not None
    fold = folded(now)
    made = replace(change(now, action), term=term)
    assert (fold.apply(made) is None) is (term >= TERM)
    assert fold.term == max(TERM, term)


def test_a_new_leader_ends_the_terms_before_it() -> None:
    fold = folded(state(X, BundleState.FREED))
    fold.lead(TERM + 1)
    fold.lead(TERM)
    assert fold.term == TERM + 1
    late = change(state(X, BundleState.FREED), BundleAction.TOMBSTONE)
    assert fold.apply(late) == "the leader of term 7 leads no more, the newest term is 8"


def test_only_a_leader_says_that_it_leads() -> None:
    made = replace(own(A), term=TERM)
    assert folded().apply(made) == "own is no action of a leader"


# -- what changes say


@pytest.mark.parametrize(
    ("found", "action", "is_override", "wrong"),
    [
        (None, BundleAction.OWN, False, {"to": None}),
        (None, BundleAction.OWN, False, {"source": B}),
        (BundleState.ASSIGNED, BundleAction.TRANSFER, False, {"to": A}),
        (BundleState.ASSIGNED, BundleAction.TRANSFER, False, {"to": None}),
        (BundleState.ASSIGNED, BundleAction.TRANSFER, False, {"to": FORMER_A}),
        (BundleState.ASSIGNED, BundleAction.TRANSFER, False, {"source": C}),
        (BundleState.ASSIGNED, BundleAction.UNLOAD, False, {"source": C}),
        (BundleState.ASSIGNED, BundleAction.UNLOAD, False, {"to": B}),
        (BundleState.ASSIGNED, BundleAction.SPLIT, False, {"to": B}),
        (BundleState.ASSIGNED, BundleAction.OWN, True, {"source": C}),
        (BundleState.ASSIGNED, BundleAction.DISCARD, True, {"to": C}),
        (BundleState.ASSIGNING, BundleAction.RETURN, False, {"to": B}),
        (BundleState.ASSIGNING, BundleAction.RETURN, False, {"source": B}),
        (BundleState.ASSIGNING, BundleAction.DISCARD, False, {}),
        (BundleState.SPLITTING, BundleAction.DISCARD, False, {"to": A}),
        (BundleState.FREED, BundleAction.TOMBSTONE, False, {"to": A}),
    ],
)
def test_a_change_that_names_other_brokers_than_the_state_is_rejected(
    found: BundleState | None, action: BundleAction, is_override: bool, wrong: dict[str, Any]
) -> None:
    now = before(found)
    fold = folded(*([] if now is None else [now]))
    assert fold.why_not(replace(change(now, action, is_override=is_override), **wrong)) is not None


def test_a_bundle_that_is_unloaded_is_given_to_no_broker() -> None:
    now = state(X, BundleState.ASSIGNING, source=A)
    assert folded(now).why_not(change(now, BundleAction.RETURN)) is not None
    assert folded(now).why_not(replace(change(now, BundleAction.DISCARD), author=B)) is not None
    assert folded(now).why_not(change(now, BundleAction.DISCARD)) is None


@pytest.mark.parametrize(
    "spans",
    [
        ["0x00000000_0x80000000"],
        ["0x00000000_0x40000000", "0x40000000_0x70000000"],
        ["0x00000000_0x40000000", "0x50000000_0x80000000"],
        ["0x40000000_0x80000000", "0x00000000_0x40000000"],
        ["0x00000000_0x50000000", "0x40000000_0x80000000"],
        ["0x00000000_0x40000000", "0x40000000_0x40000000", "0x40000000_0x80000000"],
        [],
    ],
)
def test_children_that_do_not_cover_the_bundle_are_rejected(spans: list[str]) -> None:
    now = before(BundleState.ASSIGNED)
    assert now is not None
    children = tuple(BundleName.parse(f"acme/sales/{span}") for span in spans)
    assert folded(now).apply(split(now, children, A, 0, "")) is not None
    elsewhere = tuple(BundleName.parse(f"acme/tools/{child.range}") for child in CHILDREN)
    assert folded(now).apply(split(now, elsewhere, A, 0, "")) is not None
    assert folded(now).apply(split(now, CHILDREN, A, 0, "")) is None


def test_children_are_created_by_the_owner_of_a_split_that_is_under_way_and_names_them() -> None:
    made = child_of(SPLIT_OF_WHOLE, X, 1, A, 0)
    assert folded(SPLIT_OF_WHOLE).why_not(made) is None
    assert folded().why_not(made) is not None
    assert folded(replace(SPLIT_OF_WHOLE, state=BundleState.ASSIGNED)).why_not(made) is not None
    assert folded(SPLIT_OF_WHOLE).why_not(child_of(SPLIT_OF_WHOLE, CHILDREN[0], 1, A, 0)) is not None
    assert folded(SPLIT_OF_WHOLE).why_not(child_of(SPLIT_OF_WHOLE, X, 1, B, 0)) is not None
    assert folded(SPLIT_OF_WHOLE).why_not(replace(made, to=B)) is not None
    assert folded(SPLIT_OF_WHOLE).why_not(replace(made, parent=None)) is not None


def test_a_transfer_moves_the_bundle_when_its_destination_says_so() -> None:
    fold, hand = (
        folded(state(X, BundleState.ASSIGNED, to=A), state(Y, BundleState.ASSIGNED, to=A)),
        LeaderHand(C, TERM),
    )
    moving = hand.transfer(fold.bundles[X], B, 0, "")
    assert fold.apply(moving) is None
    assert [one.bundle for one in fold.owned_by(A)] == [X, Y]
    assert fold.apply(replace(returned(moving, B), author=A)) is not None
    assert fold.apply(returned(moving, B)) is None
    assert [one.bundle for one in fold.owned_by(A)] == [Y]
    assert [one.bundle for one in fold.owned_by(B)] == [X]


# -- any changes in any order


def senseless(chance: random.Random) -> BundleChange:
    some: list[BrokerRun | None] = [None, A, B, C, FORMER_A]
    return BundleChange(
        chance.choice([X, Y, *CHILDREN]),
        chance.choice(list(BundleFlow)),
        chance.choice(list(BundleAction)),
        chance.choice([None, *BundleState]),
        chance.randint(1, 5),
        chance.choice([A, B, C, FORMER_A]),
        chance.choice(some),
        chance.choice(some),
        chance.randint(0, 4),
        chance.random() < 0.3,
        parent=chance.choice([None, X]),
        children=chance.choice([(), CHILDREN]),
    )


# Drawn beforehand: Hypothesis takes ten times as long to draw them.
SENSELESS = [senseless(random.Random(seed)) for seed in range(1000)]

# A move: which of the changes that make sense, to which broker, of which term, and what is wrong with it.
moves = st.lists(
    st.tuples(
        st.integers(0, 19),
        st.integers(0, 1000),
        runs,
        st.integers(1, 4),
        st.integers(0, 999).map(SENSELESS.__getitem__),
    ),
    min_size=10,
    max_size=30,
)
Move = tuple[int, int, BrokerRun, int, BundleChange]


def made_by(fold: Fold, move: Move) -> BundleChange:
    """A change as a broker would make it from what it has read; or that, with one thing wrong; or any change."""
    kind, which, other, term, nonsense = move
    found = steps(fold, other, term)
    if kind == 6:
        return nonsense
    made = found[which % len(found)]
    match kind:
        case 0:
            return replace(made, version=made.version - 1)
        case 1:
            return replace(made, version=made.version + 1)
        case 2:
            return replace(made, author=BrokerRun(made.author.broker, "0"))
        case 3:
            return replace(made, term=max(0, made.term - 1))
        case 4:
            return replace(made, to=nonsense.to)
        case 5:
            return replace(made, bundle=nonsense.bundle)
        case _:
            return made


def steps(fold: Fold, other: BrokerRun, term: int) -> Sequence[BundleChange]:
    """What brokers may want to write: the ends of their duties, assignments, and what a leader does."""
    hand = LeaderHand(other, term)
    found = []
    for bundle in (X, Y):
        now = fold.get(bundle)
        if now is None or now.state is BundleState.FREED:
            found.append(owned(bundle, fold.next_version(bundle), other, other, 0, ""))
    for now in fold.snapshot():
        duties = [(me, duty_of(me, now)) for me in sorted(now.named)]
        found += [
            ended(duty, now, me, 0)
            for me, duty in duties
            if duty is not None and duty.kind is not DutyKind.HAND_OVER
        ] * 3
        if now.to is not None:
            found += [child_of(now, child, fold.next_version(child), now.to, 0) for child in now.children] * 2
        if now.state is BundleState.ASSIGNED and now.to is not None:
            found += [hand.transfer(now, other, 0, ""), hand.unload(now, 0, "")]
            found += [split(now, CHILDREN, now.to, 0, "")] * (3 if now.bundle == X else 0)
        found.append(
            (hand.reassign(now, other, 0, ""), hand.remove(now, 0, ""), hand.forget(now, 0, ""))[term % 3]
        )
    return found


def check_step(now: BundleChange | None, made: BundleChange, term: int) -> None:
    """What an accepted change may be, said once more and in other words."""
    found = None if now is None else now.state
    assert now is None or made.version == now.version + 1
    if made.is_override or made.term:
        assert made.term >= term
    else:
        assert NEXT[found, made.action] is made.state
        if made.action is BundleAction.OWN:
            assert found in (None, BundleState.FREED)
        elif made.action is not BundleAction.CREATE:
            assert now is not None
            assert made.author in now.named
    owner = None if now is None else now.owner
    if owner is not None and made.owner not in (None, owner):
        # A broker loses a bundle to another one only if it was to hand it over, or the leader took it away.
        assert made.action is BundleAction.RETURN
        assert now is not None
        assert now.to == made.owner


@given(moves, st.sets(st.integers(0, 20)))
def test_all_readers_agree_from_whichever_snapshot_they_start(
    moves: list[Move], new_leaders: set[int]
) -> None:
    fold = Fold()
    log: list[BundleChange | int] = []
    snapshots: list[tuple[int, list[BundleChange]]] = []
    for at, move in enumerate(moves):
        snapshots.append((fold.term, fold.snapshot()))
        if at in new_leaders:
            log.append(move[3])
            fold.lead(move[3])
            continue
        made = made_by(fold, move)
        log.append(made)
        now, term = fold.get(made.bundle), fold.term
        if fold.apply(made) is None:
            check_step(now, made, term)
        else:
            assert fold.get(made.bundle) == now
    for at, (term, winners) in enumerate(snapshots):
        kept = [decode_change(str(one.bundle), encode_change(one)) for one in winners]
        reader = Fold.restored(term, kept)
        for one in log[at:]:
            if isinstance(one, int):
                reader.lead(one)
            else:
                reader.apply(one)
        assert reader.snapshot() == fold.snapshot()
        assert reader.term == fold.term


@given(moves)
def test_bundles_of_a_split_that_has_not_ended_have_one_owner(moves: list[Move]) -> None:
    """While no leader interferes and no broker assigns bundles that no namespace has, a bundle and its children are all
    of the same broker."""
    fold = Fold()
    for move in moves:
        made = made_by(fold, move)
        is_foreign = made.bundle in CHILDREN and made.action is BundleAction.OWN
        if not made.is_override and not made.term and not is_foreign:
            fold.apply(made)
        for now in fold.bundles.values():
            if now.state is BundleState.SPLITTING:
                owners = {found.owner for child in now.children if (found := fold.get(child)) is not None}
                assert owners <= {now.owner}


def test_restoring_takes_a_state_as_it_is_and_tells_whether_it_is_another_one() -> None:
    fold = Fold()
    now = state(X, BundleState.ASSIGNED, to=A)
    assert fold.restore(now)
    assert not fold.restore(now)
    assert fold.restore(replace(now, version=1, term=3))
    assert fold.term == 3
    gone = change(state(X, BundleState.FREED), BundleAction.TOMBSTONE)
    assert fold.restore(gone)
    assert not fold.restore(gone)
    assert fold.snapshot() == []
