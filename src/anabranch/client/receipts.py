"""Data plane. Runs that were stored, or failed: every message's future is told."""

from __future__ import annotations

from typing import Final

from anabranch.client.message_id import MessageId
from anabranch.client.runs import BatchRun, BlockRun, Run, WholeRun

_new: Final = tuple.__new__


def store(run: Run, segment: int, ledger: int, entry: int) -> None:
    """The run lies at that place; negative numbers if the segment does not tell."""
    if isinstance(run, BatchRun):
        is_known = ledger >= 0
        for index, (_, _, _, receipt) in enumerate(run.items):
            if not receipt.done():
                # As `MessageId(…)`, in half the time.
                receipt.set_result(_new(MessageId, (segment, ledger, entry, index if is_known else -1)))
    elif isinstance(run, BlockRun):
        run.stored()
    elif isinstance(run, WholeRun) and not run.receipt.done():
        run.receipt.set_result(MessageId(segment, ledger, entry))


def fail(run: Run, error: Exception) -> None:
    """None of the run's messages is known to be stored."""
    if isinstance(run, BlockRun):
        run.failed(error)
        return
    receipts = [item[3] for item in run.items] if isinstance(run, BatchRun) else [run.receipt]  # type: ignore[attr-defined]
    for receipt in receipts:
        if not receipt.done():
            receipt.set_exception(error)
            receipt.exception()  # `flush` raises it too: nobody must look at every future.
