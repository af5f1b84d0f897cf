"""What a reader without a cursor is to have of a segment: for some of its entry buckets, messages from a position on.

Entries tell by their stamp which buckets their messages may belong to. An entry that lies in one wanted range, and
behind its position, is taken whole; one that meets no range is not even unpacked. From any other (its producer stamps
no entries, or had other buckets in mind) messages are taken one by one, each by its hash: `hash_within`. Readers whose
ranges together make the ring have each message once. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from anabranch.model.cut import BEGINNING, MessagePosition
from anabranch.model.segments import HashRange


class Part(NamedTuple):
    """A range of bucket hashes, and the position from which on its messages are wanted."""

    range: HashRange
    start: MessagePosition = BEGINNING


@dataclass(frozen=True, slots=True)
class Wanted:
    """At least one part, in the order of their ranges, which share no hash."""

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        assert self.parts
        assert all(one.range.end < other.range.start for one, other in pairwise(self.parts))

    @staticmethod
    def all_of(span: HashRange) -> Wanted:
        """Every message of that range."""
        return Wanted((Part(span),))

    @staticmethod
    def joined(parts: Iterable[Part]) -> Wanted:
        """The parts, with neighbours that have the same position as one."""
        made: list[Part] = []
        for part in parts:
            if made and made[-1].start == part.start and made[-1].range.end + 1 == part.range.start:
                part = Part(made.pop().range.joined(part.range), part.start)
            made.append(part)
        return Wanted(tuple(made))

    @property
    def start(self) -> MessagePosition:
        """No message before it is wanted."""
        return min(part.start for part in self.parts)

    @property
    def ranges(self) -> tuple[HashRange, ...]:
        return tuple(part.range for part in self.parts)

    def meets(self, stamp: HashRange) -> bool:
        """Whether an entry with that stamp may have wanted messages, wherever it lies."""
        return any(part.range.overlaps(stamp) for part in self.parts)

    def has_all(self, stamp: HashRange, at: tuple[int, int]) -> bool:
        """Whether every message of such an entry is wanted."""
        return any(
            part.range.start <= stamp.start and stamp.end <= part.range.end and part.start <= (*at, 0)
            for part in self.parts
        )

    def has(self, hash_value: int, at: MessagePosition) -> bool:
        """Whether the message with that hash is wanted."""
        return any(hash_value in part.range and part.start <= at for part in self.parts)


def hash_within(stamp: HashRange, hash_value: int) -> int:
    """The hash by which a message of an entry is chosen: its own, or the nearest that the stamp allows.

    A message may have another hash than its stamp says, if an ordering key chose its bucket or another client made it:
    then every reader must still come to the same result.
    """
    return min(max(hash_value, stamp.start), stamp.end)
