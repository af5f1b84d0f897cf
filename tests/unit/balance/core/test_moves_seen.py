"""What the changes of bundles amount to, in one line for each move."""

from __future__ import annotations

from anabranch.balance.core.moves_seen import OVERTAKEN, MoveKind, moves_seen
from anabranch.balance.core.states import BrokerRun, BundleAction, BundleChange, BundleFlow, BundleState
from anabranch.model.bundles import BundleName

A, B, C = (BrokerRun(f"{name}:6650", f"run-{name}") for name in "abc")
WHOLE = BundleName.parse("public/default/0x00000000_0x80000000")
LEFT = BundleName.parse("public/default/0x00000000_0x40000000")
RIGHT = BundleName.parse("public/default/0x40000000_0x80000000")


def change(
    action: BundleAction,
    state: BundleState | None,
    version: int,
    at_ms: int,
    *,
    source: BrokerRun | None = None,
    to: BrokerRun | None = None,
    reason: str = "",
    bundle: BundleName = WHOLE,
    is_override: bool = False,
    parent: BundleName | None = None,
    children: tuple[BundleName, ...] = (),
) -> BundleChange:
    return BundleChange(
        bundle,
        BundleFlow.TRANSFER,
        action,
        state,
        version,
        A,
        source,
        to,
        1,
        is_override,
        at_ms,
        reason,
        parent,
        children,
    )


ASSIGNED = [
    change(BundleAction.OWN, BundleState.ASSIGNING, 1, 100, to=A, reason="a client asks for it"),
    change(BundleAction.RETURN, BundleState.ASSIGNED, 2, 110, to=A, reason="there"),
]
TRANSFERRED = [
    change(BundleAction.TRANSFER, BundleState.ASSIGNING, 3, 200, source=A, to=B, reason="A is overloaded"),
    change(BundleAction.RETURN, BundleState.ASSIGNED, 4, 207, to=B),
]


def test_a_transfer_is_one_move_from_its_first_step_to_its_last_with_its_first_reason() -> None:
    assigned, moved = moves_seen([*TRANSFERRED, *ASSIGNED])
    assert (assigned.kind, assigned.source, assigned.to) == (MoveKind.ASSIGNMENT, None, A.broker)
    assert (moved.kind, moved.source, moved.to) == (MoveKind.TRANSFER, A.broker, B.broker)
    assert (moved.began_ms, moved.ended_ms, moved.state) == (200, 207, "assigned")
    assert moved.reason == "A is overloaded"
    assert moved.to_json() == {
        "bundle": str(WHOLE),
        "kind": "transfer",
        "version": 3,
        "beganMs": 200,
        "endedMs": 207,
        "from": A.broker,
        "to": B.broker,
        "state": "assigned",
        "reason": "A is overloaded",
    }


def test_a_move_that_is_under_way_has_no_end_yet() -> None:
    (*_, moving) = moves_seen([*ASSIGNED, TRANSFERRED[0]])
    assert (moving.ended_ms, moving.state) == (None, "assigning")


def test_an_unload_ends_with_the_bundle_freed() -> None:
    unload = [
        change(BundleAction.UNLOAD, BundleState.ASSIGNING, 3, 200, source=A, reason="an operator unloads it"),
        change(BundleAction.DISCARD, BundleState.FREED, 4, 230),
    ]
    (*_, moved) = moves_seen([*ASSIGNED, *unload])
    assert (moved.kind, moved.source, moved.to) == (MoveKind.UNLOAD, A.broker, None)
    assert (moved.state, moved.ended_ms) == ("freed", 230)


def test_a_split_has_its_parts_and_each_part_its_parent() -> None:
    split = [
        change(BundleAction.SPLIT, BundleState.SPLITTING, 3, 200, to=A, reason="hot", children=(LEFT, RIGHT)),
        change(BundleAction.CREATE, BundleState.ASSIGNED, 1, 201, to=A, bundle=LEFT, parent=WHOLE),
        change(BundleAction.CREATE, BundleState.ASSIGNED, 1, 202, to=A, bundle=RIGHT, parent=WHOLE),
        change(BundleAction.DISCARD, BundleState.DELETED, 4, 203),
    ]
    _, parent, left, right = moves_seen([*ASSIGNED, *split])
    assert (parent.kind, parent.source, parent.state) == (MoveKind.SPLIT, A.broker, "deleted")
    assert parent.to_json()["children"] == [str(LEFT), str(RIGHT)]
    for part, bundle in ((left, LEFT), (right, RIGHT)):
        assert (part.bundle, part.kind, part.to, part.source) == (bundle, MoveKind.PART, A.broker, None)
        assert part.to_json()["parent"] == str(WHOLE)


def test_a_repair_tells_whose_bundle_it_was_and_ends_what_was_under_way() -> None:
    repair = [
        change(BundleAction.OWN, BundleState.ASSIGNING, 4, 900, to=C, reason="B is gone", is_override=True),
        change(BundleAction.RETURN, BundleState.ASSIGNED, 5, 905, to=C),
    ]
    _, stuck, repaired = moves_seen([*ASSIGNED, TRANSFERRED[0], *repair])
    assert (stuck.state, stuck.ended_ms) == (OVERTAKEN, 900)
    assert (repaired.kind, repaired.source, repaired.to) == (MoveKind.REPAIR, A.broker, C.broker)
    later = [
        change(BundleAction.OWN, BundleState.ASSIGNING, 5, 900, to=C, reason="gone", is_override=True),
    ]
    (*_, repaired) = moves_seen([*ASSIGNED, *TRANSFERRED, *later])
    assert repaired.source == B.broker


def test_a_removal_is_done_at_once_and_forgetting_a_bundle_is_no_move() -> None:
    gone = [
        change(BundleAction.DISCARD, BundleState.DELETED, 3, 300, reason="no such bundle", is_override=True),
        change(BundleAction.TOMBSTONE, None, 4, 400),
    ]
    (*_, removed) = moves_seen([*ASSIGNED, *gone])
    assert (removed.kind, removed.ended_ms, removed.state) == (MoveKind.REMOVAL, 300, "deleted")


def test_steps_whose_beginning_was_not_read_are_left_out() -> None:
    assert moves_seen([TRANSFERRED[1]]) == []
