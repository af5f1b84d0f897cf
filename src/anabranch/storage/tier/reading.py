"""Reads entries of moved files from their objects. Data plane.

Objects are read in blocks that all readers share. A reader that reads on has the blocks behind asked for before it
needs them, further ahead the longer it does so, and no further than its ledger goes in that object. Each record is
checked as in a local file.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from anabranch.storage.core.tiered import FarEntries
from anabranch.storage.object.blocks import BlockCache
from anabranch.storage.object.medium import MediumError, MediumMissingError, ObjectMedium
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.on_disk.reader import check_entry, span_end
from anabranch.storage.port import Entry, LogDamagedError, LogMissingError

_READERS_MAX: Final = 4096


@dataclass(slots=True)
class _Reader:
    """A reader that may come back for what follows."""

    next: int
    blocks: int


class FarReader:
    def __init__(self, medium: ObjectMedium, policy: ObjectLogPolicy) -> None:
        self._medium = medium
        self._policy = policy
        self.blocks = BlockCache(medium, policy)
        self._readers: OrderedDict[int, _Reader] = OrderedDict()

    async def read(self, wanted: FarEntries) -> list[Entry]:
        self._ask_ahead(wanted)
        found: list[Entry] = []
        offsets, lengths = wanted.offsets, wanted.lengths
        key = wanted.place.key
        at = 0
        while at < len(offsets):
            stop = span_end(offsets, lengths, at)
            base = offsets[at]
            try:
                view = await self.blocks.read(key, base, offsets[stop - 1] + lengths[stop - 1] - base)
            except MediumMissingError:
                if found:
                    break
                raise LogMissingError(
                    f"ledger {wanted.ledger} entry {wanted.first + at}: there is no object "
                    f"{self._medium.url(key)} any more, to which a file of the log was moved"
                ) from None
            except MediumError:
                if found:
                    break
                raise
            some = self._entries(wanted, view, at, stop, has_before=bool(found))
            found += some
            if len(some) < stop - at:
                break
            at = stop
        self._note(wanted.ledger, wanted.first + len(found))
        return found

    def _entries(
        self, wanted: FarEntries, view: memoryview, start: int, stop: int, *, has_before: bool
    ) -> list[Entry]:
        """The entries of one stretch, up to damage."""
        found: list[Entry] = []
        base = wanted.offsets[start]
        for i in range(start, stop):
            number, at = wanted.first + i, wanted.offsets[i] - base
            entry = check_entry(view, at, wanted.lengths[i], wanted.ledger, number)
            if entry is None:
                if found or has_before:
                    break
                where = self._medium.url(wanted.place.key)
                raise LogDamagedError(wanted.ledger, number, None, where, wanted.offsets[i])
            found.append(entry)
        return found

    # -- reading ahead

    def _note(self, ledger: int, following: int) -> None:
        reader = self._readers.setdefault(ledger, _Reader(following, 1))
        reader.next = following
        self._readers.move_to_end(ledger)
        if len(self._readers) > _READERS_MAX:
            self._readers.popitem(last=False)

    def _ask_ahead(self, wanted: FarEntries) -> None:
        reader = self._readers.get(wanted.ledger)
        if reader is None:
            return
        if reader.next != wanted.first:
            reader.blocks = 1
            return
        reader.blocks = min(2 * reader.blocks, self._policy.ahead_blocks_max)
        size = self._policy.block_bytes
        first = wanted.offsets[0] // size
        last = (wanted.ledger_end - 1) // size
        for at in range(first, min(first + reader.blocks, last) + 1):
            self.blocks.ask(wanted.place.key, at)

    async def close(self) -> None:
        await self.blocks.close()
