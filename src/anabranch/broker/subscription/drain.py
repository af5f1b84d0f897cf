"""Whether a subscription of a sealed topic has drained it: nothing is left that could still become a message.

A topic acknowledged to the end is drained. So is one with a remainder of nothing but chunks whose other chunks are
missing: their producer went away, or moved on to another segment, or the subscription began between them, or some were
acknowledged. No consumer can ever assemble them.

The remainder is read only on request, and the answer is kept until the cursor moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from anabranch.broker.ports import LogReader
from anabranch.broker.state.cursor import Cursor
from anabranch.broker.subscription.ack_writer import AckWriter
from anabranch.errors import MalformedFrame
from anabranch.model.position import Position
from anabranch.storage.port import Entry, LogError
from anabranch.wire.entry import chunk, parse_metadata

# A longer remainder is not read: it cannot be a few incomplete chunked messages.
ENTRIES_MAX: Final = 20_000
_READ_ENTRIES: Final = 64
_READ_BYTES: Final = 1 << 20


class Drain:
    """The verdict on one cursor of one sealed topic. `tell` is called once for each position at which the topic is
    drained, and not before the acknowledgements are stored."""

    __slots__ = (
        "_acks",
        "_cursor",
        "_key",
        "_log",
        "_looking",
        "_loop",
        "_tell",
        "_told_at",
        "_verdict",
    )

    def __init__(
        self,
        cursor: Cursor,
        log: LogReader,
        loop: asyncio.AbstractEventLoop,
        acks: AckWriter,
        tell: Callable[[], None],
    ) -> None:
        self._cursor = cursor
        self._log = log
        self._loop = loop
        self._acks = acks
        self._tell = tell
        self._key: tuple[Position, int] | None = None
        self._verdict = False
        self._told_at: Position | None = None
        self._looking: asyncio.Task[None] | None = None

    def _now(self) -> tuple[Position, int]:
        # Acknowledging only adds: with the same position and as many beyond it, the same entries are acknowledged.
        return self._cursor.settle(self._log), self._cursor.held

    @property
    def verdict(self) -> bool | None:
        """None while the remainder has not been read."""
        if self._cursor.settle(self._log) >= self._log.end:
            return True
        return self._verdict if self._key == self._now() else None

    async def look(self) -> bool:
        while (known := self.verdict) is None:
            key = self._now()
            verdict = await self._is_remainder_void()
            if key == self._now():
                self._key, self._verdict = key, verdict
            elif not verdict:
                # The cursor has moved meanwhile; the code that moved it checks again.
                return False
        return known

    def moved(self, *, is_all_sent: bool) -> None:
        """Called when the cursor has moved forwards, or its position is stored. The remainder is read only once all of
        it was sent: until then there are messages in it."""
        verdict = self.verdict
        if verdict is None:
            if is_all_sent and self._looking is None:
                # Ends by itself and never raises; this reference keeps it from being garbage-collected.
                self._looking = self._loop.create_task(self._look())
        elif verdict and self._told_at != self._cursor.next and self._acks.is_stored:
            self._told_at = self._cursor.next
            self._tell()

    async def _look(self) -> None:
        await self.look()
        self._looking = None
        if self.verdict is not False:
            self.moved(is_all_sent=True)

    def moved_back(self) -> None:
        """Called when a seek has taken acknowledgements back."""
        self._key = None
        self._told_at = None

    async def _is_remainder_void(self) -> bool:
        if self._cursor.backlog(self._log) > ENTRIES_MAX:
            return False
        at = self._cursor.next
        parts = _Parts()
        while (at := self._next_unacked(at)) < self._log.end:
            try:
                ledger, entries = await self._log.read(at, _READ_ENTRIES, _READ_BYTES)
            except LogError:
                return False
            if not entries or not all(
                self._cursor.is_acked((ledger, entry[0])) or parts.lack_some_with(entry) for entry in entries
            ):
                return False
            at = (ledger, entries[-1][0] + 1)
        return True

    def _next_unacked(self, at: Position) -> Position:
        while (place := self._log.normalise(self._cursor.first_unacked(at))) != at:
            at = place
        return at


class _Parts:
    """The chunks in the remainder."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], set[int]] = {}

    def lack_some_with(self, entry: Entry) -> bool:
        """Whether the entry is a chunk, and its message is still incomplete with it."""
        try:
            metadata = parse_metadata(entry[2])
        except MalformedFrame:
            return False
        part = chunk(metadata)
        if part is None:
            return False
        found = self._found.setdefault((metadata.producer_name, part.uuid), set())
        found.add(part.chunk_id)
        return len(found) < part.chunks
