"""Owners by the bundle state channel: a bundle belongs to the broker that its state names, if that broker lives.

Each broker has the states in memory, as far as it has read the channel, and answers from there. While a bundle is on
its way to a broker, requests for its topics wait, and are answered together once it has arrived. A bundle that no
broker has is assigned by the broker that is asked for it. A bundle whose broker is gone waits for the leader, who gives
it to another one. So nothing but a change of the channel gives a bundle an owner.

A broker that does not find its own registration, or whose session is in doubt, keeps what it knows and opens nothing
until it is registered again. The topics of the balancer itself belong to the elected leader.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from anabranch.balance.core.serving import goes_to, is_free, is_receiving, may_serve, server_of
from anabranch.balance.core.states import BrokerRun, BundleChange, BundleState
from anabranch.broker.balance.channel.state_log import StateLog
from anabranch.broker.balance.leading import Leading
from anabranch.broker.catalog.followed_bundles import FollowedBundles
from anabranch.broker.catalog.owners import BrokerAddress, OwnersListener
from anabranch.broker.catalog.registry import BrokerRegistration, BrokerRegistry
from anabranch.broker.errors import NotReadyError
from anabranch.metadata.port import MetadataStore, SessionState
from anabranch.model.bundles import BundleName, BundleRanges
from anabranch.model.histogram import Histogram
from anabranch.model.leaders_topics import LEADERS_BUNDLE, is_leaders
from anabranch.model.names import NamespaceName, TopicName

# How long a request waits for an owner. Clients wait 30 s for an answer, and ask again after a refusal.
WAIT_S: Final = 20.0
# How often a request looks again whose bundle is no more, or that has come before the channel was read.
LOOK_AGAIN_S: Final = 0.5

# Begins to find an owner for a bundle that any broker may assign, or that only the leader may. Does not wait.
Seek = Callable[[BundleName], None]


@dataclass(frozen=True, slots=True)
class _Place:
    """What callers have been told of a bundle."""

    server: BrokerAddress | None
    goes_to: BrokerRun | None
    is_mine: bool


NOWHERE: Final = _Place(None, None, False)


class BundleOwners:
    """Implements `Owners`. The registry must have been started before."""

    def __init__(
        self,
        metadata: MetadataStore,
        registry: BrokerRegistry,
        states: StateLog,
        leading: Leading,
        *,
        wait_s: float = WAIT_S,
    ) -> None:
        self._metadata = metadata
        self._registry = registry
        self._states = states
        self._leading = leading
        self._wait_s = wait_s
        self.me = BrokerRun(registry.me.id, registry.me.run_id)
        self.bundles = FollowedBundles(metadata, self._ranges_changed)
        self._seek: Seek = lambda bundle: None
        # The last view of the brokers that had this broker in it, and their run ids.
        self._brokers: Mapping[str, BrokerRegistration] = {}
        self._living: dict[str, str] = {}
        self._places: dict[BundleName, _Place] = {}
        self._leader: BrokerAddress | None = None
        self._listeners: list[OwnersListener] = []
        self._living_listeners: list[Callable[[], None]] = []
        # Woken in the order in which they came.
        self._waiting: dict[BundleName, dict[asyncio.Future[None], None]] = {}
        self._stops: list[Callable[[], None]] = []
        self._is_started = False
        self._has_read = False
        # How long requests have waited for an owner, those that had to.
        self.waits = Histogram()
        # Told of each lookup that has ended: the state in which it found the bundle, and whether it was refused.
        self.looked_up: Callable[[str, bool], None] = lambda state, is_failed: None

    # -- life

    async def start(self) -> None:
        """Follows the boundaries, the brokers, the leader and the states; the channel may not have been read yet."""
        await self.bundles.start()
        self._is_started = True
        self._stops = [
            self._registry.on_change(self._brokers_changed),
            self._metadata.session.on_change(lambda _: self._wake_all()),
            self._leading.on_change(self._leader_changed),
            self._states.on_change(self._states_changed),
        ]
        self._brokers_changed()

    def seek_with(self, seek: Seek) -> None:
        """Bundles without an owner that are asked for are given to this function from now on."""
        self._seek = seek

    async def close(self) -> None:
        for stop in self._stops:
            stop()
        await self.bundles.close()

    # -- questions

    @property
    def living(self) -> Mapping[str, str]:
        """The run ids of all living brokers by their ids."""
        return self._living

    @property
    def leader(self) -> BrokerAddress | None:
        """The elected leader, if it lives."""
        return self._leader

    @property
    def is_sure(self) -> bool:
        """Whether this broker may act on what it knows: it is registered, and its session holds."""
        return (
            self._is_started
            and self._metadata.session.state is SessionState.CONNECTED
            and self._registry.is_registered
        )

    @property
    def has_read(self) -> bool:
        """Whether the channel was read to its end once. What was read stays true while the channel is out of reach: no
        change can be stored in it then."""
        self._note_read()
        return self._has_read

    def _note_read(self) -> None:
        self._has_read = self._has_read or self._states.is_following

    @property
    def lookups_waiting(self) -> int:
        return sum(len(some) for some in self._waiting.values())

    def bundle(self, topic: TopicName) -> BundleName | None:
        """The topic's bundle; None while the boundaries of its namespace's are not known."""
        return self.bundles.of(topic)

    def state(self, bundle: BundleName) -> BundleChange | None:
        return self._states.fold.get(bundle)

    def owner(self, topic: TopicName) -> BrokerAddress | None:
        if is_leaders(topic):
            return self._leader
        bundle = self.bundle(topic)
        if bundle is None:
            return None
        if is_free(self.state(bundle)) and self.has_read and self.is_sure:
            # The caller does not wait, and hears of the owner once there is one.
            self._seek(bundle)
        return self.owner_of(bundle)

    def owner_of(self, bundle: BundleName) -> BrokerAddress | None:
        """The broker that serves the bundle; None while it has none, and while it moves."""
        return self._address(server_of(self.state(bundle), self._living))

    def destination(self, topic: TopicName) -> BrokerAddress | None:
        """The broker that has the topic or, while its bundle moves, gets it."""
        if is_leaders(topic):
            return self._leader
        bundle = self.bundle(topic)
        return None if bundle is None else self._address(goes_to(self.state(bundle)))

    def is_mine(self, topic: TopicName) -> bool:
        """True also for topics of a bundle that comes to this broker: it gets them one by one."""
        if is_leaders(topic):
            return self._leading.leader == self.me
        bundle = self.bundle(topic)
        return bundle is not None and may_serve(self.state(bundle), self.me)

    def owned_by(self, broker: str) -> list[BundleName]:
        """The bundles that the living broker of that id has, also those that are about to leave it, sorted."""
        run = BrokerRun(broker, self._living.get(broker, ""))
        return sorted(now.bundle for now in self._states.fold.owned_by(run))

    async def resolve(self, topic: TopicName) -> BrokerAddress:
        """NamespaceNotFound for a topic of a namespace that does not exist."""
        loop = asyncio.get_running_loop()
        began, has_waited, is_failed = loop.time(), False, True
        found_in = self._found_in(topic)
        try:
            async with asyncio.timeout(self._wait_s):
                while True:
                    if self.is_sure and (found := await self._found(topic)) is not None:
                        is_failed = False
                        return found
                    has_waited = True
                    await self._told_of(topic)
        except TimeoutError:
            raise NotReadyError(f"{topic}: its bundle has no owner yet, look it up again") from None
        finally:
            self.looked_up(found_in, is_failed)
            if has_waited:
                self.waits.observe(loop.time() - began)

    def _found_in(self, topic: TopicName) -> str:
        bundle = None if is_leaders(topic) else self.bundle(topic)
        now = None if bundle is None else self.state(bundle)
        return "unassigned" if now is None else str(now.state)

    async def _found(self, topic: TopicName) -> BrokerAddress | None:
        if is_leaders(topic):
            return self._leader
        if not self.has_read:
            return None
        if topic.namespace not in self.bundles.ranges:
            await self.bundles.learn(topic.namespace)
        bundle = self.bundle(topic)
        if bundle is None:
            return None
        now = self.state(bundle)
        if now is not None and now.state is BundleState.DELETED:
            # The namespace may have other bundles by now; or it was deleted, and made again with this one.
            await self.bundles.learn(topic.namespace)
            bundle = self.bundle(topic) or bundle
            now = self.state(bundle)
        if is_receiving(now, self.me):
            return self._registry.me.address
        if is_free(now) or (now is not None and now.state is BundleState.DELETED):
            self._seek(bundle)
        return self.owner_of(bundle)

    async def settled(self, bundle: BundleName, max_s: float) -> BundleChange | None:
        """The bundle's state, once nothing is under way. NotReadyError if that takes too long."""
        try:
            async with asyncio.timeout(max_s):
                while (now := self.state(bundle)) is not None and now.is_in_flight:
                    await self._changed(bundle)
        except TimeoutError:
            raise NotReadyError(f"{bundle} is still {now.state if now else 'unassigned'}") from None
        return now

    async def read(self, bundle: BundleName, version: int, max_s: float) -> None:
        """Returns once this broker has read a state of the bundle of that version, or a later one. NotReadyError if
        that takes too long."""
        try:
            async with asyncio.timeout(max_s):
                while (0 if (now := self.state(bundle)) is None else now.version) < version:
                    await self._changed(bundle)
        except TimeoutError:
            raise NotReadyError(f"{bundle}: version {version} of its state is not read yet") from None

    async def _told_of(self, topic: TopicName) -> None:
        """Returns once something may have changed for the topic."""
        await self._changed((None if is_leaders(topic) else self.bundle(topic)) or LEADERS_BUNDLE)

    async def _changed(self, bundle: BundleName) -> None:
        told = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(bundle, {})[told] = None
        now = self.state(bundle)
        # No event tells that the end of the channel is reached, or that a namespace has other bundles.
        looks_again = not self.has_read or (now is not None and now.state is BundleState.DELETED)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S if looks_again else None):
                    await told
        finally:
            some = self._waiting[bundle]
            some.pop(told, None)
            if not some:
                del self._waiting[bundle]

    def on_change(self, callback: OwnersListener) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def on_living(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback`, on the event loop, whenever `living` may have changed. Returns a function to stop."""
        self._living_listeners.append(callback)
        return lambda: self._living_listeners.remove(callback) if callback in self._living_listeners else None

    # -- what is read

    def _states_changed(self, changes: Sequence[BundleChange]) -> None:
        self._note_read()
        self._tell(change.bundle for change in changes)

    def _brokers_changed(self) -> None:
        if not self._registry.is_registered:
            # The others have seen this broker go, or have not seen it yet: this view of the brokers is about to change.
            return
        self._brokers = dict(self._registry.living())
        self._living = {broker: found.run_id for broker, found in self._brokers.items()}
        self._leader_changed()
        self._tell(self._states.fold.bundles)
        self._wake_all()
        for callback in list(self._living_listeners):
            callback()

    def _leader_changed(self) -> None:
        before, self._leader = self._leader, self._address(self._leading.leader)
        if before != self._leader:
            self._call({LEADERS_BUNDLE})
        self._wake_all()

    def _ranges_changed(self, before: Mapping[NamespaceName, BundleRanges | None]) -> None:
        if not before:
            return
        changed: set[BundleName] = set()
        for namespace, ranges in before.items():
            now = self.bundles.ranges.get(namespace)
            old = () if ranges is None else ranges.bundles(namespace)
            changed ^= set(old) ^ set(() if now is None else now.bundles(namespace))
        self._wake_all()
        self._call(changed)

    def _tell(self, bundles: Iterable[BundleName]) -> None:
        """Tells of those of these bundles that are somewhere else than before."""
        changed: set[BundleName] = set()
        for bundle in list(bundles):
            self._wake(bundle)
            now = self.state(bundle)
            place = _Place(self._address(server_of(now, self._living)), goes_to(now), may_serve(now, self.me))
            if self._places.get(bundle, NOWHERE) != place:
                changed.add(bundle)
            if now is None:
                self._places.pop(bundle, None)
            else:
                self._places[bundle] = place
        self._call(changed)

    def _call(self, changed: Iterable[BundleName]) -> None:
        told = frozenset(changed)
        if told and self._is_started:
            for callback in list(self._listeners):
                callback(told)

    def _address(self, run: BrokerRun | None) -> BrokerAddress | None:
        """The address of that run of a broker, if it is registered."""
        found = None if run is None else self._brokers.get(run.broker)
        return found.address if found is not None and run is not None and found.run_id == run.run else None

    def _wake(self, bundle: BundleName) -> None:
        for waiting in self._waiting.get(bundle, ()):
            if not waiting.done():
                waiting.set_result(None)

    def _wake_all(self) -> None:
        for bundle in list(self._waiting):
            self._wake(bundle)
