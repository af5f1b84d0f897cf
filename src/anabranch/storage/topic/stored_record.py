"""A topic's record in the store, as its owner changes it: one change after the other, each by compare-and-set.

The store's versions start over when a topic is deleted and made again. So a version alone does not show that a record
is still the one that was read: the last ledger's id does, which is never used again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from anabranch.errors import AnabranchError
from anabranch.metadata.errors import VersionConflict
from anabranch.metadata.port import MetadataStore, Versioned
from anabranch.storage.core.topic_record import TopicRecord

Change = Callable[[TopicRecord], TopicRecord]
Changed = Callable[[TopicRecord], None]


class TopicGoneError(AnabranchError):
    """The topic does not exist, or is being deleted."""

    code = 11  # ServerError.TopicNotFound of the wire protocol.


class _LedgerId(msgspec.Struct):
    id: int


class _LedgersOf(msgspec.Struct):
    """As much of a record as tells whose it is."""

    ledgers: tuple[_LedgerId, ...] = ()


_decode_ledgers = msgspec.json.Decoder(_LedgersOf).decode


def last_ledger(found: Versioned | None) -> int | None:
    """The id of the last ledger that a stored record names; None without a record, or without ledgers."""
    if found is None or not found.value:
        return None
    ledgers = _decode_ledgers(found.value).ledgers
    return ledgers[-1].id if ledgers else None


class StoredRecord:
    """Holds no function of the log that changes it: such a cycle would be garbage that only the collector finds."""

    def __init__(
        self,
        path: str,
        metadata: MetadataStore,
        record: TopicRecord,
        version: int,
    ) -> None:
        self.path = path
        self.version = version
        self._metadata = metadata
        self._record = record
        # Changes wait for each other: each must build on the one before.
        self._changing = asyncio.Lock()
        # Those under way, kept from being collected.
        self.unfinished: set[asyncio.Task[None]] = set()

    async def change(self, change: Change, changed: Changed) -> None:
        """Compare-and-set. A conflict means that another broker has opened the topic: this log is not ours any more.
        `changed` is called with the record that was stored, before the next change begins.

        Who gives up waiting does not stop it: the store may have carried it out, and then the version is another."""
        await to_its_end(self.change_now(change, changed), self.unfinished)

    async def change_now(self, change: Change, changed: Changed) -> None:
        """As `change`, in the task that calls: one that is run to its end."""
        async with self._changing:
            if self._record.is_deleting:
                raise TopicGoneError(f"{self.path} is being deleted")
            record = change(self._record)
            found = await self._metadata.get(self.path, fresh=True)
            if last_ledger(found) != self._record.ledgers[-1].id:
                # Another topic of the same name may be at our version.
                raise VersionConflict(self.path, self.version, None if found is None else found.version)
            stored = await self._metadata.put(self.path, record.encode(), if_version=self.version)
            self.version = stored.version
            self._record = record
            changed(record)

    async def is_current(self) -> bool:
        """Whether the stored record still names our ledger last."""
        return last_ledger(await self._metadata.get(self.path, fresh=True)) == self._record.ledgers[-1].id


async def to_its_end(work: Coroutine[Any, Any, None], unfinished: set[asyncio.Task[None]]) -> None:
    """Runs the work in a task of its own, which continues if its caller is cancelled."""
    task = asyncio.get_running_loop().create_task(work)
    unfinished.add(task)
    task.add_done_callback(unfinished.discard)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        # No caller awaits the outcome.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise
    finally:
        # An error refers to the frames that it passed: this one must not refer to the task, which holds the error.
        del task
