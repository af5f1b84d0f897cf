"""Isolation policies over the REST of brokers with the load balancer: statuses, and bundles that move and stay."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from anabranch.balance.core.states import BundleState
from anabranch.model.bundles import BundleName
from anabranch.model.names import PUBLIC_DEFAULT, TopicName
from unit.broker.balance.balanced import (
    agree,
    balanced,
    balancer,
    bundle_of,
    owner_of,
    state_of,
    topic_of,
)
from unit.broker.scalable.cluster import Cluster, Node, running, until

POLICIES = "clusters/standalone/namespaceIsolationPolicies"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with balanced(3) as made:
        yield made


def web(node: Node) -> str:
    return node.broker.registry.me.address.web_id


def policy(*primary: Node, secondary: tuple[Node, ...] = (), **given: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "namespaces": ["public/default"],
        "primary": [web(node) for node in primary],
        "secondary": [web(node) for node in secondary],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": "1", "usage_threshold": "100"},
        },
    }
    return found | given


async def ask(node: Node, method: str, path: str, status: int, **options: Any) -> Any:
    answer = await node.rest(method, path, **options)
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


async def set_policy(node: Node, name: str, body: dict[str, Any], status: int = 204) -> Any:
    return await ask(node, "POST", f"{POLICIES}/{name}", status, json=body)


def bundles(cluster: Cluster) -> list[BundleName]:
    return balancer(cluster.first).owners.bundles.ranges[PUBLIC_DEFAULT].bundles(PUBLIC_DEFAULT)


def owners(cluster: Cluster) -> set[str]:
    """The web addresses of the brokers that have bundles of the default namespace, as every broker reads it."""
    found = set()
    for node in cluster.nodes:
        for bundle in bundles(cluster):
            owner = balancer(node).owners.owner_of(bundle)
            found.add(owner.web_id if owner is not None else "")
    return found


# -- what is stored


async def test_policies_are_stored_shown_and_deleted_with_pulsars_statuses(cluster: Cluster) -> None:
    asked, fast, spare = cluster.nodes
    reason = (await ask(asked, "GET", POLICIES, 404))["reason"]
    assert reason == "NamespaceIsolationPolicies for cluster standalone does not exist"
    for path in (f"{POLICIES}/fast", f"{POLICIES}/brokers", f"{POLICIES}/brokers/b:1"):
        await ask(asked, "GET", path, 404)
    sent = policy(fast, secondary=(spare,), unload_scope="none")
    await set_policy(asked, "fast", sent)
    for node in cluster.nodes:
        assert await ask(node, "GET", POLICIES, 200) == {"fast": sent}
        assert await ask(node, "GET", f"{POLICIES}/fast", 200) == sent
    reason = (await ask(asked, "GET", f"{POLICIES}/slow", 404))["reason"]
    assert reason == "Cannot find NamespaceIsolationPolicy slow for cluster standalone"
    for _ in range(2):
        await ask(asked, "DELETE", f"{POLICIES}/fast", 204)
    assert await ask(asked, "GET", POLICIES, 200) == {}


async def test_brokers_are_shown_with_what_they_are_in_the_policies(cluster: Cluster) -> None:
    asked, fast, spare = cluster.nodes
    await set_policy(asked, "fast", policy(fast, secondary=(spare,), unload_scope="none"))
    shared = {"brokerName": web(asked), "primary": False, "namespaceRegex": []}
    primary = {
        "brokerName": web(fast),
        "policyName": "fast",
        "primary": True,
        "namespaceRegex": ["public/default"],
    }
    secondary = {**primary, "brokerName": web(spare), "primary": False}
    found = await ask(asked, "GET", f"{POLICIES}/brokers", 200)
    assert sorted(found, key=str) == sorted([shared, primary, secondary], key=str)
    assert await ask(asked, "GET", f"{POLICIES}/brokers/{web(fast)}", 200) == primary
    gone = {"brokerName": "gone:1", "primary": False, "namespaceRegex": []}
    assert await ask(asked, "GET", f"{POLICIES}/brokers/gone:1", 200) == gone


async def test_a_cluster_that_does_not_exist_is_told_as_in_pulsar(cluster: Cluster) -> None:
    node = cluster.first
    path = POLICIES.replace("standalone", "none")
    assert (await ask(node, "GET", path, 404))["reason"] == "Cluster none does not exist."
    for below in ("/p", "/brokers", "/brokers/b:1"):
        await ask(node, "GET", path + below, 412)
    await ask(node, "POST", f"{path}/p", 412, json=policy(node))
    await ask(node, "DELETE", f"{path}/p", 412)


@pytest.mark.parametrize(
    "change",
    [
        {"namespaces": []},
        {"primary": []},
        {"secondary": None},
        {"primary": ["("]},
        {"namespaces": ["(?=a)"]},
        {"auto_failover_policy": {"policy_type": "max_available", "parameters": {}}},
    ],
    ids=str,
)
async def test_a_policy_that_cannot_be_used_is_refused(cluster: Cluster, change: dict[str, Any]) -> None:
    reason = (await set_policy(cluster.first, "p", policy(cluster.first) | change, 400))["reason"]
    assert reason.startswith("Invalid format of input policy data. policy: p; data: ")
    await ask(cluster.first, "GET", POLICIES, 404)


async def test_a_policy_that_would_not_be_obeyed_is_not_taken() -> None:
    async with running(1, is_shared=True) as cluster:
        reason = (await set_policy(cluster.first, "p", policy(cluster.first), 405))["reason"]
        assert "set it to balanced" in reason
        await ask(cluster.first, "GET", POLICIES, 404)


async def test_another_clusters_policies_keep_it_from_being_deleted(cluster: Cluster) -> None:
    node = cluster.first
    await ask(node, "PUT", "clusters/far", 204, json={"serviceUrl": "http://far:8080"})
    path = POLICIES.replace("standalone", "far")
    await ask(node, "POST", f"{path}/p", 204, json=policy(node))
    assert "isolation policies" in (await ask(node, "DELETE", "clusters/far", 412))["reason"]
    await ask(node, "DELETE", f"{path}/p", 204)
    await ask(node, "DELETE", "clusters/far", 204)
    await ask(node, "PUT", "clusters/far", 204, json={"serviceUrl": "http://far:8080"})
    await ask(node, "GET", path, 404)


# -- what follows


async def test_a_policy_brings_the_bundles_and_their_topics_to_its_primary_brokers(cluster: Cluster) -> None:
    asked, other, fast = cluster.nodes
    name = topic_of(other)
    await other.publish(name, b"one")
    await set_policy(asked, "fast", policy(fast))
    await agree(cluster)
    assert owners(cluster) == {web(fast)}
    assert await fast.read(name, "s", 1) == [b"one"]
    found = await ask(fast, "GET", f"brokers/standalone/{web(fast)}/ownedNamespaces", 200)
    (assignment,) = {
        found[bundle]["broker_assignment"] for bundle in found if bundle.startswith("public/default/")
    }
    assert assignment == "primary"


async def test_brokers_are_matched_by_their_host_and_by_either_of_their_addresses(cluster: Cluster) -> None:
    asked, fast = cluster.nodes[:2]
    await set_policy(asked, "fast", policy(primary=[fast.broker.registry.me.id]))
    await agree(cluster)
    assert owners(cluster) == {web(fast)}


async def test_without_a_scope_only_what_a_change_concerns_is_moved(cluster: Cluster) -> None:
    asked, fast = cluster.nodes[:2]
    await set_policy(asked, "fast", policy(fast, unload_scope="none"))
    assert owners(cluster) == {web(node) for node in cluster.nodes}
    # The same again changes nothing, and so unloads nothing.
    await set_policy(asked, "fast", policy(fast))
    assert owners(cluster) == {web(node) for node in cluster.nodes}
    await set_policy(asked, "fast", policy(fast, unload_scope="all_matching"))
    placed = {
        found.to.broker
        for bundle in bundles(cluster)
        if (found := balancer(asked).owners.state(bundle)) is not None and found.to is not None
    }
    assert placed == {fast.broker.registry.me.id}


async def test_bundles_that_are_assigned_later_go_to_their_brokers_and_others_do_not(
    cluster: Cluster,
) -> None:
    asked, fast = cluster.nodes[:2]
    await set_policy(asked, "fast", policy(fast, namespaces=["acme/.*"]))
    await ask(asked, "PUT", "tenants/acme", 204, json={"allowedClusters": ["standalone"]})
    for namespace in ("acme/sales", "public/other"):
        await ask(asked, "PUT", f"namespaces/{namespace}", 204, json={"bundles": {"numBundles": 8}})
    for node in cluster.nodes:
        await until(lambda node=node: len(balancer(node).owners.bundles.ranges) >= 4)  # type: ignore[misc]
        for number in range(20):
            mine = TopicName.parse(f"persistent://acme/sales/t-{number}")
            others = TopicName.parse(f"persistent://public/other/t-{number}")
            assert (await balancer(node).owners.resolve(mine)).web_id == web(fast)
            assert (await balancer(node).owners.resolve(others)).web_id != web(fast)


async def test_secondary_brokers_help_out_while_primary_ones_are_gone(cluster: Cluster) -> None:
    asked, spare, fast = cluster.nodes
    await set_policy(asked, "fast", policy(fast, secondary=(spare,)))
    await agree(cluster)
    assert owners(cluster) == {web(fast)}
    await fast.broker.registry.drain()
    await until(lambda: owners(cluster) == {web(spare)})


async def test_without_a_broker_that_may_own_it_a_bundle_waits_and_the_reason_is_told(
    cluster: Cluster,
) -> None:
    asked, owner = cluster.nodes[:2]
    bundle = bundle_of(owner, topic_of(owner))
    await set_policy(asked, "far", policy(primary=["far-away"]))
    assert all(state_of(asked, one) is BundleState.FREED for one in bundles(cluster))
    choice = balancer(asked).choose(bundle)
    assert choice.to is None
    assert "no broker of the isolation policy far" in choice.reason


async def test_a_bundle_is_not_moved_by_hand_where_its_policy_keeps_it_from(cluster: Cluster) -> None:
    asked, owner, other = cluster.nodes
    await set_policy(asked, "own", policy(owner))
    await agree(cluster)
    name = topic_of(owner)
    path = f"namespaces/public/default/{bundle_of(asked, name).range}/unload"
    reason = (await ask(asked, "PUT", path, 412, params={"destinationBroker": web(other)}))["reason"]
    assert "no broker of the isolation policy own" in reason
    assert owner_of(cluster, name) is owner
    await ask(asked, "DELETE", f"{POLICIES}/own", 204)
    # The leader may not have heard of it, and looks.
    await ask(asked, "PUT", path, 204, params={"destinationBroker": web(other)})
