"""The election of the leader: one leads, the others know, and no term is ever given twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.balance.core.states import BrokerRun
from anabranch.broker.balance.leadership import LEADER, TERMS, LeaderRecord, Leadership, standing_order
from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.catalog.registry import BrokerRegistration, BrokerRegistry
from anabranch.metadata.memory import MemoryStore
from unit.broker.balance.lossy import LossyMetadata


@dataclass
class Machine:
    metadata: MemoryStore
    registry: BrokerRegistry
    leadership: Leadership
    told: list[tuple[BrokerRun | None, int]] = field(default_factory=list)

    @property
    def run(self) -> BrokerRun:
        return BrokerRun(self.registry.me.id, self.registry.me.run_id)

    def note(self) -> None:
        self.told.append((self.leadership.leader(), self.leadership.term))


class Lab:
    def __init__(self) -> None:
        self.store = LossyMetadata()
        self.machines: list[Machine] = []

    async def machine(self, name: str) -> Machine:
        metadata = await self.store.connect()
        address = BrokerAddress(f"pulsar://{name}:6650", f"http://{name}:8080")
        registry = BrokerRegistry(metadata, BrokerRegistration(address, f"{name}-1"))
        made = Machine(metadata, registry, Leadership(metadata, registry, step_s=0.02))
        made.leadership.on_change(made.note)
        self.machines.append(made)
        return made

    async def started(self, name: str) -> Machine:
        made = await self.machine(name)
        await made.registry.start()
        await made.leadership.start()
        return made

    async def until(self, claim: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not claim():  # noqa: ASYNC110  # Elections go by time.
                await asyncio.sleep(0.001)

    async def agree(self, *machines: Machine, among: tuple[Machine, ...] = ()) -> Machine:
        """Waits until the brokers name the same leader, which is one of them, or one of `among`."""
        able = among or machines

        def named() -> bool:
            views = {(one.leadership.leader(), one.leadership.term) for one in machines}
            return len(views) == 1 and views.pop()[0] in {one.run for one in able}

        await self.until(named)
        (leader,) = [one for one in machines if one.leadership.is_leader]
        assert leader.run == leader.leadership.leader()
        return leader


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    made = Lab()
    yield made
    for machine in made.machines:
        await machine.leadership.close()
        await machine.registry.close()
        await machine.metadata.close()


async def test_the_first_broker_leads_and_those_that_come_later_know(lab: Lab) -> None:
    a = await lab.started("a")
    assert await lab.agree(a) is a
    assert a.leadership.term == 1
    b = await lab.started("b")
    assert b.leadership.leader() == a.run
    assert b.leadership.term == 1
    assert not b.leadership.is_leader
    found = await b.metadata.get(LEADER)
    assert found is not None
    assert found.is_ephemeral
    assert json.loads(found.value) == {"brokerId": "a:6650", "run": "a-1", "term": 1}


async def test_brokers_that_start_together_have_one_leader(lab: Lab) -> None:
    machines = [await lab.machine(name) for name in "abcdefgh"]
    await asyncio.gather(*(one.registry.start() for one in machines))
    await asyncio.gather(*(one.leadership.start() for one in machines))
    leader = await lab.agree(*machines)
    assert leader.leadership.term == 1
    for one in machines:
        assert one.told[-1] == (leader.run, 1)


async def test_after_the_death_of_the_leader_another_leads_for_a_higher_term(lab: Lab) -> None:
    machines = [await lab.started(name) for name in "abcd"]
    terms = []
    while len(machines) > 1:
        leader = await lab.agree(*machines)
        terms.append(leader.leadership.term)
        machines.remove(leader)
        await leader.metadata.close()
        assert not leader.leadership.is_leader
        assert leader.leadership.leader() is None
    assert terms == sorted(set(terms))
    assert (await lab.agree(*machines)).leadership.term > terms[-1]


async def test_a_broker_whose_session_was_lost_leads_no_more_from_that_moment(lab: Lab) -> None:
    a, b = await lab.started("a"), await lab.started("b")
    former = await lab.agree(a, b)
    other = b if former is a else a
    expiring = asyncio.create_task(former.metadata.expire_session())
    await asyncio.sleep(0)
    assert not former.leadership.is_leader
    await expiring
    await lab.until(lambda: other.leadership.is_leader)
    assert other.leadership.term == 2
    assert former.told[-1] == (None, 1)
    await former.metadata.reconnect()
    assert await lab.agree(a, b) is other


async def test_a_broker_in_doubt_goes_on_until_it_knows_more(lab: Lab) -> None:
    a = await lab.started("a")
    await lab.agree(a)
    a.metadata.disconnect()
    assert a.leadership.is_leader
    b = await lab.started("b")
    await a.metadata.expire_session()
    await lab.until(lambda: b.leadership.is_leader)
    assert a.leadership.is_leader
    await a.metadata.reconnect()
    assert await lab.agree(a, b) is b
    assert (None, 1) in a.told


async def test_a_broker_that_is_about_to_end_resigns_and_does_not_stand(lab: Lab) -> None:
    a, b = await lab.started("a"), await lab.started("b")
    former = await lab.agree(a, b)
    other = b if former is a else a
    await former.registry.drain()
    assert await lab.agree(a, b, among=(other,)) is other
    await other.registry.drain()
    await lab.until(lambda: a.leadership.leader() is None and b.leadership.leader() is None)
    c = await lab.started("c")
    assert await lab.agree(a, b, c) is c
    assert c.leadership.term == 3


async def test_a_broker_that_resigns_lets_others_lead_and_leads_again_where_there_are_none(lab: Lab) -> None:
    a = await lab.started("a")
    await lab.agree(a)
    await a.leadership.resign()
    assert not a.leadership.is_leader
    await lab.until(lambda: a.leadership.is_leader)
    assert a.leadership.term == 2
    b, c = await lab.started("b"), await lab.started("c")
    await lab.agree(a, b, c)
    await a.leadership.resign()
    assert await lab.agree(a, b, c, among=(b, c)) is not a


async def test_a_broker_that_was_started_again_does_not_wait_for_its_former_session(lab: Lab) -> None:
    former = await lab.store.connect()
    term = await former.next_id(TERMS) + 1
    await former.create(LEADER, LeaderRecord(BrokerRun("a:6650", "a-0"), term).encode(), ephemeral=True)
    again = await lab.started("a")
    await lab.until(lambda: again.leadership.is_leader)
    assert again.leadership.term == term + 1
    await former.close()
    found = await again.metadata.get(LEADER)
    assert found is not None
    assert found.owner == again.metadata.session.id


async def test_a_node_that_a_loser_has_written_over_is_put_right(lab: Lab) -> None:
    """The loser had won with a session that was lost before it took its term."""
    a, b = await lab.started("a"), await lab.started("b")
    leader = await lab.agree(a, b)
    loser = b if leader is a else a
    term = await loser.metadata.next_id(TERMS) + 1
    await loser.metadata.put(LEADER, LeaderRecord(loser.run, term).encode())
    await lab.until(lambda: a.leadership.term == b.leadership.term > term)
    await lab.agree(a, b)


@pytest.mark.parametrize("lost", ["lost_before", "lost_after"])
@pytest.mark.parametrize("write", [1, 2, 3])
async def test_one_leads_whichever_answer_of_the_store_is_lost(lab: Lab, lost: str, write: int) -> None:
    a, b = await lab.machine("a"), await lab.machine("b")
    await a.registry.start()
    await b.registry.start()
    setattr(lab.store, lost, write)
    await a.leadership.start()
    await b.leadership.start()
    leader = await lab.agree(a, b)
    assert leader.leadership.term >= 1


async def test_a_record_that_cannot_be_read_is_of_nobody(lab: Lab) -> None:
    somebody = await lab.store.connect()
    await somebody.create(LEADER, b"[]", ephemeral=True)
    a = await lab.started("a")
    assert a.leadership.leader() is None
    await somebody.close()
    assert await lab.agree(a) is a


@given(st.sets(st.text(min_size=1), min_size=2, max_size=9), st.integers(0, 1000))
def test_all_brokers_compute_the_same_order(brokers: set[str], term: int) -> None:
    order = standing_order(brokers, term)
    assert sorted(order) == sorted(brokers)
    assert standing_order(reversed(sorted(brokers)), term) == order


def test_the_order_changes_with_the_term() -> None:
    firsts = {standing_order(["a:1", "b:1", "c:1"], term)[0] for term in range(50)}
    assert firsts == {"a:1", "b:1", "c:1"}
