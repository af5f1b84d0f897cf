"""Splits of bundles: the children are in the channel before the boundaries change, and no topic notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from anabranch.balance.core.states import BundleState
from anabranch.balance.core.transfer import duty_of
from anabranch.balance.core.transfer import split as split_change
from anabranch.broker.balance.channel.state_log import ChannelUnavailable
from anabranch.broker.balance.splitting import Splitting, cut_at
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.errors import NotAllowedError, NotReadyError
from anabranch.model.bundles import BundleName
from anabranch.model.names import PUBLIC_DEFAULT
from unit.broker.balance.balanced import agree, balanced, balancer, bundle_of, state_of, topic_of
from unit.broker.balance.owners_lab import FOUR, SALES, owners_lab
from unit.broker.scalable.cluster import Cluster, until


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with balanced(3) as made:
        yield made


def middle(bundle: BundleName) -> int:
    first, last = bundle.edges
    return first + (last - first) // 2


async def test_both_parts_stay_with_the_owner_and_no_topic_is_closed(cluster: Cluster) -> None:
    owner = cluster.nodes[0]
    whole = bundle_of(owner, topic_of(owner))
    names = [name for number in range(200) if whole.holds(name := PUBLIC_DEFAULT.topic(f"t-{number}"))]
    for name in names[:10]:
        await owner.publish(name, b"one")
    opened = {name: owner.broker.opened(name) for name in names[:10]}
    lost: list[object] = []
    balancer(owner).owners.on_change(
        lambda _: lost.extend(name for name in names if not balancer(owner).owners.is_mine(name))
    )
    children = await balancer(owner).requests.split(whole, [middle(whole)], "for a test")
    assert len(children) == 2
    assert {balancer(owner).owners.bundle(name) for name in names} == set(children)
    assert {name: owner.broker.opened(name) for name in opened} == opened
    assert lost == []
    for node in cluster.nodes:
        await until(lambda node=node: bundle_of(node, names[0]) in children)  # type: ignore[misc]
        for name in names:
            assert await node.broker.owners.resolve(name) == owner.broker.registry.me.address
    assert state_of(owner, whole) is BundleState.DELETED


async def test_the_boundaries_do_not_change_before_the_children_are_in_the_channel() -> None:
    async with owners_lab() as lab:
        owner = await lab.started("a")
        resources = Resources(owner.metadata)
        splitting = Splitting(owner.owners, owner.states, resources, lambda: 0)
        whole = FOUR.bundles.ranges.bundles(SALES)[0]
        await owner.assign(whole, owner.run)
        children = await splitting.begin(whole, [middle(whole)], "for a test")
        duty = duty_of(owner.run, owner.states.fold.bundles[whole])
        assert duty is not None
        owner.states.is_stopped = True
        with pytest.raises(ChannelUnavailable):
            await splitting.perform(duty)
        assert (await resources.policies(SALES)).bundles == FOUR.bundles
        owner.states.is_stopped = False
        await splitting.perform(duty)
        assert set(children) <= set((await resources.policies(SALES)).bundles.ranges.bundles(SALES))
        # Its topics are the owner's all the time: the parent is discarded last.
        assert owner.states.fold.bundles[whole].state is BundleState.SPLITTING
        assert {owner.states.fold.bundles[child].state for child in children} == {BundleState.ASSIGNED}
        await resources.close()


async def test_a_split_into_several_parts_at_given_places(cluster: Cluster) -> None:
    owner = cluster.nodes[0]
    whole = bundle_of(owner, topic_of(owner))
    first, last = whole.edges
    places = [first + (last - first) * part // 4 for part in (1, 2, 3)]
    children = await balancer(owner).requests.split(whole, places, "for a test")
    assert [child.edges[0] for child in children] == [first, *places]
    for child in children:
        assert balancer(owner).owners.owner_of(child) == owner.broker.registry.me.address


async def test_the_parts_go_to_other_brokers_if_that_is_asked_for(cluster: Cluster) -> None:
    owner = cluster.nodes[0]
    whole = bundle_of(owner, topic_of(owner))
    children = await balancer(owner).requests.split(whole, [middle(whole)], "for a test", unloads=True)
    found = {balancer(owner).owners.owner_of(child) for child in children}
    assert owner.broker.registry.me.address not in found
    assert None not in found


async def test_only_the_owner_splits_a_bundle(cluster: Cluster) -> None:
    owner, other = cluster.nodes[:2]
    whole = bundle_of(owner, topic_of(owner))
    with pytest.raises(NotReadyError, match="not owned by this broker"):
        await balancer(other).requests.split(whole, [middle(whole)], "for a test")


@pytest.mark.parametrize("place", ["first", "last", "outside"])
async def test_a_cut_that_leaves_nothing_on_one_side_is_refused(cluster: Cluster, place: str) -> None:
    owner = cluster.nodes[0]
    whole = bundle_of(owner, topic_of(owner))
    first, last = whole.edges
    at = {"first": first, "last": last, "outside": last + 5}[place]
    with pytest.raises(NotAllowedError, match="cannot be split at"):
        await balancer(owner).requests.split(whole, [at], "for a test")
    assert state_of(owner, whole) is BundleState.ASSIGNED


async def test_a_split_that_was_interrupted_is_finished_from_wherever_it_stopped(cluster: Cluster) -> None:
    owner = cluster.nodes[0]
    whole = bundle_of(owner, topic_of(owner))
    made = balancer(owner)
    children = cut_at(whole, [middle(whole)])
    assert made.moves is not None
    now = made.owners.state(whole)
    assert now is not None
    await made.states.append(split_change(now, children, made.owners.me, 0, "for a test"))
    splitting = made.owners.state(whole)
    assert splitting is not None
    duty = duty_of(made.owners.me, splitting)
    assert duty is not None
    # Twice, at the same time as the broker does it by itself.
    await asyncio.gather(*(made.splitting.perform(duty) for _ in range(2)), return_exceptions=True)
    await until(lambda: state_of(owner, whole) is BundleState.DELETED)
    policies = await owner.broker.resources.policies(PUBLIC_DEFAULT)
    assert policies.bundles.ranges.names.count(children[0].range) == 1
    for child in children:
        assert made.owners.owner_of(child) == owner.broker.registry.me.address


async def test_a_split_whose_owner_dies_leaves_every_topic_with_one_owner(cluster: Cluster) -> None:
    gone, *others = cluster.nodes
    whole = bundle_of(gone, topic_of(gone))
    name = topic_of(gone)
    made = balancer(gone)
    assert made.moves is not None
    await made.moves.close()  # It stops right after it has said that it splits.
    await made.splitting.begin(whole, [middle(whole)], "for a test")
    await gone.metadata.expire_session()
    await agree(cluster, gone)
    for node in others:
        owner = await node.broker.owners.resolve(name)
        assert owner.service_url in {one.broker.service_url for one in others}
    assert {bundle_of(node, name) for node in others} == {whole}
