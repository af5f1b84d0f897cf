"""The writer's half of the protocol, by example."""

from __future__ import annotations

from anabranch.storage.object.core import numbers as n
from anabranch.storage.object.core.numbers import FencedLedgers, Found, Numbering, advance
from anabranch.storage.object.medium import Created

ONE = frozenset({1})


def after(state: Numbering, *events: n.WriterEvent) -> tuple[Numbering, list[n.WriterEffect]]:
    """The effects of the last event."""
    effects: list[n.WriterEffect] = []
    for event in events:
        state, effects = advance(state, event)
    return state, effects


def sealed(count: int, window: int = 3) -> Numbering:
    return after(Numbering(window), *(n.Sealed(one + 1) for one in range(count)))[0]


def test_commits_are_put_until_the_window_is_full() -> None:
    _, effects = after(Numbering(2), n.Sealed(1))
    assert effects == [n.PutCommit(1, 1)]
    state, effects = after(sealed(2, window=2), n.Sealed(3))
    assert effects == []
    assert not state.has_room
    _, effects = after(state, n.PutAnswered(1, Created.STORED))
    assert effects == [n.ConfirmCommit(1, 1), n.PutCommit(3, 3)]


def test_a_commit_is_confirmed_after_all_before_it() -> None:
    state, effects = after(sealed(3), n.PutAnswered(3, Created.STORED), n.PutAnswered(2, Created.STORED))
    assert effects == []
    _, effects = after(state, n.PutAnswered(1, Created.STORED))
    assert effects == [n.ConfirmCommit(1, 1), n.ConfirmCommit(2, 2), n.ConfirmCommit(3, 3)]


def test_exists_is_settled_by_reading() -> None:
    state, effects = after(sealed(1), n.PutAnswered(1, Created.EXISTS))
    assert effects == [n.ReadNumber(1)]
    assert after(state, n.NumberRead(1, Found.OURS))[1] == [n.ConfirmCommit(1, 1)]
    assert after(state, n.NumberRead(1, Found.UNREAD))[1] == [n.ReadNumber(1)]
    # It was a conflict.
    again, effects = after(state, n.NumberRead(1, Found.ABSENT))
    assert effects == [n.PutAgain(1)]
    assert after(again, n.PutAnswered(1, Created.STORED))[1] == [n.ConfirmCommit(1, 1)]


def test_what_is_unknown_is_put_again() -> None:
    state, effects = after(sealed(1), n.PutAnswered(1, Created.UNKNOWN))
    assert effects == [n.PutAgain(1)]
    assert after(state, n.PutAnswered(1, Created.UNKNOWN))[1] == [n.PutAgain(1)]


def test_a_second_answer_for_a_number_changes_nothing() -> None:
    state, _ = after(sealed(2), n.PutAnswered(1, Created.STORED))
    for late in (Created.UNKNOWN, Created.EXISTS, Created.STORED):
        assert advance(state, n.PutAnswered(1, late)) == (state, [])
    reading, _ = after(sealed(1), n.PutAnswered(1, Created.EXISTS))
    assert advance(reading, n.PutAnswered(1, Created.UNKNOWN)) == (reading, [])


def test_a_commit_that_meets_a_fence_is_put_again_and_those_after_it_wait() -> None:
    state, effects = after(sealed(2), n.PutAnswered(1, Created.EXISTS), n.NumberRead(1, FencedLedgers(ONE)))
    assert effects == [n.MeetFence(1, ONE), n.PutCommit(3, 1)]
    state, effects = after(state, n.PutAnswered(2, Created.STORED))
    assert effects == []
    assert after(state, n.PutAnswered(3, Created.STORED))[1] == [n.ConfirmCommit(1, 3), n.ConfirmCommit(2, 2)]


def test_a_fence_is_met_when_everything_below_it_is_settled() -> None:
    state, effects = after(sealed(2), n.PutAnswered(2, Created.EXISTS), n.NumberRead(2, FencedLedgers(None)))
    assert effects == []
    assert after(state, n.Sealed(3))[1] == []
    state, effects = after(state, n.PutAnswered(1, Created.STORED))
    assert effects == [n.ConfirmCommit(1, 1), n.MeetFence(2, None)]
    assert state.has_ended
    assert advance(state, n.Sealed(4)) == (state, [])


def test_a_strangers_object_ends_the_log() -> None:
    state, effects = after(sealed(2), n.PutAnswered(1, Created.EXISTS), n.NumberRead(1, Found.FOREIGN))
    assert effects == [n.EndLog(1)]
    assert advance(state, n.PutAnswered(2, Created.STORED)) == (state, [])
