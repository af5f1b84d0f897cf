"""The identity of stored messages: the segment and the place there, and for whole tables their number."""

from __future__ import annotations

from typing import NamedTuple


class MessageId(NamedTuple):
    """Orderable within a segment. `index` is the place in a batch, -1 outside a batch.

    Ledger and entry are -1 if the segment already had the message and no longer knows where.
    """

    segment: int
    ledger: int
    entry: int
    index: int = -1  # type: ignore[assignment]  # Nothing here uses a tuple's own `index`.

    def __str__(self) -> str:
        return f"{self.segment}:{self.ledger}:{self.entry}:{self.index}"


class BatchReceipt(NamedTuple):
    """The receipt of a stored table: the number of messages, and their sequence ids."""

    messages: int
    first_sequence_id: int
    last_sequence_id: int
