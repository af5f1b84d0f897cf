"""When the consumers of a subscription were disturbed, which justifies repetitions. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class Trouble:
    """A cut, or the beginning or end of a life. Its effects may show for a while after it."""

    begin: float
    end: float


class Troubles:
    """All disturbances. `echo_s`: how long the effects of one may still show. Times rise from call to call."""

    def __init__(self, echo_s: float) -> None:
        self._echo_s = echo_s
        self._of: dict[str, list[Trouble]] = {}

    def shaken(self, consumer: str, now: float) -> None:
        """The consumer was disturbed at this moment."""
        self._of.setdefault(consumer, []).append(Trouble(now, now))

    def began(self, consumer: str, now: float) -> None:
        self._of.setdefault(consumer, []).append(Trouble(now, inf))

    def ended(self, consumer: str, now: float) -> None:
        lasting = [one for one in self._of.get(consumer, []) if one.end == inf]
        for one in lasting:
            one.end = now
        if not lasting:  # Another that overlapped it has ended both.
            self.shaken(consumer, now)

    def since(self, time: float, consumers: Iterable[str] | None = None, *, begun_by: float = inf) -> bool:
        """Whether any of them, all by default, was disturbed at that time or later, by something begun by
        `begun_by`."""
        all_troubles = self._of.values() if consumers is None else [self._of.get(c, []) for c in consumers]
        return any(
            one.begin <= begun_by and one.end + self._echo_s >= time
            for troubles in all_troubles
            for one in reversed(troubles)
        )
