"""A topic's log record: which ledgers make up its log, what has been trimmed, where it was sealed. Pure values.

The record alone decides which entries exist. It is stored as JSON in the metadata store and changed only by
compare-and-set. Cursors and deduplication are not here: they change with every ack and live in the log itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from anabranch.model.position import Incarnation, LedgerId, Position
from anabranch.storage.core.packed_ledgers import LedgerRow, pack, unpack
from anabranch.storage.port import LedgerState, LiveLedger, LogError

# A record with more ledgers than this has only the last few of them as plain JSON.
_PLAIN_MAX: Final = 300
_PLAIN_MIN: Final = 50


def namespace_of(path: str) -> str:
    """The namespace of the topic whose record is at that path: `/managed-ledgers/tenant/namespace/…`."""
    return "/".join(path.split("/")[2:4])


class LedgerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One ledger of the topic. `end` is None while its writer may still be writing."""

    id: int
    incarnation: str
    end: int | None = None
    bytes: int = 0
    created_ms: int = 0
    # In all its entries; -1 while its writer may be at work, and if no writer has told.
    messages: int = -1


class CompactedLedger(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ledger that holds what keyed compaction has left of everything below `upto`.

    Entries are numbered from 0; those from `entries` to `end` say where the others came from. It stands beside the log:
    none of its numbers is a message's id.
    """

    id: int
    incarnation: str
    entries: int
    end: int
    upto: Position
    bytes: int = 0
    created_ms: int = 0


class Skip(msgspec.Struct, frozen=True):
    """Damaged entries that an operator has given up: readers step over [first, next) of a ledger."""

    ledger: int
    first: int
    next: int


class TopicRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    ledgers: tuple[LedgerRecord, ...] = ()
    # Entries below this position are gone.
    trimmed: Position = (-1, -1)
    # One past the last entry that was trimmed: positions between this and `trimmed` never existed.
    gone: Position = (-1, -1)
    # One past the last entry, once the topic accepts no more publishes.
    sealed_end: Position | None = None
    skips: tuple[Skip, ...] = ()
    properties: dict[str, str] = {}
    created_ms: int = 0
    # Above every ledger id this topic ever had, also those no longer listed.
    ledger_id_min: int = 0
    # Set when deletion has begun: the topic is never opened again, and any broker that finds the record finishes the
    # deletion.
    is_deleting: bool = False
    # The random id of the topic that this log belongs to as a whole, partition or segment. "" for topics of old
    # releases.
    topic_id: str = ""
    compacted: CompactedLedger | None = None
    # As stored: the first ledgers of a record that has very many, in few bytes. Always "" in memory.
    packed: str = ""

    def encode(self) -> bytes:
        if len(self.ledgers) <= _PLAIN_MAX:
            return msgspec.json.encode(self)
        old = [LedgerRow(*msgspec.structs.astuple(one)) for one in self.ledgers[:-_PLAIN_MIN]]
        return msgspec.json.encode(
            msgspec.structs.replace(self, ledgers=self.ledgers[-_PLAIN_MIN:], packed=pack(old))
        )

    @staticmethod
    def decode(data: bytes) -> TopicRecord:
        record = _decode(data)
        if not record.packed:
            return record
        old = tuple([LedgerRecord(*row) for row in unpack(record.packed)])
        return msgspec.structs.replace(record, ledgers=old + record.ledgers, packed="")

    def live(self, path: str, namespace: str) -> list[LiveLedger]:
        """Every ledger that the record names, as the log is told of it. `path` is the record's own."""
        trimmed, first = self.trimmed
        found = [
            LiveLedger(
                LedgerId(one.id),
                Incarnation(one.incarnation),
                first if one.id == trimmed else 0,
                one.end,
                namespace,
                path,
            )
            for one in self.ledgers
        ]
        if (left := self.compacted) is not None:
            home = Incarnation(left.incarnation)
            found.append(LiveLedger(LedgerId(left.id), home, 0, left.end, namespace, path))
        return found

    def with_ends(self, states: Mapping[int, LedgerState]) -> TopicRecord:
        """The record after every open ledger's end is known; a ledger that was never written ends at 0."""
        ledgers = []
        for ledger in self.ledgers:
            if ledger.end is None:
                state = states.get(ledger.id)
                ledger = msgspec.structs.replace(
                    ledger,
                    end=state.entries_end if state else 0,
                    bytes=state.bytes if state else 0,
                    messages=state.messages if state else 0,
                )
            ledgers.append(ledger)
        return msgspec.structs.replace(self, ledgers=tuple(ledgers))

    def with_ledger(self, ledger: LedgerRecord, *, state_source: int | None) -> TopicRecord:
        """The record with a new last ledger.

        Empty ledgers are removed, except the one whose state records are still the only copy of the topic's state: the
        new ledger's snapshot is not stored yet.
        """
        if ledger.id < self.ledger_id_min:
            raise LogError(
                f"ledger {ledger.id} would come before earlier ledgers: it is below {self.ledger_id_min}"
            )
        kept = [old for old in self.ledgers if old.end or old.id == state_source]
        return msgspec.structs.replace(self, ledgers=(*kept, ledger), ledger_id_min=ledger.id + 1)

    def without_trimmed(self, trimmed: Position, gone: Position) -> TopicRecord:
        """The record with everything below `trimmed` removed; the last ledger always stays: its writer is at work.

        What was trimmed before stays so: a caller that asks for less has waited behind one that asked for more."""
        trimmed, gone = max(self.trimmed, trimmed), max(self.gone, gone)
        kept = tuple(
            ledger for ledger in self.ledgers[:-1] if ledger.end is None or (ledger.id, ledger.end) > trimmed
        )
        return msgspec.structs.replace(
            self,
            ledgers=kept + self.ledgers[-1:],
            trimmed=trimmed,
            gone=gone,
            skips=tuple(s for s in self.skips if (s.ledger, s.next) > trimmed),
        )


_decode = msgspec.json.Decoder(TopicRecord).decode
