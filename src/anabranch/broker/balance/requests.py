"""What operators ask for, at any broker: transfers, unloads and splits of bundles. The leader makes the change, or the
owner in the case of a split; the broker that was asked waits until it is done.

Also answers the other brokers: as the leader, and as a destination that is asked whether it is ready.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from anabranch.balance.core.states import BundleChange
from anabranch.broker.balance.bundle_owners import BundleOwners
from anabranch.broker.balance.calls import (
    PREPARE,
    REQUEST,
    BundleRequest,
    PrepareBundle,
    RequestKind,
    RequestTaken,
)
from anabranch.broker.balance.channel.state_log import StateLog
from anabranch.broker.balance.leader_changes import LeaderChanges
from anabranch.broker.balance.leading import Leading
from anabranch.broker.balance.splitting import Splitting
from anabranch.broker.catalog.registry import BrokerRegistry
from anabranch.broker.errors import NotAllowedError, NotReadyError
from anabranch.broker.peers.errors import PeerUnavailable
from anabranch.broker.peers.methods import HELLO, Nothing
from anabranch.broker.peers.peers import Peers
from anabranch.errors import AnabranchError
from anabranch.model.bundles import BundleName

log = logging.getLogger(__name__)

# How long a request waits for a leader that takes it: between two leaders, or while the bundle moves.
LEADER_MAX_S: Final = 10.0
RETRY_S: Final = 0.2
LINK_MAX_S: Final = 1.5


class BundleRequests:
    def __init__(
        self,
        owners: BundleOwners,
        states: StateLog,
        leading: Leading,
        registry: BrokerRegistry,
        changes: LeaderChanges,
        splitting: Splitting,
        peers: Peers,
        in_flight_max_s: Callable[[], float],
        *,
        leader_max_s: float = LEADER_MAX_S,
    ) -> None:
        self._owners = owners
        self._states = states
        self._leading = leading
        self._registry = registry
        self._changes = changes
        self._splitting = splitting
        self._peers = peers
        self._in_flight_max_s = in_flight_max_s
        self._leader_max_s = leader_max_s
        peers.handlers.add(REQUEST, self._requested)
        peers.handlers.add(PREPARE, self._prepared)

    # -- at any broker

    async def transfer(self, bundle: BundleName, to: str, reason: str) -> None:
        """Moves the bundle to the broker of that id, or to another than its owner if none is given. Returns once it is
        there. NotAllowedError if it cannot be, NotReadyError if it cannot be now."""
        version = await self._ask(
            BundleRequest(RequestKind.TRANSFER, str(bundle), to, reason),
            lambda now: bool(to) and now.owner is not None and now.owner.broker == to,
        )
        now = await self._done(bundle, version)
        if to and (now is None or now.owner is None or now.owner.broker != to):
            where = "no broker" if now is None or now.owner is None else str(now.owner)
            raise NotReadyError(f"{bundle} has not come to {to}: {where} has it; see the log of the leader")

    async def unload(self, bundle: BundleName, reason: str) -> None:
        """Takes the bundle from its owner; the next request for its topics assigns it. Returns once it is closed."""
        version = await self._ask(BundleRequest(RequestKind.UNLOAD, str(bundle), "", reason))
        await self._done(bundle, version)

    async def revive(self, bundle: BundleName) -> None:
        """Asks for an owner of a bundle that was deleted, and that its namespace has again."""
        await self._ask(BundleRequest(RequestKind.REVIVE, str(bundle), "", "a client asks for it"))

    async def split(
        self, bundle: BundleName, edges: Sequence[int], reason: str, *, unloads: bool = False
    ) -> tuple[BundleName, ...]:
        """Splits a bundle of this broker at these hashes; its parts. With `unloads` the leader is asked to move them
        to other brokers. Returns once it is done."""
        children = await self._splitting.begin(bundle, edges, reason)
        await self._owners.settled(bundle, self._in_flight_max_s())
        for child in children if unloads else ():
            try:
                await self.transfer(child, "", f"a part of {bundle}, which was split")
            except AnabranchError as error:
                log.info("%s: it stays here after the split: %s", child, error)
        return children

    async def _ask(
        self, request: BundleRequest, is_done: Callable[[BundleChange], bool] = lambda now: False
    ) -> int:
        """The version of the bundle's state once the leader has taken the request. A leader that is lost before it
        answers may have taken it: `is_done` says whether that is so."""
        bundle, is_lost = BundleName.parse(request.bundle), False
        try:
            async with asyncio.timeout(self._leader_max_s):
                while True:
                    now = self._states.fold.get(bundle)
                    if is_lost and now is not None and is_done(now):
                        return now.version
                    try:
                        if (leader := self._leading.leader) is None:
                            raise NotReadyError("there is no leader at the moment")
                        return (await self._peers.call(leader.broker, REQUEST, request)).version
                    except PeerUnavailable as error:
                        is_lost, why = True, str(error)
                    except NotReadyError as error:
                        why = str(error)
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            raise NotReadyError(f"{bundle}: {why}") from None

    async def _done(self, bundle: BundleName, version: int) -> BundleChange | None:
        """The bundle's state once that of this version is read, and nothing is under way."""
        await self._owners.read(bundle, version, self._in_flight_max_s())
        return await self._owners.settled(bundle, self._in_flight_max_s())

    # -- as the leader

    async def _requested(self, peer: str, request: BundleRequest) -> RequestTaken:
        bundle = BundleName.parse(request.bundle)
        log.info("%s: %s is asked for by %s: %s", bundle, request.kind, peer, request.reason)
        match request.kind:
            case RequestKind.TRANSFER:
                version = await self._changes.transfer(bundle, request.to or None, request.reason)
            case RequestKind.UNLOAD:
                version = await self._changes.unload(bundle, request.reason)
            case RequestKind.REVIVE:
                version = await self._changes.revive(bundle, request.reason)
            case _:
                raise NotAllowedError(f"{bundle}: this broker does not know the request {request.kind}")
        return RequestTaken(version)

    # -- as a destination

    async def _prepared(self, peer: str, request: PrepareBundle) -> Nothing:
        """Answers once this broker could open the topics of the bundle at once. NotReadyError if it could not."""
        bundle = BundleName.parse(request.bundle)
        if not self._owners.is_sure:
            raise NotReadyError(f"{bundle} cannot come here: this broker is not registered at present")
        if self._registry.me.is_draining:
            raise NotReadyError(f"{bundle} cannot come here: this broker is about to end")
        if not self._states.is_following:
            raise NotReadyError(
                f"{bundle} cannot come here: this broker does not follow the channel at present"
            )
        if not self._owners.bundles.has(bundle):
            await self._owners.bundles.learn(bundle.namespace)
            if not self._owners.bundles.has(bundle):
                raise NotReadyError(f"{bundle} cannot come here: its namespace has no such bundle")
        if request.source:
            # The link by which the topics will be asked for.
            await self._peers.call(request.source, HELLO, Nothing(), answer_max_s=LINK_MAX_S)
        return Nothing()
