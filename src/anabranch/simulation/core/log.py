"""A segment's storage in the core world: its entries, the cursors of subscriptions, and who reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from anabranch.model import buckets
from anabranch.model.segments import HashRange

# Spreads the keys, which are the hashes that choose a segment, over the ring of buckets.
_SPREAD: Final = 40_503


@dataclass(frozen=True, slots=True)
class CoreMessage:
    key: int
    number: int  # The message's number within its key, from 0 on, in the order of sending.

    @property
    def bucket_hash(self) -> int:
        return (self.key * _SPREAD + 7) & 0xFFFF


@dataclass(slots=True)
class SegmentLog:
    """A segment's storage."""

    generation: int
    span: HashRange
    splits: buckets.Splits = ()
    is_sealed: bool = False
    entries: list[CoreMessage] = field(default_factory=list)
    cursors: dict[str, int] = field(default_factory=dict)
    # The entries behind a cursor that are acknowledged already.
    acked: dict[str, set[int]] = field(default_factory=dict)
    # The attached readers of a stream by subscription, each with whether it shares the segment: a reader of all of it
    # is the only one.
    readers: dict[str, dict[object, bool]] = field(default_factory=dict)
    # The reader that has an unacknowledged message of a bucket.
    holders: dict[str, dict[int, object]] = field(default_factory=dict)

    def bucket(self, message: CoreMessage) -> int:
        return buckets.bucket_of(self.splits, message.bucket_hash)

    def attach(self, subscription: str, reader: object, *, shares: bool) -> bool:
        """Whether the reader is attached in this way, now or before."""
        present = self.readers.setdefault(subscription, {})
        if reader not in present and all(shares and other for other in present.values()):
            present[reader] = shares
        return present.get(reader) is shares

    def detach(self, subscription: str, reader: object) -> None:
        """What the reader has not acknowledged is delivered again."""
        self.readers.get(subscription, {}).pop(reader, None)
        holders = self.holders.get(subscription, {})
        for bucket in [bucket for bucket, holder in holders.items() if holder is reader]:
            del holders[bucket]

    def is_drained(self, subscription: str) -> bool:
        return self.is_sealed and self.cursors.get(subscription, -1) >= len(self.entries)
