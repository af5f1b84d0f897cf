"""The writer's half of the protocol: which number a commit is put under, and when it is confirmed. Pure.

Commits are sealed in order; each has an *ordinal*, 1, 2, 3 …. An object has a *number* in its log, and is created once,
by the one that is first: the writer with a commit, or a fencer with a fence. Several numbers are in flight.

A number is *settled* once it is known what it holds. A commit is confirmed when every number up to its own is settled,
and every commit sealed before it is confirmed. So a fencer that has settled every number up to its fence knows all that
is or will ever be confirmed of the ledgers that its fence names (`fencing.py`).

A fence that names some ledgers takes a number from the commit that was meant for it. The commit is put again, under the
next free number: entries are found by ledger and entry id, so it does not matter where they lie.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple, assert_never

from anabranch.storage.object.core.created import Created

# How many numbers may be unsettled at a time. Fencers place their fences beyond that.
WINDOW: Final = 8


class FencedLedgers(NamedTuple):
    """A number holds a fence. `ledgers` is None for every ledger of the log."""

    ledgers: frozenset[int] | None

    def covers(self, ledgers: frozenset[int] | None) -> bool:
        return self.ledgers is None or (ledgers is not None and ledgers <= self.ledgers)

    def names(self, ledger: int) -> bool:
        return self.ledgers is None or ledger in self.ledgers


class Found(Enum):
    """What reading a number's object told."""

    # What the caller tried to create there.
    OURS = "ours"
    # Nothing is there: what refused the creation was a conflict.
    ABSENT = "absent"
    # Something else, and no fence.
    FOREIGN = "foreign"
    # It could not be read.
    UNREAD = "unread"


# -- events


class Sealed(NamedTuple):
    """The next commit is ready to be put."""

    ordinal: int


class PutAnswered(NamedTuple):
    number: int
    created: Created


class NumberRead(NamedTuple):
    number: int
    found: Found | FencedLedgers


WriterEvent = Sealed | PutAnswered | NumberRead

# -- effects


class PutCommit(NamedTuple):
    """Encode what is left of the commit for that number, and create the object."""

    number: int
    ordinal: int


class PutAgain(NamedTuple):
    """Create the object of that number with the same bytes as before: it is unknown whether it exists."""

    number: int


class ReadNumber(NamedTuple):
    """Read what the object of that number is."""

    number: int


class ConfirmCommit(NamedTuple):
    ordinal: int
    number: int


class MeetFence(NamedTuple):
    """Every number below is settled. Nothing of these ledgers that lies above counts."""

    number: int
    ledgers: frozenset[int] | None


class EndLog(NamedTuple):
    """Two writers use the name of this log, or its objects were changed: nothing more can be confirmed."""

    number: int


WriterEffect = PutCommit | PutAgain | ReadNumber | ConfirmCommit | MeetFence | EndLog


class Flight(NamedTuple):
    number: int
    ordinal: int
    # None while it is unknown what the number holds.
    outcome: FencedLedgers | Found | None = None
    is_reading: bool = False


@dataclass(frozen=True, slots=True)
class Numbering:
    """The numbers of one log, as its writer knows them."""

    window: int = WINDOW
    # Every number up to this one is settled.
    settled: int = 0
    # The numbers after that, in order.
    flights: tuple[Flight, ...] = ()
    # Ordinals that wait for a number.
    waiting: tuple[int, ...] = ()
    # Ordinals that are stored at settled numbers and wait for the commits before them, with their numbers.
    stored: tuple[tuple[int, int], ...] = ()
    confirmed: int = 0
    # A fence for the whole log was seen, or a foreign object: nothing more is put.
    is_ending: bool = False
    has_ended: bool = False

    @property
    def next_number(self) -> int:
        return self.settled + len(self.flights) + 1

    @property
    def has_room(self) -> bool:
        """Whether a commit that is sealed now is put at once."""
        return not self.waiting and len(self.flights) < self.window and not self.is_ending


def advance(state: Numbering, event: WriterEvent) -> tuple[Numbering, list[WriterEffect]]:
    if state.has_ended:
        return state, []
    match event:
        case Sealed(ordinal):
            return _put_waiting(replace(state, waiting=(*state.waiting, ordinal)), [])
        case PutAnswered(number, created):
            flight = _unsettled(state, number)
            if flight is None:
                return state, []  # A second attempt, and the first one has told.
            match created:
                case Created.STORED:
                    return _settle(state, flight, Found.OURS)
                case Created.EXISTS:
                    if flight.is_reading:
                        return state, []
                    return _changed(state, flight._replace(is_reading=True)), [ReadNumber(number)]
                case Created.UNKNOWN:
                    # Not failed, not stored. A reading under way will tell.
                    return state, [] if flight.is_reading else [PutAgain(number)]
                case _:
                    assert_never(created)
        case NumberRead(number, found):
            flight = _unsettled(state, number)
            if flight is None:
                return state, []
            if found is Found.UNREAD:
                return state, [ReadNumber(number)]
            if found is Found.ABSENT:
                return _changed(state, flight._replace(is_reading=False)), [PutAgain(number)]
            return _settle(state, flight, found)
        case _:
            assert_never(event)


def _unsettled(state: Numbering, number: int) -> Flight | None:
    at = number - state.settled - 1
    if not 0 <= at < len(state.flights) or state.flights[at].outcome is not None:
        return None
    return state.flights[at]


def _changed(state: Numbering, flight: Flight) -> Numbering:
    at = flight.number - state.settled - 1
    return replace(state, flights=(*state.flights[:at], flight, *state.flights[at + 1 :]))


def _settle(
    state: Numbering, flight: Flight, outcome: FencedLedgers | Found
) -> tuple[Numbering, list[WriterEffect]]:
    state = _changed(state, flight._replace(outcome=outcome, is_reading=False))
    if outcome is Found.FOREIGN or (isinstance(outcome, FencedLedgers) and outcome.ledgers is None):
        state = replace(state, is_ending=True)
    elif isinstance(outcome, FencedLedgers):
        # Before whatever waits: all commits sealed later wait for this one.
        state = replace(state, waiting=(flight.ordinal, *state.waiting))
    return _put_waiting(*_confirm(state))


def _confirm(state: Numbering) -> tuple[Numbering, list[WriterEffect]]:
    """Settles the numbers whose predecessors are settled, in order, and confirms commits, in order."""
    effects: list[WriterEffect] = []
    flights, settled = state.flights, state.settled
    stored, confirmed = dict(state.stored), state.confirmed
    has_ended = False
    while flights and flights[0].outcome is not None and not has_ended:
        first, *rest = flights
        if first.outcome is Found.FOREIGN:
            effects.append(EndLog(first.number))
            has_ended = True
            break
        flights, settled = tuple(rest), first.number
        if isinstance(first.outcome, FencedLedgers):
            effects.append(MeetFence(first.number, first.outcome.ledgers))
            has_ended = first.outcome.ledgers is None
            continue
        stored[first.ordinal] = first.number
        while (number := stored.pop(confirmed + 1, None)) is not None:
            confirmed += 1
            effects.append(ConfirmCommit(confirmed, number))
    made = replace(
        state,
        flights=flights,
        settled=settled,
        stored=tuple(sorted(stored.items())),
        confirmed=confirmed,
        has_ended=has_ended,
    )
    return made, effects


def _put_waiting(state: Numbering, effects: list[WriterEffect]) -> tuple[Numbering, list[WriterEffect]]:
    if state.is_ending:
        return state, effects
    flights, waiting = list(state.flights), list(state.waiting)
    while waiting and len(flights) < state.window:
        flight = Flight(state.settled + len(flights) + 1, waiting.pop(0))
        flights.append(flight)
        effects.append(PutCommit(flight.number, flight.ordinal))
    return replace(state, flights=tuple(flights), waiting=tuple(waiting)), effects
