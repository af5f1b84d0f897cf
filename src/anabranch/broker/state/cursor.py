"""Data plane. Which entries of a topic a subscription has acknowledged. Pure: no log, no clock, no I/O.

A cursor's position is `next`: the first unacknowledged entry (inclusive). Entries acknowledged one by one beyond it are
bits in chunks of 1,024 per ledger, so an acknowledgement costs a dict lookup and an `or` however many holes there are;
a sorted list of ranges would move half of itself for each. A full chunk takes as much memory as one small integer. For
a partly acknowledged batch there is an integer whose set bits are the messages *not yet* acknowledged, as on the wire.

Acknowledging only adds to a set, so its steps commute and may be repeated; only `reset` does not. Therefore a topic's
state can be folded from a snapshot and overlapping deltas. A cursor cannot see where a ledger ends: `settle`, given the
log, carries `next` over ledger ends and trimmed entries, and changes nothing that an acknowledgement depends on.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any, Final

from anabranch.broker.ports import LogReader
from anabranch.model.position import Position

_SHIFT: Final = 10
_SIZE: Final = 1 << _SHIFT
_LOW: Final = _SIZE - 1
_FULL: Final = (1 << _SIZE) - 1
# Figures look at so many things one by one.
_EACH_MAX: Final = 512
_BIT: Final = tuple(1 << n for n in range(_SIZE))

# The form of a cursor in a snapshot: next, acknowledged chunks per ledger, partly acknowledged batches.
CursorImage = tuple[Position, list[Any], list[Any]]


class Cursor:
    """A subscription's position. `held` counts the entries acknowledged beyond `next`, and `parts_bytes` is the size of
    the bits of partly acknowledged batches.
    """

    __slots__ = ("_acked", "_batch_order", "_parts_messages", "batches", "held", "next", "parts_bytes")

    def __init__(self, at: Position = (-1, -1)) -> None:
        self.next: Position = at
        self.held = 0
        self._acked: dict[int, dict[int, int]] = {}
        # The unacknowledged messages of partly acknowledged batches. Only `_keep_part` and `_drop_part` change it.
        self.batches: dict[Position, int] = {}
        self.parts_bytes = 0
        self._parts_messages = 0  # Unacknowledged ones, in all those batches.
        # A heap of the same positions, and of some that have been removed since: those passed by `next` are found
        # without a walk over all of them.
        self._batch_order: list[Position] = []

    # -- queries

    def is_acked(self, at: Position) -> bool:
        if at < self.next:
            return True
        chunks = self._acked.get(at[0])
        if chunks is None:
            return False
        return bool(chunks.get(at[1] >> _SHIFT, 0) & _BIT[at[1] & _LOW])

    def first_unacked(self, at: Position) -> Position:
        """The first unacknowledged position >= `at` of that ledger; it may lie past the ledger's end."""
        if at < self.next:
            at = self.next
        chunks = self._acked.get(at[0])
        return at if chunks is None else (at[0], _skip_acked(chunks, at[1]))

    def backlog(self, log: LogReader) -> int:
        """The number of kept unacknowledged entries."""
        return max(0, log.count(max(self.next, log.first), log.end) - self.held)

    def backlog_messages(self, log: LogReader) -> int:
        """The number of messages in them, as exactly as the log counts.

        Entries acknowledged one by one are counted one by one up to `_EACH_MAX` runs of them, and by the mean of all
        entries from `next` on where there are more. The same goes for partly acknowledged batches."""
        start, end = max(self.next, log.first), log.end
        entries = log.count(start, end)
        if entries <= self.held:
            return 0
        messages = log.messages(start, end)
        if self.held:
            messages -= self._held_messages(log, messages, entries)
        if self.batches:
            parts = self.batches
            if len(parts) <= _EACH_MAX:
                held = sum(log.messages(at, (at[0], at[1] + 1)) for at in parts)
            else:
                held = len(parts) * messages // max(1, entries - self.held)
            messages -= max(0, held - self._parts_messages)
        # Each entry that is left has a message that is left.
        return max(messages, entries - self.held)

    def _held_messages(self, log: LogReader, messages: int, entries: int) -> int:
        if sum(map(len, self._acked.values())) <= _EACH_MAX:
            runs = list(islice(self.acked_runs(), _EACH_MAX + 1))
            if len(runs) <= _EACH_MAX:
                return sum(log.messages((ledger, first), (ledger, end)) for ledger, first, end in runs)
        return messages * self.held // entries

    def held_below(self, at: Position) -> int:
        """How many of the entries acknowledged beyond `next` lie below `at`."""
        count = 0
        for ledger, chunks in self._acked.items():
            if ledger < at[0]:
                count += sum(mask.bit_count() for mask in chunks.values())
            elif ledger == at[0]:
                last, bits = at[1] >> _SHIFT, _BIT[at[1] & _LOW] - 1
                count += sum(mask.bit_count() for number, mask in chunks.items() if number < last)
                count += (chunks.get(last, 0) & bits).bit_count()
        return count

    @property
    def ranges(self) -> int:
        """How many separate runs of acknowledged entries lie beyond `next`."""
        count = 0
        for chunks in self._acked.values():
            for number, mask in chunks.items():
                # A run begins at each set bit whose lower neighbour is clear; it may be the last of the chunk before.
                before = chunks.get(number - 1, 0) >> (_SIZE - 1)
                count += (mask & ~(mask << 1 | before)).bit_count()
        return count

    def acked_runs(self) -> Iterator[tuple[int, int, int]]:
        """(ledger, first, end) of each run of acknowledged entries beyond `next`, in order."""
        for ledger in sorted(self._acked):
            chunks = self._acked[ledger]
            at = 0
            for number in sorted(chunks):
                base = number << _SHIFT
                if base < at:
                    continue
                mask = chunks[number]
                while mask >> max(0, at - base) and at < base + _SIZE:
                    rest = mask >> max(0, at - base)
                    first = max(at, base) + (rest & -rest).bit_length() - 1
                    at = _skip_acked(chunks, first)
                    yield ledger, first, at

    # -- acknowledging

    def ack(self, at: Position) -> bool:
        """Acknowledges one entry; False if it was already."""
        ledger, entry = at
        if self.batches:
            self._drop_part(at)
        here, first = self.next
        if ledger == here and entry == first:
            self._pass(ledger, first + 1)
            return True
        if ledger < here or (ledger == here and entry < first):
            return False
        chunks = self._acked.get(ledger)
        if chunks is None:
            chunks = self._acked[ledger] = {}
        number = entry >> _SHIFT
        before = chunks.get(number, 0)
        after = before | _BIT[entry & _LOW]
        if after == before:
            return False
        chunks[number] = _FULL if after == _FULL else after
        self.held += 1
        return True

    def ack_run(self, ledger: int, first: int, count: int) -> None:
        for entry in range(first, first + count):
            self.ack((ledger, entry))

    def ack_batch(self, at: Position, unacked: int, size: int = 0) -> int:
        """Acknowledges the messages of a batch whose bits are clear in `unacked`; returns how many were new.

        `size` is the number of messages in the batch, 0 if unknown. Once no bit is left the whole entry is
        acknowledged. The cost follows the bits given, whatever `size` claims.
        """
        if self.is_acked(at):
            return 0
        known = self.batches.get(at)
        if known is not None:
            after, before = known & unacked, known.bit_count()
        elif size > 0:
            after, before = unacked if unacked.bit_length() <= size else unacked & ((1 << size) - 1), size
        else:
            # In a batch of unknown size, everything behind the last remaining message counts as acknowledged.
            after, before = unacked, unacked.bit_length()
        left = after.bit_count()
        if after == 0:
            self.ack(at)
        elif left != before or (known is None and size <= 0):
            self._keep_part(at, after)
        return before - left

    def ack_below(self, at: Position) -> bool:
        """Acknowledges everything below `at` (exclusive); False if nothing changed."""
        if at <= self.next:
            return False
        self._pass(*at)
        self._drop_passed_parts()
        return True

    # -- moving

    def reset(self, at: Position, unacked: int = 0) -> None:
        """A seek: forgets every acknowledgement at or beyond `at` and makes `at` the position.

        `unacked`, if not 0, tells which messages of the batch at `at` are still wanted.
        """
        self.next = at
        self.held = 0
        self._acked = {}
        self.batches = {}
        self._batch_order = []
        self.parts_bytes = 0
        self._parts_messages = 0
        if unacked:
            self._keep_part(at, unacked)

    def settle(self, log: LogReader) -> Position:
        """Carries `next` over ledger ends, trimmed and skipped entries; returns it. It is then an entry or the end."""
        while (at := log.normalise(self.next)) != self.next:
            self._pass(*at)
        if self.batches:
            # Retention may have trimmed entries of partly acknowledged batches.
            self._drop_passed_parts()
        return self.next

    # -- parts of batches

    def _keep_part(self, at: Position, unacked: int) -> None:
        known = self.batches.get(at)
        if known is None:
            if len(self._batch_order) > 2 * len(self.batches) + 64:
                self._batch_order = list(self.batches)
                heapify(self._batch_order)
            heappush(self._batch_order, at)
        else:
            self.parts_bytes -= _size_of(known)
            self._parts_messages -= known.bit_count()
        self.batches[at] = unacked
        self.parts_bytes += _size_of(unacked)
        self._parts_messages += unacked.bit_count()

    def _drop_part(self, at: Position) -> None:
        known = self.batches.pop(at, None)
        if known is not None:
            self.parts_bytes -= _size_of(known)
            self._parts_messages -= known.bit_count()

    def _drop_passed_parts(self) -> None:
        """Forgets the parts of batches that lie below `next`."""
        order = self._batch_order
        while order and order[0] < self.next:
            self._drop_part(heappop(order))

    # -- passing

    def _pass(self, ledger: int, entry: int) -> None:
        """Puts `next` at that position or, if acknowledged entries follow it directly, behind them."""
        acked = self._acked
        if not acked:
            self.next = (ledger, entry)
            return
        if ledger != self.next[0]:
            for old in [old for old in acked if old < ledger]:
                self.held -= sum(mask.bit_count() for mask in acked.pop(old).values())
        chunks = acked.get(ledger)
        if chunks is None:
            self.next = (ledger, entry)
            return
        end = _skip_acked(chunks, entry)
        self._drop(ledger, chunks, end)
        self.next = (ledger, end)

    def _drop(self, ledger: int, chunks: dict[int, int], end: int) -> None:
        """Forgets the bits below `end`, which `next` is about to replace."""
        keep_from = end >> _SHIFT
        behind: Sequence[int]
        if self.next[0] == ledger and keep_from - (self.next[1] >> _SHIFT) < len(chunks):
            behind = range(self.next[1] >> _SHIFT, keep_from)
        else:
            behind = [number for number in chunks if number < keep_from]
        for number in behind:
            self.held -= chunks.pop(number, 0).bit_count()
        mask = chunks.get(keep_from, 0)
        below = mask & (_BIT[end & _LOW] - 1)
        if below:
            self.held -= below.bit_count()
            chunks[keep_from] = mask ^ below
        if not chunks.get(keep_from, 1):
            del chunks[keep_from]
        if not chunks:
            del self._acked[ledger]

    # -- storing

    def image(self) -> CursorImage:
        """Plain values for a snapshot. Full chunks are stored as runs, others as their bits."""
        ledgers: list[Any] = []
        for ledger, chunks in self._acked.items():
            full: list[list[int]] = []
            parts: list[Any] = []
            for number in sorted(chunks):
                mask = chunks[number]
                if mask != _FULL:
                    parts.append((number, _to_bytes(mask)))
                elif full and full[-1][0] + full[-1][1] == number:
                    full[-1][1] += 1
                else:
                    full.append([number, 1])
            ledgers.append((ledger, full, parts))
        return self.next, ledgers, [(*at, _to_bytes(bits)) for at, bits in self.batches.items()]

    @classmethod
    def of_image(cls, image: Sequence[Any]) -> Cursor:
        place, ledgers, batches = image
        cursor = cls((place[0], place[1]))
        for ledger, full, parts in ledgers:
            chunks = cursor._acked[ledger] = {}
            for first, count in full:
                chunks.update(dict.fromkeys(range(first, first + count), _FULL))
            for number, bits in parts:
                chunks[number] = int.from_bytes(bits, "little")
            cursor.held += sum(mask.bit_count() for mask in chunks.values())
        for ledger, entry, bits in batches:
            cursor._keep_part((ledger, entry), int.from_bytes(bits, "little"))
        return cursor

    def copy(self) -> Cursor:
        return Cursor.of_image(self.image())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cursor):
            return NotImplemented
        return (self.next, self._acked, self.batches) == (other.next, other._acked, other.batches)

    __hash__ = None  # type: ignore[assignment]  # A cursor changes in place.

    def __repr__(self) -> str:
        return f"Cursor(next={self.next}, held={self.held}, batches={len(self.batches)})"


def _skip_acked(chunks: Mapping[int, int], entry: int) -> int:
    """The first entry from `entry` on whose bit is clear."""
    number, bit = entry >> _SHIFT, entry & _LOW
    while (mask := chunks.get(number, 0)) == _FULL:
        number, bit = number + 1, 0
    gaps = ~mask >> bit
    # A chunk that is set from `bit` to its end continues in the next one.
    found = bit + (gaps & -gaps).bit_length() - 1
    if found < _SIZE:
        return (number << _SHIFT) + found
    return _skip_acked(chunks, (number + 1) << _SHIFT)


def _size_of(bits: int) -> int:
    return (bits.bit_length() + 7) // 8


def _to_bytes(bits: int) -> bytes:
    return bits.to_bytes(_size_of(bits), "little")


def bits_of_words(words: Sequence[int]) -> int:
    """The protocol's ack set (64-bit words, lowest first, signed) as one integer."""
    packed = array("q", words)
    if sys.byteorder == "big":
        packed.byteswap()
    return int.from_bytes(packed.tobytes(), "little")


def words_of_bits(bits: int) -> list[int]:
    """The reverse of `bits_of_words`: signed 64-bit words for the protocol's int64 fields."""
    words = array("q", bits.to_bytes((bits.bit_length() + 63) // 64 * 8, "little"))
    if sys.byteorder == "big":
        words.byteswap()
    return words.tolist()
