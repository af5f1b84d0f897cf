"""Folds the changes of the bundle state channel, in their order, into the state of every bundle. Pure.

The first valid change wins; a later one that does not follow from the state that it meets is ignored, by every reader
alike. So all brokers that have read the same changes have the same owners, whichever brokers wrote at the same moment.

A snapshot is the winning change of each bundle. Folding a snapshot and the changes after it gives the same as folding
all changes: that is what the channel's compaction relies on, which keeps winners and never simply the last change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from anabranch.balance.core.states import (
    NEXT,
    OF_THE_LEADER,
    OVERRIDES,
    BrokerRun,
    BundleAction,
    BundleChange,
    BundleFlow,
    BundleState,
)
from anabranch.model.bundles import BundleName


class Fold:
    """The states of all bundles, as of the changes read so far."""

    def __init__(self) -> None:
        self._bundles: dict[BundleName, BundleChange] = {}
        self._term = 0
        self.accepted = self.rejected = 0

    @property
    def bundles(self) -> Mapping[BundleName, BundleChange]:
        """The last valid change of each bundle that has a state."""
        return MappingProxyType(self._bundles)

    @property
    def term(self) -> int:
        """The newest term of a leader that has made itself known."""
        return self._term

    def get(self, bundle: BundleName) -> BundleChange | None:
        return self._bundles.get(bundle)

    def next_version(self, bundle: BundleName) -> int:
        """The version of a change that would be valid now."""
        before = self._bundles.get(bundle)
        return 1 if before is None else before.version + 1

    # -- reading the channel

    def lead(self, term: int) -> None:
        """A leader of that term has begun: what leaders of earlier terms still write is not valid any more."""
        self._term = max(self._term, term)

    def apply(self, change: BundleChange) -> str | None:
        """Takes the change if it is valid. Else returns the reason why it is ignored."""
        refused = self.why_not(change)
        if refused is not None:
            self.rejected += 1
            return refused
        self.accepted += 1
        self.restore(change)
        return None

    def restore(self, change: BundleChange) -> bool:
        """Takes the change as the last valid one of its bundle, whatever was before: the caller knows that it was
        accepted, and is the newer. Returns whether the bundle's state is another one now."""
        before = self._bundles.get(change.bundle)
        self._term = max(self._term, change.term)
        if change.state is None:
            self._bundles.pop(change.bundle, None)
            return before is not None
        self._bundles[change.bundle] = change
        return change != before

    def why_not(self, change: BundleChange) -> str | None:
        """Why the change is not valid now; None if it is."""
        before = self._bundles.get(change.bundle)
        return (
            _wrong_version(before, change)
            or self._wrong_state(before, change)
            or self._wrong_author(before, change)
            or _wrong_content(before, self._parent(change), change)
        )

    def _wrong_state(self, before: BundleChange | None, change: BundleChange) -> str | None:
        found = None if before is None else before.state
        step = (found, change.action)
        if change.is_override:
            if change.action not in OVERRIDES:
                return f"{change.action} is never an override"
            expected: BundleState | None = OVERRIDES[change.action]
        elif step in NEXT:
            expected = NEXT[step]
        else:
            return f"no {change.action} of a bundle that is {found or 'unassigned'}"
        if change.state is not expected:
            return f"{change.action} leads to {expected or 'unassigned'}, not to {change.state}"
        return None

    def _wrong_author(self, before: BundleChange | None, change: BundleChange) -> str | None:
        is_leaders = change.is_override or change.action in OF_THE_LEADER
        if is_leaders:
            if change.term <= 0 or change.term < self._term:
                return f"the leader of term {change.term} leads no more, the newest term is {self._term}"
            return None
        if change.term:
            return f"{change.action} is no action of a leader"
        may = _allowed_author(before, change)
        if may is not None and may != change.author:
            return f"{change.action} is for {may} of run {may.run}, not for {change.author} of run {change.author.run}"
        return None

    def _parent(self, change: BundleChange) -> BundleChange | None:
        return None if change.parent is None else self._bundles.get(change.parent)

    # -- snapshots

    def snapshot(self) -> list[BundleChange]:
        """The winning change of each bundle, sorted by bundle."""
        return [self._bundles[bundle] for bundle in sorted(self._bundles)]

    @classmethod
    def restored(cls, term: int, winners: Iterable[BundleChange]) -> Fold:
        """The fold whose snapshot this is, at that term."""
        made = cls()
        made._term = term
        for change in winners:
            made.restore(change)
        return made

    def become(self, other: Fold) -> list[BundleChange]:
        """Takes all states of the other fold, which is the newer. Returns those that are others than before, sorted by
        bundle; for a bundle that is unassigned now, a tombstone."""
        gone = [_tombstone(self._bundles[bundle]) for bundle in self._bundles.keys() - other.bundles.keys()]
        different = [
            change for bundle, change in other.bundles.items() if self._bundles.get(bundle) != change
        ]
        self._term = max(self._term, other.term)
        self._bundles = dict(other.bundles)
        return sorted((*gone, *different), key=lambda change: change.bundle)

    # -- questions

    def owned_by(self, broker: BrokerRun) -> Iterator[BundleChange]:
        return (change for change in self._bundles.values() if change.owner == broker)


def _tombstone(before: BundleChange) -> BundleChange:
    return replace(
        before,
        flow=BundleFlow.CLEAN_UP,
        action=BundleAction.TOMBSTONE,
        state=None,
        version=before.version + 1,
        source=None,
        to=None,
        children=(),
    )


def _wrong_version(before: BundleChange | None, change: BundleChange) -> str | None:
    if before is None:
        return None if change.version >= 1 else f"version {change.version} is less than 1"
    if change.version != before.version + 1:
        return f"version {change.version} does not follow version {before.version}"
    return None


def _allowed_author(before: BundleChange | None, change: BundleChange) -> BrokerRun | None:
    """The only broker that may make this change, if there is one."""
    match change.action:
        case BundleAction.RETURN | BundleAction.SPLIT if before is not None:
            return before.to
        case BundleAction.DISCARD if before is not None:
            return before.owner
        case _:
            return None


def _wrong_content(
    before: BundleChange | None, parent: BundleChange | None, change: BundleChange
) -> str | None:
    """What the change says of brokers and bundles must follow from the state before."""
    match change.action:
        case BundleAction.OWN:
            if change.to is None:
                return "own without a broker"
            return _moved_source(before, change) if change.is_override else _sourceless(change)
        case BundleAction.TRANSFER if before is not None:
            if change.to is None or change.source is None or change.source != before.to:
                return "a transfer names the owner and another broker"
            return "a transfer to the owner itself" if change.to.broker == change.source.broker else None
        case BundleAction.UNLOAD if before is not None:
            return (
                None
                if change.to is None and change.source == before.to
                else "an unload names the owner alone"
            )
        case BundleAction.RETURN if before is not None:
            if before.to is None:
                return "the bundle is unloaded, not assigned to anybody"
            is_its = change.to == before.to and change.source is None
            return None if is_its else f"the bundle goes to {before.to}"
        case BundleAction.DISCARD if before is not None and not change.is_override:
            is_unload = before.state is not BundleState.ASSIGNING or before.to is None
            if not is_unload:
                return f"the bundle goes to {before.to}, and is not unloaded"
            return _brokerless(change)
        case BundleAction.DISCARD | BundleAction.TOMBSTONE:
            return _brokerless(change)
        case BundleAction.SPLIT if before is not None:
            return _wrong_children(before, change)
        case BundleAction.CREATE:
            return _wrong_child(parent, change)
        case _:
            return None


def _wrong_child(parent: BundleChange | None, change: BundleChange) -> str | None:
    if parent is None or parent.state is not BundleState.SPLITTING or change.bundle not in parent.children:
        return "created by no split that is under way"
    return None if change.to == change.author == parent.to else f"children of this split are for {parent.to}"


def _brokerless(change: BundleChange) -> str | None:
    is_so = change.source is None and change.to is None
    return None if is_so else f"{change.action} names no broker: the bundle has none after it"


def _sourceless(change: BundleChange) -> str | None:
    return None if change.source is None else "own of a bundle without an owner names no source"


def _moved_source(before: BundleChange | None, change: BundleChange) -> str | None:
    if change.source is None or (before is not None and change.source in before.named):
        return None
    return f"{change.source} does not have the bundle"


def _wrong_children(before: BundleChange, change: BundleChange) -> str | None:
    if change.to != before.to:
        return "a split changes no owner"
    first, last = change.bundle.edges
    place = first
    for child in change.children:
        begin, end = child.edges
        if child.namespace != change.bundle.namespace or begin != place or end <= begin:
            return f"{child} is no part of {change.bundle}"
        place = end
    return (
        None if len(change.children) >= 2 and place == last else f"the children do not cover {change.bundle}"
    )
