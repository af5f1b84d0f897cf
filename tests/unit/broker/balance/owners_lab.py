"""Several brokers as far as owners of bundles are concerned: registrations, a channel in the metadata store, owners.
The test says who leads, and writes to the channel what brokers would."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from anabranch.balance.core.states import BrokerRun, BundleChange
from anabranch.balance.core.transfer import LeaderHand, duty_of, ended, owned
from anabranch.broker.balance.assigning import Assigning
from anabranch.broker.balance.bundle_owners import BundleOwners
from anabranch.broker.balance.channel.metadata_state_log import MetadataStateLog
from anabranch.broker.balance.channel.state_log import ChannelUnavailable
from anabranch.broker.balance.choosing import LeastBundles
from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.catalog.registry import BrokerRegistration, BrokerRegistry
from anabranch.broker.catalog.resources import NAMESPACES
from anabranch.broker.policy.namespace import Bundles, NamespacePolicies, encode_policies
from anabranch.metadata.memory import MemoryMetadata, MemoryStore
from anabranch.model.bundles import BundleName
from anabranch.model.names import NamespaceName, TopicName

SALES = NamespaceName("acme", "sales")
FOUR = NamespacePolicies(bundles=Bundles.even(4))
TOPICS = [SALES.topic(f"t-{number}") for number in range(64)]
NAME = TOPICS[0]


class Elected:
    """Implements `Leading` for all brokers of a lab."""

    def __init__(self) -> None:
        self.leader: BrokerRun | None = None
        self.term = 0
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    def elect(self, leader: BrokerRun | None) -> None:
        self.leader, self.term = leader, self.term + 1
        for callback in list(self._listeners):
            callback()


class StoppableLog(MetadataStateLog):
    """A channel to which nothing can be appended while it is stopped."""

    is_stopped = False

    async def append(self, change: BundleChange) -> None:
        if self.is_stopped:
            raise ChannelUnavailable(f"{change.bundle}: the channel takes no changes")
        await super().append(change)


@dataclass
class Machine:
    """One broker."""

    metadata: MemoryStore
    registry: BrokerRegistry
    states: StoppableLog
    owners: BundleOwners
    assigning: Assigning
    told: list[frozenset[BundleName]] = field(default_factory=list)
    revived: list[BundleName] = field(default_factory=list)

    @property
    def run(self) -> BrokerRun:
        return self.owners.me

    @property
    def address(self) -> BrokerAddress:
        return self.registry.me.address

    def view(self) -> dict[TopicName, str | None]:
        found = {topic: self.owners.owner(topic) for topic in TOPICS}
        return {topic: None if owner is None else owner.id for topic, owner in found.items()}

    def mine(self) -> set[TopicName]:
        return {topic for topic in TOPICS if self.owners.is_mine(topic)}

    async def assign(self, bundle: BundleName, to: BrokerRun) -> None:
        """The bundle goes to that broker, which has it then."""
        version = self.states.fold.next_version(bundle)
        await self.states.append(owned(bundle, version, to, self.run, 0, "for a test"))
        await self.end(bundle, to)

    async def end(self, bundle: BundleName, by: BrokerRun) -> None:
        """That broker says that it has done what the bundle's state asks of it."""
        now = self.states.fold.get(bundle)
        assert now is not None
        duty = duty_of(by, now)
        assert duty is not None
        await self.states.append(ended(duty, now, by, 0))


class Lab:
    def __init__(self) -> None:
        self.store = MemoryMetadata(lambda: 1)
        self.elected = Elected()
        self.machines: list[Machine] = []

    async def machine(self, name: str, run: str = "", *, wait_s: float = 10.0) -> Machine:
        metadata = await self.store.connect()
        address = BrokerAddress(f"pulsar://{name}:6650", f"http://{name}:8080")
        registry = BrokerRegistry(metadata, BrokerRegistration(address, run or f"run of {name}"))
        states = StoppableLog(metadata)
        owners = BundleOwners(metadata, registry, states, self.elected, wait_s=wait_s)
        choose = LeastBundles(registry, lambda: states.fold)
        revived: list[BundleName] = []

        async def revive(bundle: BundleName) -> None:
            revived.append(bundle)

        assigning = Assigning(owners, states, choose, lambda: 0, revive)
        made = Machine(metadata, registry, states, owners, assigning, revived=revived)
        self.machines.append(made)
        return made

    async def started(
        self, name: str, run: str = "", *, wait_s: float = 10.0, seeks: bool = False
    ) -> Machine:
        """With `seeks` it assigns bundles that have no owner when it is asked for their topics."""
        made = await self.machine(name, run, wait_s=wait_s)
        await made.registry.start()
        await made.owners.start()
        await made.states.start()
        made.owners.on_change(made.told.append)
        if seeks:
            made.owners.seek_with(made.assigning.seek)
        return made

    def elect(self, machine: Machine) -> LeaderHand:
        self.elected.elect(machine.run)
        return LeaderHand(machine.run, self.elected.term)

    async def until(self, claim: Callable[[], bool]) -> None:
        """Waits for a claim about what brokers have read: each turn of the loop may have told them more."""
        async with asyncio.timeout(10):
            while not claim():  # noqa: ASYNC110  # Only the loop knows of the turns.
                await asyncio.sleep(0)

    async def agree(self) -> None:
        """All brokers have read the same states."""
        await self.until(lambda: len({str(machine.states.fold.snapshot()) for machine in self.machines}) == 1)

    async def policies(self, policies: NamespacePolicies, namespace: NamespaceName = SALES) -> None:
        other = await self.store.connect()
        await other.put(f"{NAMESPACES}/{namespace}", encode_policies(policies))
        await other.close()

    async def close(self) -> None:
        for machine in self.machines:
            await machine.assigning.close()
            await machine.states.close()
            await machine.owners.close()
            with contextlib.suppress(Exception):
                await machine.registry.close()
            await machine.metadata.close()


@contextlib.asynccontextmanager
async def owners_lab() -> AsyncIterator[Lab]:
    made = Lab()
    await made.policies(FOUR)
    yield made
    await made.close()


async def settled() -> None:
    """Lets all brokers read what there is to read: in memory that takes a few turns of the loop."""
    for _ in range(50):
        await asyncio.sleep(0)
