"""The load balancer of one broker: its parts, and their life.

A broker registers, finds or becomes the leader, follows the channel to its end, and serves then. None of this goes
through a bundle, so that the first broker of a cluster starts alone as it starts beside others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from anabranch.balance.core.load import BrokerLoad
from anabranch.balance.core.serving import is_free
from anabranch.broker.balance.assigning import Assigning
from anabranch.broker.balance.balance_log import BalanceLog
from anabranch.broker.balance.bundle_history import BundleHistory
from anabranch.broker.balance.bundle_owners import WAIT_S, BundleOwners
from anabranch.broker.balance.channel.state_log import StateLog
from anabranch.broker.balance.choosing import Choose, LeastBundles, able_brokers
from anabranch.broker.balance.isolating import Isolating
from anabranch.broker.balance.leader import BundleLeader, LeaderSettings
from anabranch.broker.balance.leader_changes import LeaderChanges
from anabranch.broker.balance.leadership import Leadership
from anabranch.broker.balance.moves import BundleMoves, MovedTopics
from anabranch.broker.balance.placement import Bounds, Unbound
from anabranch.broker.balance.reign import Reign
from anabranch.broker.balance.requests import BundleRequests
from anabranch.broker.balance.safe_mode import SafeMode
from anabranch.broker.balance.splitting import Splitting
from anabranch.broker.catalog.registry import BrokerRegistry
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.errors import NotReadyError
from anabranch.broker.peers.peers import Peers
from anabranch.metadata.port import MetadataStore
from anabranch.model.bundles import BundleName

log = logging.getLogger(__name__)

# How long a broker that starts waits until it has read the channel. It serves then all the same: what it does not know
# yet waits.
READ_MAX_S: Final = 20.0
LOOK_S: Final = 0.01


class Balancer:
    def __init__(
        self,
        metadata: MetadataStore,
        registry: BrokerRegistry,
        peers: Peers,
        resources: Resources,
        make_states: Callable[[Leadership], StateLog],
        now_ms: Callable[[], int],
        time_s: Callable[[], float],
        settings: Callable[[], LeaderSettings],
        *,
        choose: Choose | None = None,
        bounds: Bounds | None = None,
        brokers_expected: int = 0,
    ) -> None:
        """`choose` gives bundles brokers, by default by their numbers alone. `bounds` say where bundles may be
        moved by hand, by default anywhere. `brokers_expected` are there once all have
        started, 0 if that is not known."""
        self._registry = registry
        self._peers = peers
        self._now_ms = now_ms
        self.election = Leadership(metadata, registry)
        states = self.states = make_states(self.election)
        self.choose: Choose = choose or LeastBundles(registry, lambda: states.fold)
        self.reign = Reign(self.election, states)
        wait_s = min(WAIT_S, settings().in_flight_max_s * 2 / 3)
        self.owners = BundleOwners(metadata, registry, states, self.reign, wait_s=wait_s)
        self.safe_mode = SafeMode(metadata.session, registry, time_s, lambda: settings().stable_s)
        bounds = bounds or Unbound()
        self.changes = LeaderChanges(
            self.owners,
            states,
            self.reign,
            registry,
            self.choose,
            peers,
            self.safe_mode,
            bounds,
            now_ms,
        )
        self.splitting = Splitting(self.owners, states, resources, now_ms)
        self.requests = BundleRequests(
            self.owners,
            states,
            self.reign,
            registry,
            self.changes,
            self.splitting,
            peers,
            lambda: settings().in_flight_max_s,
        )
        self.isolating = Isolating(self.owners, bounds, self.choose, self.requests)
        self.assigning = Assigning(self.owners, states, self.choose, now_ms, self.requests.revive)
        self.owners.seek_with(self.assigning.seek)
        self.leader = BundleLeader(
            self.owners,
            states,
            self.reign,
            registry,
            self.assigning,
            self.changes,
            self.safe_mode,
            now_ms,
            settings,
            brokers_expected=brokers_expected,
        )
        self.moves: BundleMoves | None = None
        # For people who ask: what has changed, what was decided, and the loads that this broker knows of.
        self.history = BundleHistory(now_ms)
        self.decisions = BalanceLog(now_ms)
        self.loads: Callable[[], Mapping[str, BrokerLoad]] = dict
        # Told of each bundle whose topics this broker has given to others.
        self.released: Callable[[BundleName], None] = lambda bundle: None

    def attach(self, topics: MovedTopics) -> None:
        """The broker's topics; to be called once, before `start`."""
        self.moves = BundleMoves(
            self.owners,
            self.states,
            topics,
            self._peers,
            self._now_ms,
            self.splitting.perform,
            released=lambda bundle: self.released(bundle),
        )

    async def start(self) -> None:
        """The registry and the links must have been started before."""
        assert self.moves is not None, "the broker's topics are attached first"
        self.safe_mode.start()
        await self.owners.start()
        self.states.on_change(self.history.read)
        await self.election.start()
        await self.states.start()
        await self.reign.start()
        await self._read()
        self.history.read(self.states.fold.snapshot())
        self.moves.start()
        self.leader.start()

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(READ_MAX_S):
                while not self.states.is_following:  # noqa: ASYNC110  # The log has no event for it.
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            log.warning("the states of bundles are not read yet: their topics wait")

    async def find_owner(self, bundle: BundleName) -> None:
        """Has a bundle without an owner assigned, and returns once it is, or cannot be in time."""
        if not is_free(self.states.fold.get(bundle)):
            return
        with contextlib.suppress(NotReadyError):
            await self.assigning.assign(bundle, "an operator asks for it")
            await self.owners.settled(bundle, WAIT_S)

    async def drain(self) -> None:
        """Returns once no bundle is with this broker, which has said that it is about to end: the leader moves them. Or
        if there is no broker that could have them."""
        me = self.owners.me.broker
        while self.owners.owned_by(me) and able_brokers(self._registry, without=(me,)):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        """Changes nothing any more, and leaves the leadership to others. Questions are answered until `close`."""
        parts: list[Callable[[], Awaitable[None]]] = [self.leader.close, self.assigning.close]
        if self.moves is not None:
            parts.append(self.moves.close)
        for close in (*parts, self.reign.close, self.election.close):
            await close()
        self.safe_mode.close()

    async def close(self) -> None:
        """`stop` must have been called before."""
        await self.states.close()
        await self.owners.close()
