"""Commands 76 to 78 against a real broker on the memory adapters: what a connection is told, and what it is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from anabranch.broker.broker import Broker
from anabranch.broker.security.rights import AllowAll
from anabranch.model.names import PUBLIC_DEFAULT, NamespaceName, TopicName
from anabranch.model.topic_hash import topic_hash
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.scalable.brokers import BrokerLab, C, Peer, topics_of

Update = pb.CommandWatchScalableTopicsUpdate


def name(local: str) -> TopicName:
    return TopicName.parse(f"topic://public/default/{local}")


def open_watch(
    peer: Peer,
    number: int = 1,
    namespace: str = "public/default",
    known_hash: str | None = None,
    **filters: str,
) -> None:
    watch = pb.CommandWatchScalableTopics(watch_id=number, namespace=namespace)
    if known_hash is not None:
        watch.current_hash = known_hash
    for key, value in filters.items():
        watch.property_filters.add(key=key, value=value)
    peer.send(C(type=C.WATCH_SCALABLE_TOPICS, watchScalableTopics=watch))


def close_watch(peer: Peer, number: int = 1) -> None:
    close = pb.CommandWatchScalableTopicsClose(watch_id=number)
    peer.send(C(type=C.WATCH_SCALABLE_TOPICS_CLOSE, watchScalableTopicsClose=close))


async def told(peer: Peer, number: int = 1) -> Update:
    found = await peer.wait_for(
        lambda c: c.type == C.WATCH_SCALABLE_TOPICS_UPDATE and c.watchScalableTopicsUpdate.watch_id == number
    )
    return found.watchScalableTopicsUpdate


async def watch(peer: Peer, number: int = 1, namespace: str = "public/default", **more: Any) -> Update:
    open_watch(peer, number, namespace, **more)
    return await told(peer, number)


async def refused(peer: Peer, number: int = 1, namespace: str = "public/default") -> tuple[int, str]:
    """The error, on a connection that serves on."""
    update = await watch(peer, number, namespace)
    assert update.HasField("error")
    assert update.WhichOneof("event") is None
    await peer.settle()
    return update.error, update.message


async def until_no_listener(broker: Broker) -> None:
    feed = broker.requests.scalable.namespaces
    assert feed is not None
    for _ in range(1_000):
        if feed.listeners or feed.namespaces:
            await asyncio.sleep(0)
    assert (feed.listeners, feed.namespaces) == (0, 0)


# -- what is told


async def test_topics_that_come_and_go_are_told(broker: Broker, peer: Peer) -> None:
    service = topics_of(broker)
    await service.create(name("old"))
    assert list((await watch(peer)).snapshot.topics) == ["topic://public/default/old"]
    await service.create(name("new"))
    update = await told(peer)
    assert (list(update.diff.added), list(update.diff.removed)) == (["topic://public/default/new"], [])
    await service.delete(name("old"))
    update = await told(peer)
    assert (list(update.diff.added), list(update.diff.removed)) == ([], ["topic://public/default/old"])


async def test_a_topic_deleted_and_made_again_is_told_so_that_it_is_opened_again(
    broker: Broker, peer: Peer
) -> None:
    service = topics_of(broker)
    await service.create(name("t"))
    await watch(peer)
    await service.delete(name("t"))
    await service.create(name("t"))
    heard: list[tuple[list[str], list[str]]] = []
    while not heard or not heard[-1][0]:
        update = await told(peer)
        heard.append((list(update.diff.added), list(update.diff.removed)))
    full = "topic://public/default/t"
    assert heard in ([([full], [full])], [([], [full]), ([full], [])])


async def test_properties_move_topics_in_and_out(broker: Broker, peer: Peer) -> None:
    service = topics_of(broker)
    await service.create(name("t"), properties={"owner": "billing", "size": "2"})
    assert list((await watch(peer, owner="billing", size="3")).snapshot.topics) == []
    await service.update(
        name("t"), lambda record: replace(record, properties={"owner": "billing", "size": "3"})
    )
    assert list((await told(peer)).diff.added) == ["topic://public/default/t"]
    await service.update(name("t"), lambda record: replace(record, properties={"size": "3"}))
    assert list((await told(peer)).diff.removed) == ["topic://public/default/t"]


async def test_splits_merges_controllers_and_sessions_say_nothing(broker: Broker, peer: Peer) -> None:
    service = topics_of(broker)
    await service.create(name("t"), 2)
    await watch(peer)
    await service.split(name("t"), 0)
    await service.merge(name("t"), 2, 3)
    await service.create_subscription(name("t"), "s")
    await peer.register(str(name("t")), "consumer", subscription="s")
    await service.release(name("t"))
    # Whatever had been said would be said before this.
    await service.create(name("later"))
    assert list((await told(peer)).diff.added) == ["topic://public/default/later"]


async def test_classic_topics_never_appear(broker: Broker, peer: Peer) -> None:
    await broker.new_topics.create(TopicName.parse("persistent://public/default/plain"))
    await broker.resources.create_partitioned(TopicName.parse("persistent://public/default/parts"), 3)
    assert list((await watch(peer)).snapshot.topics) == []
    await broker.new_topics.create(TopicName.parse("persistent://public/default/plain-2"))
    # A V5 client's view of one, with its sessions, is stored beside the scalable topics.
    await peer.register("persistent://public/default/plain", "consumer")
    await topics_of(broker).create(name("real"))
    update = await told(peer)
    assert (list(update.diff.added), list(update.diff.removed)) == (["topic://public/default/real"], [])


async def test_any_broker_serves_the_watch(lab: BrokerLab) -> None:
    brokers = [await lab.broker(), await lab.broker()]
    peers = [await lab.peer(broker) for broker in brokers]
    for one in peers:
        assert list((await watch(one)).snapshot.topics) == []
    await topics_of(brokers[0]).create(name("t"))
    for one in peers:
        assert list((await told(one)).diff.added) == ["topic://public/default/t"]


async def test_a_client_that_comes_back_with_the_same_set_is_told_nothing(lab: BrokerLab) -> None:
    first, second = await lab.broker(), await lab.broker()
    service = topics_of(first)
    await service.create(name("t"))
    peer = await lab.peer(first)
    held = list((await watch(peer)).snapshot.topics)
    await peer.close()
    again = await lab.peer(second)
    open_watch(again, known_hash=topic_hash(held))
    # Another watch says when the first one is live: both are read together.
    await watch(again, 2)
    assert [c for c in await again.settle() if c.type == C.WATCH_SCALABLE_TOPICS_UPDATE] == []
    await service.create(name("u"))
    assert list((await told(again)).diff.added) == ["topic://public/default/u"]
    # With another set it gets the whole one.
    third = await lab.peer(first)
    assert len((await watch(third, known_hash=topic_hash(held))).snapshot.topics) == 2
    # And an empty hash is none.
    assert len((await watch(third, 2, known_hash="")).snapshot.topics) == 2


# -- many


async def test_several_watches_live_on_one_connection(broker: Broker, peer: Peer) -> None:
    await broker.resources.create_namespace(NamespaceName("public", "other"))
    await watch(peer, 1)
    await watch(peer, 2, owner="billing")
    await watch(peer, 2**64 - 1, "public/other")
    await topics_of(broker).create(name("t"), properties={"owner": "billing"})
    await topics_of(broker).create(TopicName.parse("topic://public/other/t"))
    for number, full in ((1, str(name("t"))), (2, str(name("t"))), (2**64 - 1, "topic://public/other/t")):
        assert list((await told(peer, number)).diff.added) == [full]
    close_watch(peer, 1)
    await topics_of(broker).delete(name("t"))
    assert list((await told(peer, 2)).diff.removed) == [str(name("t"))]
    assert [c for c in await peer.settle() if c.type == C.WATCH_SCALABLE_TOPICS_UPDATE] == []


async def test_a_watch_id_in_use_is_refused_and_the_first_watch_lives_on(broker: Broker, peer: Peer) -> None:
    await watch(peer)
    code, message = await refused(peer)
    assert code == pb.NotAllowedError
    assert "another id" in message
    await topics_of(broker).create(name("t"))
    assert list((await told(peer)).diff.added) == [str(name("t"))]
    # Once it is closed the id is free, and on another connection it always was.
    close_watch(peer)
    assert len((await watch(peer)).snapshot.topics) == 1


async def test_two_watches_asked_for_at_once_with_one_id_give_one_watch(broker: Broker, peer: Peer) -> None:
    open_watch(peer)
    open_watch(peer)
    heard = [await told(peer), await told(peer)]
    assert sorted(update.HasField("error") for update in heard) == [False, True]


async def test_closing_twice_or_an_unknown_watch_is_harmless(broker: Broker, peer: Peer) -> None:
    await watch(peer)
    close_watch(peer)
    close_watch(peer)
    close_watch(peer, 77)
    await peer.settle()
    await until_no_listener(broker)


async def test_a_lost_connection_ends_its_watches(lab: BrokerLab, broker: Broker) -> None:
    peer = await lab.peer(broker)
    for number in range(5):
        await watch(peer, number)
    open_watch(peer, 9)
    await peer.close()
    await until_no_listener(broker)


async def test_watches_of_one_connection_are_bounded(broker: Broker, peer: Peer) -> None:
    broker.requests.scalable.watches_per_connection_max = 2
    await watch(peer, 1)
    await watch(peer, 2)
    assert (await refused(peer, 3))[0] == pb.TooManyRequests
    close_watch(peer, 1)
    assert (await watch(peer, 3)).HasField("snapshot")


async def test_ten_thousand_watches_of_one_connection_come_and_go(broker: Broker, peer: Peer) -> None:
    await topics_of(broker).create(name("t"))
    for first in range(0, 10_000, 1_000):
        for number in range(first, first + 1_000):
            open_watch(peer, number)
        for number in range(first, first + 1_000):
            assert len((await told(peer, number)).snapshot.topics) == 1
            close_watch(peer, number)
    await peer.settle()
    await until_no_listener(broker)


# -- what is refused


async def test_a_missing_namespace_is_an_error_and_the_connection_stays(broker: Broker, peer: Peer) -> None:
    code, message = await refused(peer, namespace="public/nowhere")
    assert code == pb.TopicNotFound
    assert "public/nowhere" in message
    await broker.resources.create_namespace(NamespaceName("public", "nowhere"))
    assert (await watch(peer, namespace="public/nowhere")).HasField("snapshot")


@pytest.mark.parametrize("namespace", ["nonsense", "a/b/c", "", "public/", "public/a b"])
async def test_what_is_no_namespace_is_refused(peer: Peer, namespace: str) -> None:
    assert (await refused(peer, namespace=namespace))[0] == pb.InvalidTopicName


async def test_switched_off_scalable_topics_are_an_error_and_the_connection_stays(lab: BrokerLab) -> None:
    peer = await lab.peer(await lab.broker(scalable_topic_enabled=False))
    code, message = await refused(peer)
    assert code == pb.NotAllowedError
    assert "scalableTopicEnabled" in message
    close_watch(peer)
    await peer.settle()


async def test_names_beyond_a_frame_are_an_error_and_the_connection_stays(lab: BrokerLab) -> None:
    broker = await lab.broker(max_message_size=1_000)
    peer = await lab.peer(broker)
    for number in range(10):
        await topics_of(broker).create(name(f"{'long' * 30}-{number}"))
    code, message = await refused(peer)
    assert code == pb.NotAllowedError
    assert "10 scalable topics" in message
    await until_no_listener(broker)


class NoListing(AllowAll):
    """Lets everybody do everything but see what is in `public/secret`."""

    async def may_list_topics(self, role: str, namespace: NamespaceName) -> bool:
        return namespace.namespace != "secret"


async def test_a_watch_needs_the_right_to_list_topics(lab: BrokerLab) -> None:
    broker = await lab.broker(authorizer=NoListing())
    peer = await lab.peer(broker)
    # Whether there is such a namespace is not given away.
    code, message = await refused(peer, namespace="public/secret")
    assert code == pb.AuthorizationError
    assert "list the topics of public/secret" in message
    await broker.resources.create_namespace(NamespaceName("public", "secret"))
    assert (await refused(peer, namespace="public/secret"))[0] == pb.AuthorizationError
    assert (await watch(peer)).HasField("snapshot")
    listing = await peer.ask(C.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", namespace="public/secret")
    assert listing.error.error == pb.AuthorizationError


class NoConsuming(AllowAll):
    async def may_consume(self, role: str, topic: TopicName, subscription: str) -> bool:
        return False


async def test_topics_that_are_seen_are_subscribed_each_by_its_own_right(lab: BrokerLab) -> None:
    broker = await lab.broker(authorizer=NoConsuming())
    peer = await lab.peer(broker)
    await topics_of(broker).create(name("t"))
    assert list((await watch(peer)).snapshot.topics) == [str(name("t"))]
    assert (await peer.register(str(name("t")), "c")).error == pb.AuthorizationError


# -- a client that does not read


async def test_a_client_that_stops_reading_catches_up_with_the_set_and_nothing_piles_up(
    lab: BrokerLab,
) -> None:
    broker = await lab.broker(connection_write_buffer_bytes=1_024)
    made = set()
    for number in range(1_000):
        local = f"{'p' * 1_000}-{number}"
        await broker.metadata.put(f"/topics/public/default/{local}", b'{"generation": %d}' % number)
        made.add(str(name(local)))
    peer = await lab.peer(broker)
    # A megabyte for each. The kernel takes some of them, the others wait until the peer reads.
    for number in range(20):
        open_watch(peer, number)
    watcher = await lab.peer(broker)
    await watch(watcher)
    session = next(iter(broker.sessions))
    assert not session.is_writable
    unsent = [watch for watch in session.namespace_watches.values() if not watch.is_live]
    assert unsent
    # Topics that come and go meanwhile cost nothing.
    for local in ("come", "went", "last"):
        await topics_of(broker).create(name(local))
        await told(watcher)
    for local in ("come", "went"):
        await topics_of(broker).delete(name(local))
        await told(watcher)
    assert max(watch.pending for watch in session.namespace_watches.values()) <= 1
    made.add(str(name("last")))
    for number in range(20):
        client = set((await told(peer, number)).snapshot.topics)
        while client != made:
            diff = (await told(peer, number)).diff
            client = client - set(diff.removed) | set(diff.added)


# -- the listing that shares the hash


async def test_a_listing_of_classic_topics_has_the_same_hash_and_says_nothing_twice(
    broker: Broker, peer: Peer
) -> None:
    await broker.new_topics.create(TopicName.parse("persistent://public/default/plain"))
    kind, body = C.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace"
    first = (await peer.ask(kind, body, namespace=str(PUBLIC_DEFAULT))).getTopicsOfNamespaceResponse
    assert (first.changed, list(first.topics)) == (True, ["persistent://public/default/plain"])
    assert first.topics_hash == topic_hash(first.topics)
    same = await peer.ask(kind, body, namespace=str(PUBLIC_DEFAULT), topics_hash=first.topics_hash)
    assert not same.getTopicsOfNamespaceResponse.changed
    assert list(same.getTopicsOfNamespaceResponse.topics) == []
    await broker.new_topics.create(TopicName.parse("persistent://public/default/more"))
    other = await peer.ask(kind, body, namespace=str(PUBLIC_DEFAULT), topics_hash=first.topics_hash)
    assert other.getTopicsOfNamespaceResponse.changed
    assert len(other.getTopicsOfNamespaceResponse.topics) == 2
