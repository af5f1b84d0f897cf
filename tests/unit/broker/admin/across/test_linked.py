"""The same over the links between brokers that share the topics as they do in production."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from anabranch.broker.admin.elsewhere import BrokerSilent, InnerRequest
from anabranch.broker.config.config import BrokerConfig
from anabranch.model.names import TopicName
from unit.broker.admin.across.several import several
from unit.broker.admin.scalable.test_topics import Refusing
from unit.broker.scalable.cluster import Cluster, running, until

NAME = TopicName.parse("persistent://public/default/rides")
TOPIC = "persistent/public/default/rides"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    config = BrokerConfig(force_delete_namespace_allowed=True)
    async with running(3, config, is_shared=True) as made:
        yield made


async def test_a_partitioned_topic_is_worked_on_from_any_broker(cluster: Cluster) -> None:
    one, other, third = cluster.nodes
    assert (await one.rest("PUT", f"{TOPIC}/partitions", json=12)).status_code == 204
    assert (await one.rest("PUT", f"{TOPIC}/subscription/s", json="earliest")).status_code == 204
    for index in range(12):
        part = NAME.partition(index)
        owner = next(node for node in cluster.nodes if node.broker.owners.is_mine(part))
        await owner.publish(part, b"x")
    assert sum(bool(node.broker.loaded()) for node in cluster.nodes) > 1
    stats = (await other.rest("GET", f"{TOPIC}/partitioned-stats")).json()
    assert (len(stats["partitions"]), stats["msgInCounter"]) == (12, 12)
    assert stats["subscriptions"]["s"]["msgBacklog"] == 12
    assert (await third.rest("POST", f"{TOPIC}/subscription/s/skip_all")).status_code == 204
    stats = (await one.rest("GET", f"{TOPIC}/partitioned-stats")).json()
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    assert (await other.rest("DELETE", f"{TOPIC}/partitions")).status_code == 204
    assert (await third.rest("GET", "persistent/public/default")).json() == []


async def test_a_namespace_is_unloaded_and_deleted_from_any_broker(cluster: Cluster) -> None:
    one, other, third = cluster.nodes
    await one.rest("PUT", "namespaces/public/taxis")
    assert (await one.rest("PUT", "persistent/public/taxis/t/partitions", json=12)).status_code == 204
    assert (await one.rest("GET", "persistent/public/taxis/t/partitioned-stats")).status_code == 200
    assert sum(bool(node.broker.loaded()) for node in cluster.nodes) > 1
    assert (await other.rest("PUT", "namespaces/public/taxis/unload")).status_code == 204
    assert not any(node.broker.loaded() for node in cluster.nodes)
    assert (await third.rest("DELETE", "namespaces/public/taxis?force=true")).status_code == 204
    assert "public/taxis" not in (await one.rest("GET", "namespaces/public")).json()


async def test_the_page_of_any_broker_shows_all(cluster: Cluster) -> None:
    for node in cluster.nodes:
        found = (await node.http.get("/ui/api/overview")).json()
        assert [broker["isSilent"] for broker in found["brokers"]] == [False, False, False]


async def test_an_answer_of_another_broker_keeps_its_headers(cluster: Cluster) -> None:
    """All that is known of a message but its content is in headers."""
    owner = next(node for node in cluster.nodes if node.broker.owners.is_mine(NAME))
    other = next(node for node in cluster.nodes if node is not owner)
    await owner.publish(NAME, b"x")
    path = f"/admin/v2/{TOPIC}/examinemessage"
    query = "initialPosition=earliest&messagePosition=1"
    asked = InnerRequest("GET", path, query)
    answer = await other.broker.elsewhere.ask(owner.broker.registry.me.address, asked)
    assert (answer.status, answer.body) == (200, b"x")
    alone = await owner.http.get(f"{path}?{query}")
    told = {name.lower(): value for name, value in answer.headers.items()}
    assert told["x-pulsar-message-id"]
    assert told.items() <= dict(alone.headers).items()


async def test_a_broker_that_is_gone_is_silent(cluster: Cluster) -> None:
    one, other, _ = cluster.nodes
    address = other.broker.registry.me.address
    await other.broker.close()
    with pytest.raises(BrokerSilent):
        await one.broker.elsewhere.ask(address, InnerRequest("GET", "/status.html"), answer_max_s=2.0)
    await until(lambda: len(one.broker.registry.living()) == 2)
    assert (await one.rest("PUT", "namespaces/public/default/unload")).status_code == 204


async def test_the_broker_that_answers_judges_the_callers_rights_again() -> None:
    """The one that asks has identified the caller, and may have judged by policies that have changed since."""
    authorizer = Refusing("super user")
    async with several(1, authorizer=authorizer) as (one,):
        path = "/admin/v2/namespaces/public/default/unload"
        answer = await one.app.inner(InnerRequest("PUT", path, role="somebody"))
        assert (answer.status, authorizer.asked) == (403, ["super user somebody"])
