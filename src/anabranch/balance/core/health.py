"""Whether a broker may act on what the metadata store says, or must leave everything as it is. Pure.

In safe mode a broker serves what it has: nothing is assigned, moved, split, cleaned up or collected. It begins when the
broker's session is in doubt, or when most brokers vanish at once, which is a sign of a sick store and not of sick
brokers. It ends once the store has been well for a while: all brokers need their time to register again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """What a broker has seen of the store. Times are by the loop's clock."""

    # Since when the store has been well; None while it is not.
    well_since_s: float | None = None
    # Whether it was ever in doubt since this broker started: a first start waits for no other broker.
    had_trouble: bool = False
    reason: str = ""

    def connected(self, now_s: float) -> StoreHealth:
        return self if self.well_since_s is not None else replace(self, well_since_s=now_s)

    def in_doubt(self, reason: str) -> StoreHealth:
        return StoreHealth(None, True, reason)

    def brokers_seen(self, before: Collection[str], after: Collection[str], now_s: float) -> StoreHealth:
        """More than half of at least three brokers that vanish at once are the store's trouble, not theirs."""
        vanished = set(before) - set(after)
        if len(before) >= 3 and len(vanished) * 2 > len(before):
            return StoreHealth(now_s, True, f"{len(vanished)} of {len(before)} brokers vanished at once")
        return self

    def why_safe_mode(self, now_s: float, stable_s: float) -> str | None:
        """Why nothing may be moved or cleaned up now; None in normal mode."""
        if self.well_since_s is None:
            return self.reason or "the metadata store has not answered yet"
        if self.had_trouble and now_s - self.well_since_s < stable_s:
            left = stable_s - (now_s - self.well_since_s)
            return f"{self.reason or 'the metadata store was in doubt'}: waiting {left:.0f} s for all brokers"
        return None
