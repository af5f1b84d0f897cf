"""What listens to a ledger whose owner has heard everything. The log keeps ledgers that were closed for as long as they
live; their owners, whole topics, need not stay in memory for that."""

from __future__ import annotations

from typing import Final

from anabranch.storage.port import LogError


class _Nobody:
    def confirmed(self, entries_end: int, state_end: int) -> None: ...

    def lost(self, error: LogError) -> None: ...


NOBODY: Final = _Nobody()
