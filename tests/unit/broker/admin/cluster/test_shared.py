"""The REST and lookups of brokers that share the topics: any broker answers, or names the one that does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from anabranch.broker.catalog.hashed_owners import HashedOwners
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.rest import create_app
from anabranch.client import ClientConnection
from anabranch.client.errors import RequestRefused
from anabranch.model.names import PUBLIC_DEFAULT, TopicName
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.scalable.cluster import Cluster, Node, running, until

CONFIG = BrokerConfig(
    advertised_listeners=("inside:pulsar://10.0.0.7:6650", "outside:pulsar+ssl://river.example.com:6651")
)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running(3, is_shared=True) as made:
        yield made


def shared(node: Node) -> HashedOwners:
    found = node.broker.shared
    assert isinstance(found, HashedOwners)
    return found


def topic_of(node: Node, domain: str = "persistent") -> TopicName:
    """A topic that the broker owns."""
    names = (TopicName.parse(f"{domain}://public/default/t-{number}") for number in range(1000))
    return next(name for name in names if shared(node).is_mine(name))


def numbered(cluster: Cluster, url: str) -> Node:
    """The broker at a web address."""
    return cluster.nodes[int(url.partition("broker-")[2].partition(":")[0])]


async def follow(cluster: Cluster, answer: httpx.Response) -> httpx.Response:
    assert answer.status_code == 307, (answer.status_code, answer.text)
    node = numbered(cluster, answer.headers["Location"])
    return await node.http.request(answer.request.method, answer.headers["Location"])


def secure(node: Node) -> httpx.AsyncClient:
    """A caller by https."""
    app = create_app(node.broker.admin_services(), node.broker.page)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://river:8443")


# -- one topic


@pytest.mark.parametrize(
    ("method", "route"),
    [
        ("GET", "stats"),
        ("GET", "internalStats"),
        ("GET", "subscriptions"),
        ("GET", "properties"),
        ("PUT", "subscription/s"),
        ("PUT", "unload"),
        ("POST", "terminate"),
        ("PUT", "compaction"),
        ("DELETE", ""),
    ],
)
async def test_a_request_about_one_topic_is_redirected_to_its_owner(
    cluster: Cluster, method: str, route: str
) -> None:
    asked, owner = cluster.nodes[0], cluster.nodes[1]
    name = topic_of(owner)
    await owner.publish(name, b"one")
    path = f"{name.rest_path}/{route}".rstrip("/")
    answer = await asked.rest(method, path, params={"force": "true"} if method == "DELETE" else None)
    assert answer.headers["Location"].startswith(f"http://broker-1:8080/admin/v2/{path}")
    assert (await follow(cluster, answer)).is_success


async def test_a_topic_that_does_not_exist_is_not_found_whichever_broker_is_asked(cluster: Cluster) -> None:
    name = topic_of(cluster.nodes[1])
    for node in cluster.nodes:
        answer = await node.rest("GET", f"{name.rest_path}/stats")
        if answer.status_code == 307:
            answer = await follow(cluster, answer)
        assert answer.status_code == 404


@pytest.mark.parametrize(("method", "route"), [("GET", "stats"), ("GET", "subscriptions"), ("PUT", "unload")])
async def test_a_non_persistent_topic_is_found_through_every_broker(
    cluster: Cluster, method: str, route: str
) -> None:
    owner, asked = cluster.nodes[0], cluster.nodes[1]
    name = topic_of(owner, "non-persistent")
    made = await asked.rest("PUT", name.rest_path)
    assert made.headers["Location"].startswith("http://broker-0:8080/")
    assert (await follow(cluster, made)).status_code == 204
    assert owner.broker.non_persistent.opened(name) is not None
    answer = await asked.rest(method, f"{name.rest_path}/{route}")
    assert (await follow(cluster, answer)).is_success


async def test_a_caller_by_https_is_redirected_to_https_and_never_to_http(cluster: Cluster) -> None:
    asked, with_tls, without = cluster.nodes
    async with secure(asked) as http:
        name = topic_of(with_tls)
        answer = await http.get(
            f"/admin/v2/{name.rest_path}/stats", headers={"Authorization": "Bearer secret"}
        )
        assert answer.headers["Location"] == f"https://broker-1:8443/admin/v2/{name.rest_path}/stats"
        answer = await http.get(f"/admin/v2/{topic_of(without).rest_path}/stats")
        assert answer.status_code == 503
        assert "Location" not in answer.headers
        assert "https" in answer.json()["reason"]


# -- lookups


async def test_http_lookups_name_the_owner_whichever_broker_is_asked(cluster: Cluster) -> None:
    for owner in cluster.nodes:
        name = topic_of(owner)
        for node in cluster.nodes:
            for kind in ("topic", "destination"):
                found = (await node.http.get(f"/lookup/v2/{kind}/{name.rest_path}")).json()
                assert found["brokerUrl"] == found["nativeUrl"] == owner.broker.service_url
                assert found["httpUrl"] == owner.broker.http_url
                assert found.get("httpUrlTls", "") == owner.broker.http_url_tls
                assert found["brokerId"] == owner.broker.http_url.partition("://")[2]


async def looked_up(node: Node, name: TopicName, listener: str = "") -> pb.CommandLookupTopicResponse:
    connection = await ClientConnection.open(node.broker.service_url)
    answer = await connection.request(
        pb.BaseCommand.LOOKUP, "lookupTopic", topic=str(name), advertised_listener_name=listener
    )
    await connection.close()
    assert isinstance(answer, pb.CommandLookupTopicResponse)
    return answer


async def test_binary_lookups_connect_to_the_owner_at_the_listener_that_the_client_names() -> None:
    async with running(2, CONFIG, is_shared=True) as cluster:
        asked, owner = cluster.nodes
        await until(lambda: len(asked.broker.registry.living()) == 2)
        name = topic_of(owner)
        found = await looked_up(asked, name)
        assert found.response == pb.CommandLookupTopicResponse.Connect
        assert found.brokerServiceUrl == owner.broker.service_url
        found = await looked_up(asked, name, "outside")
        assert found.response == pb.CommandLookupTopicResponse.Connect
        assert (found.brokerServiceUrl, found.brokerServiceUrlTls) == (
            "",
            "pulsar+ssl://river.example.com:6651",
        )
        found = await looked_up(asked, name, "inside")
        assert (found.brokerServiceUrl, found.brokerServiceUrlTls) == ("pulsar://10.0.0.7:6650", "")
        told = (await asked.http.get(f"/lookup/v2/topic/{name.rest_path}?listenerName=outside")).json()
        assert told["brokerUrlTls"] == "pulsar+ssl://river.example.com:6651"


async def test_a_lookup_is_refused_for_a_while_if_no_broker_may_own_the_topic(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = cluster.nodes[0]
    for node in cluster.nodes:
        await node.broker.registry.drain()
    name = TopicName.parse("persistent://public/default/t")
    await until(lambda: shared(asked).owner(name) is None)
    monkeypatch.setattr(shared(asked), "_wait_s", 0.01)
    with pytest.raises(RequestRefused, match=r"ServiceNotReady.*not decided"):
        await looked_up(asked, name)


# -- brokers


async def test_every_broker_lists_all_and_names_the_same_leader(cluster: Cluster) -> None:
    names = [f"broker-{number}:8080" for number in range(3)]
    leaders = set()
    for node in cluster.nodes:
        assert (await node.rest("GET", "brokers")).json() == names
        assert (await node.rest("GET", "brokers/standalone")).json() == names
        leader = (await node.rest("GET", "brokers/leaderBroker")).json()
        assert leader["serviceUrl"] == f"http://{leader['brokerId']}"
        leaders.add(leader["brokerId"])
    assert len(leaders) == 1
    assert leaders <= set(names)


async def test_what_a_broker_owns_is_told_by_that_broker(cluster: Cluster) -> None:
    asked, owner = cluster.nodes[0], cluster.nodes[1]
    name = topic_of(owner)
    await owner.publish(name, b"one")
    answer = await asked.rest("GET", "brokers/standalone/broker-1:8080/ownedNamespaces")
    bundle = shared(owner).bundle(name)
    assert str(bundle) in (await follow(cluster, answer)).json()
    assert (await asked.rest("GET", "brokers/standalone/broker-7:8080/ownedNamespaces")).status_code == 404
    assert (await asked.rest("GET", "brokers/health?brokerId=broker-0:8080")).text == "ok"
    assert (
        await follow(cluster, await asked.rest("GET", "brokers/health?brokerId=broker-1:8080"))
    ).text == "ok"
    assert (await asked.rest("GET", "brokers/health?brokerId=broker-7:8080")).status_code == 404


async def test_a_broker_that_lost_its_session_is_not_healthy_until_it_is_registered_again(
    cluster: Cluster,
) -> None:
    node = cluster.nodes[0]
    await node.metadata.expire_session()
    assert (await node.rest("GET", "brokers/health")).status_code == 503
    await node.metadata.reconnect()
    await until(lambda: node.broker.registry.is_registered)
    assert (await node.rest("GET", "brokers/health")).text == "ok"


# -- bundles


@pytest.mark.parametrize("form", ["broker-2:8080", "id"])
async def test_unloading_a_bundle_to_a_broker_moves_its_topics_there(cluster: Cluster, form: str) -> None:
    asked, owner, target = cluster.nodes
    name = topic_of(owner)
    await owner.publish(name, b"one")
    bundle = shared(owner).bundle(name)
    assert bundle is not None
    path = f"namespaces/public/default/{bundle.range}/unload"
    to = target.broker.registry.me.id if form == "id" else form
    assert (await asked.rest("PUT", path, params={"destinationBroker": to})).status_code == 204
    for node in cluster.nodes:
        await until(lambda node=node: shared(node).owner(name) == target.broker.registry.me.address)  # type: ignore[misc]
    await until(lambda: owner.broker.opened(name) is None)
    assert await target.read(name, "s", 1) == [b"one"]


async def test_a_bundle_is_not_moved_to_a_broker_that_is_unknown_or_about_to_end(cluster: Cluster) -> None:
    asked, owner, ending = cluster.nodes
    bundle = shared(owner).owned_by(owner.broker.registry.me.id)[0]
    path = f"namespaces/public/default/{bundle.range}/unload"
    answer = await asked.rest("PUT", path, params={"destinationBroker": "nobody:8080"})
    assert answer.status_code == 409
    assert "no living broker nobody:8080" in answer.json()["reason"]
    await ending.broker.registry.drain()
    await until(lambda: any(one.is_draining for one in asked.broker.registry.living().values()))
    answer = await asked.rest("PUT", path, params={"destinationBroker": "broker-2:8080"})
    assert answer.status_code == 409
    assert "about to end" in answer.json()["reason"]
    assert not await cluster.metadata.exists(f"/loadbalance/assigned/{bundle}")


async def test_unloading_a_bundle_closes_its_topics_at_its_owner(cluster: Cluster) -> None:
    asked, owner = cluster.nodes[:2]
    name = topic_of(owner)
    await owner.publish(name, b"one")
    bundle = shared(owner).bundle(name)
    assert bundle is not None
    answer = await asked.rest("PUT", f"namespaces/public/default/{bundle.range}/unload")
    assert owner.broker.opened(name) is not None
    assert (await follow(cluster, answer)).status_code == 204
    assert owner.broker.opened(name) is None


async def test_both_halves_of_a_bundle_that_is_split_stay_with_its_owner(cluster: Cluster) -> None:
    asked, owner = cluster.nodes[:2]
    bundle = shared(owner).owned_by(owner.broker.registry.me.id)[0]
    names = [PUBLIC_DEFAULT.topic(f"t-{number}") for number in range(200)]
    inside = [name for name in names if bundle.holds(name)]
    await owner.publish(inside[0], b"one")
    answer = await asked.rest("PUT", f"namespaces/public/default/{bundle.range}/split")
    assert answer.status_code == 204
    await until(lambda: shared(owner).bundle(inside[0]) != bundle)
    assert len({shared(owner).bundle(name) for name in inside}) == 2
    for name in inside:
        assert shared(owner).is_mine(name)
    assert owner.broker.opened(inside[0]) is not None


# -- the cluster


async def test_the_first_broker_writes_the_clusters_record_and_the_others_leave_it(cluster: Cluster) -> None:
    for node in cluster.nodes:
        assert (await node.rest("GET", "clusters/standalone")).json()["serviceUrl"] == "http://broker-0:8080"
    found = await cluster.metadata.get("/admin/clusters/standalone")
    assert found is not None
    assert json.loads(found.value)["serviceUrl"] == "http://broker-0:8080"


async def test_the_topics_of_a_broker_that_is_closed_are_served_by_the_others(cluster: Cluster) -> None:
    first, closed, third = cluster.nodes
    name = topic_of(closed)
    await closed.publish(name, b"one")
    await closed.broker.close()
    owner = first if shared(first).is_mine(name) else third
    assert shared(owner).is_mine(name)
    assert await owner.read(name, "s", 1) == [b"one"]
