"""Brings bundles to the brokers of an isolation policy that was set: those of the namespaces that it unloads, at
brokers that may not own them. With the scope `all_matching` the others of these namespaces are assigned again, too.

A bundle that some broker may own is transferred there; its clients go straight to it. One that no living broker may own
is unloaded all the same, as in Pulsar: its clients wait until such a broker is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final

from anabranch.balance.core.isolation import IsolationPolicy, UnloadScope, unloaded_by
from anabranch.balance.core.states import BrokerRun, BundleState
from anabranch.broker.balance.bundle_owners import BundleOwners
from anabranch.broker.balance.choosing import Choose
from anabranch.broker.balance.placement import Bounds
from anabranch.broker.balance.requests import BundleRequests
from anabranch.broker.policy.bounded_patterns import matches
from anabranch.errors import AnabranchError
from anabranch.model.bundles import BundleName
from anabranch.model.names import NamespaceName

log = logging.getLogger(__name__)

MOVES_AT_ONCE: Final = 8


class Isolating:
    def __init__(
        self, owners: BundleOwners, bounds: Bounds, choose: Choose, requests: BundleRequests
    ) -> None:
        self._owners = owners
        self._bounds = bounds
        self._choose = choose
        self._requests = requests

    async def policy_set(
        self, name: str, new: IsolationPolicy, old: IsolationPolicy | None
    ) -> Sequence[BundleName]:
        """Returns once the bundles have moved; those that could not be moved, with the reason in the log."""
        names = unloaded_by(new, old, map(str, self._owners.bundles.ranges), matches)
        reason = f"the isolation policy {name} was set"
        given: dict[BundleName, BrokerRun] = {}
        works = [
            work
            for bundle in self._bundles(map(NamespaceName.parse, names))
            if (work := self._move(bundle, reason, given, moves_all=new.unload_scope is UnloadScope.ALL))
        ]
        gate = asyncio.Semaphore(MOVES_AT_ONCE)

        async def one(bundle: BundleName, work: Callable[[], Awaitable[None]]) -> BundleName | None:
            async with gate:
                try:
                    await work()
                except AnabranchError as error:
                    log.warning("%s: not moved although %s: %s", bundle, reason, error)
                    return bundle
                return None

        ended = await asyncio.gather(*(one(*work) for work in works))
        return [bundle for bundle in ended if bundle is not None]

    def _bundles(self, namespaces: Iterable[NamespaceName]) -> Collection[BundleName]:
        ranges = self._owners.bundles.ranges
        return [bundle for namespace in namespaces for bundle in ranges[namespace].bundles(namespace)]

    def _move(
        self, bundle: BundleName, reason: str, given: dict[BundleName, BrokerRun], *, moves_all: bool
    ) -> tuple[BundleName, Callable[[], Awaitable[None]]] | None:
        """What is done with the bundle; None if it has no owner or may stay. Adds to `given` where it goes."""
        now = self._owners.state(bundle)
        if now is None or now.state is not BundleState.ASSIGNED or now.to is None:
            return None
        why = self._bounds.why_not(bundle, now.to.broker)
        if why is None:
            return (bundle, lambda: self._requests.unload(bundle, reason)) if moves_all else None
        to = self._choose(bundle, without=(now.to.broker,), given=given).to
        if to is None:
            return bundle, lambda: self._requests.unload(bundle, f"{reason}: {why}")
        given[bundle] = to
        return bundle, lambda: self._requests.transfer(bundle, to.broker, f"{reason}: {why}")
