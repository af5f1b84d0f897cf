"""What is done to the ledgers of others: those of a topic's last owner are released by it or fenced, those of no record
are deleted."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from anabranch.metadata.errors import VersionConflict
from anabranch.metadata.port import MetadataStore
from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core.topic_record import TopicRecord
from anabranch.storage.port import LedgerState, LogStore

# Asks the broker of that incarnation to let go of the topic whose record is at that path, and of its open ledger there.
# The answer is the ledger's final state. None if that broker cannot be asked or cannot say: the ledger is then fenced.
# An error means that the topic must not be opened here now.
LastWord = Callable[[Incarnation, LedgerId, str], Awaitable[LedgerState | None]]


async def no_last_word(incarnation: Incarnation, ledger: LedgerId, path: str) -> LedgerState | None:
    """Asks no other broker: every ledger of another incarnation is fenced."""
    return None


def forget_unlisted(before: TopicRecord, after: TopicRecord, store: LogStore) -> None:
    """What the record no longer names is dead, and the log need not keep its state either."""
    listed = {ledger.id for ledger in after.ledgers}
    for ledger in before.ledgers:
        if ledger.id not in listed:
            store.delete(LedgerId(ledger.id), Incarnation(ledger.incarnation))


async def finish_delete(
    path: str, record: TopicRecord, version: int, store: LogStore, metadata: MetadataStore
) -> None:
    """Finishes a deletion whose mark is stored. Any broker that finds a marked record may run it, any number of times.

    It removes that record only: another broker may have finished before, and a new topic of that name may exist, whose
    record may even have the same version."""
    found = await metadata.get(path, fresh=True)
    if found is not None and found.value and TopicRecord.decode(found.value).is_deleting:
        with contextlib.suppress(VersionConflict):
            await metadata.delete(path, if_version=version)
    for ledger in record.ledgers:
        store.delete(LedgerId(ledger.id), Incarnation(ledger.incarnation))
    if (compacted := record.compacted) is not None:
        store.delete(LedgerId(compacted.id), Incarnation(compacted.incarnation))


async def take_over(
    path: str, record: TopicRecord, store: LogStore, last_word: LastWord
) -> tuple[TopicRecord, int | None, LedgerState | None]:
    """Has the writers of the record's open ledgers release them, or fences them: the record with their ends, and where
    the state was found.

    The state is in the last ledger that stored any: a ledger whose writer died before its first commit has none.
    """
    states: dict[int, LedgerState] = {}
    for ledger in record.ledgers:
        if ledger.end is None:
            incarnation, id_ = Incarnation(ledger.incarnation), LedgerId(ledger.id)
            if incarnation != store.incarnation:
                word = await last_word(incarnation, id_, path)
                if word is not None:
                    states[ledger.id] = word
                    continue
            taken = await store.take(incarnation, [id_])
            states |= {int(number): state for number, state in taken.items()}
    record = record.with_ends(states)
    for ledger in reversed(record.ledgers):
        found = states.get(ledger.id)
        if found is None:
            taken = await store.take(Incarnation(ledger.incarnation), [LedgerId(ledger.id)])
            found = taken.get(LedgerId(ledger.id))
        if found is not None and found.snapshot is not None:
            return record, ledger.id, found
    return record, None, None
