"""`/admin/v2/segments`: what each request does, that it may be repeated, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.security.rights import AllowAll
from anabranch.client import RequestRefused
from anabranch.model.names import TopicName
from anabranch.model.scalable import SubscriptionKind
from anabranch.model.segments import Segment, SegmentId
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.scalable.cluster import TOPIC, Cluster, deleting, name_of, running


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running() as made:
        yield made


def path(segment: Segment, tail: str = "", topic: TopicName = TOPIC) -> str:
    return f"segments/{topic.namespace}/{topic.encoded_local}/{segment.descriptor}{tail}"


async def call(cluster: Cluster, method: str, where: str, **options: object) -> int:
    answer = await cluster.first.rest(method, where, **options)
    if answer.status_code >= 400:
        assert answer.json().keys() == {"reason"}
    return answer.status_code


async def test_put_makes_a_segment_with_its_subscriptions_at_the_start(cluster: Cluster) -> None:
    (segment,) = await cluster.topic(made=False)
    for _ in range(2):
        assert await call(cluster, "PUT", path(segment), json=["one", "other"]) == 204
        await cluster.first.publish(name_of(segment), b"m")
    status = await cluster.segments.status(TOPIC, segment)
    assert {name: s.backlog for name, s in status.subscriptions.items()} == {"one": 2, "other": 2}
    stored = await cluster.stored_subscription("one")
    assert stored is not None
    assert stored.kind is SubscriptionKind.QUEUE


async def test_put_makes_a_planned_child_with_the_subscriptions_of_its_topic_at_once(
    cluster: Cluster,
) -> None:
    (parent,) = await cluster.topic()
    await cluster.subscription("s")
    plan = await cluster.plan_split()
    for child in plan.children:
        assert await call(cluster, "PUT", path(child), json=["s"]) == 204
    assert await call(cluster, "POST", path(parent, "/terminate")) == 204
    await cluster.publish_plan()
    for child in plan.children:
        await cluster.first.publish(name_of(child), b"m")
        assert (await cluster.segments.status(TOPIC, child)).subscriptions["s"].backlog == 1


async def test_put_without_a_body_makes_a_bare_segment(cluster: Cluster) -> None:
    (segment,) = await cluster.topic(made=False)
    assert await call(cluster, "PUT", path(segment)) == 204
    assert not (await cluster.segments.status(TOPIC, segment)).subscriptions


async def test_what_the_record_does_not_ask_for_is_refused(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    stranger = Segment(SegmentId(9), segment.range)
    assert await call(cluster, "PUT", path(stranger)) == 409
    assert await call(cluster, "POST", path(segment, "/terminate")) == 409
    assert await call(cluster, "DELETE", path(segment, "?force=true")) == 409
    await cluster.first.publish(name_of(segment), b"unharmed")


async def test_a_sealed_segment_of_the_layout_is_not_deleted_by_force_and_the_refusal_says_how_it_goes(
    cluster: Cluster,
) -> None:
    (segment,) = await cluster.topic()
    await cluster.first.publish(name_of(segment), b"unharmed")
    await cluster.plan_split()
    assert await call(cluster, "POST", path(segment, "/terminate")) == 204
    refused = await cluster.first.rest("DELETE", path(segment, "?force=true"))
    assert refused.status_code == 409
    assert "skip-all" in refused.json()["reason"]
    assert (await cluster.first.broker.topic(name_of(segment))).log.entries == 1


async def test_terminate_seals_and_may_be_repeated(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    await cluster.plan_split()
    for _ in range(2):
        assert await call(cluster, "POST", path(segment, "/terminate")) == 204
    with pytest.raises(RequestRefused) as refused:
        await cluster.first.publish(name_of(segment), b"late")
    assert refused.value.error == pb.TopicTerminatedError


async def test_terminating_a_segment_that_does_not_exist_is_not_found(cluster: Cluster) -> None:
    (segment,) = await cluster.topic(made=False)
    await cluster.plan_split()
    assert await call(cluster, "POST", path(segment, "/terminate")) == 404


async def test_delete_gives_the_storage_back_and_may_be_repeated(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    await cluster.first.publish(name_of(segment), b"one")
    await cluster.change(deleting)
    for _ in range(2):
        assert await call(cluster, "DELETE", path(segment)) == 204
    assert not await cluster.first.broker.resources.topic_exists(name_of(segment))


async def test_delete_wants_force_while_somebody_is_connected(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    await cluster.first.client.producer(str(name_of(segment)))
    await cluster.change(deleting)
    assert await call(cluster, "DELETE", path(segment)) == 412
    assert await call(cluster, "DELETE", path(segment, "?force=true")) == 204


async def test_cursors_are_made_moved_asked_for_and_deleted(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    await cluster.first.publish(name_of(segment), b"one", b"two")
    at = path(segment, "/subscription/a%2Fb")
    for _ in range(2):
        assert await call(cluster, "PUT", at) == 204
    assert (await cluster.first.rest("GET", at + "/backlog")).json() == 2
    for _ in range(2):
        assert await call(cluster, "POST", at + "/skip-all") == 204
    assert (await cluster.first.rest("GET", at + "/backlog")).json() == 0
    for _ in range(2):
        assert await call(cluster, "POST", at + "/seek?timestamp=0") == 204
    assert (await cluster.first.rest("GET", at + "/backlog")).json() == 2
    assert await call(cluster, "DELETE", at) == 409  # The topic has it still.
    await cluster.subscription("a/b", is_deleting=True)
    for _ in range(2):
        assert await call(cluster, "DELETE", at) == 204
    assert await call(cluster, "GET", at + "/backlog") == 404


async def test_what_does_not_exist_is_not_found(cluster: Cluster) -> None:
    (segment,) = await cluster.topic(made=False)
    at = path(segment, "/subscription/s")
    assert await call(cluster, "GET", at + "/backlog") == 404
    assert await call(cluster, "PUT", at) == 404
    assert await cluster.stored_subscription("s") is None
    await cluster.segments.create(TOPIC, segment, ())
    for tail in ("/seek?timestamp=0", "/skip-all"):
        assert await call(cluster, "POST", at + tail) == 404


@pytest.mark.parametrize("descriptor", ["0000-7fff", "0000-7fff-x", "7fff-0000-1", "0-7fff-1", "nonsense"])
async def test_a_malformed_descriptor_is_refused(cluster: Cluster, descriptor: str) -> None:
    await cluster.topic()
    assert await call(cluster, "PUT", f"segments/public/default/orders/{descriptor}") == 412


async def test_names_with_slashes_and_letters_of_all_kinds_are_found(cluster: Cluster) -> None:
    topic = TopicName.parse("topic://public/default/büro/eins zwei")
    (segment,) = await cluster.topic(made=False, topic=topic)
    assert await call(cluster, "PUT", f"segments/public/default/büro/eins%20zwei/{segment.descriptor}") == 204
    assert await cluster.first.broker.resources.topic_exists(name_of(segment, topic))


async def test_a_request_at_another_broker_is_sent_to_the_owner() -> None:
    async with running(2) as cluster:
        (segment,) = await cluster.topic(made=False)
        cluster.move(name_of(segment), 1)
        answer = await cluster.first.rest("PUT", path(segment, "?authoritative=false"), json=["s"])
        assert answer.status_code == 307
        assert (
            answer.headers["location"] == f"http://broker-1:8080/admin/v2/{path(segment)}?authoritative=false"
        )
        assert (await cluster.nodes[1].rest("PUT", path(segment), json=["s"])).status_code == 204


class NoSuperUsers(AllowAll):
    """Everybody is a tenant's administrator, and nobody more than that."""

    async def is_super_user(self, role: str) -> bool:
        return False


async def test_segments_are_for_super_users_only() -> None:
    async with running(authorizer=NoSuperUsers()) as cluster:
        (segment,) = await cluster.topic()
        await cluster.change(deleting)
        at = path(segment, "/subscription/s")
        for method, where in (
            ("PUT", path(segment)),
            ("POST", path(segment, "/terminate")),
            ("DELETE", path(segment)),
            ("PUT", at),
            ("DELETE", at),
            ("GET", at + "/backlog"),
            ("POST", at + "/seek?timestamp=0"),
            ("POST", at + "/skip-all"),
        ):
            assert await call(cluster, method, where) == 403
        assert await cluster.first.broker.resources.topic_exists(name_of(segment))


async def test_switched_off_scalable_topics_answer_a_clear_error() -> None:
    async with running(config=BrokerConfig(scalable_topic_enabled=False)) as cluster:
        answer = await cluster.first.rest("PUT", "segments/public/default/orders/0000-ffff-0")
        assert answer.status_code == 405
        assert "scalableTopicEnabled" in answer.json()["reason"]


async def test_a_namespace_deleted_by_force_leaves_no_segment_behind(cluster: Cluster) -> None:
    assert await call(cluster, "PUT", "namespaces/public/gone") == 204
    topic = TopicName.parse("topic://public/gone/t")
    (segment,) = await cluster.topic(topic=topic)
    await cluster.first.publish(name_of(segment, topic), b"one")
    await cluster.metadata.delete(f"/topics/{topic.namespace}/t/controller")
    assert await call(cluster, "DELETE", "namespaces/public/gone?force=true") == 204
    assert await cluster.metadata.scan("/managed-ledgers/public/gone") == []
    assert await cluster.metadata.children("/managed-ledgers/public") == []
