"""What is known of messages that are stored: the segment and the place there, and of whole tables how many."""

from __future__ import annotations

from typing import NamedTuple


class MessageId(NamedTuple):
    """Orderable within a segment. `index` is the place in a batch, -1 outside of one.

    Ledger and entry are -1 if the segment had the message already and no longer tells where.
    """

    segment: int
    ledger: int
    entry: int
    index: int = -1  # type: ignore[assignment]  # A tuple's own `index` is of no use here.

    def __str__(self) -> str:
        return f"{self.segment}:{self.ledger}:{self.entry}:{self.index}"


class BatchReceipt(NamedTuple):
    """A table that is stored: so many messages, and the sequence ids they were given."""

    messages: int
    first_sequence_id: int
    last_sequence_id: int
