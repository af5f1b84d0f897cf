"""What the changes of a bundle amount to: its moves, each from its first step to its last. Pure.

A transfer is two changes of the channel, a split is one for the parent and one for each part. People who ask what
happened to a bundle want one line for it, with the time that it took and the reason that it began with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from anabranch.balance.core.states import BrokerRun, BundleAction, BundleChange, BundleState
from anabranch.model.bundles import BundleName


class MoveKind(StrEnum):
    ASSIGNMENT = "assignment"
    TRANSFER = "transfer"
    UNLOAD = "unload"
    SPLIT = "split"
    PART = "part"  # A bundle that a split has made.
    REPAIR = "repair"  # The leader gives it to another broker: its own is gone, or a change was stuck.
    REMOVAL = "removal"  # The leader removes a bundle that its namespace does not have.


# What a move has come to once another one has begun before it was done.
OVERTAKEN = "overtaken"

_BEGINS = {
    BundleAction.OWN: MoveKind.ASSIGNMENT,
    BundleAction.TRANSFER: MoveKind.TRANSFER,
    BundleAction.UNLOAD: MoveKind.UNLOAD,
    BundleAction.SPLIT: MoveKind.SPLIT,
}


@dataclass(frozen=True, slots=True)
class MoveSeen:
    bundle: BundleName
    kind: MoveKind
    version: int  # Of its first change.
    began_ms: int
    ended_ms: int | None  # None while it is under way.
    source: str | None  # The broker that had the bundle, if that is known.
    to: str | None
    state: str  # The bundle's last state in this move, or `OVERTAKEN`.
    reason: str
    parent: BundleName | None = None
    children: tuple[BundleName, ...] = ()

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "bundle": str(self.bundle),
            "kind": self.kind.value,
            "version": self.version,
            "beganMs": self.began_ms,
            "endedMs": self.ended_ms,
            "from": self.source,
            "to": self.to,
            "state": self.state,
            "reason": self.reason,
        }
        if self.parent is not None:
            told["parent"] = str(self.parent)
        if self.children:
            told["children"] = [str(child) for child in self.children]
        return told


def moves_seen(changes: Iterable[BundleChange]) -> list[MoveSeen]:
    """The moves that these changes of any bundles are steps of, in the order of their beginnings. Changes may be
    missing, as before a broker began to read; the moves are those that can be told then."""
    by_bundle: dict[BundleName, list[BundleChange]] = {}
    for change in changes:
        by_bundle.setdefault(change.bundle, []).append(change)
    found = [move for some in by_bundle.values() for move in _of_one(sorted(some, key=_order))]
    return sorted(found, key=lambda move: (move.began_ms, move.bundle, move.version))


def _order(change: BundleChange) -> tuple[int, int]:
    """By time first: a bundle that was forgotten and is assigned again begins with version 1."""
    return change.at_ms, change.version


def _of_one(changes: list[BundleChange]) -> list[MoveSeen]:
    found: list[MoveSeen] = []
    had: BrokerRun | None = None
    for change in changes:
        is_open = bool(found) and found[-1].ended_ms is None
        kind = _kind(change)
        if kind is not None:
            if is_open:
                found[-1] = replace(found[-1], ended_ms=change.at_ms, state=OVERTAKEN)
            found.append(_begun(change, kind, change.source or had))
        elif is_open and change.state is not None:
            found[-1] = replace(found[-1], ended_ms=change.at_ms, state=str(change.state))
        had = change.owner if not change.is_in_flight else had or change.owner
    return found


def _kind(change: BundleChange) -> MoveKind | None:
    """The kind of the move that this change begins; None if it goes on with one."""
    if change.is_override:
        return MoveKind.REPAIR if change.action is BundleAction.OWN else MoveKind.REMOVAL
    if change.action is BundleAction.CREATE:
        return MoveKind.PART
    return _BEGINS.get(change.action)


def _begun(change: BundleChange, kind: MoveKind, source: BrokerRun | None) -> MoveSeen:
    if change.state is BundleState.SPLITTING:
        source = change.to
    return MoveSeen(
        change.bundle,
        kind,
        change.version,
        change.at_ms,
        None if change.is_in_flight else change.at_ms,
        None if source is None or kind in (MoveKind.ASSIGNMENT, MoveKind.PART) else source.broker,
        None if change.to is None else change.to.broker,
        str(change.state),
        change.reason,
        change.parent,
        change.children,
    )
