"""Owners by the bundle state channel: what a state means for lookups, who assigns, and that nothing else changes an
owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from anabranch.balance.core.states import BrokerRun, BundleState
from anabranch.balance.core.transfer import owned, split
from anabranch.broker.catalog.resources import NAMESPACES, NamespaceNotFound
from anabranch.broker.errors import NotReadyError
from anabranch.broker.policy.namespace import Bundles
from anabranch.metadata.port import SessionState
from anabranch.model.bundles import BundleName
from anabranch.model.leaders_topics import (
    BROKER_LOAD_TOPIC,
    CHANNEL_TOPIC,
    LEADERS_BUNDLE,
    TOP_BUNDLES_TOPIC,
)
from anabranch.model.names import NamespaceName, TopicName
from unit.broker.balance.owners_lab import FOUR, NAME, SALES, TOPICS, Lab, Machine, owners_lab, settled


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with owners_lab() as made:
        yield made


def bundle_of(machine: Machine) -> BundleName:
    found = machine.owners.bundle(NAME)
    assert found is not None
    return found


# -- what states mean


async def test_an_assigned_bundle_belongs_to_its_broker_whichever_broker_is_asked(lab: Lab) -> None:
    a, b, c = [await lab.started(name) for name in "abc"]
    bundle = bundle_of(a)
    await a.assign(bundle, b.run)
    await lab.agree()
    for machine in (a, b, c):
        assert await machine.owners.resolve(NAME) == b.address
        assert machine.owners.owner(NAME) == machine.owners.destination(NAME) == b.address
        assert machine.owners.is_mine(NAME) == (machine is b)
        assert machine.owners.owned_by(b.run.broker) == [bundle]
        assert machine.owners.owned_by(a.run.broker) == []


async def test_lookups_wait_while_a_bundle_is_assigned_and_are_answered_together(lab: Lab) -> None:
    a, b = await lab.started("a"), await lab.started("b")
    bundle = bundle_of(a)
    await a.states.append(owned(bundle, 1, b.run, a.run, 0, ""))
    await lab.agree()
    asked = [asyncio.create_task(one.owners.resolve(NAME)) for one in (a, b) for _ in range(10)]
    await settled()
    assert not any(one.done() for one in asked)
    assert a.owners.lookups_waiting == b.owners.lookups_waiting == 10
    assert a.owners.owner(NAME) is None
    await b.end(bundle, b.run)
    assert set(await asyncio.gather(*asked)) == {b.address}
    assert a.owners.lookups_waiting == 0
    assert a.owners.waits.count == 10


async def test_during_a_transfer_others_wait_and_the_destination_is_answered_by_itself(lab: Lab) -> None:
    a, b, c = [await lab.started(name) for name in "abc"]
    bundle, hand = bundle_of(a), lab.elect(c)
    await a.assign(bundle, a.run)
    await lab.agree()
    now = c.states.fold.get(bundle)
    assert now is not None
    await c.states.append(hand.transfer(now, b.run, 0, "for a test"))
    await lab.agree()
    assert await b.owners.resolve(NAME) == b.address
    assert b.owners.is_mine(NAME)
    assert not a.owners.is_mine(NAME)
    # The source knows where the topics go, though lookups are not told yet.
    assert a.owners.destination(NAME) == b.address
    assert a.owners.owner(NAME) is None
    waiting = [asyncio.create_task(one.owners.resolve(NAME)) for one in (a, c)]
    await settled()
    assert not any(one.done() for one in waiting)
    await b.end(bundle, b.run)
    assert await asyncio.gather(*waiting) == [b.address, b.address]


async def test_a_bundle_that_is_unloaded_has_no_owner_and_the_next_lookup_assigns_it(lab: Lab) -> None:
    a, b = await lab.started("a", seeks=True), await lab.started("b", seeks=True)
    bundle, hand = bundle_of(a), lab.elect(a)
    await a.assign(bundle, a.run)
    now = a.states.fold.get(bundle)
    assert now is not None
    await a.states.append(hand.unload(now, 0, "for a test"))
    await lab.agree()
    assert not a.owners.is_mine(NAME)
    assert a.owners.destination(NAME) is None
    asked = asyncio.create_task(b.owners.resolve(NAME))
    await settled()
    assert not asked.done()
    await a.end(bundle, a.run)
    await lab.until(lambda: (now := b.states.fold.get(bundle)) is not None and now.to is not None)
    now = b.states.fold.get(bundle)
    assert now is not None
    assert now.state is BundleState.ASSIGNING
    assert now.to is not None
    await b.end(bundle, now.to)
    assert (await asked).id == now.to.broker


async def test_a_request_is_refused_retryably_if_no_owner_is_found_in_time(lab: Lab) -> None:
    a = await lab.started("a", wait_s=0.01)
    with pytest.raises(NotReadyError) as refused:
        await a.owners.resolve(NAME)
    assert refused.value.retryable
    assert a.owners.lookups_waiting == 0


# -- assignment by any broker


async def test_lookups_at_several_brokers_at_once_end_with_one_owner_and_the_same_answer(lab: Lab) -> None:
    machines = [await lab.started(name, seeks=True) for name in "abc"]
    asked = [asyncio.create_task(one.owners.resolve(NAME)) for one in machines for _ in range(3)]
    bundle = bundle_of(machines[0])
    await lab.until(lambda: all(one.states.fold.get(bundle) is not None for one in machines))
    await lab.agree()
    now = machines[0].states.fold.get(bundle)
    assert now is not None
    assert now.to is not None
    await machines[0].end(bundle, now.to)
    assert {one.id for one in await asyncio.gather(*asked)} == {now.to.broker}


async def test_bundles_go_to_the_brokers_with_the_fewest_and_never_to_one_that_is_about_to_end(
    lab: Lab,
) -> None:
    a, b, c = [await lab.started(name) for name in "abc"]
    await c.registry.drain()
    await lab.until(lambda: all(one.registry.living()[c.run.broker].is_draining for one in (a, b)))
    for bundle in FOUR.bundles.ranges.bundles(SALES):
        await a.assigning.assign(bundle, "for a test")
    given = [now.to.broker for now in a.states.fold.bundles.values() if now.to is not None]
    assert sorted(given) == [a.run.broker] * 2 + [b.run.broker] * 2


async def test_a_lookup_is_not_answered_with_a_broker_whose_registration_is_gone(lab: Lab) -> None:
    a, b = await lab.started("a", wait_s=0.05), await lab.started("b")
    await a.assign(bundle_of(a), b.run)
    assert await a.owners.resolve(NAME) == b.address
    await b.metadata.close()
    await lab.until(lambda: len(a.registry.living()) == 1)
    assert a.owners.owner(NAME) is None
    with pytest.raises(NotReadyError):
        await a.owners.resolve(NAME)


async def test_a_broker_that_is_started_again_does_not_have_what_its_former_run_had(lab: Lab) -> None:
    a, b = await lab.started("a", wait_s=0.05), await lab.started("b", "first run")
    await a.assign(bundle_of(a), b.run)
    await b.metadata.close()
    again = await lab.started("b", "second run", wait_s=0.05)
    await lab.until(lambda: a.registry.living()["b:6650"].run_id == "second run")
    assert not again.owners.is_mine(NAME)
    assert a.owners.owner(NAME) is None
    await a.states.append(lab.elect(a).reassign(a.states.fold.bundles[bundle_of(a)], again.run, 0, "gone"))
    await again.states.start()
    await lab.until(lambda: again.owners.is_mine(NAME))


# -- nothing but the channel changes an owner


async def test_while_nothing_can_be_appended_no_ownership_changes_whatever_happens(lab: Lab) -> None:
    a, b, c = [await lab.started(name, wait_s=0.05, seeks=True) for name in "abc"]
    bundles = FOUR.bundles.ranges.bundles(SALES)
    for bundle, to in zip(bundles, (a, b, c), strict=False):  # The last one has no owner.
        await a.assign(bundle, to.run)
    await lab.agree()
    before = {machine.run: (machine.mine(), machine.view()) for machine in (a, b)}
    for machine in lab.machines:
        machine.states.is_stopped = True
    # A broker dies, another joins, the leader changes, a broker is about to end, clients look everything up.
    lab.elect(a)
    await c.metadata.close()
    d = await lab.started("d", wait_s=0.05, seeks=True)
    d.states.is_stopped = True
    lab.elect(d)
    await b.registry.drain()
    await lab.until(lambda: all(len(one.registry.living()) == 3 for one in (a, b, d)))
    for machine in (a, b, d):
        await asyncio.gather(*(machine.owners.resolve(topic) for topic in TOPICS), return_exceptions=True)
    gone = {topic for topic in TOPICS if bundles[2].holds(topic)}
    for machine in (a, b):
        mine, view = before[machine.run]
        assert machine.mine() == mine
        # Those of the dead broker have none; no broker took them for its own.
        assert machine.view() == {topic: None if topic in gone else owner for topic, owner in view.items()}
    assert d.mine() == set()
    assert [now.version for now in d.states.fold.snapshot()] == [2, 2, 2]


# -- sessions


async def test_a_broker_in_doubt_keeps_what_it_has_and_opens_nothing(lab: Lab) -> None:
    a, b = await lab.started("a", wait_s=0.05), await lab.started("b")
    await a.assign(bundle_of(a), a.run)
    await lab.agree()
    mine = a.mine()
    a.told.clear()
    a.metadata.disconnect()
    assert a.mine() == mine
    with pytest.raises(NotReadyError):
        await a.owners.resolve(NAME)
    await a.metadata.reconnect()
    assert await a.owners.resolve(NAME) == a.address
    assert a.told == []
    assert await b.owners.resolve(NAME) == a.address


async def test_a_broker_whose_session_was_lost_keeps_its_bundles_if_the_channel_has_not_moved_on(
    lab: Lab,
) -> None:
    a, b = await lab.started("a"), await lab.started("b")
    await a.assign(bundle_of(a), a.run)
    await lab.agree()
    mine = a.mine()
    await a.metadata.expire_session()
    assert a.metadata.session.state is SessionState.LOST
    await lab.until(lambda: len(b.registry.living()) == 1)
    assert b.owners.owner(NAME) is None
    waiting = asyncio.create_task(b.owners.resolve(NAME))
    await a.metadata.reconnect()
    assert await waiting == a.address
    assert await a.owners.resolve(NAME) == a.address
    assert a.mine() == mine


async def test_a_broker_whose_bundle_was_given_away_meanwhile_learns_that_it_is_not_its_own(
    lab: Lab,
) -> None:
    a, b = await lab.started("a"), await lab.started("b")
    bundle = bundle_of(a)
    await a.assign(bundle, a.run)
    await lab.agree()
    await a.metadata.expire_session()
    await b.states.append(lab.elect(b).reassign(b.states.fold.bundles[bundle], b.run, 0, "a is gone"))
    await b.end(bundle, b.run)
    await a.metadata.reconnect()
    await lab.until(lambda: not a.owners.is_mine(NAME))
    assert any(bundle in told for told in a.told)
    assert await a.owners.resolve(NAME) == b.address


# -- boundaries


async def test_the_bundles_of_a_namespace_that_was_made_a_moment_ago_are_read(lab: Lab) -> None:
    a = await lab.started("a", seeks=True)
    other = NamespaceName("acme", "other")
    with pytest.raises(NamespaceNotFound):
        await a.owners.resolve(other.topic("t"))
    await lab.policies(FOUR, other)
    asked = asyncio.create_task(a.owners.resolve(other.topic("t")))
    await lab.until(lambda: len(a.states.fold.bundles) == 1)
    (bundle,) = a.states.fold.bundles
    await a.end(bundle, a.run)
    assert await asked == a.address


async def test_other_boundaries_are_told_by_the_old_and_the_new_names(lab: Lab) -> None:
    a = await lab.started("a")
    first = FOUR.bundles.ranges.bundles(SALES)[0]
    await a.assign(first, a.run)
    children = (BundleName(SALES, "0x00000000_0x20000000"), BundleName(SALES, "0x20000000_0x40000000"))
    await a.states.append(split(a.states.fold.bundles[first], children, a.run, 0, ""))
    await lab.agree()
    a.told.clear()
    cut = ("0x00000000", "0x20000000", *FOUR.bundles.boundaries[1:])
    await lab.policies(msgspec.structs.replace(FOUR, bundles=Bundles(boundaries=cut, count=5)))
    await lab.until(lambda: bool(a.told))
    assert a.told == [frozenset([first, *children])]
    # The children are created before the boundaries change; here they are not, so they have no owner.
    assert a.mine() == set()


async def test_a_bundle_that_was_deleted_is_looked_up_by_the_boundaries_of_the_moment(lab: Lab) -> None:
    a, b = await lab.started("a"), await lab.started("b")
    bundle, hand = bundle_of(a), lab.elect(b)
    await a.assign(bundle, a.run)
    await lab.agree()
    await b.states.append(hand.remove(b.states.fold.bundles[bundle], 0, "its namespace has no such bundle"))
    await lab.agree()
    a.owners.seek_with(a.assigning.seek)
    asked = asyncio.create_task(a.owners.resolve(NAME))
    # The namespace has it: the leader is asked for an owner, since no other broker may give one.
    await lab.until(lambda: a.revived == [bundle])
    await b.states.append(hand.reassign(b.states.fold.bundles[bundle], b.run, 0, "it is there again"))
    await b.end(bundle, b.run)
    assert await asked == b.address


async def test_policies_that_cannot_be_read_leave_the_owners_as_they_were(lab: Lab) -> None:
    a = await lab.started("a")
    await a.assign(bundle_of(a), a.run)
    mine = a.mine()
    await a.metadata.put(f"{NAMESPACES}/{SALES}", b"{")
    await settled()
    assert a.mine() == mine


# -- the balancer's own topics


@pytest.mark.parametrize("topic", [CHANNEL_TOPIC, BROKER_LOAD_TOPIC, TOP_BUNDLES_TOPIC], ids=str)
async def test_the_topics_of_the_balancer_belong_to_the_elected_leader(lab: Lab, topic: TopicName) -> None:
    a, b = await lab.started("a", wait_s=10), await lab.started("b")
    asked = asyncio.create_task(a.owners.resolve(topic))
    await settled()
    assert not asked.done()
    lab.elect(b)
    assert await asked == b.address
    assert b.owners.is_mine(topic)
    assert not a.owners.is_mine(topic)
    assert frozenset([LEADERS_BUNDLE]) in a.told
    # A leader that is gone serves nothing.
    lab.elected.elect(BrokerRun("c:6650", "gone"))
    assert a.owners.owner(topic) is None
    assert a.owners.destination(topic) is None


async def test_a_part_that_asks_for_an_owner_without_waiting_hears_of_it_once_there_is_one(lab: Lab) -> None:
    a = await lab.started("a", seeks=True)
    bundle = bundle_of(a)
    assert a.owners.owner(NAME) is None
    await lab.until(lambda: a.states.fold.get(bundle) is not None)
    await a.end(bundle, a.run)
    assert any(bundle in told for told in a.told)
    assert a.owners.owner(NAME) == a.address
