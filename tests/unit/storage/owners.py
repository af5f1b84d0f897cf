"""A ledger's owner that remembers what it was told, and can be waited for."""

from __future__ import annotations

import asyncio

from anabranch.storage.port import LogError


class Owner:
    def __init__(self) -> None:
        self.entries_end = 0
        self.state_end = 0
        self.calls: list[tuple[int, int]] = []
        self.error: LogError | None = None
        self._changed = asyncio.Event()

    def confirmed(self, entries_end: int, state_end: int) -> None:
        assert self.error is None, "confirmed after lost"
        assert entries_end >= self.entries_end
        assert state_end >= self.state_end
        self.entries_end, self.state_end = entries_end, state_end
        self.calls.append((entries_end, state_end))
        self._changed.set()

    def lost(self, error: LogError) -> None:
        assert self.error is None, "lost twice"
        self.error = error
        self._changed.set()

    async def until(self, entries: int = 0, states: int = 0) -> None:
        while self.error is None and (self.entries_end < entries or self.state_end < states):
            self._changed.clear()
            await self._changed.wait()
        if self.error is not None:
            raise self.error

    async def until_lost(self) -> LogError:
        while self.error is None:
            self._changed.clear()
            await self._changed.wait()
        return self.error


class FoldingOwner(Owner):
    """An owner whose state is the list of deltas so far; it can say it in full."""

    def __init__(self) -> None:
        super().__init__()
        self.state = b""
        self.snapshots = 0

    def snapshot(self) -> bytes:
        self.snapshots += 1
        return self.state
