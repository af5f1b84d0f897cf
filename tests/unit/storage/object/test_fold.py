"""What the objects of a log say about a ledger."""

from __future__ import annotations

from anabranch.storage.core import format as fmt
from anabranch.storage.object.core.fold import FirstFences, LedgerFold
from anabranch.storage.object.core.numbers import FencedLedgers
from anabranch.storage.port import LedgerState


def test_runs_follow_each_other() -> None:
    fold = LedgerFold()
    assert fold.add_run(0, 2, 20, [(0, fmt.DELTA, b"a")])
    assert fold.add_run(2, 0, 0, [(1, fmt.SNAPSHOT, b"S"), (2, fmt.DELTA, b"b")])
    assert fold.add_run(2, 1, 5, ())
    assert fold.state() == LedgerState(3, b"S", (b"b",), 25)


def test_a_ledger_ends_where_a_run_is_missing() -> None:
    fold = LedgerFold()
    fold.add_run(0, 2, 20, ())
    assert not fold.add_run(3, 1, 5, ())
    assert not fold.add_run(2, 1, 5, ()), "nothing counts after a gap"
    assert fold.state() == LedgerState(2, None, (), 20)


def test_a_run_of_states_that_is_missing_ends_the_ledger_too() -> None:
    fold = LedgerFold()
    fold.add_run(0, 1, 5, [(0, fmt.DELTA, b"a")])
    assert not fold.add_run(1, 1, 5, [(2, fmt.DELTA, b"c")])
    assert fold.state() == LedgerState(1, None, (b"a",), 5)


def test_a_state_in_full_counts_if_no_run_before_it_is_missing() -> None:
    fold = LedgerFold()
    fold.add_run(0, 1, 5, [(0, fmt.DELTA, b"a")])
    fold.set_part(fmt.CheckpointPart(1, 1, 5, "ns", b"all", ()))
    assert fold.state() == LedgerState(1, b"all", (), 5)
    fold.set_part(fmt.CheckpointPart(3, 2, 9, "ns", b"more than is there", ()))
    assert fold.state() == LedgerState(1, b"all", (), 5)


def test_after_damage_deltas_wait_for_a_state_in_full() -> None:
    fold = LedgerFold()
    fold.add_run(0, 2, 10, (), is_good=False)
    fold.add_run(2, 1, 5, [(1, fmt.DELTA, b"b")])
    assert fold.state() == LedgerState(3, None, (), 15)
    fold.add_run(3, 0, 0, [(2, fmt.SNAPSHOT, b"S"), (3, fmt.DELTA, b"d")])
    assert fold.state() == LedgerState(3, b"S", (b"d",), 15)


def test_what_lies_above_the_first_fence_is_void() -> None:
    fences = FirstFences.among([(9, FencedLedgers(frozenset({1}))), (5, FencedLedgers(frozenset({1, 2})))])
    assert not fences.is_void(1, 4)
    assert fences.is_void(1, 6)
    assert fences.is_void(2, 10)
    assert not fences.is_void(3, 10)
    fences.add(12, None)
    assert not fences.is_void(3, 11)
    assert fences.is_void(3, 13)
