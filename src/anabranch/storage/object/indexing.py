"""Where the entries of another incarnation's log lie: read from its newest map, then from the checkpoints since, then
from single objects.

Nothing is listed or read before a reader looks for an entry. A look that finds nothing asks for what was written since
the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple, TypeVar

from anabranch.storage.core import format as fmt
from anabranch.storage.object.blocks import BlockCache
from anabranch.storage.object.core.maps import MapNote, decode_map
from anabranch.storage.object.core.objects import (
    CommitTable,
    LogKeys,
    StateNote,
    decode_state,
    decode_table,
    is_fence,
    number_of,
    table_bytes,
)
from anabranch.storage.object.medium import MediumMissingError, ObjectMedium
from anabranch.storage.object.places import EntryPlaces
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.object.requests import asked
from anabranch.storage.port import LogError

T = TypeVar("T")

# How many objects are read at a time.
_READS: Final = 16
# How often a log is looked at again whose objects were deleted meanwhile.
_TRIES: Final = 10


class LedgerOwner(NamedTuple):
    """What a log says of a ledger: whose it is."""

    namespace: str
    # The path of the topic's record; "" if the log does not say.
    record: str


UNKNOWN_OWNER: Final = LedgerOwner("", "")


class LogIndex:
    def __init__(
        self, medium: ObjectMedium, blocks: BlockCache, keys: LogKeys, policy: ObjectLogPolicy
    ) -> None:
        self._medium = medium
        self._blocks = blocks
        self._keys = keys
        self._policy = policy
        self.places = EntryPlaces()
        # Those of ledgers that are in a checkpoint.
        self.owners: dict[int, LedgerOwner] = {}
        # Numbers known to hold commits or rewritten objects. Fences are none, and are never deleted.
        self.commits: set[int] = set()
        # While it is held, the index is complete and stays as it is.
        self.lock = asyncio.Lock()
        # The newest map that is known; 0 for none.
        self.map_number = 0
        # Whether nothing is to be found behind it.
        self.has_all = False
        # The namespaces of rewritten objects.
        self.namespaces: dict[int, str] = {}
        # The checkpoints whose places are known: all up to this one. Then single objects.
        self.states = 0
        self.scan_from = 1
        self._indexed: set[int] = set()

    async def look(self) -> None:
        """Finds out what was written since the last call."""
        async with self.lock:
            await self.look_locked()

    async def look_locked(self) -> None:
        for _ in range(_TRIES):
            # What is missing was deleted since it was listed: there is a newer map.
            with contextlib.suppress(MediumMissingError):
                return await self._look()
        raise LogError(f"what {self._keys.folder} says of its entries changes while it is read")

    async def _look(self) -> None:
        listed = await asked(
            lambda: self._medium.list(self._keys.maps, self._keys.map(self.map_number)), self._policy
        )
        if newest := max([number_of(key) for key, _ in listed], default=0):
            key = self._keys.map(newest)
            await self._begin_with(
                decode_map(await asked(lambda: self._medium.get(key), self._policy), key), newest
            )
        if self.has_all:
            return
        listed = await asked(
            lambda: self._medium.list(self._keys.states, self._keys.state(self.states)), self._policy
        )
        numbers = sorted(number for key, _ in listed if (number := number_of(key)))
        if numbers and numbers[0] != self.states + 1:
            raise MediumMissingError(f"{self._keys.state(self.states + 1)} was deleted")
        for at in range(0, len(numbers), 2 * _READS):
            for note in await in_parallel(self._state, numbers[at : at + 2 * _READS]):
                self._add_state(note)
        self._indexed = {one for one in self._indexed if one >= self.scan_from}
        after = self._keys.number(self.scan_from - 1)
        listed = await asked(lambda: self._medium.list(self._keys.log, after), self._policy)
        sizes = {number_of(key): size for key, size in listed}

        async def index_one(number: int) -> None:
            await self._index_object(number, sizes[number])

        await in_parallel(index_one, [number for number in sizes if number not in self._indexed])

    async def _begin_with(self, note: MapNote, number: int) -> None:
        """Forgets what was known: the map has all of it that is wanted."""
        places = EntryPlaces()
        for one in note.ledgers:
            places.unpack(one.ledger, (one.firsts, one.numbers, one.sizes))
        await places.unpack_sizes(note.objects, note.sizes)
        self.places = places
        self.commits = set(places.numbers)
        self.owners = {one.ledger: LedgerOwner(one.namespace, one.record) for one in note.ledgers}
        self.namespaces = dict(note.namespaces)
        self.map_number, self.has_all = number, note.has_all
        self.states, self.scan_from = note.states, note.scan_from
        self._indexed = set()

    async def _state(self, number: int) -> StateNote:
        key = self._keys.state(number)
        return decode_state(await asked(lambda: self._medium.get(key), self._policy), key)

    def _add_state(self, note: StateNote) -> None:
        self.places.add_notes(note.places)
        self.places.set_sizes(note.sizes)
        self.commits.update(note.sizes)
        for one in note.ledgers:
            self.owners[one.ledger] = LedgerOwner(one.namespace, one.record)
        for ledger in note.gone:
            # No record names it: its writer has deleted it.
            self.places.drop(ledger)
            self.owners.pop(ledger, None)
        self.scan_from = max(self.scan_from, note.scan_from)
        self.states = max(self.states, note.number)

    async def _index_object(self, number: int, size: int) -> None:
        key = self._keys.number(number)
        try:
            table = await read_table(self._blocks, key, number)
        except MediumMissingError:
            return
        if table is not None:
            # Sizes are kept of objects that hold entries: fences are never deleted.
            self.add_table(number, table, size)
        self._indexed.add(number)

    def add_table(self, number: int, table: CommitTable, size: int) -> None:
        self.places.set_sizes({number: size})
        self._indexed.add(number)
        self.commits.add(number)
        for ledger, first, entries, _, length in table.runs:
            if entries:
                self.places.add(ledger, first, number, length)


async def read_table(blocks: BlockCache, key: str, number: int) -> CommitTable | None:
    """The table of a commit; None if the object is none."""
    head = await blocks.read(key, 0, fmt.COMMIT_BYTES)
    if is_fence(head):
        return None
    return decode_table(await blocks.read(key, 0, table_bytes(head)), number)


async def in_parallel(work: Callable[[int], Awaitable[T]], numbers: Iterable[int]) -> list[T]:
    """The results in the order of the numbers, some of them worked on at a time."""
    room = asyncio.Semaphore(_READS)

    async def one(number: int) -> T:
        async with room:
            return await work(number)

    tasks = [asyncio.create_task(one(number)) for number in numbers]
    try:
        return [await task for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
