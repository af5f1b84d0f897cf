"""The records below a prefix, followed by one watch: what is kept in memory of them stays fresh."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from anabranch.metadata.errors import MetadataError, StoreClosed
from anabranch.metadata.port import Changes, MetadataStore, Versioned, Watch

log = logging.getLogger(__name__)

# How long to wait before a read is repeated that the store refused.
RETRY_S: Final = 0.2
# How many records are read at the same time. One after the other, hundreds of changes at once, as when a broker dies,
# would be followed so much later as the store's answers take.
READ_AT_ONCE: Final = 64

# What is called with the records that may have changed, by path; None for those that are gone.
RecordsListener = Callable[[Mapping[str, Versioned | None]], None]


class FollowedRecords:
    def __init__(
        self, metadata: MetadataStore, prefix: str, listener: RecordsListener, *, with_itself: bool = False
    ) -> None:
        """`listener` gets all records at first, and at each change those that were read again. It keeps what it needs
        of them, and must not raise. `with_itself`: the node at the prefix is a record, too, and not a folder."""
        self._metadata = metadata
        self._prefix = prefix
        self._with_itself = with_itself
        self._listener = listener
        self._known: set[str] = set()
        # How often all records were read, the first time included: once more after any trouble of the session.
        self.whole_reads = 0
        self._watch: Watch | None = None
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Reads all records once, and follows them from then on. A MetadataError of that read is raised."""
        self._watch = self._metadata.watch(self._prefix)
        await self._read(Changes(everything=True))
        self._following = asyncio.create_task(self._follow(self._watch))  # Awaited by `close`.

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self, watch: Watch) -> None:
        async for changes in watch:
            while True:
                try:
                    await self._read(changes)
                    break
                except StoreClosed:
                    return
                except MetadataError as error:
                    log.info("reading %s failed, trying again: %s", self._prefix, error)
                    await asyncio.sleep(RETRY_S)

    async def _read(self, changes: Changes) -> None:
        found: dict[str, Versioned | None]
        if changes.everything:
            found = dict.fromkeys(sorted(self._known))
            found.update(await self._metadata.scan(self._prefix))
            if self._with_itself:
                found[self._prefix] = await self._record(self._prefix)
        else:
            found = await self._records(changes.paths)
        self._known.difference_update(path for path, node in found.items() if node is None)
        self._known.update(path for path, node in found.items() if node is not None)
        self.whole_reads += changes.everything
        try:
            self._listener(found)
        except Exception:
            # The next change is followed all the same.
            log.exception("a change below %s was not followed", self._prefix)

    async def _records(self, paths: Iterable[str]) -> dict[str, Versioned | None]:
        found: dict[str, Versioned | None] = {}
        waiting = sorted(paths)
        for first in range(0, len(waiting), READ_AT_ONCE):
            some = waiting[first : first + READ_AT_ONCE]
            # All of them have ended before the first failure is raised.
            read = await asyncio.gather(*map(self._record, some), return_exceptions=True)
            for path, node in zip(some, read, strict=True):
                if isinstance(node, BaseException):
                    raise node
                found[path] = node
        return found

    async def _record(self, path: str) -> Versioned | None:
        """None also for a folder, which has no value."""
        found = await self._metadata.get(path)
        return found if found is not None and found.value else None
