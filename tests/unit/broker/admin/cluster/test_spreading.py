"""Anti-affinity groups and failure domains over the REST of brokers with the load balancer: statuses, and bundles that
are kept apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from anabranch.model.bundles import BundleName
from anabranch.model.names import NamespaceName
from unit.broker.balance.balanced import BALANCED, agree, balanced, balancer
from unit.broker.scalable.cluster import Cluster, Node, running, until

DOMAINS = "clusters/standalone/failureDomains"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with balanced(3) as made:
        yield made


def web(node: Node) -> str:
    return node.broker.registry.me.address.web_id


async def send(node: Node, method: str, path: str, status: int, **options: Any) -> str:
    answer = await node.rest(method, path, **options)
    assert answer.status_code == status, answer.text
    return answer.text


async def ask(node: Node, method: str, path: str, status: int, **options: Any) -> Any:
    answer = await node.rest(method, path, **options)
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


async def make(cluster: Cluster, *names: str, group: str | None = None, bundles: int = 2) -> None:
    """Namespaces, known to all brokers with their group before any of their bundles has an owner."""
    node = cluster.first
    await node.rest("PUT", "tenants/acme", json={"allowedClusters": ["standalone"]})
    for name in names:
        await ask(node, "PUT", f"namespaces/{name}", 204, json={"bundles": {"numBundles": bundles}})
        if group is not None:
            await send(node, "POST", f"namespaces/{name}/antiAffinity", 204, content=group)
    await until(lambda: all(in_group(one) >= set(names) for one in cluster.nodes) or group is None)


def in_group(node: Node) -> set[str]:
    return set(balancer(node).owners.bundles.groups)


def bundles_of(cluster: Cluster, *names: str) -> list[BundleName]:
    ranges = balancer(cluster.first).owners.bundles.ranges
    found = [NamespaceName.parse(name) for name in names]
    return [bundle for namespace in found for bundle in ranges[namespace].bundles(namespace)]


def owner(cluster: Cluster, bundle: BundleName) -> str:
    found = balancer(cluster.first).owners.owner_of(bundle)
    assert found is not None
    return found.web_id


async def assigned(cluster: Cluster, *names: str) -> Counter[str]:
    """How many of the namespaces' bundles each broker has, once all have an owner: asked for at all brokers in turn,
    each of which has read of the choices before its own."""
    for number, bundle in enumerate(bundles_of(cluster, *names)):
        await balancer(cluster.nodes[number % len(cluster.nodes)]).find_owner(bundle)
        for node in cluster.nodes:
            owners = balancer(node).owners
            await until(lambda owners=owners, bundle=bundle: owners.owner_of(bundle) is not None)  # type: ignore[misc]
    await agree(cluster)
    return Counter(owner(cluster, bundle) for bundle in bundles_of(cluster, *names))


# -- groups: what is stored


async def test_a_group_is_set_shown_and_removed_with_pulsars_statuses(cluster: Cluster) -> None:
    node, other = cluster.nodes[:2]
    await make(cluster, "acme/a")
    path = "namespaces/acme/a/antiAffinity"
    assert await send(node, "GET", path, 204) == ""
    # Java's client sends the bare name, others send JSON.
    for sent, stored in (("Logs", "Logs"), ('"logs 2"', "logs 2")):
        assert await send(node, "POST", path, 204, content=sent) == ""
        assert await send(other, "GET", path, 200) == stored
    assert "logs 2" not in await send(node, "GET", "namespaces/acme/a", 200)
    for _ in range(2):
        await send(node, "DELETE", path, 204)
    assert await send(node, "GET", path, 204) == ""


@pytest.mark.parametrize(("sent", "status"), [("", 412), ("  ", 412), ('"', 400), (b"\xff", 400)])
async def test_a_group_without_a_name_is_refused(cluster: Cluster, sent: str | bytes, status: int) -> None:
    await make(cluster, "acme/a", group="logs")
    await send(cluster.first, "POST", "namespaces/acme/a/antiAffinity", status, content=sent)
    assert await send(cluster.first, "GET", "namespaces/acme/a/antiAffinity", 200) == "logs"


async def test_a_namespace_that_does_not_exist_has_no_group(cluster: Cluster) -> None:
    path = "namespaces/acme/none/antiAffinity"
    await send(cluster.first, "GET", path, 404)
    await send(cluster.first, "POST", path, 404, content="g")
    await send(cluster.first, "DELETE", path, 404)


async def test_the_namespaces_of_a_group_are_listed_by_tenant(cluster: Cluster) -> None:
    node = cluster.first
    await make(cluster, "acme/a", "acme/b", group="Pair")
    await make(cluster, "acme/c", group="other")
    path = "namespaces/standalone/antiAffinity/pair"
    assert await ask(node, "GET", path, 200, params={"tenant": "acme"}) == ["acme/a", "acme/b"]
    assert await ask(node, "GET", path, 200, params={"tenant": "public"}) == []
    assert await ask(node, "GET", path, 200, params={"tenant": "nobody"}) == []
    await ask(node, "GET", path, 400)
    await ask(node, "GET", path.replace("standalone", "none"), 412, params={"tenant": "acme"})


async def test_what_would_not_be_obeyed_is_not_taken() -> None:
    async with running(1, is_shared=True) as cluster:
        node = cluster.first
        for path, content in (("namespaces/public/default/antiAffinity", "g"), (f"{DOMAINS}/d", "{}")):
            assert "set it to balanced" in await send(node, "POST", path, 405, content=content)
            await node.rest("DELETE", path)
        # Nor with the namespace.
        policies = {"namespaceAntiAffinityGroup": "g"}
        await ask(node, "PUT", "namespaces/public/more", 204, json=policies)
        await send(node, "GET", "namespaces/public/more/antiAffinity", 204)


# -- groups: what follows


async def test_bundles_of_a_group_are_assigned_to_brokers_of_their_own(cluster: Cluster) -> None:
    names = ("acme/a", "acme/b", "acme/c")
    await make(cluster, *names, group="apart")
    assert await assigned(cluster, *names) == {web(node): 2 for node in cluster.nodes}


async def test_bundles_that_are_assigned_at_the_same_moment_are_kept_apart_too(cluster: Cluster) -> None:
    await make(cluster, "acme/a", group="apart", bundles=6)
    seek = balancer(cluster.first).assigning.seek
    for bundle in bundles_of(cluster, "acme/a"):
        seek(bundle)
    await agree(cluster)
    found = Counter(owner(cluster, bundle) for bundle in bundles_of(cluster, "acme/a"))
    assert found == {web(node): 2 for node in cluster.nodes}


async def test_the_bundles_of_a_broker_that_leaves_are_spread_over_the_others(cluster: Cluster) -> None:
    leaving = cluster.nodes[-1]
    await make(cluster, "acme/a", group="apart", bundles=6)
    await assigned(cluster, "acme/a")
    await leaving.broker.registry.drain()
    rest = {web(node): 3 for node in cluster.nodes[:-1]}
    await until(
        lambda: (
            Counter(
                found.web_id
                for bundle in bundles_of(cluster, "acme/a")
                if (found := balancer(cluster.first).owners.owner_of(bundle)) is not None
            )
            == rest
        )
    )


async def test_a_bundle_is_not_moved_by_hand_to_where_another_of_its_group_is(cluster: Cluster) -> None:
    node = cluster.first
    await make(cluster, "acme/a", group="Apart")
    at = await assigned(cluster, "acme/a")
    first, second = bundles_of(cluster, "acme/a")
    (free,) = {web(one) for one in cluster.nodes} - set(at)
    taken = owner(cluster, second)
    path = f"namespaces/acme/a/{first.range}/unload"
    reason = (await ask(node, "PUT", path, 412, params={"destinationBroker": taken}))["reason"]
    assert "has 1 bundle of the group apart, another broker 0" in reason
    await ask(node, "PUT", path, 204, params={"destinationBroker": free})
    await agree(cluster)
    assert owner(cluster, first) == free
    # Without the group nothing keeps it away.
    await send(node, "DELETE", "namespaces/acme/a/antiAffinity", 204)
    await ask(node, "PUT", path, 204, params={"destinationBroker": taken})


# -- failure domains


async def test_domains_are_stored_shown_and_deleted_with_pulsars_statuses(cluster: Cluster) -> None:
    node, other = cluster.nodes[:2]
    assert await ask(node, "GET", DOMAINS, 200) == {}
    assert (await ask(node, "GET", f"{DOMAINS}/d", 404))[
        "reason"
    ] == "Domain d for cluster standalone does not exist"
    await ask(node, "POST", f"{DOMAINS}/d", 204, json={"brokers": ["b:1", "a:1", "a:1"]})
    assert await ask(other, "GET", f"{DOMAINS}/d", 200) == {"brokers": ["a:1", "b:1"]}
    reason = (await ask(node, "POST", f"{DOMAINS}/e", 409, json={"brokers": ["b:1", "c:1"]}))["reason"]
    assert reason == "[b:1] already exists in d"
    for brokers in (["c:1"], None):
        await ask(node, "POST", f"{DOMAINS}/e", 204, json={"brokers": brokers})
    assert await ask(node, "GET", DOMAINS, 200) == {"d": {"brokers": ["a:1", "b:1"]}, "e": {"brokers": []}}
    await ask(node, "POST", f"{DOMAINS}/e", 400, json={"brokers": "b:1"})
    await ask(node, "DELETE", f"{DOMAINS}/d", 200)
    reason = (await ask(node, "DELETE", f"{DOMAINS}/d", 404))["reason"]
    assert reason == "Domain-name d or cluster standalone does not exist"


async def test_a_cluster_that_does_not_exist_has_no_domains(cluster: Cluster) -> None:
    path = DOMAINS.replace("standalone", "none")
    assert await ask(cluster.first, "GET", path, 200) == {}
    for method in ("GET", "POST", "DELETE"):
        await ask(cluster.first, method, f"{path}/d", 412, json={"brokers": []})


def as_in(domain: str, brokers: list[Node]) -> dict[str, Any]:
    return {"brokers": [web(node) for node in brokers]}


async def test_bundles_of_a_group_go_to_other_domains_first() -> None:
    config = msgspec.structs.replace(BALANCED, failure_domains_enabled=True)
    async with balanced(3, config) as cluster:
        node, *others = cluster.nodes
        await ask(node, "POST", f"{DOMAINS}/alone", 204, json=as_in("alone", [node]))
        await ask(node, "POST", f"{DOMAINS}/together", 204, json=as_in("together", others))
        for one in cluster.nodes:
            placement = one.broker.ground.balance.placement  # type: ignore[union-attr]
            await until(lambda placement=placement: len(placement().domains) == 3)  # type: ignore[misc]
        await make(cluster, "acme/a", group="apart", bundles=4)
        found = await assigned(cluster, "acme/a")
        # Without domains each broker would have one, and one of them two.
        assert found == {web(node): 2, **{web(one): 1 for one in others}}


async def test_domains_count_only_where_they_are_enabled(cluster: Cluster) -> None:
    node, *others = cluster.nodes
    await ask(node, "POST", f"{DOMAINS}/alone", 204, json=as_in("alone", [node]))
    await ask(node, "POST", f"{DOMAINS}/together", 204, json=as_in("together", others))
    await make(cluster, "acme/a", group="apart", bundles=6)
    assert await assigned(cluster, "acme/a") == {web(one): 2 for one in cluster.nodes}
