"""A topic's log as its subscriptions see it, and as they write to it.

Positions are (ledger, entry) pairs. Inside the broker a cursor's place is always *the next entry wanted* (inclusive),
never "the last one done": the protocol's mark-delete and last-message-id forms are made at the edge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from anabranch.model.position import Position
from anabranch.storage.port import Entry

# Called with None once something is durable, or with the error if it never will be.
Done = Callable[[Exception | None], None]

# Consecutive entries of one ledger.
EntryBatch = tuple[int, list[Entry]]


class LogReader(Protocol):
    """A topic's confirmed log, across its ledgers."""

    @property
    def first(self) -> Position:
        """The first entry still kept, or `end` if there is none."""

    @property
    def end(self) -> Position:
        """Where the next entry to be confirmed will lie. Everything below it is confirmed and readable."""

    @property
    def last(self) -> Position:
        """The last confirmed entry that is still kept, or (-1, -1)."""

    @property
    def is_hiding(self) -> bool:
        """Whether entries that readers may see later exist already at `end`."""

    @property
    def size_bytes(self) -> int:
        """Approximate size in bytes of the kept entries."""

    def normalise(self, at: Position) -> Position:
        """The smallest position >= `at` that holds an entry, or `end`. Skips trimmed entries and ledger ends."""

    def after(self, at: Position) -> Position:
        """The position following entry `at`, normalised."""

    def before(self, at: Position) -> Position:
        """The last entry below `at`, or (-1, -1): the protocol's mark-delete form of a cursor whose next is `at`."""

    def count(self, start: Position, stop: Position) -> int:
        """How many kept entries lie in [start, stop). Cheap: arithmetic over the ledger list."""

    def messages(self, start: Position, stop: Position) -> int:
        """How many messages those entries hold. As cheap; `storage/core/message_counts.py` says how exact."""

    def position_at(self, index: int) -> Position:
        """The position of the index-th kept entry, or the end. As cheap as `count`."""

    def read_cached(self, at: Position, entries_max: int, bytes_max: int) -> EntryBatch | None:
        """Entries from normalised `at` on if cached, else None. At the end of the log: (ledger, [])."""

    async def read(self, at: Position, entries_max: int, bytes_max: int) -> EntryBatch:
        """Like `read_cached`, but from storage. Stops at a ledger's end. Raises LogDamagedError / LogMissingError."""

    async def find_by_publish_time(self, publish_time_ms: int) -> Position:
        """The first entry whose publish time is at or after the given one, or `end`."""


class Journal(Protocol):
    """Where a topic's state changes are made durable, in the same commits as its entries."""

    def record(self, delta: bytes, done: Callable[[Exception | None], None] | None = None) -> None:
        """Appends a state delta; `done` is called once it is confirmed, or with the error if it never will be."""
