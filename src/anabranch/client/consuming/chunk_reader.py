"""Joins the chunked messages of one segment on their way to the inbox, and gives up those that never become whole.

A chunk whose message never becomes whole would hold messages for ever. The chunk is acknowledged once another attempt
of its message has come, or no chunk of it has come for so long that its producer will not return. A slow broker is no
reason to give up: for a sealed segment the broker itself knows which chunks are left over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from anabranch.client.consuming.core.chunks import Chunks, Partial, Place
from anabranch.client.errors import CryptoFailed, MessageIncomplete
from anabranch.client.message import ReceivedEntry
from anabranch.errors import AnabranchError

log = logging.getLogger(__name__)

# How long to wait for the next chunk while the broker may send and does not: a producer may be reconnecting.
SILENT_S: Final = 3600.0
# The same where there are too many incomplete messages.
PRESSED_S: Final = 60.0
LOOK_S: Final = 1.0


class ChunkReader:
    """`put` accepts entries that stand for an error; `acked` accepts places that hold nothing; `is_idle` says whether
    the broker could send, and the application has taken everything."""

    def __init__(
        self,
        put: Callable[[ReceivedEntry], None],
        acked: Callable[[Place], None],
        is_idle: Callable[[], bool],
        *,
        silent_s: float = SILENT_S,
        pressed_s: float = PRESSED_S,
        look_s: float = LOOK_S,
    ) -> None:
        self._put = put
        self._acked = acked
        self._is_idle = is_idle
        self._silent_s = silent_s
        self._pressed_s = pressed_s
        self._look_s = look_s
        self._chunks = Chunks()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def first(self) -> Place | None:
        """The place of the first chunk that belongs to no whole message yet."""
        return self._chunks.first if len(self._chunks) else None

    def add(self, entry: ReceivedEntry) -> ReceivedEntry | None:
        """Returns the message that a chunk completes."""
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

    def _decrypted(self, entry: ReceivedEntry) -> bytes | None:
        try:
            return entry.decrypted()
        except CryptoFailed:
            if entry.skips_failures:
                self._acked((entry.ledger, entry.entry))
                return None
            raise

    def _clear_away(self, entry: ReceivedEntry) -> None:
        for place in self._chunks.strays:
            log.warning("a chunk at %d:%d has a number that no chunk of its message can have", *place)
            self._acked(place)
        self._chunks.strays.clear()
        for place in self._chunks.outdated:
            self._acked(place)
        self._chunks.outdated.clear()
        for partial in self._chunks.replaced:
            self._give_up(partial, "it was sent again")
        self._chunks.replaced.clear()
        for partial in self._chunks.dropped:
            if partial.touched <= self._loop.time() - self._pressed_s:
                self._give_up(partial, "the others never came, and there are too many such messages")
                continue
            ledger, number = partial.last
            lost = ReceivedEntry(
                entry.origin, ledger, number, entry.metadata, b"", owner=entry.owner, life=entry.life
            )
            lost.fault = MessageIncomplete(
                f"{partial.describe()}: too many such messages at once; a new consumer gets it again"
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
            for partial in self._chunks.silent_since(now - self._silent_s):
                self._give_up(partial, "the others never came")
        else:
            self._chunks.touch(now)
        if len(self._chunks):
            self._timer = self._loop.call_later(self._look_s, self._look)

    def clear(self) -> None:
        """Forgets all chunks: the broker sends all of them again."""
        self._chunks.clear()
        self.close()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
