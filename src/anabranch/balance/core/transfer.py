"""What a broker does when a bundle's state names it. Pure: an accepted change in, a duty out.

    assign      Own → [destination: nothing to wait for] → Return
    transfer    Transfer → [source: hands the topics over, then tells the destination] → [destination: Return]
    unload      Unload → [source: closes the topics] → Discard
    split       Split → [owner: creates the children, changes the boundaries] → Discard

A broker that is not named does nothing. A duty may be given twice (a broker that reads the channel again) and is the
same then; the version of the change that it ends with makes the second time harmless.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from anabranch.balance.core.states import BrokerRun, BundleAction, BundleChange, BundleFlow, BundleState
from anabranch.model.bundles import BundleName


class DutyKind(StrEnum):
    TAKE = "take"  # Own the bundle, which has no owner.
    RECEIVE = "receive"  # Own the bundle once its source has let go of it, is gone, or takes too long.
    HAND_OVER = "hand over"  # Hand the topics to the destination, and tell it.
    UNLOAD = "unload"  # Close the topics, then discard.
    SPLIT = "split"  # Create the children, change the boundaries, then discard the parent.


@dataclass(frozen=True, slots=True)
class Duty:
    kind: DutyKind
    bundle: BundleName
    version: int  # Of the change that gave it: the duty is over once the bundle has another.
    other: BrokerRun | None = None  # The source or the destination.
    children: tuple[BundleName, ...] = ()


def duty_of(me: BrokerRun, change: BundleChange) -> Duty | None:
    """What this broker has to do now that the bundle is in this state; None for nothing."""
    kind: DutyKind | None = None
    other: BrokerRun | None = None
    match change.state:
        case BundleState.ASSIGNING if change.to == me:
            other = change.source if change.source != me else None
            kind = DutyKind.TAKE if other is None else DutyKind.RECEIVE
        case BundleState.ASSIGNING if change.source == me:
            other = change.to
            kind = DutyKind.UNLOAD if other is None else DutyKind.HAND_OVER
        case BundleState.SPLITTING if change.to == me:
            kind = DutyKind.SPLIT
        case _:
            pass
    return None if kind is None else Duty(kind, change.bundle, change.version, other, change.children)


def must_wait_for_source(duty: Duty, living: Mapping[str, str], released: bool) -> bool:
    """Whether a destination waits on: the source is alive, and has not said that it is done."""
    other = duty.other
    return other is not None and not released and living.get(other.broker) == other.run


# -- the change that ends a duty, or begins a flow


def ended(duty: Duty, before: BundleChange, me: BrokerRun, now_ms: int) -> BundleChange:
    """The change that says that the duty is done. A source that has handed a bundle over stores none: its destination
    does."""
    assert duty.kind is not DutyKind.HAND_OVER, "the destination ends a transfer"
    if duty.kind in (DutyKind.TAKE, DutyKind.RECEIVE):
        action, state, to = BundleAction.RETURN, BundleState.ASSIGNED, before.to
    elif duty.kind is DutyKind.UNLOAD:
        action, state, to = BundleAction.DISCARD, BundleState.FREED, None
    else:
        action, state, to = BundleAction.DISCARD, BundleState.DELETED, None
    return BundleChange(
        duty.bundle,
        before.flow,
        action,
        state,
        duty.version + 1,
        me,
        to=to,
        at_ms=now_ms,
        reason=before.reason,
        children=duty.children if duty.kind is DutyKind.SPLIT else (),
    )


def owned(
    bundle: BundleName, version: int, to: BrokerRun, me: BrokerRun, now_ms: int, reason: str
) -> BundleChange:
    """The assignment of a bundle without an owner, which any broker may begin."""
    return BundleChange(
        bundle,
        BundleFlow.ASSIGNMENT,
        BundleAction.OWN,
        BundleState.ASSIGNING,
        version,
        me,
        to=to,
        at_ms=now_ms,
        reason=reason,
    )


def child_of(
    parent: BundleChange, child: BundleName, version: int, me: BrokerRun, now_ms: int
) -> BundleChange:
    return BundleChange(
        child,
        BundleFlow.SPLIT,
        BundleAction.CREATE,
        BundleState.ASSIGNED,
        version,
        me,
        to=me,
        at_ms=now_ms,
        reason=parent.reason,
        parent=parent.bundle,
    )


def split(
    before: BundleChange, children: tuple[BundleName, ...], me: BrokerRun, now_ms: int, reason: str
) -> BundleChange:
    return BundleChange(
        before.bundle,
        BundleFlow.SPLIT,
        BundleAction.SPLIT,
        BundleState.SPLITTING,
        before.version + 1,
        me,
        to=before.to,
        at_ms=now_ms,
        reason=reason,
        children=children,
    )


# -- what the leader begins


@dataclass(frozen=True, slots=True)
class LeaderHand:
    """Makes the changes that a leader of that term makes."""

    me: BrokerRun
    term: int

    def transfer(self, before: BundleChange, to: BrokerRun, now_ms: int, reason: str) -> BundleChange:
        return self._made(
            before, BundleFlow.TRANSFER, BundleAction.TRANSFER, now_ms, reason, source=before.to, to=to
        )

    def unload(self, before: BundleChange, now_ms: int, reason: str) -> BundleChange:
        return self._made(before, BundleFlow.UNLOAD, BundleAction.UNLOAD, now_ms, reason, source=before.to)

    def reassign(self, before: BundleChange, to: BrokerRun, now_ms: int, reason: str) -> BundleChange:
        """An override. A source that lives hands its topics over as in a transfer."""
        owner = before.owner
        source = owner if owner is not None and owner != to else None
        return self._made(
            before,
            BundleFlow.CLEAN_UP,
            BundleAction.OWN,
            now_ms,
            reason,
            source=source,
            to=to,
            is_override=True,
        )

    def remove(self, before: BundleChange, now_ms: int, reason: str) -> BundleChange:
        return self._made(
            before,
            BundleFlow.CLEAN_UP,
            BundleAction.DISCARD,
            now_ms,
            reason,
            state=BundleState.DELETED,
            is_override=True,
        )

    def forget(self, before: BundleChange, now_ms: int, reason: str) -> BundleChange:
        return self._made(before, BundleFlow.CLEAN_UP, BundleAction.TOMBSTONE, now_ms, reason, state=None)

    def _made(
        self,
        before: BundleChange,
        flow: BundleFlow,
        action: BundleAction,
        now_ms: int,
        reason: str,
        *,
        state: BundleState | None = BundleState.ASSIGNING,
        source: BrokerRun | None = None,
        to: BrokerRun | None = None,
        is_override: bool = False,
    ) -> BundleChange:
        return BundleChange(
            before.bundle,
            flow,
            action,
            state,
            before.version + 1,
            self.me,
            source,
            to,
            self.term,
            is_override,
            now_ms,
            reason,
        )
