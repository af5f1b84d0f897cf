"""Data plane. Runs that were stored, or failed: sets the future of every message."""

from __future__ import annotations

from itertools import repeat
from typing import Final

from anabranch.client.message_id import MessageId
from anabranch.client.producing.core.runs import BatchRun, BlockRun, MessageRun, WholeRun

_new: Final = tuple.__new__


def store(run: MessageRun, segment: int, ledger: int, entry: int) -> None:
    """The run is stored at that place; the numbers are negative if the segment does not say where."""
    if isinstance(run, BatchRun):
        receipts = run.receipts
        # Nothing reads the run any more. Each message is freed as soon as it has its id, unless the application keeps
        # it: a thousand new ids beside all that they replace would make the garbage collector look at all of it.
        run.items.clear()
        run.parts.clear()
        receipts.reverse()
        indexes = range(len(receipts)) if ledger >= 0 else repeat(-1, len(receipts))
        # Like `MessageId(…)` of each index, in half the time.
        for found in map(
            _new, repeat(MessageId), zip(repeat(segment), repeat(ledger), repeat(entry), indexes)
        ):
            receipt = receipts.pop()
            if not receipt.done():
                receipt.set_result(found)
    elif isinstance(run, BlockRun):
        run.stored()
    elif isinstance(run, WholeRun) and not run.receipt.done():
        run.receipt.set_result(MessageId(segment, ledger, entry))


def fail(run: MessageRun, error: Exception) -> None:
    """Fails the run: none of its messages is known to be stored."""
    if isinstance(run, BlockRun):
        run.failed(error)
        return
    receipts = run.receipts if isinstance(run, BatchRun) else [run.receipt]  # type: ignore[attr-defined]
    for receipt in receipts:
        if not receipt.done():
            receipt.set_exception(error)
            receipt.exception()  # `flush` raises it too: futures may be ignored.
