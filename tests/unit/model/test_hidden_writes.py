"""The record of a batch: decided once, and what is dropped cannot win."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.hidden_writes import (
    DroppedWinner,
    Fate,
    InvalidWrite,
    WriteBatch,
    WriteRecord,
    attempt_bits,
    attempt_of_bits,
    checked_attempt,
)

NAMES = st.sets(st.sampled_from("abcdef"))


@given(st.lists(st.tuples(st.booleans(), NAMES)))
def test_a_fate_once_told_stays_whatever_is_asked_for_later(steps: list[tuple[bool, set[str]]]) -> None:
    record = WriteRecord()
    told: dict[str, Fate] = {}
    for is_decision, names in steps:
        try:
            record = record.decide(sorted(names), ["t"]) if is_decision else record.drop(sorted(names))
        except DroppedWinner:
            assert not record.is_decided
            assert any(told.get(name) is Fate.DROPPED for name in names)
        for name in "abcdef":
            fate = record.fate(name)
            assert told.get(name, Fate.OPEN) in (Fate.OPEN, fate)
            told[name] = fate


def test_the_first_winners_stay() -> None:
    record = WriteRecord().decide(["a"], ["t"])
    assert record.decide(["b"], ["u"]) is record
    assert record.drop(["a"]) is record
    assert (record.fate("a"), record.fate("b")) == (Fate.VISIBLE, Fate.DROPPED)


def test_nobody_may_win() -> None:
    record = WriteRecord().decide([], [])
    assert record.is_decided
    assert record.fate("a") is Fate.DROPPED


@given(st.integers(0, 2**128 - 1))
def test_an_attempt_is_found_again_from_its_halves(number: int) -> None:
    attempt = f"{number:032x}"
    assert attempt_of_bits(*attempt_bits(checked_attempt(attempt))) == attempt


@pytest.mark.parametrize(("write", "batch"), [("w" * 200, "0"), ("q/7 ü", "00012"), ("w", str(2**63 - 1))])
def test_names_of_writes(write: str, batch: str) -> None:
    assert WriteBatch.checked(write, batch) == (write, int(batch))


@pytest.mark.parametrize(
    ("write", "batch"),
    [
        ("", "0"),
        ("w" * 201, "0"),
        ("a\nb", "0"),
        ("w", ""),
        ("w", "-1"),
        ("w", "1.5"),
        ("w", "²"),
        ("w", str(2**63)),
    ],
)
def test_what_is_no_name_of_a_write(write: str, batch: str) -> None:
    with pytest.raises(InvalidWrite):
        WriteBatch.checked(write, batch)


@pytest.mark.parametrize("attempt", ["", "a" * 31, "A" * 32, "g" * 32, "a" * 33])
def test_what_is_no_attempt(attempt: str) -> None:
    with pytest.raises(InvalidWrite, match="32 hexadecimal digits"):
        checked_attempt(attempt)


class Counted(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("is_decided", [True, False])
def test_thousands_of_attempts_are_judged_without_comparing_each_with_all(is_decided: bool) -> None:
    names = [f"{n:032x}" for n in range(3000)]
    record = WriteRecord(tuple(names)) if is_decided else WriteRecord(dropped=tuple(names))
    Counted.compared = 0
    fates = record.fates([Counted(name) for name in reversed(names)])
    assert set(fates.values()) == {Fate.VISIBLE if is_decided else Fate.DROPPED}
    assert Counted.compared < 10 * len(names)
