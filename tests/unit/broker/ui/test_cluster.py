"""The data of the page of the cluster, asked at any broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from anabranch.balance.core.load import BrokerLoad
from anabranch.broker.balance.balance_log import BalanceAct
from anabranch.broker.balance.bundle_history import BundleHistory
from anabranch.broker.balance.counts import ADMIN
from anabranch.broker.ui.cluster import OVERLAP_MS
from anabranch.metadata.memory import MemoryMetadata
from unit.broker.admin.conftest import serving
from unit.broker.admin.scalable.test_topics import Refusing
from unit.broker.balance.balanced import BALANCED, agree, balanced, balancer, bundle_of, leader_of, topic_of
from unit.broker.balance.load.loaded_brokers import QUICK, loaded
from unit.broker.scalable.cluster import NOW_MS, Cluster, Node, running, until


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with balanced(3) as made:
        yield made


def name_of(node: Node) -> str:
    return node.broker.registry.me.id


async def shown(node: Node, since: int = 0) -> dict[str, Any]:
    answer = await node.http.get("/ui/api/cluster", params={"since": since})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def explained(node: Node, bundle: str) -> dict[str, Any]:
    answer = await node.rest("GET", f"namespaces/{bundle}/explain")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_every_broker_shows_all_brokers_all_bundles_and_the_leader(cluster: Cluster) -> None:
    for asked in cluster.nodes:
        found = await shown(asked)
        assert (found["kind"], found["safeMode"], found["silent"]) == ("balanced", None, [])
        assert found["leader"] == name_of(leader_of(cluster))
        assert [one["id"] for one in found["brokers"]] == sorted(map(name_of, cluster.nodes))
        assert [one["id"] for one in found["brokers"] if one["isThis"]] == [name_of(asked)]
        assert sum(one["bundles"] for one in found["brokers"]) == found["bundleCount"]
        owners = {one["name"]: one["owner"] for one in found["bundles"]}
        assert len(owners) == found["bundleCount"]
        for node in cluster.nodes:
            assert owners[str(bundle_of(node, topic_of(node)))] == name_of(node)


async def test_a_bundle_has_the_traffic_that_its_owner_measures(cluster: Cluster) -> None:
    asked, owner = cluster.nodes[:2]
    name = topic_of(owner)
    producer = await owner.client.producer(str(name))
    found = await shown(asked)
    (bundle,) = [one for one in found["bundles"] if one["name"] == str(bundle_of(owner, name))]
    assert (bundle["owner"], bundle["topics"], bundle["sessions"]) == (name_of(owner), 1, 1)
    # One topic and one session of 1,000 each, at which a bundle splits.
    assert bundle["heat"] == 0.001
    await producer.close()


async def test_a_move_is_shown_with_its_brokers_and_its_reason_at_every_broker(cluster: Cluster) -> None:
    asked, source, target = cluster.nodes
    bundle = bundle_of(source, topic_of(source))
    await balancer(asked).requests.transfer(bundle, name_of(target), "it is too warm there")
    await agree(cluster)
    for node in cluster.nodes:
        moves = [one for one in (await shown(node))["moves"] if one["bundle"] == str(bundle)]
        last = moves[-1]
        assert (last["kind"], last["from"], last["to"]) == ("transfer", name_of(source), name_of(target))
        assert (last["state"], last["reason"]) == ("assigned", "it is too warm there")
        # What the page has is not sent again, but for a while: another broker may have answered it.
        assert (await shown(node, since=NOW_MS))["moves"] != []
        assert (await shown(node, since=NOW_MS + OVERLAP_MS))["moves"] == []


async def test_a_broker_that_has_missed_a_move_hears_of_it_from_the_others(cluster: Cluster) -> None:
    asked, source, target = cluster.nodes
    bundle = bundle_of(source, topic_of(source))
    await balancer(asked).requests.transfer(bundle, name_of(target), "before it was started")
    await agree(cluster)
    balancer(asked).history = BundleHistory(lambda: NOW_MS)  # As of a broker that has just started.
    moves = [one for one in (await shown(asked))["moves"] if one["bundle"] == str(bundle)]
    assert moves[-1]["reason"] == "before it was started"


async def test_the_load_of_a_broker_names_the_resource_it_comes_from(cluster: Cluster) -> None:
    asked, loaded = cluster.nodes[:2]
    load = BrokerLoad(measured_ms=NOW_MS, cpu=0.2, disk=0.6, memory=0.9, load=0.55)
    balancer(asked).loads = lambda: {name_of(loaded): load}
    brokers = {one["id"]: one for one in (await shown(asked))["brokers"]}
    assert "load" not in brokers[name_of(asked)]
    told = brokers[name_of(loaded)]["load"]
    # Memory has no weight unless it is given one.
    assert (told["load"], told["of"], told["shares"]["disk"], told["limit"]) == (0.55, "disk", 0.6, 0.85)


async def test_safe_mode_is_told_with_its_reason(cluster: Cluster) -> None:
    asked = cluster.first
    for node in cluster.nodes[1:]:
        await node.metadata.close()
    await until(lambda: len(asked.broker.registry.living()) == 1)
    found = await shown(asked)
    assert found["safeMode"] == balancer(asked).safe_mode.why() is not None
    # The bundles of brokers that are gone are still theirs, by the states.
    gone = {one["id"]: one["bundles"] for one in found["brokers"] if one["isGone"]}
    assert set(gone) == {name_of(node) for node in cluster.nodes[1:]}
    lost = [one["lost"] for one in found["bundles"] if one.get("lost")]
    assert {broker: lost.count(broker) for broker in gone} == gone
    assert lost


async def test_what_was_decided_about_a_bundle_is_explained_by_any_broker(cluster: Cluster) -> None:
    leader = leader_of(cluster)
    asked = next(node for node in cluster.nodes if node is not leader)
    bundle = bundle_of(asked, topic_of(asked))
    kept = balancer(leader).decisions
    kept.left(BalanceAct.SHED, str(bundle), "TooHeavy", "it would make any other broker the hottest")
    kept.left(BalanceAct.SHED, "", "Balanced", "The loads are balanced.")
    kept.left(BalanceAct.SHED, "public/default/0x0_0x1", "Idle", "of another bundle")
    found = await explained(asked, str(bundle))
    # Besides what was done: the bundle was assigned, and perhaps moved.
    (decision,) = [one for one in found["decisions"] if one["act"] == BalanceAct.SHED]
    assert (decision["label"], decision["by"]) == ("TooHeavy", name_of(leader))
    assert decision["because"] == "it would make any other broker the hottest"
    assert [one["because"] for one in found["general"]] == ["The loads are balanced."]
    assert found["silent"] == []
    assert found["moves"][-1]["state"] == "assigned"
    assert (await shown(asked))["shedding"]["because"] == "The loads are balanced."


async def test_what_the_shedder_moves_is_shown_with_its_reason_and_explained() -> None:
    async with loaded(2) as made:
        made.heat(0, 2)
        made.settings = replace(QUICK, load_std_target=0.05)
        await until(lambda: made.hot_of_each() == [1, 1])
        await agree(made.cluster)
        decided = made.leader.decisions.recent()
        (done,) = [one for one in decided if one.act is BalanceAct.TRANSFER and one.label != ADMIN]
        for node in made.cluster.nodes:
            found = await shown(node)
            (move,) = [one for one in found["moves"] if one["bundle"] == done.subject and one["from"]]
            assert (move["kind"], move["reason"]) == ("transfer", done.because)
            assert (move["from"], move["to"]) == (done.source, done.destination)
            assert all(one["load"]["of"] == "cpu" for one in found["brokers"])
            told = await explained(node, done.subject)
            assert done.because in [one["because"] for one in told["decisions"]]
            assert len(told["loads"]) == 2


async def test_brokers_that_share_by_a_hash_are_shown_without_moves() -> None:
    async with running(3, is_shared=True) as cluster:
        found = await shown(cluster.first)
        assert (found["kind"], found["leader"], found["moves"]) == ("hashed", None, [])
        assert found["bundleCount"] > 0
        assert {one["owner"] for one in found["bundles"]} == set(map(name_of, cluster.nodes))
        assert sum(one["bundles"] for one in found["brokers"]) == found["bundleCount"]


async def test_a_broker_that_is_alone_says_so() -> None:
    async with serving(MemoryMetadata(lambda: NOW_MS)) as rest:
        found = await rest.get("/ui/api/cluster")
        assert (found["kind"], found["bundles"], found["moves"]) == ("alone", [], [])
        assert len(found["brokers"]) == 1


async def test_figures_of_brokers_are_for_super_users() -> None:
    async with running(2, BALANCED, Refusing("super user"), is_shared=True) as cluster:
        found = await shown(cluster.first)
        assert len(found["brokers"]) == 2
        assert all("in" not in one and "load" not in one for one in found["brokers"])
        assert (found["shedding"], found["bundleCount"] > 0) == (None, True)


async def test_bundles_and_moves_of_namespaces_of_others_are_left_out() -> None:
    async with running(2, BALANCED, Refusing("administer"), is_shared=True) as cluster:
        await agree(cluster)
        found = await shown(cluster.first)
        assert (found["bundles"], found["bundleCount"], found["moves"]) == ([], 0, [])
        assert len(found["brokers"]) == 2


async def test_a_role_without_rights_is_told_of_no_broker() -> None:
    async with running(2, BALANCED, Refusing("administer", "super user"), is_shared=True) as cluster:
        await agree(cluster)
        found = await shown(cluster.first)
        assert found["kind"] == "balanced"
        assert not any(value for name, value in found.items() if name not in ("now", "kind"))
