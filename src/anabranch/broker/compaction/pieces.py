"""Which pieces (chunks) make up a large message, and whether each is kept. Pure.

Pieces are identified by their producer's name and an id that the producer chose, mostly its own name and a count. A
producer that counts from the start again reuses an id, so a first piece begins another message: the two must be decided
separately. A message that was begun and never ended before that is dropped, as every reader does.
"""

from __future__ import annotations

from anabranch.broker.compaction.entries import DROP, KEEP, Looked

Name = tuple[str, str]


class Pieces:
    """Every pass must be given the same pieces in the same order."""

    def __init__(self) -> None:
        # How many messages of each name have begun in this pass, and in a whole pass.
        self._begun: dict[Name, int] = {}
        self._all: dict[Name, int] = {}
        # The slot of each message's last piece, or KEEP or DROP.
        self._ends: dict[tuple[Name, int], int] = {}

    def end_pass(self) -> None:
        self._all, self._begun = self._begun, {}

    def note(self, looked: Looked, slot: int) -> None:
        """Notes a piece in that slot."""
        message = self._message(looked)
        if looked.is_last_piece:
            hash_, _ = looked.slots[0]
            self._ends[message] = slot if hash_ >= 0 else hash_

    def end_of(self, looked: Looked) -> int:
        """The slot of the last piece of the piece's message; KEEP or DROP if that alone decides."""
        message = self._message(looked)
        if (end := self._ends.get(message)) is not None:
            return end
        # A message without an end so far is kept: the rest of it may follow.
        name, number = message
        return DROP if number < self._all.get(name, 0) else KEEP

    def _message(self, looked: Looked) -> tuple[Name, int]:
        name = looked.piece_of
        assert name is not None
        if looked.is_first_piece:
            self._begun[name] = self._begun.get(name, 0) + 1
        return name, self._begun.setdefault(name, 0)
