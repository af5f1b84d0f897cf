"""Finds out from a sample of a topic's keys whether all its producers route alike. Pure.

The high 16 bits of a key's hash choose its segment in Pulsar's master and here, the low ones in Pulsar 5.0.0-M1. Either
keeps each key's order as long as all producers of a topic agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeysSeen:
    """Sampled keys, counted by which half of their hash alone explains their segment, with one producer of each."""

    by_high: int = 0
    by_low: int = 0
    by_neither: int = 0
    high_producer: str = ""
    low_producer: str = ""
    odd_producer: str = ""

    @property
    def outside(self) -> int:
        """How many keys are in a wrong segment, whichever half is the right one."""
        return self.by_neither + min(self.by_high, self.by_low)

    @property
    def routing(self) -> str:
        """The half that producers use: "high", "low", "mixed" for both or neither, "" if unknown."""
        if self.by_neither or (self.by_high and self.by_low):
            return "mixed"
        return "high" if self.by_high else "low" if self.by_low else ""

    @property
    def advice(self) -> str | None:
        """What to do about keys that are out of order; None if nothing needs to be done."""
        if self.by_high and self.by_low:
            return (
                f"producer {self.low_producer!r} routes keys by the low half of their hash, as Pulsar's 5.0.0-M1 "
                f"client does, and {self.high_producer!r} by the high half: a key sent by both is in two segments "
                "and has no order. Have all producers of this topic route alike: upgrade the Java clients, or use "
                "routing=Routing.LOW in Anabranch's"
            )
        if self.by_neither:
            return (
                f"producer {self.odd_producer!r} sends keys to segments that neither half of their hash explains, so "
                "splits and merges lose the order of those keys. Use a client that routes keys by their murmur3 hash"
            )
        return None


def together(seen: Iterable[KeysSeen]) -> KeysSeen:
    """The sum over a whole topic. Producers that agree within each segment may still differ between segments."""
    seen = list(seen)
    return KeysSeen(
        sum(s.by_high for s in seen),
        sum(s.by_low for s in seen),
        sum(s.by_neither for s in seen),
        next((s.high_producer for s in seen if s.high_producer), ""),
        next((s.low_producer for s in seen if s.low_producer), ""),
        next((s.odd_producer for s in seen if s.odd_producer), ""),
    )
