"""The logs of other incarnations under the same root: taken over, and read.

Taking fences ledgers and learns their final states; one recovery answers all callers that wait for it. Reading puts the
files of the incarnation into the catalog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.on_disk import fences, takeover
from anabranch.storage.on_disk.indexing import Indexed, index_incarnation, wal_numbers
from anabranch.storage.on_disk.log_root import LogRoot
from anabranch.storage.port import LogError


class OtherLogs:
    def __init__(self, root: LogRoot) -> None:
        self._root = root
        self._files = root.files
        self._catalog = root.catalog
        # States taken from other incarnations, and the files of those that have been indexed.
        self._taken: dict[Incarnation, fences.FinalStates] = {}
        self._indexed: dict[Incarnation, Indexed] = {}
        self._learning = asyncio.Lock()
        # What callers wait to take, by incarnation.
        self._asked: dict[Incarnation, list[Collection[LedgerId]]] = {}
        self._are_all_loaded = False

    def indexed(self) -> Iterable[Incarnation]:
        return list(self._indexed)

    def forget(self, incarnation: Incarnation) -> None:
        """Nothing of it is left under the root."""
        self._indexed.pop(incarnation, None)
        self._taken.pop(incarnation, None)

    async def load_all(self) -> None:
        """Takes and indexes everything under the root, once: only then is it known what is dead."""
        if self._are_all_loaded:
            return
        for name in sorted(await self._root.in_reader(self._files.list, self._root.path / "wal")):
            if name != self._root.own:
                await self.take(Incarnation(name), None)
                await self.index(Incarnation(name))
        self._are_all_loaded = True

    # -- taking over

    async def take(
        self, incarnation: Incarnation, ledgers: Collection[LedgerId] | None
    ) -> fences.FinalStates:
        """At least these ledgers, or the whole log."""
        known = self._taken.get(incarnation)
        if known is not None and known.has(ledgers):
            return known
        asked = self._asked.setdefault(incarnation, [])
        mine: Collection[LedgerId] = () if ledgers is None else list(ledgers)
        asked.append(mine)
        try:
            async with self._learning:
                wanted = None if ledgers is None else {one for others in asked for one in others}
                return await self._take_now(incarnation, ledgers, wanted)
        finally:
            # By identity: callers may ask for the same ledgers.
            asked[:] = [one for one in asked if one is not mine]
            if not asked and self._asked.get(incarnation) is asked:
                del self._asked[incarnation]

    async def _take_now(
        self,
        incarnation: Incarnation,
        ledgers: Collection[LedgerId] | None,
        wanted: Collection[LedgerId] | None,
    ) -> fences.FinalStates:
        """Takes those that are wanted, unless those asked for are known by now."""
        known = self._taken.get(incarnation)
        if known is not None and known.has(ledgers):
            return known
        folder = self._root.wal(incarnation)
        try:
            known = await self._root.in_reader(takeover.take, self._files, folder, wanted, known)
        except FileNotFoundError as error:
            if await self._root.in_reader(self._has_log, folder):
                # Do not answer that there is none: the caller would begin the topic again, empty.
                raise LogError(f"the log of {incarnation} cannot be taken over: {error}") from error
            # No incarnation of that name ever wrote here, or nothing of it is left.
            return fences.FinalStates()
        except OSError as error:
            raise LogError(f"the log of {incarnation} cannot be taken over: {error}") from error
        self._taken[incarnation] = known
        return known

    def _has_log(self, folder: Path) -> bool:
        try:
            return bool(wal_numbers(self._files, folder))
        except FileNotFoundError:
            return False

    # -- reading

    async def index(self, incarnation: Incarnation, entry: tuple[LedgerId, int] | None = None) -> None:
        """Puts another incarnation's files into the catalog; repeated when more of it has been taken, or when an entry
        that its writer has released is not in it."""
        if incarnation == self._root.own or self._is_indexed(incarnation, entry):
            return
        async with self._learning:
            # What was released is at the end of what its writer has written, unless there is damage before it.
            for is_thorough in (False, True) if entry is not None else (True,):
                if self._is_indexed(incarnation, entry):
                    return
                await self._index_now(incarnation, is_thorough=is_thorough)

    async def _index_now(self, incarnation: Incarnation, *, is_thorough: bool) -> None:
        folder = self._root.wal(incarnation)
        old = self._indexed.get(incarnation)
        indexing = partial(index_incarnation, self._files, folder, incarnation, old, is_thorough=is_thorough)
        try:
            found = await self._root.in_reader(indexing)
        except FileNotFoundError as error:
            if await self._root.in_reader(self._has_log, folder):
                raise LogError(f"the log of {incarnation} changes while it is read: {error}") from error
            found = Indexed([], fences.FinalStates(is_final=True))
        # New files first: readers look entries up meanwhile, and a file listed twice does no harm.
        before = dict.fromkeys(old.files) if old is not None else {}
        for file in found.files:
            if file not in before:
                self._catalog.add_indexed(file)
        after = set(found.files)
        self._catalog.remove([file for file in before if file not in after])
        self._indexed[incarnation] = found

    def _is_indexed(self, incarnation: Incarnation, entry: tuple[LedgerId, int] | None) -> bool:
        known, taken = self._indexed.get(incarnation), self._taken.get(incarnation)
        if known is None:
            return False
        if known.is_final and known.is_thorough:
            return True
        if entry is not None:
            return self._catalog.locate(*entry, 1) is not None
        return known.is_thorough and (taken is None or known.taken.results >= taken.results)
