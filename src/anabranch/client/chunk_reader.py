"""Puts the chunked messages of one segment together on their way to the inbox, and gives up what never gets whole.

A chunk without a message is acknowledged once it is certain that nobody needs it: otherwise a sealed segment would
never be read to its end, and its children would wait for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from anabranch.client.chunks import Chunks, Partial, Place
from anabranch.client.errors import CryptoFailed, MessageIncomplete
from anabranch.client.message import Entry
from anabranch.errors import AnabranchError

log = logging.getLogger(__name__)

# How long to wait for the next chunk while the broker may send and does not: of a segment that gets no more messages,
# and of one whose producer may be slow, or on its way back.
SEALED_S: Final = 2.0
ACTIVE_S: Final = 60.0
LOOK_S: Final = 1.0


class ChunkReader:
    """`put` takes entries that stand for an error; `acked` places that hold nothing; `is_idle` says whether the broker
    could send, and the application has taken everything."""

    def __init__(
        self,
        put: Callable[[Entry], None],
        acked: Callable[[Place], None],
        is_idle: Callable[[], bool],
        is_sealed: Callable[[], bool],
        *,
        sealed_s: float = SEALED_S,
        active_s: float = ACTIVE_S,
        look_s: float = LOOK_S,
    ) -> None:
        self._put = put
        self._acked = acked
        self._is_idle = is_idle
        self._is_sealed = is_sealed
        self._sealed_s = sealed_s
        self._active_s = active_s
        self._look_s = look_s
        self._chunks = Chunks()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def first(self) -> Place | None:
        """Where the first chunk lies that belongs to no whole message yet."""
        return self._chunks.first if len(self._chunks) else None

    def add(self, entry: Entry) -> Entry | None:
        """The message that a chunk completes."""
        try:
            data = self._decrypted(entry)
        except AnabranchError as error:
            entry.fault = error
            return entry
        if data is None:
            return None
        place = (entry.ledger, entry.entry)
        whole = self._chunks.add(entry.metadata, place, data, self._loop.time())
        self._clear_away(entry)
        if len(self._chunks) and self._timer is None:
            self._timer = self._loop.call_later(self._look_s, self._look)
        if whole is None:
            return None
        entry.data, entry.start, entry.chunks = whole.data, 0, whole.places
        entry.ledger, entry.entry = max(whole.places)
        return entry

    def _decrypted(self, entry: Entry) -> bytes | None:
        try:
            return entry.decrypted()
        except CryptoFailed:
            if entry.skips_failures:
                self._acked((entry.ledger, entry.entry))
                return None
            raise

    def _clear_away(self, entry: Entry) -> None:
        for place in self._chunks.strays:
            log.warning("a chunk at %d:%d has a number that no chunk of its message can have", *place)
            self._acked(place)
        self._chunks.strays.clear()
        for partial in self._chunks.replaced:
            self._give_up(partial, "it was sent again")
        self._chunks.replaced.clear()
        for partial in self._chunks.dropped:
            ledger, number = partial.last
            lost = Entry(
                entry.origin, ledger, number, entry.metadata, b"", owner=entry.owner, life=entry.life
            )
            lost.fault = MessageIncomplete(
                f"{partial.describe()}: too many such messages at once; a consumer opened anew gets it again"
            )
            self._put(lost)
        self._chunks.dropped.clear()

    def _give_up(self, partial: Partial, why: str) -> None:
        log.info("%s: %s", partial.describe(), why)
        for place in partial.places.values():
            self._acked(place)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        if self._is_idle():
            limit = self._sealed_s if self._is_sealed() else self._active_s
            for partial in self._chunks.silent_since(now - limit):
                self._give_up(partial, "the others never came")
        else:
            self._chunks.touch(now)
        if len(self._chunks):
            self._timer = self._loop.call_later(self._look_s, self._look)

    def clear(self) -> None:
        """The broker sends all of them again."""
        self._chunks.clear()
        self.close()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
