"""The states of a bundle, and the changes that lead from one to the next: one table. Pure.

A change names everything that there is to know of the bundle after it, so that the last valid change of a bundle is its
state. A bundle without any is unassigned. Which of several changes counts is for `fold` to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from anabranch.model.bundles import BundleName


class BundleState(StrEnum):
    """A bundle that is in none of these is unassigned."""

    ASSIGNING = "assigning"  # On its way to `to`; with `to` None, about to be freed.
    ASSIGNED = "assigned"
    SPLITTING = "splitting"
    # Semi-terminal: kept for a while before they are forgotten, so that no broker mistakes the bundle for a new one.
    FREED = "freed"
    DELETED = "deleted"


class BundleAction(StrEnum):
    OWN = "own"
    TRANSFER = "transfer"
    UNLOAD = "unload"
    RETURN = "return"
    SPLIT = "split"
    CREATE = "create"
    DISCARD = "discard"
    TOMBSTONE = "tombstone"  # Forgets a semi-terminal state.


class BundleFlow(StrEnum):
    """What a change is a step of."""

    ASSIGNMENT = "assignment"
    TRANSFER = "transfer"
    UNLOAD = "unload"
    SPLIT = "split"
    CLEAN_UP = "clean-up"


IN_FLIGHT: Final = frozenset((BundleState.ASSIGNING, BundleState.SPLITTING))
SEMI_TERMINAL: Final = frozenset((BundleState.FREED, BundleState.DELETED))

# Every legal step: from a state (None: unassigned), by an action, to a state.
NEXT: Final[Mapping[tuple[BundleState | None, BundleAction], BundleState | None]] = MappingProxyType(
    {
        (None, BundleAction.OWN): BundleState.ASSIGNING,
        (BundleState.FREED, BundleAction.OWN): BundleState.ASSIGNING,
        (BundleState.ASSIGNING, BundleAction.RETURN): BundleState.ASSIGNED,
        (BundleState.ASSIGNED, BundleAction.TRANSFER): BundleState.ASSIGNING,
        (BundleState.ASSIGNED, BundleAction.UNLOAD): BundleState.ASSIGNING,
        (BundleState.ASSIGNING, BundleAction.DISCARD): BundleState.FREED,
        (BundleState.ASSIGNED, BundleAction.SPLIT): BundleState.SPLITTING,
        (None, BundleAction.CREATE): BundleState.ASSIGNED,
        (BundleState.FREED, BundleAction.CREATE): BundleState.ASSIGNED,
        # A child of a split that did not come to its end; the bundle is split again.
        (BundleState.DELETED, BundleAction.CREATE): BundleState.ASSIGNED,
        (BundleState.SPLITTING, BundleAction.DISCARD): BundleState.DELETED,
        (BundleState.FREED, BundleAction.TOMBSTONE): None,
        (BundleState.DELETED, BundleAction.TOMBSTONE): None,
    }
)
# What the leader may do to a bundle in any state, to repair it: its owner is dead, its change is stuck, or its
# namespace has no such bundle.
OVERRIDES: Final[Mapping[BundleAction, BundleState]] = MappingProxyType(
    {BundleAction.OWN: BundleState.ASSIGNING, BundleAction.DISCARD: BundleState.DELETED}
)
# The leader's alone, besides overrides.
OF_THE_LEADER: Final = frozenset((BundleAction.TRANSFER, BundleAction.UNLOAD, BundleAction.TOMBSTONE))


@dataclass(frozen=True, slots=True, order=True)
class BrokerRun:
    """One start of a broker. A broker that was started again at the same address must not act on messages to the one
    before."""

    broker: str  # Its id, `host:port`.
    run: str

    def __str__(self) -> str:
        return self.broker


@dataclass(frozen=True, slots=True)
class BundleChange:
    """One message of the bundle state channel: an action, and the bundle's state after it, in full."""

    bundle: BundleName
    flow: BundleFlow
    action: BundleAction
    state: BundleState | None  # None after a tombstone.
    # One more than that of the bundle's state before; any, from 1 on, if the bundle was unassigned.
    version: int
    author: BrokerRun
    # Who serves the bundle until this flow is over; and who does then.
    source: BrokerRun | None = None
    to: BrokerRun | None = None
    # The term of the author's leadership; 0 for what any broker may do.
    term: int = 0
    is_override: bool = False
    at_ms: int = 0
    reason: str = ""
    parent: BundleName | None = None  # Of a child that a split has created.
    children: tuple[BundleName, ...] = ()  # Of a bundle that is being split, or was.

    @property
    def is_in_flight(self) -> bool:
        return self.state in IN_FLIGHT

    @property
    def owner(self) -> BrokerRun | None:
        """Who owns the bundle, or has it until another broker does: the source of a transfer until its `RETURN`."""
        match self.state:
            case BundleState.ASSIGNED | BundleState.SPLITTING:
                return self.to
            case BundleState.ASSIGNING:
                return self.source
            case _:
                return None

    @property
    def named(self) -> frozenset[BrokerRun]:
        """The brokers that this state needs alive."""
        if self.state in (None, *SEMI_TERMINAL):
            return frozenset()
        return frozenset(one for one in (self.source, self.to) if one is not None)
