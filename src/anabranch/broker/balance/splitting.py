"""Splits bundles of this broker: the children are in the channel before the boundaries of the namespace change.

In the other order a broker that reads the new boundaries would find a bundle without an owner, and assign it while the
owner of the whole still serves it. No topic is closed: this broker owns its bundle before and after.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from anabranch.balance.core.states import SEMI_TERMINAL, BundleState
from anabranch.balance.core.transfer import Duty, child_of, split
from anabranch.broker.balance.bundle_owners import BundleOwners
from anabranch.broker.balance.channel.state_log import ChangeRejected, StateLog
from anabranch.broker.catalog.resources import NamespaceNotFound, Resources
from anabranch.broker.config.choices import BUNDLES_MAX
from anabranch.broker.errors import NotAllowedError, NotReadyError
from anabranch.broker.policy.namespace import Bundles, NamespacePolicies
from anabranch.model.bundles import BundleName

log = logging.getLogger(__name__)


def cut_at(bundle: BundleName, edges: Sequence[int]) -> tuple[BundleName, ...]:
    """The parts of the bundle between these hashes, which must lie within it. NotAllowedError if they do not."""
    first, last = bundle.edges
    inside = sorted(set(edges))
    if not inside or inside[0] <= first or inside[-1] >= last:
        raise NotAllowedError(f"{bundle} cannot be split at {', '.join(f'0x{edge:08x}' for edge in edges)}")
    ends = [first, *inside, last]
    return tuple(BundleName(bundle.namespace, f"0x{low:08x}_0x{high:08x}") for low, high in pairwise(ends))


class Splitting:
    def __init__(
        self, owners: BundleOwners, states: StateLog, resources: Resources, now_ms: Callable[[], int]
    ) -> None:
        self._owners = owners
        self._me = owners.me
        self._states = states
        self._resources = resources
        self._now_ms = now_ms

    async def begin(self, bundle: BundleName, edges: Sequence[int], reason: str) -> tuple[BundleName, ...]:
        """Stores that the bundle is to be split at these hashes; its children. What follows is done by the duty that
        comes of it. NotAllowedError if it cannot be split there, NotReadyError if it cannot be now."""
        children = cut_at(bundle, edges)
        ranges = self._owners.bundles.ranges.get(bundle.namespace)
        if ranges is None or not self._owners.bundles.has(bundle):
            raise NotAllowedError(f"{bundle.namespace} has no bundle {bundle.range}")
        if len(ranges.names) + len(children) - 1 > BUNDLES_MAX:
            raise NotAllowedError(
                f"{bundle.namespace} has {len(ranges.names)} bundles, the most is {BUNDLES_MAX}"
            )
        now = self._states.fold.get(bundle)
        if now is None or now.state is not BundleState.ASSIGNED or now.to != self._me:
            raise NotReadyError(f"{bundle} is not owned by this broker, or is moving or being split")
        for child in children:
            found = self._states.fold.get(child)
            if found is not None and found.state not in SEMI_TERMINAL:
                raise NotReadyError(
                    f"{bundle} cannot be split there yet: {child} is {found.state} since an earlier split"
                )
        try:
            await self._states.append(split(now, children, self._me, self._now_ms(), reason))
        except ChangeRejected as error:
            raise NotReadyError(f"{bundle} is not split: {error}") from error
        log.debug("%s: split into %d bundles: %s", bundle, len(children), reason)
        return children

    async def perform(self, duty: Duty) -> None:
        """Creates the children, then changes the boundaries. May be done again from the start."""
        parent = self._states.fold.get(duty.bundle)
        if parent is None or parent.version != duty.version:
            return
        for child in duty.children:
            found = self._states.fold.get(child)
            if found is not None and found.to == self._me and found.state is BundleState.ASSIGNED:
                continue
            version = self._states.fold.next_version(child)
            await self._states.append(child_of(parent, child, version, self._me, self._now_ms()))
        try:
            await self._resources.update_policies(
                duty.bundle.namespace, lambda policies: cut(policies, duty.bundle, duty.children)
            )
            # What is asked of this broker next goes by the new boundaries.
            await self._owners.bundles.learn(duty.bundle.namespace)
        except NamespaceNotFound:
            log.info("%s: its namespace was deleted while it was split", duty.bundle)


def cut(policies: NamespacePolicies, whole: BundleName, children: Sequence[BundleName]) -> NamespacePolicies:
    """The policies with the boundaries between the children."""
    texts = {edge for child in children for edge in child.range.split("_")}
    before = policies.bundles.boundaries
    if not {int(edge, 16) for edge in whole.range.split("_")} <= {int(edge, 16) for edge in before}:
        return policies  # The namespace was deleted and made again with other bundles.
    edges = sorted({int(edge, 16) for edge in (*before, *texts)})
    if len(edges) - 1 > BUNDLES_MAX:
        raise NotAllowedError(f"{whole.namespace} would have more than {BUNDLES_MAX} bundles")
    boundaries = tuple(f"0x{edge:08x}" for edge in edges)
    return msgspec.structs.replace(policies, bundles=Bundles(boundaries=boundaries, count=len(edges) - 1))
