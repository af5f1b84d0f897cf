"""Real brokers with the load balancer, in one process, that share a memory log and a memory store."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from anabranch.balance.core.states import BundleState
from anabranch.broker.assembly.balance_parts import LoadSources
from anabranch.broker.balance import leader
from anabranch.broker.balance.balancer import Balancer
from anabranch.broker.balance.load.load_work import LoadWork
from anabranch.broker.broker import Broker
from anabranch.broker.config.config import BrokerConfig
from anabranch.model.bundles import BundleName
from anabranch.model.names import PUBLIC_DEFAULT, TopicName
from unit.broker.scalable.cluster import Cluster, Node, running, until

BALANCED = BrokerConfig(load_manager_class_name="balanced")


def balancer(node: Node) -> Balancer:
    found = node.broker.balancer
    assert found is not None
    return found


@contextlib.asynccontextmanager
async def balanced(
    brokers: int = 3,
    config: BrokerConfig = BALANCED,
    *,
    assigned: bool = True,
    measured: Callable[[Broker, LoadSources], LoadSources] = lambda broker, found: found,
    brokers_expected: int = 0,
) -> AsyncIterator[Cluster]:
    """With `assigned` every bundle has an owner, and every broker has some of the default namespace."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leader, "SETTLE_S", 0.0)
        shared = running(
            brokers, config, is_shared=True, measured=measured, brokers_expected=brokers_expected
        )
        async with shared as cluster:
            if assigned:
                await agree(cluster)
                await _spread(cluster)
            yield cluster


async def _spread(cluster: Cluster) -> None:
    first = balancer(cluster.first)
    bundles = first.owners.bundles.ranges[PUBLIC_DEFAULT].bundles(PUBLIC_DEFAULT)
    for number, bundle in enumerate(bundles):
        to = cluster.nodes[number % len(cluster.nodes)].broker.registry.me
        if first.owners.owner_of(bundle) != to.address:
            await first.requests.transfer(bundle, to.id, "for a test")
    await agree(cluster)


async def agree(cluster: Cluster, *but: Node) -> None:
    """All bundles have owners that live, and all brokers have read so, except those that are gone."""
    nodes = [node for node in cluster.nodes if node not in but]
    await until(lambda: all(len(node.broker.registry.living()) == len(nodes) for node in nodes))

    def is_done() -> bool:
        views = [balancer(node).states.fold for node in nodes]
        bundles = [
            bundle
            for namespace, ranges in balancer(nodes[0]).owners.bundles.ranges.items()
            for bundle in ranges.bundles(namespace)
        ]
        return all(
            all(balancer(node).owners.owner_of(bundle) is not None for bundle in bundles) for node in nodes
        ) and all(view.get(bundle) == views[0].get(bundle) for view in views for bundle in bundles)

    await until(is_done)


def owner_of(cluster: Cluster, name: TopicName) -> Node:
    """The broker that all brokers name."""
    (url,) = {
        found.service_url if (found := balancer(node).owners.owner(name)) else None for node in cluster.nodes
    }
    return next(node for node in cluster.nodes if node.broker.service_url == url)


def topic_of(node: Node, domain: str = "persistent") -> TopicName:
    """A topic that the broker owns."""
    names = (TopicName.parse(f"{domain}://{PUBLIC_DEFAULT}/t-{number}") for number in range(1000))
    return next(name for name in names if balancer(node).owners.is_mine(name))


def bundle_of(node: Node, name: TopicName) -> BundleName:
    found = balancer(node).owners.bundle(name)
    assert found is not None
    return found


def state_of(node: Node, bundle: BundleName) -> BundleState | None:
    found = balancer(node).owners.state(bundle)
    return None if found is None else found.state


def work_of(node: Node) -> LoadWork:
    balance = node.broker.ground.balance
    assert balance is not None
    assert balance.work is not None
    return balance.work


def leader_of(cluster: Cluster) -> Node:
    (found,) = [node for node in cluster.nodes if balancer(node).reign.term]
    return found
