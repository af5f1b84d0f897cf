"""Owners where several brokers share the topics: a hash over the living brokers, and what operators have assigned.

    /loadbalance/assigned/{tenant}/{namespace}/{0x…_0x…}    {"broker": "host:port"}

The owner of a bundle is the broker that an assignment names, if that broker lives, and else the one that
`model/placement.py` gives it. Brokers that are about to end own nothing. Each broker computes this by itself from what
it has read: the registrations, the assignments, and the boundaries in the policies of namespaces. So two brokers may
disagree for as long as their watches differ; the log's fence and the compare-and-set of a topic's record keep that
harmless.

A broker that has read nothing yet knows no owner. One that does not find its own registration, or whose session is in
doubt, keeps what it knew: its open topics stay open (the log's fences end those that others have taken), and it opens
nothing new until it is registered again. A broker that comes back under its id gets the same bundles again: an
assignment outlives its broker for a while.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from anabranch.broker.catalog.followed_bundles import FollowedBundles
from anabranch.broker.catalog.owners import BrokerAddress, OwnersListener
from anabranch.broker.catalog.registry import BrokerRegistration, BrokerRegistry
from anabranch.broker.errors import NotAllowedError, NotReadyError
from anabranch.metadata.errors import AlreadyExists, VersionConflict
from anabranch.metadata.followed import FollowedRecords
from anabranch.metadata.port import MetadataStore, SessionState, Versioned
from anabranch.model.bundles import BundleName
from anabranch.model.names import InvalidName, NamespaceName, TopicName
from anabranch.model.placement import placed

log = logging.getLogger(__name__)

ASSIGNED: Final = "/loadbalance/assigned"
# How long a request waits for an owner. Clients wait 30 s for an answer, and try again after a refusal.
WAIT_S: Final = 3.0
# How long the assignments of a broker that is gone are kept: a restart takes less.
ABSENT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class BundleAssignment:
    """The broker that an operator wants for a bundle."""

    broker: str
    version: int

    @staticmethod
    def encode(broker: str) -> bytes:
        return json.dumps({"broker": broker}).encode()

    @classmethod
    def decode(cls, node: Versioned) -> BundleAssignment | None:
        try:
            return cls(str(json.loads(node.value)["broker"]), node.version)
        except (ValueError, KeyError, TypeError):
            return None


def assignment_path(bundle: BundleName) -> str:
    return f"{ASSIGNED}/{bundle}"


class HashedOwners:
    """Implements `Owners`. The registry must have been started before."""

    def __init__(self, metadata: MetadataStore, registry: BrokerRegistry, *, wait_s: float = WAIT_S) -> None:
        self._metadata = metadata
        self._registry = registry
        self._wait_s = wait_s
        self._me = registry.me.id
        self.bundles = FollowedBundles(metadata, self._place)
        self._assignments = FollowedRecords(metadata, ASSIGNED, self._assignments_read)
        self._assigned: dict[BundleName, BundleAssignment] = {}
        # The last view of the brokers that had this broker in it, and the owners that follow from it.
        self._brokers: Mapping[str, BrokerRegistration] = {}
        self._placed: dict[NamespaceName, dict[str, str]] = {}
        self._listeners: list[OwnersListener] = []
        self._waiting: dict[asyncio.Future[None], None] = {}  # In the order in which they came.
        self._stops: list[Callable[[], None]] = []
        self._is_started = False
        # Since when brokers with assignments are gone, by the loop's time.
        self._absent: dict[str, float] = {}

    # -- life

    async def start(self) -> None:
        await self.bundles.start()
        await self._assignments.start()
        self._is_started = True
        self._stops.append(self._registry.on_change(self._brokers_changed))
        self._stops.append(self._metadata.session.on_change(lambda _: self._wake()))
        self._brokers_changed()

    async def close(self) -> None:
        for stop in self._stops:
            stop()
        await self.bundles.close()
        await self._assignments.close()

    # -- questions

    def bundle(self, topic: TopicName) -> BundleName | None:
        """The topic's bundle; None while the boundaries of its namespace's are not known."""
        return self.bundles.of(topic)

    def owner(self, topic: TopicName) -> BrokerAddress | None:
        bundle = self.bundle(topic)
        return None if bundle is None else self.owner_of(bundle)

    def owner_of(self, bundle: BundleName) -> BrokerAddress | None:
        found = self._registration(self._placed.get(bundle.namespace, {}).get(bundle.range))
        return None if found is None else found.address

    def is_mine(self, topic: TopicName) -> bool:
        bundle = self.bundle(topic)
        return bundle is not None and self._placed.get(bundle.namespace, {}).get(bundle.range) == self._me

    def owned_by(self, broker: str) -> list[BundleName]:
        """The bundles that the broker of that id owns, sorted."""
        return sorted(
            BundleName(namespace, bundle)
            for namespace, found in self._placed.items()
            for bundle, owner in found.items()
            if owner == broker
        )

    async def resolve(self, topic: TopicName) -> BrokerAddress:
        """NamespaceNotFound for a topic of a namespace that does not exist."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._wait_s):
                while True:
                    if self._is_sure:
                        if topic.namespace not in self.bundles.ranges:
                            await self.bundles.learn(topic.namespace)
                        if (found := self.owner(topic)) is not None:
                            return found
                    told = loop.create_future()
                    self._waiting[told] = None
                    try:
                        await told
                    finally:
                        self._waiting.pop(told, None)
        except TimeoutError:
            raise NotReadyError(f"{topic}: its owner is not decided yet, look it up again") from None

    @property
    def _is_sure(self) -> bool:
        """Whether this broker may act on what it knows: it is registered, and its session holds."""
        return (
            self._is_started
            and self._metadata.session.state is SessionState.CONNECTED
            and self._registry.is_registered
        )

    def on_change(self, callback: OwnersListener) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    # -- assignments

    async def assign(self, bundle: BundleName, broker: str) -> None:
        """The living broker of that id owns the bundle from now on. NotAllowedError if there is no such broker, or if
        it is about to end."""
        found = self._registry.living().get(broker)
        if found is None:
            raise NotAllowedError(f"there is no living broker {broker}")
        if found.is_draining:
            raise NotAllowedError(f"broker {broker} is about to end")
        path, value = assignment_path(bundle), BundleAssignment.encode(broker)
        while True:
            before = await self._metadata.get(path)
            try:
                if before is None:
                    stored = await self._metadata.create(path, value)
                else:
                    stored = await self._metadata.put(path, value, if_version=before.version)
                break
            except (AlreadyExists, VersionConflict):
                continue
        # What is asked of this broker next goes by the assignment, even if the watch has not told of it.
        self._assignments_read({path: stored})

    async def drop_stale(self) -> None:
        """Removes the assignments to brokers that have been gone for a while, and of bundles that are no more."""
        now = asyncio.get_running_loop().time()
        if not self._is_sure:
            return
        living = self._registry.living()
        named = {assignment.broker for assignment in self._assigned.values()} - living.keys()
        self._absent = {broker: self._absent.get(broker, now) for broker in named}
        for bundle, assignment in list(self._assigned.items()):
            is_gone = now - self._absent.get(assignment.broker, now) >= ABSENT_S
            if is_gone or not self.bundles.has(bundle):
                try:
                    await self._metadata.delete(assignment_path(bundle), if_version=assignment.version)
                except VersionConflict:
                    continue  # It was assigned again.
                log.info("%s: its assignment to %s is dropped", bundle, assignment.broker)

    # -- what is read

    def _assignments_read(self, records: Mapping[str, Versioned | None]) -> None:
        changed: set[NamespaceName] = set()
        for path, node in records.items():
            try:
                bundle = BundleName.parse(path.removeprefix(ASSIGNED + "/"))
            except InvalidName:
                continue
            found = None if node is None else BundleAssignment.decode(node)
            if found is None:
                self._assigned.pop(bundle, None)
            else:
                self._assigned[bundle] = found
            changed.add(bundle.namespace)
        self._place(changed)

    def _brokers_changed(self) -> None:
        if not self._registry.is_registered:
            # The others have seen this broker go, or have not seen it yet: what this view says of owners is about to
            # change again.
            return
        before, self._brokers = self._brokers, dict(self._registry.living())
        moved = {
            broker
            for broker, found in self._brokers.items()
            if broker in before and before[broker].address != found.address
        }
        self._place(self.bundles.ranges, moved)

    def _place(self, namespaces: Iterable[NamespaceName], moved: Iterable[str] = ()) -> None:
        """Computes the owners in these namespaces again and tells of those that changed, and of those of brokers that
        have other addresses."""
        if not self._is_started or not self._brokers:
            return
        able = [broker for broker, found in self._brokers.items() if not found.is_draining]
        at_new_address = set(moved)
        changed: set[BundleName] = set()
        for namespace in list(namespaces):
            before, after = self._placed.get(namespace, {}), self._owners_in(namespace, able)
            if after:
                self._placed[namespace] = after
            else:
                self._placed.pop(namespace, None)
            changed.update(
                BundleName(namespace, bundle)
                for bundle in before.keys() | after.keys()
                if before.get(bundle) != after.get(bundle) or after.get(bundle) in at_new_address
            )
        self._wake()
        if changed:
            told = frozenset(changed)
            for callback in list(self._listeners):
                callback(told)

    def _owners_in(self, namespace: NamespaceName, able: list[str]) -> dict[str, str]:
        ranges = self.bundles.ranges.get(namespace)
        if ranges is None:
            return {}
        found = {bundle.range: owner for bundle, owner in placed(ranges.bundles(namespace), able).items()}
        for bundle in ranges.bundles(namespace):
            assignment = self._assigned.get(bundle)
            if assignment is not None and assignment.broker in able:
                found[bundle.range] = assignment.broker
        return found

    def _registration(self, broker: str | None) -> BrokerRegistration | None:
        return None if broker is None else self._brokers.get(broker)

    def _wake(self) -> None:
        for waiting in list(self._waiting):
            if not waiting.done():
                waiting.set_result(None)
