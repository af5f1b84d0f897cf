"""The fencer's half of the protocol: what it creates, until the writer can confirm nothing more. Pure.

A fencer creates a fence beyond every number that the writer may have in flight, and then the same fence at every
number below it that holds nothing. Each of these is created, or the writer was there first: either way the number is
settled. The writer confirms nothing beyond an unsettled number or a fence, so all that it has confirmed of the fenced
ledgers, or ever will, lies below the fence and can be read.

Fences are never deleted, not even long after: a process that slept for hours still has its request for that number to
send, and would take success for a confirmation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, assert_never

from anabranch.storage.object.core.created import Created
from anabranch.storage.object.core.numbers import WINDOW, FencedLedgers, Found

# -- events


class NumbersListed(NamedTuple):
    """These numbers hold objects, among those that are not known to be settled: all from `first` on."""

    first: int
    numbers: frozenset[int]


class FenceAnswered(NamedTuple):
    number: int
    created: Created


class FenceRead(NamedTuple):
    number: int
    found: Found | FencedLedgers


FencerEvent = NumbersListed | FenceAnswered | FenceRead

# -- effects


class ListNumbers(NamedTuple):
    """List what is there."""


class CreateFence(NamedTuple):
    number: int


class ReadFence(NamedTuple):
    """Read what the object of that number is."""

    number: int


class AllSettled(NamedTuple):
    """Every number below the fence is settled, and can be read."""

    fence: int


FencerEffect = ListNumbers | CreateFence | ReadFence | AllSettled


@dataclass(frozen=True, slots=True)
class Fencing:
    """One fencer at work."""

    # What the fence names: None for the whole log.
    ledgers: frozenset[int] | None
    # How far beyond the last number seen the fence is put: a busy writer must not outrun it.
    distance: int = WINDOW + 2
    # Where the fence is, or is being put; 0 before the first listing.
    fence: int = 0
    is_fenced: bool = False
    # Numbers below the fence that are not known to be settled.
    gaps: frozenset[int] = frozenset()
    is_done: bool = False

    def begin(self) -> list[FencerEffect]:
        return [ListNumbers()]


def advance_fence(state: Fencing, event: FencerEvent) -> tuple[Fencing, list[FencerEffect]]:
    match event:
        case NumbersListed(first, numbers):
            fence = max(numbers, default=first - 1) + state.distance
            gaps = frozenset(range(first, fence)) - numbers
            return replace(state, fence=fence, gaps=gaps), [CreateFence(fence)]
        case FenceAnswered(number, created):
            match created:
                case Created.STORED:
                    return _settled(state, number)
                case Created.EXISTS:
                    return state, [ReadFence(number)]
                case Created.UNKNOWN:
                    return state, [CreateFence(number)]
                case _:
                    assert_never(created)
        case FenceRead(number, found):
            if found is Found.UNREAD:
                return state, [ReadFence(number)]
            if found is Found.ABSENT:
                return state, [CreateFence(number)]
            if number == state.fence and not _is_enough(state, found):
                # The writer came that far meanwhile. From here on, the numbers that were seen are settled.
                return replace(state, distance=2 * state.distance), [ListNumbers()]
            return _settled(state, number)
        case _:
            assert_never(event)


def _is_enough(state: Fencing, found: Found | FencedLedgers) -> bool:
    """Another fencer's fence is as good as ours if it names as much."""
    return found is Found.OURS or (isinstance(found, FencedLedgers) and found.covers(state.ledgers))


def _settled(state: Fencing, number: int) -> tuple[Fencing, list[FencerEffect]]:
    effects: list[FencerEffect] = []
    if number == state.fence:
        state = replace(state, is_fenced=True)
        effects += [CreateFence(gap) for gap in sorted(state.gaps)]
    else:
        state = replace(state, gaps=state.gaps - {number})
    if state.is_fenced and not state.gaps and not state.is_done:
        state = replace(state, is_done=True)
        effects.append(AllSettled(state.fence))
    return state, effects
