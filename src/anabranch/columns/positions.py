"""Data plane. Where the rows of decoded batches lie: comparing whole columns with a position."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.model.cut import MessagePosition

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class RowPlaces(NamedTuple):
    """Ledger, entry and index of each row."""

    ledgers: Any
    entries: Any
    indexes: Any

    @staticmethod
    def of(batch: Any) -> RowPlaces:
        ledgers, entries, indexes = (
            numbers(batch, name) for name in ("ledger_id", "entry_id", "batch_index")
        )
        return RowPlaces(ledgers, entries, indexes.clip(0))

    def are_before(self, at: MessagePosition) -> Flags:
        ledger, entry, index = at
        found: Flags = (self.ledgers < ledger) | (
            (self.ledgers == ledger)
            & ((self.entries < entry) | ((self.entries == entry) & (self.indexes < index)))
        )
        return found


def numbers(batch: Any, name: str) -> Any:
    """The numbers of a column without nulls."""
    column = batch.column(name)
    kind = np.dtype(column.type.to_pandas_dtype())
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * kind.itemsize)


def only(batch: Any, keep: Flags) -> Any:
    """The rows that are marked."""
    # Not `pa.array`, nor `pa.scalar` or `to_numpy` here: they load Pandas, which takes a third of a second.
    bits = pa.py_buffer(np.packbits(keep, bitorder="little"))
    return batch.filter(pa.Array.from_buffers(pa.bool_(), len(keep), [None, bits]))
