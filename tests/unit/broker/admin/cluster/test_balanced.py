"""The REST of brokers with the load balancer: moves and splits by operators, states of bundles, the elected leader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import islice

import httpx
import pytest
from msgspec.structs import replace

from anabranch.balance.core.states import BundleState
from anabranch.model.bundles import bundle_hash
from anabranch.model.leaders_topics import CHANNEL_TOPIC
from anabranch.model.names import TopicName
from unit.broker.balance.balanced import (
    BALANCED,
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


def web(node: Node) -> str:
    return node.broker.registry.me.address.web_id


async def unload(asked: Node, name: TopicName, to: str = "") -> httpx.Response:
    path = f"namespaces/public/default/{bundle_of(asked, name).range}/unload"
    return await asked.rest("PUT", path, params={"destinationBroker": to} if to else None)


@pytest.mark.parametrize("form", ["web", "id", "url"])
async def test_unloading_a_bundle_to_a_broker_moves_its_topics_there(cluster: Cluster, form: str) -> None:
    asked, owner, target = cluster.nodes
    name = topic_of(owner)
    await owner.publish(name, b"one")
    to = {"web": web(target), "id": target.broker.registry.me.id, "url": f"http://{web(target)}"}[form]
    assert (await unload(asked, name, to)).status_code == 204
    assert balancer(asked).owners.owner(name) == target.broker.registry.me.address
    assert owner.broker.opened(name) is None
    assert await target.read(name, "s", 1) == [b"one"]


async def test_unloading_a_topic_to_a_broker_moves_its_bundle(cluster: Cluster) -> None:
    asked, owner, target = cluster.nodes
    name = topic_of(owner)
    await owner.publish(name, b"one")
    answer = await asked.rest("PUT", f"{name.rest_path}/unload", params={"destinationBroker": web(target)})
    assert answer.status_code == 204, answer.text
    assert balancer(asked).owners.owner(name) == target.broker.registry.me.address
    missing = TopicName.parse("persistent://public/default/missing")
    answer = await asked.rest("PUT", f"{missing.rest_path}/unload", params={"destinationBroker": web(target)})
    assert answer.status_code == 404


async def test_a_destination_that_is_unknown_own_or_about_to_end_is_refused_with_a_reason(
    cluster: Cluster,
) -> None:
    asked, owner, ending = cluster.nodes
    name = topic_of(owner)
    bundle = bundle_of(owner, name)
    before = balancer(asked).owners.state(bundle)
    answer = await unload(asked, name, "nobody:8080")
    assert (answer.status_code, "no living broker nobody:8080" in answer.json()["reason"]) == (409, True)
    answer = await unload(asked, name, web(owner))
    assert (answer.status_code, "has it already" in answer.json()["reason"]) == (412, True)
    await ending.broker.registry.drain()
    await until(lambda: asked.broker.registry.living()[ending.broker.registry.me.id].is_draining)
    answer = await unload(asked, name, web(ending))
    assert (answer.status_code, "is about to end" in answer.json()["reason"]) == (409, True)
    # What Pulsar says, and its users look for.
    assert "inactive destination broker" in answer.json()["reason"]
    assert balancer(asked).owners.state(bundle) == before


async def test_unloading_a_bundle_leaves_it_without_an_owner_until_it_is_looked_up(cluster: Cluster) -> None:
    asked, owner = cluster.nodes[:2]
    name = topic_of(owner)
    await owner.publish(name, b"one")
    # Any broker does it: nothing is redirected.
    assert (await unload(asked, name)).status_code == 204
    assert owner.broker.opened(name) is None
    assert state_of(asked, bundle_of(asked, name)) is BundleState.FREED
    found = (await asked.http.get(f"/lookup/v2/topic/{name.rest_path}")).json()
    assert found["brokerUrl"] == owner_of(cluster, name).broker.service_url


async def test_a_split_is_done_by_the_owner_by_the_algorithm_that_is_asked_for(cluster: Cluster) -> None:
    asked, owner = cluster.nodes[:2]
    bundle = bundle_of(owner, topic_of(owner))
    path = f"namespaces/public/default/{bundle.range}/split"
    answer = await asked.rest("PUT", path)
    assert answer.status_code == 307
    assert answer.headers["Location"].startswith(f"http://{web(owner)}/admin/v2/{path}")
    first, _ = bundle.edges
    positions = [first + 0x1000, first + 0x2000]
    for algorithm, body, text in (
        ("odd", None, "Unsupported namespace bundle split algorithm"),
        ("specified_positions_divide", None, "splitBoundaries must not be empty"),
        ("specified_positions_divide", [first], "no position lies within"),
    ):
        answer = await owner.rest("PUT", path, params={"splitAlgorithmName": algorithm}, json=body)
        assert (answer.status_code, text in answer.json()["reason"]) == (412, True), answer.text
    answer = await owner.rest(
        "PUT", path, params={"splitAlgorithmName": "specified_positions_divide"}, json=positions
    )
    assert answer.status_code == 204, answer.text
    boundaries = (await asked.rest("GET", "namespaces/public/default/bundles")).json()["boundaries"]
    assert {f"0x{at:08x}" for at in positions} <= set(boundaries)
    answer = await owner.rest("PUT", path)
    assert answer.status_code == 412
    assert "has no bundle" in answer.json()["reason"]


async def test_a_split_by_the_number_of_topics_halves_them(cluster: Cluster) -> None:
    owner = cluster.nodes[1]
    bundle = bundle_of(owner, topic_of(owner))
    names = (TopicName.parse(f"persistent://public/default/n-{number}") for number in range(10_000))
    places: list[int] = []
    while len(places) < 4:
        name = next(names)
        if bundle.holds(name):
            places.append(bundle_hash(name))
            await owner.publish(name, b"one")
    path = f"namespaces/public/default/{bundle.range}/split"
    answer = await owner.rest("PUT", path, params={"splitAlgorithmName": "topic_count_equally_divide"})
    assert answer.status_code == 204, answer.text
    boundaries = (await owner.rest("GET", "namespaces/public/default/bundles")).json()["boundaries"]
    first, last = bundle.edges
    (cut,) = [edge for text in boundaries if first < (edge := int(text, 16)) < last]
    assert sum(place < cut for place in places) == 2


async def test_the_largest_and_the_hottest_bundle_are_split_by_those_words(cluster: Cluster) -> None:
    asked, owner, third = cluster.nodes
    # The largest is with one broker, and the one with the most traffic with another.
    large = bundle_of(owner, topic_of(owner))
    names = (TopicName.parse(f"persistent://public/default/n-{number}") for number in range(10_000))
    for name in islice((name for name in names if large.holds(name)), 3):
        await owner.publish(name, b"one")
    busy = topic_of(third)
    hot = bundle_of(third, busy)
    await third.publish(busy, b"x" * 1000)
    topic = third.broker.opened(busy)
    assert topic is not None
    topic.update_rates(1.0)
    for word, bundle, at in (("LARGEST", large, owner), ("HOT", hot, third)):
        answer = await asked.rest("PUT", f"namespaces/public/default/{word}/split")
        assert (answer.status_code, web(at) in answer.headers["Location"]) == (307, True), answer.text
        answer = await at.rest("PUT", f"namespaces/public/default/{word}/split")
        assert answer.status_code == 204, answer.text
        boundaries = (await asked.rest("GET", "namespaces/public/default/bundles")).json()["boundaries"]
        first, last = bundle.edges
        assert [edge for text in boundaries if first < (edge := int(text, 16)) < last], (word, boundaries)


async def test_an_algorithm_that_is_configured_cuts_and_one_that_is_not_supported_is_refused() -> None:
    config = replace(
        BALANCED,
        default_namespace_bundle_split_algorithm="topic_count_equally_divide",
        supported_namespace_bundle_split_algorithms=("topic_count_equally_divide",),
    )
    async with balanced(1, config) as cluster:
        node = cluster.first
        path = f"namespaces/public/default/{bundle_of(node, topic_of(node)).range}/split"
        answer = await node.rest("PUT", path)
        assert (answer.status_code, "0 topics" in answer.json()["reason"]) == (412, True), answer.text
        answer = await node.rest("PUT", path, params={"splitAlgorithmName": "range_equally_divide"})
        assert answer.status_code == 412
        assert "supported algorithms are ['topic_count_equally_divide']" in answer.json()["reason"]


async def test_a_bundle_that_nobody_has_gets_an_owner_when_an_operator_asks_for_it(cluster: Cluster) -> None:
    asked, owner = cluster.nodes[:2]
    name = topic_of(owner)
    bundle = bundle_of(owner, name)
    assert (await unload(asked, name)).status_code == 204
    assert state_of(asked, bundle) is BundleState.FREED
    answer = await asked.rest("PUT", f"namespaces/public/default/{bundle.range}/split")
    assert answer.status_code in (204, 307), answer.text


async def test_a_split_with_unload_offers_the_parts_to_other_brokers(cluster: Cluster) -> None:
    owner = cluster.nodes[1]
    name = topic_of(owner)
    path = f"namespaces/public/default/{bundle_of(owner, name).range}/split"
    answer = await owner.rest(
        "PUT", path, params={"splitAlgorithmName": "range_equally_divide", "unload": "true"}
    )
    assert answer.status_code == 204, answer.text
    found = balancer(owner).owners.owner(name)
    assert found is not None
    assert found != owner.broker.registry.me.address


async def test_a_topic_of_the_balancer_is_at_the_leader_and_cannot_be_moved(cluster: Cluster) -> None:
    to = web(cluster.nodes[1])
    answer = await cluster.first.rest(
        "PUT", f"{CHANNEL_TOPIC.rest_path}/unload", params={"destinationBroker": to}
    )
    assert (answer.status_code, "the leader serves it" in answer.json()["reason"]) == (412, True)


async def test_every_broker_names_the_elected_leader(cluster: Cluster) -> None:
    leader = leader_of(cluster)
    for node in cluster.nodes:
        found = (await node.rest("GET", "brokers/leaderBroker")).json()
        assert found == {"brokerId": web(leader), "serviceUrl": leader.broker.http_url}


async def test_the_states_of_all_bundles_are_told_with_their_reasons(cluster: Cluster) -> None:
    asked, owner = cluster.nodes[:2]
    name = topic_of(owner)
    bundle = bundle_of(owner, name)
    told = (await asked.rest("GET", "namespaces/public/default/bundleStates")).json()
    assert [one["bundle"] for one in told] == list(
        balancer(asked).owners.bundles.ranges[name.namespace].names
    )
    assert {one["state"] for one in told} == {"assigned"}
    (mine,) = [one for one in told if one["bundle"] == bundle.range]
    assert mine["owner"] == web(owner)
    assert mine["reason"]
    await balancer(asked).requests.unload(bundle, "for a test")
    one = (await asked.rest("GET", f"namespaces/public/default/{bundle.range}/explain")).json()
    assert (one["state"], one["owner"], one["reason"]) == ("freed", None, "for a test")
    assert one["leader"] == web(leader_of(cluster))
    assert one["safeMode"] is None
    assert set(one["brokers"]) == {web(node) for node in cluster.nodes}
    assert sum(one["brokers"].values()) == len(balancer(asked).states.fold.bundles) - 1
