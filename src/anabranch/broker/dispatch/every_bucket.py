"""Data plane. The entries that may have keys of every entry bucket: who has them, and those that wait. Pure.

Entries without a usable stamp are such. A segment may have a thousand buckets, so each of these entries is kept once
and not in the queue of each bucket. What a consumer leaves behind costs the same then for any number of buckets.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple

from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.model.position import Position

# The numbers of the first and the last bucket that an entry may have keys of.
Span = tuple[int, int]


class WaitingEntry(NamedTuple):
    """An entry that waits."""

    at: Position
    span: Span
    messages: int


class EveryBucket:
    """`holder` has `held` of the entries. `waiting` is a heap."""

    __slots__ = ("_places", "held", "holder", "waiting")

    def __init__(self) -> None:
        self.holder: AttachedConsumer | None = None
        self.held = 0
        self.waiting: list[WaitingEntry] = []
        self._places: set[Position] = set()

    def __contains__(self, at: Position) -> bool:
        """Whether the entry waits here."""
        return at in self._places

    def is_free_for(self, consumer: AttachedConsumer) -> bool:
        return self.holder is None or self.holder is consumer

    def waits_before(self, at: Position) -> bool:
        return bool(self.waiting) and self.waiting[0].at < at

    def wait(self, one: WaitingEntry) -> None:
        if one.at not in self._places:
            self._places.add(one.at)
            heappush(self.waiting, one)

    def pop(self) -> WaitingEntry:
        one = heappop(self.waiting)
        self._places.discard(one.at)
        return one

    def take_out(self, at: Position) -> bool:
        """Whether the entry was there."""
        if at not in self._places:
            return False
        self._keep([one for one in self.waiting if one.at != at])
        return True

    def drop_below(self, at: Position) -> None:
        if self.waits_before(at):
            self._keep([one for one in self.waiting if one.at >= at])

    def _keep(self, kept: list[WaitingEntry]) -> None:
        heapify(kept)
        self.waiting = kept
        self._places = {one.at for one in kept}
