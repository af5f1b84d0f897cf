"""Which acknowledgements of one segment wait to be sent, are under way, or could not be stored. Pure.

Every acknowledgement has a number, counted up from 1. Acknowledgements are sent in groups, one request each. A group
that is confirmed is settled; a group whose connection is lost waits again; a group that was refused, or cannot be sent
again, is lost: its messages are delivered again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

Place = tuple[int, int]
# The bits of a batch's messages that are not acknowledged (0: none is left), and how many messages it has.
Rest = tuple[int, int]

WHOLE: Final = (0, 0)
GROUP_MAX: Final = 1000
_WORD: Final = (1 << 64) - 1


class Until(NamedTuple):
    """Everything up to a message; `at` is its place in a batch of `size`, which is 0 for the whole entry.

    `wanted` has the bits of the batch's messages that were given out, -1 for all of them.
    """

    ledger: int
    entry: int
    at: int = 0
    size: int = 0
    wanted: int = -1

    @property
    def left(self) -> int:
        """The bits of the messages behind this one in its batch."""
        return self.wanted & ((1 << self.size) - (2 << self.at)) if self.size else 0


@dataclass(slots=True, eq=False)
class AckGroup:
    """The content of one request: single entries, or a place to acknowledge up to. `since` is its first number."""

    since: int
    singles: dict[Place, Rest] = field(default_factory=dict)
    until: Until | None = None


class Acks:
    """The acknowledgements of one segment. `lost` counts groups that could not be stored."""

    def __init__(self) -> None:
        self.asked = 0
        self.lost = 0
        self.stored_until: Place | None = None  # The last entry acknowledged as "up to".
        self._since = 0  # The first number that waits to be sent, or 0.
        self._singles: dict[Place, Rest] = {}
        self._until: Until | None = None
        self._under_way: dict[AckGroup, None] = {}

    @property
    def waiting(self) -> int:
        """How many acknowledgements wait to be sent."""
        return len(self._singles) + (self._until is not None)

    @property
    def settled(self) -> int:
        """Every acknowledgement up to this number is stored or lost."""
        firsts = [group.since for group in self._under_way]
        if self._since:
            firsts.append(self._since)
        return min(firsts, default=self.asked + 1) - 1

    def add(self, place: Place, rest: Rest = WHOLE) -> None:
        """Acknowledges an entry, or with `rest` some of its messages."""
        self.asked += 1
        before = self._singles.get(place)
        self._singles[place] = rest if before is None else (before[0] & rest[0], rest[1])
        if not self._since:
            self._since = self.asked

    def add_until(self, until: Until) -> None:
        self.asked += 1
        if self._until is None or _is_further(until, self._until):
            self._until = until
        if not self._since:
            self._since = self.asked

    def take(self) -> list[AckGroup]:
        """The groups to be sent now; they count as under way."""
        groups: list[AckGroup] = []
        if self._until is not None:
            groups.append(AckGroup(self._since, until=self._until))
        items = list(self._singles.items())
        groups += [
            AckGroup(self._since, dict(items[at : at + GROUP_MAX])) for at in range(0, len(items), GROUP_MAX)
        ]
        self._singles, self._until, self._since = {}, None, 0
        self._under_way.update(dict.fromkeys(groups))
        return groups

    def stored(self, group: AckGroup) -> None:
        self._under_way.pop(group, None)
        until = group.until
        if until is not None:
            place = (until.ledger, until.entry - 1 if until.size else until.entry)
            self.stored_until = max(place, self.stored_until or place)

    def refused(self, group: AckGroup) -> None:
        if group in self._under_way:
            del self._under_way[group]
            self.lost += 1

    def again(self) -> None:
        """After a lost connection: the groups that were under way wait to be sent again."""
        under_way, self._under_way = self._under_way, {}
        for group in under_way:
            for place, (left, size) in group.singles.items():
                newer = self._singles.get(place)
                self._singles[place] = (left, size) if newer is None else (left & newer[0], size)
            if group.until is not None and (self._until is None or _is_further(group.until, self._until)):
                self._until = group.until
            self._since = min(self._since or group.since, group.since)

    def forget_waiting(self) -> None:
        """Counts the acknowledgements that wait as lost: they can no longer be sent."""
        if self._since:
            self.lost += 1
        self._singles, self._until, self._since = {}, None, 0

    def give_up(self) -> None:
        """Counts every acknowledgement that is not stored as lost: none will be sent or answered any more."""
        self.lost += len(self._under_way)
        self._under_way = {}
        self.forget_waiting()


def _is_further(one: Until, other: Until) -> bool:
    here, there = one[:2], other[:2]
    if here != there:
        return here > there
    return bool(other.size) and (not one.size or one.at > other.at)


def words_of(bits: int) -> list[int]:
    """Bits in the protocol's form: words of 64 bits, signed like Java's."""
    words: list[int] = []
    while bits:
        word = bits & _WORD
        words.append(word - (1 << 64) if word >> 63 else word)
        bits >>= 64
    return words


def bits_of(words: Iterable[int]) -> int:
    bits = 0
    for at, word in enumerate(words):
        bits |= (word & _WORD) << (64 * at)
    return bits
