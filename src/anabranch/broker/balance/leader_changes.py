"""The changes that only the leader makes: transfers, unloads, and what overrides a state.

Each carries the leader's term, so that nothing of a leader that was replaced counts any more. None is made while the
metadata store is in doubt (`safe_mode`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from anabranch.balance.core.serving import is_free
from anabranch.balance.core.states import BrokerRun, BundleChange, BundleState
from anabranch.balance.core.transfer import LeaderHand, owned
from anabranch.broker.balance.bundle_owners import BundleOwners
from anabranch.broker.balance.calls import PREPARE, PrepareBundle
from anabranch.broker.balance.channel.state_log import ChangeRejected, StateLog
from anabranch.broker.balance.choosing import Choose, able_brokers
from anabranch.broker.balance.leading import Leading
from anabranch.broker.balance.placement import Bounds
from anabranch.broker.balance.safe_mode import SafeMode
from anabranch.broker.catalog.registry import BrokerRegistry
from anabranch.broker.errors import NotAllowedError, NotReadyError
from anabranch.broker.peers.errors import PeerUnavailable
from anabranch.broker.peers.peers import Peers
from anabranch.model.bundles import BundleName

log = logging.getLogger(__name__)


class LeaderChanges:
    """Every method raises NotReadyError if this broker does not lead, if nothing may be moved, or if the bundle is
    between two states."""

    def __init__(
        self,
        owners: BundleOwners,
        states: StateLog,
        leading: Leading,
        registry: BrokerRegistry,
        choose: Choose,
        peers: Peers,
        safe_mode: SafeMode,
        bounds: Bounds,
        now_ms: Callable[[], int],
    ) -> None:
        self._owners = owners
        self._states = states
        self._leading = leading
        self._registry = registry
        self._choose = choose
        self._peers = peers
        self._safe_mode = safe_mode
        self._bounds = bounds
        self._now_ms = now_ms
        # The brokers of bundles that the channel does not show there yet.
        self._given: dict[BundleName, BrokerRun] = {}

    def _hand(self, *, is_certain: bool = False) -> LeaderHand:
        """`is_certain`: the change is right even if the metadata store is wrong about the brokers."""
        if not self._leading.term:
            raise NotReadyError("this broker does not lead: ask the leader")
        if not is_certain and (why := self._safe_mode.why()) is not None:
            raise NotReadyError(f"no bundle is moved now: {why}")
        return LeaderHand(self._owners.me, self._leading.term)

    # -- moves

    async def transfer(
        self, bundle: BundleName, to: str | None, reason: str, *, is_certain: bool = False
    ) -> int:
        """Begins to move the bundle to the broker of that id, or to the one that suits best but its owner. Returns the
        version of the bundle's state then. NotAllowedError if it cannot be moved there."""
        hand, now = self._hand(is_certain=is_certain), self._states.fold.get(bundle)
        owner = None if now is None else now.owner
        if to:
            run = await self._able(bundle, to)
        else:
            run = self._chosen(bundle, () if owner is None else (owner.broker,))
        if now is None or is_free(now):
            version = self._states.fold.next_version(bundle)
            return await self._stored(
                owned(bundle, version, run, self._owners.me, self._now_ms(), reason), run
            )
        if now.state is not BundleState.ASSIGNED:
            raise NotReadyError(f"{bundle} is {now.state}: try again in a moment")
        if now.to == run:
            raise NotAllowedError(f"{bundle} cannot go to {run}: that broker has it")
        self._given[bundle] = run
        try:
            await self._prepare(bundle, now, run)
            # If the bundle has changed meanwhile, the channel does not take this.
            return await self._stored(hand.transfer(now, run, self._now_ms(), reason), run)
        finally:
            self._given.pop(bundle, None)

    async def unload(self, bundle: BundleName, reason: str) -> int:
        """Begins to take the bundle from its owner, without another one. Returns the version of its state then."""
        hand, now = self._hand(), self._states.fold.get(bundle)
        if now is None or is_free(now):
            return self._states.fold.next_version(bundle) - 1
        if now.state is not BundleState.ASSIGNED:
            raise NotReadyError(f"{bundle} is {now.state}: try again in a moment")
        return await self._stored(hand.unload(now, self._now_ms(), reason))

    async def revive(self, bundle: BundleName, reason: str) -> int:
        """Gives an owner to a bundle that was deleted and that its namespace has again. Returns the version of its
        state then."""
        await self._owners.bundles.learn(bundle.namespace)
        now = self._states.fold.get(bundle)
        if now is None or now.state is not BundleState.DELETED or not self._owners.bundles.has(bundle):
            return self._states.fold.next_version(bundle) - 1
        return await self.reassign(now, None, reason)

    async def _able(self, bundle: BundleName, broker: str) -> BrokerRun:
        found = self._registry.living().get(broker)
        if found is None:
            raise NotAllowedError(f"{bundle} cannot go to {broker}: there is no such living broker")
        if found.is_draining:
            raise NotAllowedError(f"{bundle} cannot go to {broker}: that broker is about to end")
        if self._bounds.why_not(bundle, broker) is not None:
            # The policy may be another one by now.
            await self._bounds.refresh()
            if (why := self._bounds.why_not(bundle, broker)) is not None:
                raise NotAllowedError(f"{bundle} cannot go to {broker}: {why}")
        return BrokerRun(broker, found.run_id)

    def _chosen(self, bundle: BundleName, without: Collection[str] = ()) -> BrokerRun:
        choice = self._choose(bundle, without=without, given=self._given)
        if choice.to is None:
            raise NotReadyError(f"{bundle}: no broker is found for it: {choice.reason}")
        return choice.to

    async def _prepare(self, bundle: BundleName, now: BundleChange, to: BrokerRun) -> None:
        source = "" if now.to is None else now.to.broker
        try:
            await self._peers.call(to.broker, PREPARE, PrepareBundle(str(bundle), source))
        except PeerUnavailable as error:
            raise NotReadyError(f"{bundle} cannot go to {to} now: {error}") from error

    # -- repairs

    async def reassign(
        self, before: BundleChange, to: BrokerRun | None, reason: str, *, is_certain: bool = False
    ) -> int:
        """Gives the bundle to that broker, or to the one that suits best, whatever its state is. `is_certain`: its
        broker was started again."""
        hand, run = self._hand(is_certain=is_certain), to or self._next_owner(before)
        return await self._stored(hand.reassign(before, run, self._now_ms(), reason), run)

    async def remove(self, before: BundleChange, reason: str) -> int:
        return await self._stored(self._hand().remove(before, self._now_ms(), reason))

    async def forget(self, before: BundleChange, reason: str) -> int:
        return await self._stored(self._hand().forget(before, self._now_ms(), reason))

    def _next_owner(self, before: BundleChange) -> BrokerRun:
        """The next owner of a bundle whose broker is gone: the same broker, if it was started again meanwhile. So the
        bundles spread as before, and none has to be moved back."""
        gone = before.to or before.source
        again = (
            None
            if gone is None
            else {one.broker: one for one in able_brokers(self._registry)}.get(gone.broker)
        )
        if again is not None and self._bounds.why_not(before.bundle, again.broker) is None:
            return again
        return self._chosen(before.bundle)

    # -- storing

    async def _stored(self, change: BundleChange, to: BrokerRun | None = None) -> int:
        if to is not None:
            self._given[change.bundle] = to
        try:
            await self._states.append(change)
        except ChangeRejected as error:
            raise NotReadyError(f"{change.bundle}: {change.action} is not valid any more: {error}") from error
        finally:
            self._given.pop(change.bundle, None)
        where = "" if change.to is None else f" to {change.to}"
        log.debug("%s: %s%s: %s", change.bundle, change.action, where, change.reason)
        return change.version
