"""The phases of a topic: what may follow what, and what its parts read off them."""

from __future__ import annotations

import pytest

from anabranch.broker.topic.phase import (
    NEXT_PHASES,
    NEXT_SEAL_PHASES,
    SealPhase,
    TopicLife,
    TopicPhase,
)


def test_every_phase_has_a_row_in_its_table() -> None:
    assert set(NEXT_PHASES) == set(TopicPhase)
    assert set(NEXT_SEAL_PHASES) == set(SealPhase)


@pytest.mark.parametrize("phase", TopicPhase)
@pytest.mark.parametrize("after", TopicPhase)
def test_a_topic_enters_only_what_the_table_allows(phase: TopicPhase, after: TopicPhase) -> None:
    life = TopicLife(is_sealed=False)
    life.phase = phase
    if after in NEXT_PHASES[phase]:
        life.enter(after)
        assert life.phase is after
    else:
        with pytest.raises(AssertionError):
            life.enter(after)


def test_a_closed_topic_never_opens_again_and_an_ended_one_is_never_unsealed() -> None:
    assert NEXT_PHASES[TopicPhase.CLOSED] == frozenset()
    assert NEXT_SEAL_PHASES[SealPhase.ENDED] == frozenset()
    assert all(SealPhase.UNSEALED not in after for after in NEXT_SEAL_PHASES.values())


def test_a_topic_is_closed_from_the_beginning_of_its_closing_on() -> None:
    life = TopicLife(is_sealed=False)
    assert [life.is_opening, life.is_closed] == [True, False]
    life.enter(TopicPhase.OPEN)
    assert [life.is_opening, life.is_closed] == [False, False]
    life.enter(TopicPhase.CLOSING)
    assert life.is_closed
    life.enter(TopicPhase.CLOSED)
    assert life.is_closed


def test_a_topic_is_sealed_before_it_has_an_end() -> None:
    life = TopicLife(is_sealed=False)
    assert not life.is_sealed
    life.enter_seal(SealPhase.SEALING)
    assert [life.is_sealed, life.has_end] == [True, False]
    life.enter_seal(SealPhase.SEALED)
    assert [life.is_sealed, life.has_end] == [True, False]
    life.enter_seal(SealPhase.ENDED)
    assert [life.is_sealed, life.has_end] == [True, True]


def test_a_sealing_that_failed_is_tried_again() -> None:
    life = TopicLife(is_sealed=True)
    life.enter_seal(SealPhase.SEALING)
    life.enter_seal(SealPhase.SEALED)
    with pytest.raises(AssertionError):
        life.enter_seal(SealPhase.UNSEALED)
