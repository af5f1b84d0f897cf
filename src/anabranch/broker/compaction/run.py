"""One compaction of one topic: from the last compacted ledger and the log behind it to a ledger that replaces both.

Existing data is not changed on the way. The new ledger is written and confirmed in full, then the topic's record names
it in one compare-and-set, and only then does the compaction's cursor release the log behind it. A crash between any two
of these steps leaves either the old state or all of the new.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from anabranch.broker.compaction.figures import CompactionFigures
from anabranch.broker.compaction.index import CompactedIndex
from anabranch.broker.compaction.view import CompactedLog, Left
from anabranch.broker.compaction.worker import Worker
from anabranch.model.position import LedgerId, Position
from anabranch.storage.core.topic_record import CompactedLedger
from anabranch.storage.port import Buffer, Entry
from anabranch.storage.topic.compacted_writer import CompactedWriter
from anabranch.storage.topic.topic_log import TopicLog

_READ_ENTRIES = 1000
_READ_BYTES = 1 << 20


async def compact(
    log: TopicLog,
    before: Left | None,
    upto: Position,
    ledger: LedgerId,
    now_ms: int,
    figures: CompactionFigures,
    named: Callable[[Left], None],
    *,
    keeps_keyless: bool,
) -> int:
    """Compacts everything below `upto` into that ledger and makes it the topic's; returns the number of removed
    messages.

    `named` is called the moment that the record names the ledger: the old one is deleted right after. Bytes are
    counted.
    """
    source = CompactedLog(log, before)
    expected = (0 if before is None else before[0].bytes) + log.size_bytes
    worker = await Worker.start(keeps_keyless=keeps_keyless, bytes_expected=expected)
    try:
        while True:
            async for _, entries in _read(source, upto, figures):
                await worker.survey([data for _, _, data in entries])
            if await worker.end_pass():
                break
        writer = log.compacted_writer(ledger)
        try:
            index, removed = await _write(source, upto, worker, writer, figures)
            size, entries_end = writer.bytes, writer.entries
            for part in index.parts():
                await writer.write([part], [1])
            writer.close()
        except BaseException:
            writer.give_up()
            raise
    finally:
        await worker.close()
    compacted = CompactedLedger(
        id=ledger,
        incarnation=log.incarnation,
        entries=entries_end,
        end=writer.entries,
        upto=upto,
        bytes=size,
        created_ms=now_ms,
    )
    # From here on the record may name the ledger, so it must stay: if it is not named after all, the next start deletes
    # it.
    await _name(log, compacted, lambda: named((compacted, index)))
    return removed


async def _write(
    source: CompactedLog, upto: Position, worker: Worker, writer: CompactedWriter, figures: CompactionFigures
) -> tuple[CompactedIndex, int]:
    """Writes what is left of each entry; returns their positions in the log, and the number of removed messages."""
    index = CompactedIndex()
    async for number, entries in _read(source, upto, figures):
        found = await worker.compact([data for _, _, data in entries])
        left: list[Buffer] = []
        messages: list[int] = []
        for (entry, count, _), data in zip(entries, found, strict=True):
            if data is not None:
                index.add((number, entry))
                left.append(data)
                messages.append(count)
        await writer.write(left, messages)
        figures.written_bytes += sum(map(len, left))
    return index, await worker.finish()


async def _name(log: TopicLog, compacted: CompactedLedger, named: Callable[[], None]) -> None:
    """Puts the ledger into the topic's record. A cancelled call still waits for the end: the result of a half-done
    change would be unknown."""
    naming = asyncio.ensure_future(log.use_compacted(compacted, named))
    try:
        await asyncio.shield(naming)
    except asyncio.CancelledError:
        await asyncio.gather(naming, return_exceptions=True)
        raise


async def _read(
    source: CompactedLog, upto: Position, figures: CompactionFigures
) -> AsyncIterator[tuple[int, list[Entry]]]:
    """Every entry below `upto`, entries of one ledger at a time."""
    at = source.first
    while at < upto:
        ledger, entries = await source.read(at, _READ_ENTRIES, _READ_BYTES)
        if not entries:
            return
        at = source.after((ledger, entries[-1][0]))
        figures.read_bytes += sum(len(data) for _, _, data in entries)
        yield ledger, [entry for entry in entries if (ledger, entry[0]) < upto]
