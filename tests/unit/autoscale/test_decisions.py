"""The history of decisions: equal answers are one entry, it is bounded, and it reads back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.autoscale.decide import Merge, Split, Stay, Verdict
from anabranch.autoscale.decisions import KEPT_MAX, KEPT_MIN, DecisionHistory, DecisionKind
from anabranch.model.scalable import BadRecord
from unit.autoscale.facts import HOUR, MINUTE, NOW, seg

SPLIT = Split(seg(3), "load", "segment 3 is hot")
MERGE = Merge(seg(4), seg(5), "both are cold")
verdicts = st.sampled_from([SPLIT, MERGE, Stay("a"), Stay("b"), Stay("c")])
histories = st.lists(st.tuples(verdicts, st.integers(0, 20 * MINUTE)), max_size=300)


def told(steps: list[tuple[Verdict, int]]) -> tuple[DecisionHistory, int]:
    history, now_ms = DecisionHistory(), NOW
    for verdict, pause in steps:
        now_ms += pause
        history = history.add(verdict, now_ms)
    return history, now_ms


def test_each_kind_of_verdict_is_told_with_its_segments_rule_and_reason() -> None:
    history = DecisionHistory().add(SPLIT, NOW).add(MERGE, NOW + 1).add(Stay("nothing to do"), NOW + 2)
    assert [(d.at_ms - NOW, d.kind, d.segments, d.rule, d.because) for d in history.decisions] == [
        (0, DecisionKind.SPLIT, (3,), "load", "segment 3 is hot"),
        (1, DecisionKind.MERGE, (4, 5), "cold", "both are cold"),
        (2, DecisionKind.STAY, (), "", "nothing to do"),
    ]


def test_the_same_answer_again_only_lengthens_the_entry() -> None:
    history = DecisionHistory()
    for minute in range(60):
        history = history.add(Stay("cool"), NOW + minute * MINUTE)
    (only,) = history.decisions
    assert (only.at_ms, only.until_ms, only.times) == (NOW, NOW + 59 * MINUTE, 60)


def test_an_answer_given_many_times_at_once_is_as_long_as_one_given_each_time() -> None:
    one = other = DecisionHistory().add(SPLIT, NOW).add(Stay("cool"), NOW + 1)
    for minute in range(1, 9):
        one = one.add(Stay("cool"), NOW + minute * MINUTE)
    assert other.given_again(8, NOW + 8 * MINUTE) == one


def test_another_answer_in_between_makes_it_a_new_entry() -> None:
    history = DecisionHistory().add(Stay("a"), 1).add(Stay("b"), 2).add(Stay("a"), 3)
    assert [d.because for d in history.decisions] == ["a", "b", "a"]


def test_two_splits_are_two_entries_however_alike() -> None:
    assert len(DecisionHistory().add(SPLIT, 1).add(SPLIT, 2).decisions) == 2


def test_what_was_done_by_hand_and_what_failed_is_noted_too() -> None:
    history = DecisionHistory().note(DecisionKind.SPLIT, "asked for by hand", NOW, [seg(1)], "manual")
    history = history.note(DecisionKind.FAILED, "its owner is away", NOW + 1, [seg(2)]).note(
        DecisionKind.FAILED, "its owner is away", NOW + 2, [seg(2)]
    )
    assert [(d.kind, d.rule, d.times) for d in history.decisions] == [
        (DecisionKind.SPLIT, "manual", 1),
        (DecisionKind.FAILED, "", 2),
    ]


@given(histories)
def test_the_last_hour_is_kept_and_at_least_fifty_entries_but_no_more_than_two_hundred(
    steps: list[tuple[Verdict, int]],
) -> None:
    history, now_ms = told(steps)
    kept = history.decisions
    assert len(kept) <= KEPT_MAX
    whole = [d for d in _unbounded(steps) if d[1] >= now_ms - HOUR]
    assert len(kept) >= min(KEPT_MAX, len(whole))
    assert len(kept) >= min(KEPT_MIN, len(_unbounded(steps)))
    assert all(d.until_ms >= now_ms - HOUR for d in kept[:-KEPT_MIN])
    assert [d.at_ms for d in kept] == [at for at, _ in _unbounded(steps)][
        len(_unbounded(steps)) - len(kept) :
    ]


def _unbounded(steps: list[tuple[Verdict, int]]) -> list[tuple[int, int]]:
    """(from, until) of every entry, had nothing been dropped."""
    found: list[tuple[int, int]] = []
    now_ms, last = NOW, None
    for verdict, pause in steps:
        now_ms += pause
        if isinstance(verdict, Stay) and verdict == last:
            found[-1] = (found[-1][0], now_ms)
        else:
            found.append((now_ms, now_ms))
        last = verdict
    return found


@given(histories)
def test_a_history_reads_back_as_it_was_written(steps: list[tuple[Verdict, int]]) -> None:
    history, _ = told(steps)
    assert DecisionHistory.decode(history.encode()) == history


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"decisions": [{}]}', b'{"decisions": [{"kind": "dance"}]}']
)
def test_a_record_that_is_no_history_is_refused(data: bytes) -> None:
    with pytest.raises(BadRecord):
        DecisionHistory.decode(data)


def test_only_a_new_answer_is_worth_a_write() -> None:
    stored = DecisionHistory().add(Stay("a"), 1)
    assert stored.is_news_after(DecisionHistory())
    assert not stored.add(Stay("a"), 2).is_news_after(stored)
    assert stored.add(Stay("b"), 2).is_news_after(stored)
    assert stored.add(SPLIT, 2).add(SPLIT, 3).is_news_after(stored.add(SPLIT, 2))
    assert not DecisionHistory().is_news_after(stored)


def test_since_gives_what_still_held_then() -> None:
    history = DecisionHistory().add(Stay("a"), 1).add(Stay("a"), 5).add(SPLIT, 6)
    assert [d.because for d in history.since(5)] == ["a", SPLIT.because]
    assert [d.because for d in history.since(6)] == [SPLIT.because]
