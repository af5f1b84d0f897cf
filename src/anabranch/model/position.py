"""Where an entry lies in a topic's log: plain tuples, because the data plane makes one per entry."""

from typing import NewType

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
Incarnation = NewType("Incarnation", str)

# (ledger, entry). Tuples compare the way log positions do, since ledger ids only grow within a topic.
Position = tuple[int, int]

# Before every entry; what an empty log answers as its last position, as Pulsar's protocol does.
BEFORE_ALL: Position = (-1, -1)
