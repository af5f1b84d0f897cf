"""When a topic's next commit is due. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

PAUSE_MAX_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class NextCommit:
    """Times are those of one clock, in seconds."""

    at_s: float
    failures: int = 0

    def committed(self, now_s: float, every_s: float, *, has_more: bool) -> NextCommit:
        """`has_more` if the commit ended early, so that the next one is due at once."""
        return NextCommit(now_s if has_more else now_s + every_s)

    def lost_race(self, now_s: float, every_s: float, chance: float) -> NextCommit:
        """Another writer was faster. It goes on, most likely, so this one leaves it the topic for a while: at least
        one whole interval, and `chance` (0 to 1) of another one."""
        return NextCommit(now_s + every_s * (1.0 + chance))

    def failed(self, now_s: float, every_s: float) -> NextCommit:
        """The topic or the store did not answer: later and later, the others go on meanwhile."""
        pause_s = min(PAUSE_MAX_S, max(1.0, every_s / 4) * 2.0**self.failures)
        return replace(self, at_s=now_s + pause_s, failures=min(self.failures + 1, 20))
