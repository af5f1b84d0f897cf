"""Owners where several brokers share the topics: brokers agree, move what they must, and know when they do not know."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from anabranch.broker.catalog import hashed_owners
from anabranch.broker.catalog.hashed_owners import HashedOwners, assignment_path
from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.catalog.registry import BrokerRegistration, BrokerRegistry
from anabranch.broker.catalog.resources import NAMESPACES, NamespaceNotFound
from anabranch.broker.errors import NotAllowedError, NotReadyError
from anabranch.broker.policy.namespace import Bundles, NamespacePolicies, encode_policies
from anabranch.metadata.memory import MemoryMetadata, MemoryStore
from anabranch.metadata.port import SessionState
from anabranch.model.bundles import BundleName
from anabranch.model.names import NamespaceName, TopicName

SALES = NamespaceName("acme", "sales")
FOUR = NamespacePolicies(bundles=Bundles.even(4))
TOPICS = [SALES.topic(f"t-{number}") for number in range(64)]


@dataclass
class Machine:
    """One broker, as far as owners are concerned."""

    metadata: MemoryStore
    registry: BrokerRegistry
    owners: HashedOwners
    told: list[frozenset[BundleName]] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.registry.me.id

    def view(self) -> dict[TopicName, str | None]:
        found = {topic: self.owners.owner(topic) for topic in TOPICS}
        return {topic: None if owner is None else owner.id for topic, owner in found.items()}

    def mine(self) -> set[TopicName]:
        return {topic for topic in TOPICS if self.owners.is_mine(topic)}


class Lab:
    def __init__(self) -> None:
        self.store = MemoryMetadata(lambda: 1)
        self.machines: list[Machine] = []

    async def machine(self, name: str, run: str = "", *, wait_s: float = 10.0) -> Machine:
        metadata = await self.store.connect()
        address = BrokerAddress(f"pulsar://{name}:6650", f"http://{name}:8080")
        registry = BrokerRegistry(metadata, BrokerRegistration(address, run or f"run of {name}"))
        made = Machine(metadata, registry, HashedOwners(metadata, registry, wait_s=wait_s))
        self.machines.append(made)
        return made

    async def started(self, name: str, run: str = "", *, wait_s: float = 10.0) -> Machine:
        made = await self.machine(name, run, wait_s=wait_s)
        await made.registry.start()
        await made.owners.start()
        made.owners.on_change(made.told.append)
        return made

    async def until(self, claim: Callable[[], bool]) -> None:
        """Waits for a claim about what brokers have read: each turn of the loop may have told them more."""
        async with asyncio.timeout(10):
            while not claim():  # noqa: ASYNC110  # Only the loop knows of the turns.
                await asyncio.sleep(0)

    async def agree(self, *machines: Machine) -> None:
        names = {machine.id for machine in machines}
        await self.until(lambda: all(set(machine.view().values()) == names for machine in machines))
        assert len({tuple(machine.view().items()) for machine in machines}) == 1

    async def policies(self, policies: NamespacePolicies, namespace: NamespaceName = SALES) -> None:
        somebody = await self.store.connect()
        await somebody.put(f"{NAMESPACES}/{namespace}", encode_policies(policies))
        await somebody.close()


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    made = Lab()
    await made.policies(FOUR)
    yield made
    for machine in made.machines:
        await machine.owners.close()
        with contextlib.suppress(Exception):
            await machine.registry.close()
        await machine.metadata.close()


async def test_brokers_share_the_bundles_and_agree_about_it(lab: Lab) -> None:
    a, b, c = [await lab.started(name) for name in "abc"]
    await lab.agree(a, b, c)
    assert a.mine() | b.mine() | c.mine() == set(TOPICS)
    assert len(a.mine()) + len(b.mine()) + len(c.mine()) == len(TOPICS)
    owned = [machine.owners.owned_by(machine.id) for machine in (a, b, c)]
    assert sorted(map(len, owned)) == [1, 1, 2]
    assert (await a.owners.resolve(TOPICS[0])).id == a.view()[TOPICS[0]]


async def test_a_broker_that_has_read_nothing_knows_nothing(lab: Lab) -> None:
    early = await lab.machine("a", wait_s=0.01)
    assert early.owners.owner(TOPICS[0]) is None
    assert not early.owners.is_mine(TOPICS[0])
    with pytest.raises(NotReadyError):
        await early.owners.resolve(TOPICS[0])
    await early.registry.start()
    assert early.owners.owner(TOPICS[0]) is None
    await early.owners.start()
    assert early.mine() == set(TOPICS)


async def test_the_bundles_of_a_broker_that_dies_go_to_the_others_and_only_they_are_told(lab: Lab) -> None:
    a, b, c = [await lab.started(name) for name in "abc"]
    await lab.agree(a, b, c)
    before = a.view()
    a.told.clear()
    await c.metadata.close()
    await lab.agree(a, b)
    moved = {topic for topic in TOPICS if before[topic] != a.view()[topic]}
    assert {topic for topic in TOPICS if before[topic] == c.id} <= moved
    told = frozenset().union(*a.told)
    assert {topic for topic in TOPICS if a.owners.bundle(topic) in told} == moved


async def test_a_request_waits_for_the_owner_and_is_refused_after_a_while(lab: Lab) -> None:
    a = await lab.started("a")
    await a.registry.drain()
    await lab.until(lambda: a.owners.owner(TOPICS[0]) is None)
    waiting = asyncio.create_task(a.owners.resolve(TOPICS[0]))
    b = await lab.started("b")
    assert (await waiting).id == b.id
    hasty = HashedOwners(a.metadata, a.registry, wait_s=0.01)
    await b.registry.drain()
    await hasty.start()
    await lab.until(lambda: a.owners.owner(TOPICS[0]) is None)
    with pytest.raises(NotReadyError) as refused:
        await hasty.resolve(TOPICS[0])
    assert refused.value.retryable
    await hasty.close()


async def test_a_broker_that_is_about_to_end_owns_nothing(lab: Lab) -> None:
    a, b = await lab.started("a"), await lab.started("b")
    await lab.agree(a, b)
    await b.registry.drain()
    await lab.agree(a)
    await lab.until(lambda: b.mine() == set())
    assert set(b.view().values()) == {a.id}


async def test_a_broker_in_doubt_keeps_what_it_has_and_opens_nothing(lab: Lab) -> None:
    a, b = await lab.started("a", wait_s=0.05), await lab.started("b")
    await lab.agree(a, b)
    mine = a.mine()
    name = min(mine)
    a.told.clear()
    a.metadata.disconnect()
    assert a.mine() == mine
    with pytest.raises(NotReadyError):
        await a.owners.resolve(name)
    await a.metadata.reconnect()
    assert (await a.owners.resolve(name)).id == a.id
    assert a.told == []


async def test_a_broker_whose_session_was_lost_waits_until_it_is_registered_again(lab: Lab) -> None:
    a, b = await lab.started("a"), await lab.started("b")
    await lab.agree(a, b)
    mine, name = a.mine(), min(a.mine())
    await a.metadata.expire_session()
    assert a.metadata.session.state is SessionState.LOST
    await lab.agree(b)
    waiting = asyncio.create_task(a.owners.resolve(name))
    a.told.clear()
    await a.metadata.reconnect()
    assert (await waiting).id == a.id
    await lab.agree(a, b)
    # It was never told that its bundles are another's: it did not close what the other broker had not taken.
    assert a.mine() == mine
    assert a.told == []


async def test_a_broker_that_restarts_on_its_address_gets_its_bundles_back(lab: Lab) -> None:
    a, b = await lab.started("a", "first run"), await lab.started("b")
    await lab.agree(a, b)
    bundle = b.owners.owned_by(b.id)[0]
    await b.owners.assign(bundle, a.id)
    await lab.until(lambda: bundle in a.owners.owned_by(a.id))
    before = b.view()
    await a.metadata.close()
    await lab.agree(b)
    await b.owners.drop_stale()
    again = await lab.started("a", "second run")
    await lab.agree(again, b)
    assert b.view() == before


async def test_an_assignment_moves_one_bundle_and_stays_until_its_broker_has_been_gone_for_long(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await lab.started("a"), await lab.started("b")
    await lab.agree(a, b)
    before, bundle = a.view(), a.owners.owned_by(a.id)[0]
    a.told.clear()
    await a.owners.assign(bundle, b.id)
    assert a.told == [frozenset([bundle])]
    await lab.until(lambda: bundle in b.owners.owned_by(b.id))
    assert {topic for topic in TOPICS if before[topic] != a.view()[topic]} == {
        topic for topic in TOPICS if bundle.holds(topic)
    }
    await b.metadata.close()
    await lab.agree(a)
    await a.owners.drop_stale()
    assert await a.metadata.exists(assignment_path(bundle))
    monkeypatch.setattr(hashed_owners, "ABSENT_S", 0.0)
    await a.owners.drop_stale()
    assert not await a.metadata.exists(assignment_path(bundle))


@pytest.mark.parametrize("broker", ["nobody:6650", "", "c:8080"])
async def test_only_a_living_broker_is_assigned_anything(lab: Lab, broker: str) -> None:
    a = await lab.started("a")
    bundle = a.owners.owned_by(a.id)[0]
    with pytest.raises(NotAllowedError):
        await a.owners.assign(bundle, broker)
    assert not await a.metadata.exists(assignment_path(bundle))


async def test_a_split_of_a_bundle_tells_of_the_old_and_the_new_names(lab: Lab) -> None:
    a = await lab.started("a")
    old = Bundles.even(4).ranges.bundles(SALES)
    cut = ("0x00000000", "0x20000000", *FOUR.bundles.boundaries[1:])
    await lab.policies(msgspec.structs.replace(FOUR, bundles=Bundles(boundaries=cut, count=5)))
    await lab.until(lambda: bool(a.told))
    new = [BundleName(SALES, "0x00000000_0x20000000"), BundleName(SALES, "0x20000000_0x40000000")]
    assert a.told == [frozenset([old[0], *new])]
    assert a.mine() == set(TOPICS)


async def test_a_namespace_that_was_made_a_moment_ago_is_read_and_one_that_is_not_there_is_refused(
    lab: Lab,
) -> None:
    a = await lab.started("a")
    other = NamespaceName("acme", "other")
    with pytest.raises(NamespaceNotFound):
        await a.owners.resolve(other.topic("t"))
    await lab.policies(FOUR, other)
    assert (await a.owners.resolve(other.topic("t"))).id == a.id
    assert a.owners.is_mine(other.topic("t"))


async def test_policies_that_cannot_be_read_leave_the_bundles_as_they_were(lab: Lab) -> None:
    a = await lab.started("a")
    await a.metadata.put(f"{NAMESPACES}/{SALES}", b"{")
    await a.metadata.put(f"{NAMESPACES}/acme/other", encode_policies(FOUR))
    await lab.until(lambda: a.owners.is_mine(NamespaceName("acme", "other").topic("t")))
    assert a.mine() == set(TOPICS)
