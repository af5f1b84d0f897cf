"""The phases of an open topic, and which may follow which: its life, and the progress of its sealing. Pure.

The two are independent: a topic may be closed in any phase of sealing, and is opened again in the stored one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class TopicPhase(Enum):
    # The topic's state is being read from the log; no client can use the topic yet.
    OPENING = "opening"
    OPEN = "open"
    # Accepts no clients and no publishes; accepted publishes are being confirmed.
    CLOSING = "closing"
    CLOSED = "closed"


class SealPhase(Enum):
    UNSEALED = "unsealed"
    # Publishes are refused; the record that the topic is sealed is being stored.
    SEALING = "sealing"
    # Sealed, but hidden entries may still be revealed: no reader is at the end.
    SEALED = "sealed"
    # Sealed, and readers see every entry that they will ever see.
    ENDED = "ended"


NEXT_PHASES: Final[Mapping[TopicPhase, frozenset[TopicPhase]]] = {
    TopicPhase.OPENING: frozenset({TopicPhase.OPEN, TopicPhase.CLOSING, TopicPhase.CLOSED}),
    TopicPhase.OPEN: frozenset({TopicPhase.CLOSING, TopicPhase.CLOSED}),
    TopicPhase.CLOSING: frozenset({TopicPhase.CLOSED}),
    TopicPhase.CLOSED: frozenset(),
}
NEXT_SEAL_PHASES: Final[Mapping[SealPhase, frozenset[SealPhase]]] = {
    SealPhase.UNSEALED: frozenset({SealPhase.SEALING}),
    SealPhase.SEALING: frozenset({SealPhase.SEALED}),
    # Storing the seal failed, or a former owner left it half done: it is tried again.
    SealPhase.SEALED: frozenset({SealPhase.SEALING, SealPhase.ENDED}),
    SealPhase.ENDED: frozenset(),
}


class TopicLife:
    """The present phases of one topic. Its parts read here whether it is closed or sealed."""

    __slots__ = ("phase", "seal")

    def __init__(self, *, is_sealed: bool) -> None:
        self.phase = TopicPhase.OPENING
        self.seal = SealPhase.SEALED if is_sealed else SealPhase.UNSEALED

    @property
    def is_opening(self) -> bool:
        return self.phase is TopicPhase.OPENING

    @property
    def is_closed(self) -> bool:
        """True as soon as closing has begun."""
        return self.phase is TopicPhase.CLOSING or self.phase is TopicPhase.CLOSED

    @property
    def is_sealed(self) -> bool:
        """True as soon as sealing has begun."""
        return self.seal is not SealPhase.UNSEALED

    @property
    def has_end(self) -> bool:
        """Whether the topic is sealed and no hidden entries may still be revealed."""
        return self.seal is SealPhase.ENDED

    def enter(self, phase: TopicPhase) -> None:
        assert phase in NEXT_PHASES[self.phase], f"{phase} cannot follow {self.phase}"
        self.phase = phase

    def enter_seal(self, seal: SealPhase) -> None:
        assert seal in NEXT_SEAL_PHASES[self.seal], f"{seal} cannot follow {self.seal}"
        self.seal = seal
