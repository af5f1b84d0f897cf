"""What the leader repairs, when, and how; and how little of it in safe mode."""

from __future__ import annotations

import pytest

from anabranch.balance.core.orphans import Repair, RepairKind, RepairScope, RepairTimes, repairs
from anabranch.balance.core.states import BrokerRun, BundleChange, BundleState
from unit.balance.core.changes import CHILDREN, FORMER_A, WHOLE, A, B, C, X, Y, folded, state

TIMES = RepairTimes(in_flight_max_ms=30_000, tombstone_ms=3_600_000)
LIVING = {one.broker: one.run for one in (A, B, C)}
GONE = BrokerRun("d:6650", "d-1")


def found(
    *states: BundleChange,
    living: dict[str, str] = LIVING,
    has: frozenset[object] = frozenset((X, Y)),
    now_ms: int = 0,
    scope: RepairScope = RepairScope.ALL,
) -> list[Repair]:
    return repairs(folded(*states), living, has.__contains__, now_ms, TIMES, scope)


def test_what_is_well_is_left_alone() -> None:
    well = [
        state(X, BundleState.ASSIGNED, to=A),
        state(Y, BundleState.ASSIGNING, source=A, to=B),
    ]
    assert found(*well) == []
    assert found(well[0], now_ms=10**9) == []


@pytest.mark.parametrize("gone", [GONE, FORMER_A], ids=["gone", "started again"])
@pytest.mark.parametrize(
    ("now", "to"),
    [
        ({"found": BundleState.ASSIGNED, "to": "gone"}, None),
        ({"found": BundleState.ASSIGNING, "to": "gone"}, None),
        ({"found": BundleState.ASSIGNING, "source": B, "to": "gone"}, B),
        ({"found": BundleState.ASSIGNING, "source": "gone"}, None),
        ({"found": BundleState.SPLITTING, "to": "gone", "children": CHILDREN}, None),
    ],
    ids=["owner", "assigned to it", "destination", "unloaded by it", "split by it"],
)
@pytest.mark.parametrize("scope", RepairScope)
def test_a_bundle_of_a_broker_that_is_gone_gets_another_one(
    gone: BrokerRun, now: dict[str, object], to: BrokerRun | None, scope: RepairScope
) -> None:
    brokers = {name: gone if value == "gone" else value for name, value in now.items()}
    repaired = found(state(X, **brokers), scope=scope)  # type: ignore[arg-type]
    is_certain = gone is FORMER_A
    expected = [Repair(X, RepairKind.REASSIGN, 4, f"{gone} is gone", to)]
    assert repaired == (expected if is_certain or scope is RepairScope.ALL else [])


def test_a_destination_takes_over_from_a_dead_source_by_itself() -> None:
    moving = state(X, BundleState.ASSIGNING, source=GONE, to=B)
    assert found(moving) == []
    (repair,) = found(moving, now_ms=30_000)
    assert (repair.kind, repair.to) == (RepairKind.REASSIGN, None)


@pytest.mark.parametrize(
    ("source", "to"),
    [(GONE, FORMER_A), (GONE, B)],
    ids=["destination started again", "source gone"],
)
def test_in_safe_mode_a_broker_that_is_not_registered_keeps_what_it_serves(
    source: BrokerRun, to: BrokerRun
) -> None:
    moving = state(X, BundleState.ASSIGNING, source=source, to=to)
    assert found(moving, scope=RepairScope.RESTARTED) == []
    assert found(state(X, BundleState.ASSIGNED, to=GONE), scope=RepairScope.RESTARTED) == []


def test_in_safe_mode_nothing_is_late_removed_or_forgotten() -> None:
    for now in (
        state(X, BundleState.ASSIGNING, to=A),
        state(WHOLE, BundleState.ASSIGNED, to=A),
        state(X, BundleState.FREED),
        state(X, BundleState.DELETED),
    ):
        assert found(now, now_ms=10**9) != []
        assert found(now, now_ms=10**9, scope=RepairScope.RESTARTED) == []


def test_two_of_three_brokers_that_were_killed_and_started_again_get_bundles_at_once() -> None:
    """The third one leads, and is in safe mode: most brokers vanished at once."""
    again = {"a:6650": "a-1", "b:6650": "b-2", "c:6650": "c-2"}
    states = [
        state(X, BundleState.ASSIGNED, to=B),
        state(Y, BundleState.ASSIGNING, source=C, to=B),
        state(WHOLE, BundleState.ASSIGNED, to=A),
    ]
    repaired = found(*states, living=again, scope=RepairScope.RESTARTED)
    assert [(one.bundle, one.kind, one.to) for one in repaired] == [
        (X, RepairKind.REASSIGN, None),
        (Y, RepairKind.REASSIGN, None),
    ]
    half = {"a:6650": "a-1", "b:6650": "b-2"}
    (repair,) = found(*states, living=half, scope=RepairScope.RESTARTED)
    assert repair.bundle == X


@pytest.mark.parametrize("age_ms", [0, 29_999, 30_000])
@pytest.mark.parametrize(
    ("now", "to"),
    [
        (state(X, BundleState.ASSIGNING, to=A), None),
        (state(X, BundleState.ASSIGNING, source=A, to=B), A),
        (state(X, BundleState.ASSIGNING, source=A), A),
        (state(X, BundleState.SPLITTING, to=A, children=CHILDREN), A),
    ],
)
def test_a_change_that_is_late_is_repaired_at_its_owner(
    now: BundleChange, to: BrokerRun | None, age_ms: int
) -> None:
    repaired = found(now, now_ms=age_ms)
    if age_ms < 30_000:
        assert repaired == []
    else:
        assert repaired == [Repair(X, RepairKind.REASSIGN, 4, f"it was {now.state} for 30 s", to)]


def test_a_bundle_that_no_namespace_has_is_removed_after_a_while() -> None:
    now = state(WHOLE, BundleState.ASSIGNED, to=A)
    assert found(now, now_ms=29_999) == []
    (repair,) = found(now, now_ms=30_000)
    assert (repair.kind, repair.reason) == (RepairKind.REMOVE, "its namespace has no such bundle")


def test_a_child_waits_for_the_boundaries_as_long_as_its_split_is_under_way() -> None:
    child = state(CHILDREN[0], BundleState.ASSIGNED, to=A, parent=X)
    parent = state(X, BundleState.SPLITTING, to=A, children=CHILDREN, at_ms=25_000)
    assert found(parent, child, now_ms=50_000) == []
    (repair,) = found(child, now_ms=50_000)
    assert (repair.bundle, repair.kind) == (CHILDREN[0], RepairKind.REMOVE)


def test_a_split_of_a_dead_broker_is_ended_if_the_boundaries_were_changed() -> None:
    now = state(WHOLE, BundleState.SPLITTING, to=GONE, children=(X, Y))
    assert found(now) == [Repair(WHOLE, RepairKind.REMOVE, 4, "its children have replaced it")]


def test_semi_terminal_states_are_kept_for_a_while_and_then_forgotten() -> None:
    for ended in (BundleState.FREED, BundleState.DELETED):
        now = state(WHOLE, ended)
        assert found(now, now_ms=3_599_999) == []
        (repair,) = found(now, now_ms=3_600_000)
        assert repair.kind is RepairKind.FORGET


def test_a_deleted_bundle_that_a_namespace_has_again_gets_an_owner() -> None:
    now = state(X, BundleState.DELETED)
    assert found(now, now_ms=29_999) == []
    (repair,) = found(now, now_ms=30_000)
    assert (repair.kind, repair.to) == (RepairKind.REASSIGN, None)
    assert found(state(X, BundleState.FREED), now_ms=30_000) == []
