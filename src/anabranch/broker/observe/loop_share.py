"""How much of its one core the event loop's thread uses: the load of a broker, however many share the machine."""

from __future__ import annotations

from collections.abc import Callable


class LoopShare:
    """`turn` is to be called at intervals, on the loop's thread."""

    def __init__(self, clock: Callable[[], float], cpu: Callable[[], float]) -> None:
        """`cpu` is the CPU time of the calling thread, in seconds."""
        self._clock = clock
        self._cpu = cpu
        self._at = (clock(), cpu())
        self.last = 0.0

    def turn(self) -> None:
        """Begins another interval: `last` is the share of the one that ends."""
        now, used = self._clock(), self._cpu()
        seconds = now - self._at[0]
        if seconds > 0:
            self.last = min(1.0, max(0.0, (used - self._at[1]) / seconds))
        self._at = (now, used)
