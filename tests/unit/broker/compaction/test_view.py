"""What compacted readers see while one compaction takes the place of another."""

from __future__ import annotations

import asyncio

from anabranch.broker.compaction.index import CompactedIndex
from anabranch.broker.compaction.view import CompactedLog, Left, load_index
from anabranch.model.position import Incarnation, LedgerId, Position
from anabranch.storage.core.topic_record import CompactedLedger
from anabranch.storage.memory import MemoryLogStore
from anabranch.storage.port import Entry
from anabranch.storage.topic.topic_log import TopicLog
from unit.storage.topic.test_topic_log import PATH, Owner, World, entry

# More than reading and naming take.
TURNS = 15


class SlowStore(MemoryLogStore):
    """Answers a moment later, as a disk does."""

    async def read(
        self,
        ledger: LedgerId,
        incarnation: Incarnation,
        first: int,
        end: int,
        entries_max: int,
        bytes_max: int,
    ) -> list[Entry]:
        for _ in range(4):
            await asyncio.sleep(0)
        return await super().read(ledger, incarnation, first, end, entries_max, bytes_max)


async def compacted(log: TopicLog, ledger: int, upto: Position, left: list[int]) -> CompactedLedger:
    """A ledger as compaction writes it, with those entries of the log's first ledger left."""
    writer = log.compacted_writer(LedgerId(ledger))
    index = CompactedIndex()
    for number in left:
        index.add((upto[0], number))
    await writer.write([entry(number) for number in left], [1] * len(left))
    size, entries = writer.bytes, writer.entries
    for part in index.parts():
        await writer.write([part], [1])
    writer.close()
    return CompactedLedger(
        id=ledger,
        incarnation=log.incarnation,
        entries=entries,
        end=writer.entries,
        upto=upto,
        bytes=size,
        created_ms=0,
    )


async def test_a_read_goes_on_in_what_the_next_compaction_has_left() -> None:
    world, owner = World(), Owner()
    store = SlowStore(world.medium, incarnation=Incarnation("slow"))
    await store.start()
    _, metadata = await world.broker()
    await TopicLog.create(PATH, metadata, 1000)
    log = await world.open(store, metadata, owner)
    for number in range(10):
        log.append(entry(number), 1)
    await owner.until(lambda: owner.end == 10)
    upto = (log.ledger, 10)
    view = CompactedLog(log)

    async def made(ledger: int, left: list[int]) -> Left:
        found = await compacted(log, ledger, upto, left)
        return found, await load_index(log, found)

    first = await made(1000, [2, 5, 7])
    await log.use_compacted(first[0], lambda: setattr(view, "left", first))
    for turns in range(TURNS):
        after = await made(1001 + turns, [2, 6 - turns % 2, 7])
        reading = asyncio.create_task(view.read((log.ledger, 3), 10, 1 << 20))
        for _ in range(turns):
            await asyncio.sleep(0)
        await log.use_compacted(after[0], lambda after=after: setattr(view, "left", after))  # type: ignore[misc]
        ledger, entries = await reading
        assert ledger == log.ledger
        # As the one before or as the one behind, but never a failure for a ledger that was given up.
        assert [number for number, _, _ in entries] in ([5, 7], [6, 7])
    assert view.left is not None
    assert log.topic_record.compacted == view.left[0]
