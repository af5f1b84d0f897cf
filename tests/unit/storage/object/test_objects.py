"""The bytes of the objects of a log, and the two small decisions about requests."""

from __future__ import annotations

import pytest

from anabranch.model.position import Incarnation
from anabranch.storage.core import format as fmt
from anabranch.storage.object.core.budget import Hedging, PutBudget
from anabranch.storage.object.core.fold import LedgerFold
from anabranch.storage.object.core.numbers import FencedLedgers
from anabranch.storage.object.core.objects import (
    CommitObject,
    FenceObject,
    LedgerNote,
    LogKeys,
    PlacesNote,
    StateNote,
    decode_object,
    decode_state,
    decode_table,
    encode_commit,
    encode_fence,
    encode_state,
    joined_ledgers,
    number_of,
    table_bytes,
)
from anabranch.storage.port import LogError


def test_keys_sort_as_their_numbers() -> None:
    keys = LogKeys(Incarnation("0001-ab"))
    made = [keys.number(n) for n in (9, 10, 99_999, 1 << 36)]
    assert made == sorted(made)
    assert [number_of(one) for one in made] == [9, 10, 99_999, 1 << 36]
    assert number_of("wal/x/log/readme") == 0


@pytest.mark.parametrize("ledgers", [None, frozenset({7, 1 << 60}), frozenset(range(3000))])
def test_a_fence_comes_back(ledgers: frozenset[int] | None) -> None:
    data = encode_fence("fencer", ledgers)
    assert decode_object(data) == FenceObject("fencer", FencedLedgers(ledgers))
    assert decode_object(data[:-1] + bytes([data[-1] ^ 1])) is None


def test_a_commit_says_whose_it_is_and_where_its_runs_lie() -> None:
    runs = [fmt.encode_record(1, 0, 1, fmt.ENTRY, b"one"), fmt.encode_record(2, 5, 1, fmt.ENTRY, b"fives")]
    rows = [(1, 0, 1, len(runs[0])), (2, 5, 1, len(runs[1]))]
    data = encode_commit(99, 12, 11, 9, rows, runs)
    assert decode_object(data[:4096]) == CommitObject(99, 11)
    view = memoryview(data)
    table = decode_table(view[: table_bytes(view[:64])], 12)
    assert table is not None
    assert (table.nonce, table.header.number, table.header.confirmed_end) == (99, 11, 9)
    assert [bytes(view[at : at + length]) for _, _, _, at, length in table.runs] == runs
    assert decode_table(view, 13) is None, "an object that was copied to another number"


@pytest.mark.parametrize("data", [b"", b"x" * 10, b"x" * 5000, b"anbrfnc1", b"anbrfnc1{}abcd"])
def test_strangers_objects_are_neither(data: bytes) -> None:
    assert decode_object(data) is None


def test_checkpoints_come_back_and_damaged_ones_are_refused() -> None:
    fold = LedgerFold("ns", "/record", 5, 3, 50, b"S", [b"d"])
    note = StateNote(
        2, 1, 77, 40, 43, [LedgerNote.of(9, fold, 0)], [8], [PlacesNote(9, [0, 3], [1, 2])], {1: 500}
    )
    data = encode_state(note)
    assert decode_state(data, "key") == note
    assert decode_state(data, "key").ledgers[0].fold() == fold
    with pytest.raises(LogError, match="key is damaged"):
        decode_state(data[:-5] + b"x" + data[-4:], "key")


def test_later_checkpoints_change_earlier_ones() -> None:
    def note(number: int, ends: dict[int, int], gone: list[int]) -> StateNote:
        ledgers = [LedgerNote.of(one, LedgerFold(entries_end=end), 0) for one, end in ends.items()]
        return StateNote(number, 1, 0, 0, 0, ledgers, gone, [], {})

    joined = joined_ledgers([note(1, {1: 5, 2: 6, 3: 7}, []), note(2, {2: 9, 4: 1}, [1])])
    assert {ledger: one.entries_end for ledger, one in joined.items()} == {2: 9, 3: 7, 4: 1}


def test_a_quiet_log_puts_at_once_and_a_busy_one_as_often_as_it_may() -> None:
    budget = PutBudget(10, 3, now=0)
    for _ in range(3):
        assert budget.wait(0) == 0
        budget.take(0)
    assert budget.wait(0) == pytest.approx(0.1)
    assert budget.wait(0.1) == 0
    budget.take(0)
    assert budget.wait(100) == 0
    for _ in range(5):
        budget.take(100)
    assert budget.wait(100) == pytest.approx(0.1), "large commits leave no debt"


@pytest.mark.parametrize("now", [0.0, 1009.123456789, 1.7e9 + 0.1])
def test_after_the_wait_there_is_something_left(now: float) -> None:
    """Else a clock that jumps to the end of the wait would not go on."""
    budget = PutBudget(50, 3, now)
    for _ in range(10_000):
        if wait := budget.wait(now):
            now += wait
            assert budget.wait(now) == 0
        budget.take(now)


def test_without_a_bound_nothing_waits() -> None:
    budget = PutBudget(0, 1, now=0)
    for _ in range(100):
        budget.take(0)
    assert budget.wait(0) == 0


def test_what_takes_longer_than_nearly_all_others_is_asked_twice() -> None:
    hedging = Hedging(0.01)
    assert hedging.after() is None
    for _ in range(97):
        hedging.note(0.02)
    for _ in range(3):
        hedging.note(1.0)
    assert hedging.after() == pytest.approx(0.06)
    quick = Hedging(0.01)
    for _ in range(100):
        quick.note(0.001)
    assert quick.after() == 0.01
