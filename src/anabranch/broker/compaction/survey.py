"""Which message of each key is the latest, found in passes over the same entries with a bounded table. Pure.

    compactor = Compactor(keys_max=1_000_000)
    while True:
        for entries in input: compactor.survey(entries)
        if compactor.end_pass(): break
    for entries in input: compactor.compact(entries)      # what is left of each, or None
    compactor.finish()

The table holds a 128-bit hash of each key and the number of its latest message. Hashes are keyed with a secret of this
run, so collisions can neither be provoked nor expected by chance. Once the table has `keys_max` keys, the upper half of
the present hash range is left to another pass, as often as necessary: memory is bounded whatever the number of keys,
and one pass suffices if all keys fit. The result of each pass goes to `Survivors`, on disk if there is more than one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from anabranch.broker.compaction.entries import DROP, KEEP, Slot, look, rebuilt
from anabranch.broker.compaction.kept import Survivors
from anabranch.broker.compaction.pieces import Pieces
from anabranch.errors import AnabranchError
from anabranch.wire.frames import Buffer

_HASH_BYTES: Final = 16
_HASH_END: Final = 1 << (8 * _HASH_BYTES)
# A key takes some 200 bytes in the table.
KEYS_MAX: Final = 500_000


class InputChangedError(AnabranchError):
    """The passes of one compaction did not see the same messages."""


class Compactor:
    """Every pass must be given the same entries in the same order; how they are split into lists does not matter."""

    def __init__(self, *, secret: bytes, keys_max: int = KEYS_MAX, keeps_keyless: bool = False) -> None:
        self._secret = secret
        self._keys_max = keys_max
        self._keeps_keyless = keeps_keyless
        self._low, self._high = 0, _HASH_END
        self._table: dict[int, int] = {}
        self._next = 0  # The number of the next slot.
        self._slots = -1  # The number of slots, once a pass has counted them.
        self._kept = Survivors()
        self._pieces = Pieces()
        self.passes = 0
        self.removed = 0

    # -- finding the latest messages

    def survey(self, entries: Sequence[Buffer]) -> None:
        for entry in entries:
            looked = look(entry, self._hash, keeps_keyless=self._keeps_keyless)
            if looked.piece_of is None:
                for slot in looked.slots:
                    self._note(slot)
                    self._next += 1
                continue
            self._pieces.note(looked, self._next)
            if looked.is_last_piece:
                self._note(looked.slots[0])
            self._next += 1

    def _note(self, slot: Slot) -> None:
        hash_, is_deleted = slot
        if not self._low <= hash_ < self._high:
            return
        if is_deleted:
            self._table.pop(hash_, None)
            return
        self._table[hash_] = self._next
        while len(self._table) > self._keys_max:
            # The upper half of the range is left to a pass of its own.
            self._high = middle = (self._low + self._high) // 2
            self._table = {key: value for key, value in self._table.items() if key < middle}

    def end_pass(self) -> bool:
        """Whether everything is known; if not, the same entries are needed once more."""
        if self._slots < 0:
            self._slots = self._next
        self._check_count()
        self._pieces.end_pass()
        self.passes += 1
        is_done = self._high == _HASH_END
        self._kept.add(array("q", sorted(self._table.values())), is_only=is_done and self.passes == 1)
        width = self._high - self._low
        self._low, self._high = self._high, min(_HASH_END, self._high + width)
        self._table = {}
        return is_done

    # -- removing the others

    def compact(self, entries: Sequence[Buffer]) -> list[Buffer | None]:
        """What is left of each entry: itself, a smaller one, or None."""
        left: list[Buffer | None] = []
        for entry in entries:
            looked = look(entry, self._no_hash, keeps_keyless=self._keeps_keyless)
            count = len(looked.slots)
            if looked.piece_of is not None:
                last = self._pieces.end_of(looked)
                flags = bytearray([last == KEEP or (last >= 0 and self._kept.has(last))])
            else:
                flags = self._kept.flags(self._next, count)
                for n, (hash_, _) in enumerate(looked.slots):
                    if hash_ < 0:
                        flags[n] = hash_ != DROP
            self._next += count
            self.removed += count - sum(flags)
            left.append(rebuilt(entry, flags))
        return left

    def finish(self) -> None:
        self._check_count()
        self._kept.close()

    def _check_count(self) -> None:
        if self._next != self._slots:
            raise InputChangedError(
                f"a pass found {self._next} messages and the first one {self._slots}: the topic was changed meanwhile"
            )
        self._next = 0

    def _hash(self, key: bytes) -> int:
        return int.from_bytes(blake2b(key, digest_size=_HASH_BYTES, key=self._secret).digest(), "big")

    def _no_hash(self, key: bytes) -> int:
        """A dummy hash: the slots to keep are known by their numbers."""
        return 0
