"""What is done to the ledgers of others: those of a topic's last owner are fenced, those of no record are deleted."""

from __future__ import annotations

import contextlib

from anabranch.metadata.errors import VersionConflict
from anabranch.metadata.port import MetadataStore
from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core.topic_record import TopicRecord
from anabranch.storage.port import LedgerState, LogStore


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

    It removes that record only: another broker may have finished before, and a new topic of that name may exist."""
    with contextlib.suppress(VersionConflict):
        await metadata.delete(path, if_version=version)
    for ledger in record.ledgers:
        store.delete(LedgerId(ledger.id), Incarnation(ledger.incarnation))
    if (compacted := record.compacted) is not None:
        store.delete(LedgerId(compacted.id), Incarnation(compacted.incarnation))


async def take_over(
    record: TopicRecord, store: LogStore
) -> tuple[TopicRecord, int | None, LedgerState | None]:
    """Fences the writers of the record's open ledgers: the record with their ends, and where the state was found.

    The state is in the last ledger that stored any: a ledger whose writer died before its first commit has none.
    """
    states: dict[int, LedgerState] = {}
    for ledger in record.ledgers:
        if ledger.end is None:
            taken = await store.take(Incarnation(ledger.incarnation), [LedgerId(ledger.id)])
            states |= {int(number): state for number, state in taken.items()}
    record = record.with_ends(states)
    if (compacted := record.compacted) is not None and compacted.incarnation != store.incarnation:
        # Written in full and closed; the store learns that the ledger is wanted.
        await store.take(Incarnation(compacted.incarnation), [LedgerId(compacted.id)])
    for ledger in reversed(record.ledgers):
        found = states.get(ledger.id)
        if found is None:
            taken = await store.take(Incarnation(ledger.incarnation), [LedgerId(ledger.id)])
            found = taken.get(LedgerId(ledger.id))
        if found is not None and found.snapshot is not None:
            return record, ledger.id, found
    return record, None, None
