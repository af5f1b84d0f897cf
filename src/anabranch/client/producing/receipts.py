"""Data plane. Runs that were stored, or failed: sets the future of every message."""

from __future__ import annotations

from typing import Final

from anabranch.client.message_id import MessageId
from anabranch.client.producing.core.runs import BatchRun, BlockRun, MessageRun, WholeRun

_new: Final = tuple.__new__


def store(run: MessageRun, segment: int, ledger: int, entry: int) -> None:
    """The run is stored at that place; the numbers are negative if the segment does not say where."""
    if isinstance(run, BatchRun):
        is_known = ledger >= 0
        for index, (_, _, _, receipt) in enumerate(run.items):
            if not receipt.done():
                # Like `MessageId(…)`, in half the time.
                receipt.set_result(_new(MessageId, (segment, ledger, entry, index if is_known else -1)))
    elif isinstance(run, BlockRun):
        run.stored()
    elif isinstance(run, WholeRun) and not run.receipt.done():
        run.receipt.set_result(MessageId(segment, ledger, entry))


def fail(run: MessageRun, error: Exception) -> None:
    """Fails the run: none of its messages is known to be stored."""
    if isinstance(run, BlockRun):
        run.failed(error)
        return
    receipts = [item[3] for item in run.items] if isinstance(run, BatchRun) else [run.receipt]  # type: ignore[attr-defined]
    for receipt in receipts:
        if not receipt.done():
            receipt.set_exception(error)
            receipt.exception()  # `flush` raises it too: futures may be ignored.
