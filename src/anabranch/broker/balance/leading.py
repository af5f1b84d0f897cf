"""The port of the election: which broker leads, and whether it is this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from anabranch.balance.core.states import BrokerRun


class Leading(Protocol):
    @property
    def leader(self) -> BrokerRun | None:
        """The elected broker, as last read. Its run may be over."""
        ...

    @property
    def term(self) -> int:
        """The term of this broker's leadership; 0 while it does not lead, or has not yet read what its predecessors
        stored in the channel."""
        ...

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback`, on the event loop, when `leader` or `term` has changed. Returns a function to stop."""
        ...
