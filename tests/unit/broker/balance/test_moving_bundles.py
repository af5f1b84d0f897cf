"""Bundles that move between real brokers: by an operator, because a broker is about to end, because one is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from anabranch.balance.core.states import BrokerRun, BundleState
from anabranch.broker.balance.calls import RELEASED, ReleasedBundle
from anabranch.broker.errors import NotAllowedError, NotReadyError
from anabranch.broker.peers.methods import HELLO, Nothing
from anabranch.client import ClientConnection
from anabranch.client.transport.connection import PartKind
from anabranch.model.bundles import BundleName
from anabranch.model.names import PUBLIC_DEFAULT, NamespaceName, TopicName
from anabranch.wire import pulsar_pb2 as pb
from harness.simple_client import Producer
from unit.broker.balance.balanced import (
    agree,
    balanced,
    balancer,
    bundle_of,
    leader_of,
    owner_of,
    state_of,
    topic_of,
)
from unit.broker.scalable.cluster import Cluster, Node, until


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with balanced(3) as made:
        yield made


class Watched(Producer):
    """A producer that keeps what the broker closed it with."""

    closed: pb.CommandCloseProducer | None = None

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        super().received(kind, body, payload)
        if kind == pb.BaseCommand.CLOSE_PRODUCER:
            self.closed = body


async def watched(cluster: Cluster, node: Node, name: TopicName) -> Watched:
    connection = await ClientConnection.open(node.broker.service_url)
    cluster.connections.append(connection)
    producer = connection.attach(PartKind.PRODUCER, lambda number: Watched(connection, number, str(name)))
    await producer.open(None)
    return producer


def other(cluster: Cluster, *nodes: Node) -> Node:
    return next(node for node in cluster.nodes if node not in nodes)


def names_in(bundle: BundleName, count: int) -> list[TopicName]:
    names = (PUBLIC_DEFAULT.topic(f"t-{number}") for number in range(10_000))
    return [name for name in names if bundle.holds(name)][:count]


# -- transfers


async def test_a_transfer_brings_the_topics_and_their_clients_straight_to_the_destination(
    cluster: Cluster,
) -> None:
    source = cluster.nodes[0]
    target, asked = cluster.nodes[1], cluster.nodes[2]
    bundle = bundle_of(source, topic_of(source))
    names = names_in(bundle, 40)
    for name in names:
        await source.publish(name, b"one")
    clients = [await watched(cluster, source, name) for name in names[:20]]
    await balancer(asked).requests.transfer(bundle, target.broker.registry.me.id, "for a test")
    # It has returned: the bundle is with the destination, with everything that has clients, and nothing is left.
    for node in cluster.nodes:
        await until(lambda node=node: balancer(node).owners.owner_of(bundle) is not None)  # type: ignore[misc]
        assert owner_of(cluster, names[0]) is target
    assert [name for name in names if source.broker.opened(name) is not None] == []
    assert {name for name in names if target.broker.opened(name) is not None} == set(names[:20])
    for client in clients:
        await until(lambda client=client: client.closed is not None)  # type: ignore[misc]
        assert client.closed is not None
        assert client.closed.assignedBrokerServiceUrl == target.broker.service_url
    for name in names:
        assert await target.read(name, "s", 1) == [b"one"]


async def test_the_pause_of_each_topic_that_moves_is_measured_by_its_new_owner(cluster: Cluster) -> None:
    source, target = cluster.nodes[:2]
    bundle = bundle_of(source, topic_of(source))
    names = names_in(bundle, 5)
    for name in names:
        await source.publish(name, b"one")
        await watched(cluster, source, name)
    began_s = asyncio.get_running_loop().time()
    await balancer(source).requests.transfer(bundle, target.broker.registry.me.id, "for a test")
    took_s = asyncio.get_running_loop().time() - began_s
    pauses = target.broker.topic_pauses
    assert pauses.count == len(names)
    assert 0 < pauses.sum <= len(names) * took_s
    assert source.broker.topic_pauses.count == 0
    # One that no living broker had is not among them.
    other_name = next(name for name in names_in(bundle, 100) if name not in names)
    await target.publish(other_name, b"one")
    assert pauses.count == len(names)
    assert "\nanabranch_topic_pause_seconds_count{" in (await target.http.get("/metrics/")).text


async def test_the_destination_says_that_it_has_the_bundle_only_after_the_source_has_let_go(
    cluster: Cluster,
) -> None:
    source, target = cluster.nodes[:2]
    name = topic_of(source)
    bundle = bundle_of(source, name)
    await source.publish(name, b"one")
    open_at_return: list[bool] = []
    balancer(target).states.on_change(
        lambda changes: open_at_return.extend(
            source.broker.opened(name) is not None
            for change in changes
            if change.bundle == bundle and change.state is BundleState.ASSIGNED
        )
    )
    await balancer(source).requests.transfer(bundle, target.broker.registry.me.id, "for a test")
    assert open_at_return == [False]


async def test_non_persistent_topics_move_too(cluster: Cluster) -> None:
    source, target = cluster.nodes[:2]
    name = topic_of(source, "non-persistent")
    client = await watched(cluster, source, name)
    assert source.broker.non_persistent.opened(name) is not None
    await balancer(source).requests.transfer(
        bundle_of(source, name), target.broker.registry.me.id, "for a test"
    )
    await until(lambda: client.closed is not None)
    assert client.closed is not None
    assert client.closed.assignedBrokerServiceUrl == target.broker.service_url
    assert source.broker.non_persistent.opened(name) is None


async def test_lookups_during_a_transfer_are_answered_with_its_destination(cluster: Cluster) -> None:
    source, target, asked = cluster.nodes
    name = topic_of(source)
    bundle = bundle_of(source, name)
    await source.publish(name, b"one")
    moving = asyncio.create_task(
        balancer(source).requests.transfer(bundle, target.broker.registry.me.id, "for a test")
    )
    await until(lambda: state_of(asked, bundle) is BundleState.ASSIGNING)
    found = await asyncio.gather(*(node.broker.owners.resolve(name) for node in cluster.nodes))
    assert {one.service_url for one in found} == {target.broker.service_url}
    await moving


async def test_a_bundle_goes_there_and_back_and_nothing_is_lost(cluster: Cluster) -> None:
    source, target = cluster.nodes[:2]
    name = topic_of(source)
    bundle = bundle_of(source, name)
    for number, to in enumerate((target, source, target, source)):
        await owner_of(cluster, name).publish(name, b"%d" % number)
        await balancer(target).requests.transfer(bundle, to.broker.registry.me.id, "for a test")
        await agree(cluster)
    assert await source.read(name, "s", 4) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("to", ["nobody:6650", "own", "ending"])
async def test_a_transfer_to_a_broker_that_cannot_have_the_bundle_is_refused(
    cluster: Cluster, to: str
) -> None:
    source, target, asked = cluster.nodes
    bundle = bundle_of(source, topic_of(source))
    if to == "ending":
        await target.broker.registry.drain()
        await until(
            lambda: leader_of(cluster).broker.registry.living()[target.broker.registry.me.id].is_draining
        )
    named = {"own": source, "ending": target}.get(to)
    before = balancer(source).owners.state(bundle)
    with pytest.raises(NotAllowedError, match=r"cannot go to"):
        await balancer(asked).requests.transfer(
            bundle, to if named is None else named.broker.registry.me.id, "for a test"
        )
    assert balancer(source).owners.state(bundle) == before


async def test_a_destination_that_does_not_follow_the_channel_is_not_given_the_bundle(
    cluster: Cluster,
) -> None:
    leader = leader_of(cluster)
    source, target = other(cluster, leader), other(cluster, leader, other(cluster, leader))
    bundle = bundle_of(source, topic_of(source))
    await leader.broker.peers.call(target.broker.registry.me.id, HELLO, Nothing())
    target.metadata.disconnect()
    with pytest.raises(NotReadyError, match=r"cannot come here: this broker is not registered"):
        await balancer(leader).changes.transfer(bundle, target.broker.registry.me.id, "for a test")
    assert state_of(source, bundle) is BundleState.ASSIGNED
    await target.metadata.reconnect()


async def test_what_a_broker_says_that_is_not_the_source_ends_no_transfer(cluster: Cluster) -> None:
    source, target, liar = cluster.nodes
    bundle = bundle_of(source, topic_of(source))
    now = balancer(source).owners.state(bundle)
    assert now is not None
    said = RELEASED.encode(ReleasedBundle(str(bundle), now.version))
    await target.broker.peers.handlers.perform(liar.broker.registry.me.id, RELEASED.name, said)
    await balancer(source).requests.transfer(bundle, target.broker.registry.me.id, "for a test")
    assert owner_of(cluster, topic_of(target)) is target


# -- unloads


async def test_an_unload_closes_the_topics_and_the_next_lookup_finds_an_owner(cluster: Cluster) -> None:
    source, asked = cluster.nodes[:2]
    name = topic_of(source)
    bundle = bundle_of(source, name)
    await source.publish(name, b"one")
    client = await watched(cluster, source, name)
    await balancer(asked).requests.unload(bundle, "for a test")
    assert source.broker.opened(name) is None
    assert state_of(asked, bundle) is BundleState.FREED
    await until(lambda: client.closed is not None)
    assert client.closed is not None
    assert not client.closed.assignedBrokerServiceUrl
    url = (await asked.broker.owners.resolve(name)).service_url
    owner = next(node for node in cluster.nodes if node.broker.service_url == url)
    assert await owner.read(name, "s", 1) == [b"one"]


# -- brokers that end


async def test_a_broker_that_is_about_to_end_gives_its_bundles_away_first(cluster: Cluster) -> None:
    ending = other(cluster, leader_of(cluster))
    name = topic_of(ending)
    await ending.publish(name, b"one")
    client = await watched(cluster, ending, name)
    await ending.broker.drain()
    assert balancer(ending).owners.owned_by(ending.broker.registry.me.id) == []
    assert ending.broker.loaded() == {}
    await until(lambda: client.closed is not None)
    assert client.closed is not None
    target = owner_of(cluster, name)
    assert target is not ending
    assert client.closed.assignedBrokerServiceUrl == target.broker.service_url
    assert await target.read(name, "s", 1) == [b"one"]
    await ending.broker.close()
    assert [now.to for now in balancer(target).states.fold.bundles.values() if now.is_in_flight] == []


async def test_the_leader_that_is_about_to_end_gives_its_bundles_away_too(cluster: Cluster) -> None:
    ending = leader_of(cluster)
    name = topic_of(ending)
    await ending.publish(name, b"one")
    await ending.broker.drain()
    assert leader_of(cluster) is not ending
    assert balancer(ending).owners.owned_by(ending.broker.registry.me.id) == []
    assert await owner_of(cluster, name).read(name, "s", 1) == [b"one"]


async def test_the_bundles_of_a_broker_that_is_gone_are_given_to_the_others(cluster: Cluster) -> None:
    leader = leader_of(cluster)
    gone = other(cluster, leader)
    name = topic_of(gone)
    await gone.publish(name, b"one")
    await gone.metadata.expire_session()
    await agree(cluster, gone)
    owner = next(node for node in cluster.nodes if node is not gone and balancer(node).owners.is_mine(name))
    assert await owner.read(name, "s", 1) == [b"one"]
    # The broker that was gone learns it, and serves nothing of it any more.
    await gone.metadata.reconnect()
    await until(lambda: not balancer(gone).owners.is_mine(name))
    await until(lambda: gone.broker.opened(name) is None)


async def test_the_bundles_of_the_leader_that_is_gone_are_given_away_by_the_next_one(
    cluster: Cluster,
) -> None:
    gone = leader_of(cluster)
    name = topic_of(gone)
    await gone.publish(name, b"one")
    await gone.metadata.expire_session()
    await agree(cluster, gone)
    owner = next(node for node in cluster.nodes if node is not gone and balancer(node).owners.is_mine(name))
    assert await owner.read(name, "s", 1) == [b"one"]


async def test_a_leader_that_was_just_started_does_not_wait_for_a_broker_that_it_has_seen_go() -> None:
    async with balanced(3, brokers_expected=3) as cluster:
        gone = leader_of(cluster)
        # All three were started a moment ago: less than the time for which a leader waits for brokers to come.
        await gone.metadata.expire_session()
        async with asyncio.timeout(5):
            await agree(cluster, gone)


async def test_the_leader_repairs_while_it_finds_no_broker_for_other_bundles(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    former = leader_of(cluster)
    policy = {
        "namespaces": [str(PUBLIC_DEFAULT)],
        "primary": ["nobody:1"],
        "secondary": [],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": "1", "usage_threshold": "100"},
        },
    }
    path = "clusters/standalone/namespaceIsolationPolicies/nobodys"
    answer = await former.rest("POST", path, json=policy)
    assert answer.is_success, answer.text
    closed = balancer(former).owners.bundles.ranges[PUBLIC_DEFAULT].bundles(PUBLIC_DEFAULT)
    await until(lambda: all(state_of(former, bundle) is BundleState.FREED for bundle in closed))
    assert (await former.rest("PUT", "namespaces/public/others", json={})).is_success
    space = NamespaceName("public", "others")
    await until(lambda: space in balancer(former).owners.bundles.ranges)
    others = balancer(former).owners.bundles.ranges[space].bundles(space)
    for node, bundle in zip(cluster.nodes, others, strict=False):
        await balancer(former).requests.transfer(bundle, node.broker.registry.me.id, "for a test")
    caplog.set_level(logging.INFO)
    await balancer(former).election.resign()
    await until(lambda: "the leader assigns" in caplog.text)
    gone = other(cluster, former, leader_of(cluster))
    had = balancer(former).owners.owned_by(gone.broker.registry.me.id)
    assert had
    await gone.metadata.expire_session()
    await until(lambda: len(former.broker.registry.living()) == 2)
    async with asyncio.timeout(5):
        await until(lambda: all(balancer(former).owners.owner_of(one) is not None for one in had))


async def test_nothing_is_given_away_until_the_store_has_been_well_for_a_while(cluster: Cluster) -> None:
    leader = leader_of(cluster)
    gone = other(cluster, leader)
    name = topic_of(gone)
    leader.metadata.disconnect()
    await leader.metadata.reconnect()
    await until(lambda: balancer(leader).states.is_following and leader_of(cluster) is leader)
    before = balancer(leader).states.fold.snapshot()
    await gone.metadata.expire_session()
    await until(lambda: len(leader.broker.registry.living()) == 2)
    await balancer(leader).leader.look()
    assert balancer(leader).states.fold.snapshot() == before
    with pytest.raises(NotReadyError, match="no bundle is moved now: the session of the metadata store"):
        await balancer(leader).changes.unload(before[0].bundle, "for a test")
    # The broker that was gone comes back, and has what it had.
    await gone.metadata.reconnect()
    await until(lambda: balancer(leader).owners.owner(name) == gone.broker.registry.me.address)
    assert balancer(leader).states.fold.snapshot() == before


async def test_the_bundles_of_a_broker_that_was_started_again_are_given_back_also_in_safe_mode(
    cluster: Cluster,
) -> None:
    leader = leader_of(cluster)
    gone = other(cluster, leader)
    bundle = bundle_of(gone, topic_of(gone))
    leader.metadata.disconnect()
    await leader.metadata.reconnect()
    await until(lambda: balancer(leader).states.is_following and leader_of(cluster) is leader)
    assert balancer(leader).safe_mode.why() is not None
    # Another run registers at its address: that the former one is over needs no word of the store.
    me = replace(gone.broker.registry.me, run_id="a later run")
    path = f"/loadbalance/brokers/{me.id}"
    await gone.metadata.put(path, me.encode())
    await until(lambda: leader.broker.registry.living()[me.id].run_id == "a later run")
    await balancer(leader).leader.look()
    now = balancer(leader).owners.state(bundle)
    assert now is not None
    assert now.to == BrokerRun(me.id, "a later run")
    assert "is gone" in now.reason


async def test_a_broker_that_is_about_to_end_gives_its_bundles_away_also_in_safe_mode(
    cluster: Cluster,
) -> None:
    leader = leader_of(cluster)
    ending = other(cluster, leader)
    name = topic_of(ending)
    await ending.publish(name, b"one")
    leader.metadata.disconnect()
    await leader.metadata.reconnect()
    await until(lambda: balancer(leader).states.is_following and leader_of(cluster) is leader)
    assert balancer(leader).safe_mode.why() is not None
    await ending.broker.drain()
    assert balancer(ending).owners.owned_by(ending.broker.registry.me.id) == []
    assert await owner_of(cluster, name).read(name, "s", 1) == [b"one"]
