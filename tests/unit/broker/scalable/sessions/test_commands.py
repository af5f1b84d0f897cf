"""Commands 70 to 78 against a real broker on the memory adapters: layouts, sessions, refusals, the switch."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from anabranch.broker.broker import Broker
from anabranch.broker.policy.namespace import AutoTopicCreation
from anabranch.broker.scalable.sessions.consumer_session import ConsumerSession
from anabranch.broker.security.rights import AllowAll
from anabranch.controller.ports import Assignment
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import PUBLIC_DEFAULT, NamespaceName, TopicName
from anabranch.model.scalable import SubscriptionKind, consumer_path, controller_path
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.scalable.brokers import NOW_MS, V5, BrokerLab, C, Peer, ids, topics_of

ORDERS = "topic://public/default/orders"
TOPIC = TopicName.parse(ORDERS)
CLASSIC = "persistent://public/default/orders"


# -- layouts


async def test_a_lookup_makes_the_topic_and_shows_where_everything_is(lab: BrokerLab) -> None:
    broker = await lab.broker(scalable_topic_default_segments=3)
    peer = await lab.peer(broker)
    update = await peer.watch(ORDERS, session_id=77)
    assert update.resolved_topic_name == ORDERS
    assert update.dag.epoch == 0
    assert [s.segment_id for s in update.dag.segments] == [0, 1, 2]
    assert [b.broker_url for b in update.dag.segment_brokers] == [broker.service_url] * 3
    assert update.dag.controller_broker_url == broker.service_url


async def test_any_broker_serves_a_watch_and_names_the_one_that_leads(lab: BrokerLab) -> None:
    first, second = await lab.broker(), await lab.broker()
    await (await lab.peer(first)).watch(ORDERS)
    update = await (await lab.peer(second)).watch(ORDERS)
    assert update.dag.controller_broker_url == first.service_url


async def test_a_missing_topic_is_not_made_if_the_client_does_not_want_it(broker: Broker, peer: Peer) -> None:
    update = await peer.watch(ORDERS, create_if_missing=False)
    assert (update.error, update.HasField("dag")) == (pb.TopicNotFound, False)
    assert "does not exist" in update.message
    assert await topics_of(broker).get(TOPIC) is None


async def test_a_missing_topic_is_not_made_where_policy_forbids_it(lab: BrokerLab) -> None:
    broker = await lab.broker(allow_auto_topic_creation=False)
    peer = await lab.peer(broker)
    for number, topic in enumerate((ORDERS, CLASSIC)):
        update = await peer.watch(topic, number)
        assert (update.error, update.HasField("dag")) == (pb.TopicNotFound, False)
        assert "not auto-created" in update.message
    await broker.resources.update_policies(
        PUBLIC_DEFAULT,
        lambda p: msgspec.structs.replace(
            p, auto_topic_creation=AutoTopicCreation(topic_type="non-partitioned")
        ),
    )
    assert (await peer.watch(ORDERS, 9)).HasField("dag")


async def test_a_lookup_in_a_missing_namespace_is_refused(peer: Peer) -> None:
    update = await peer.watch("topic://public/nowhere/orders")
    assert update.error == pb.TopicNotFound
    assert "public/nowhere" in update.message


async def test_splits_and_merges_reach_every_watcher(lab: BrokerLab) -> None:
    brokers = [await lab.broker(), await lab.broker()]
    peers = [await lab.peer(broker) for broker in brokers]
    for one in peers:
        await one.watch(ORDERS)
    leading = topics_of(brokers[0])
    await leading.split(TOPIC, 0)
    for one in peers:
        update = await one.update()
        assert update.dag.epoch == 1
        assert [s.state for s in update.dag.segments] == [pb.SEALED, pb.ACTIVE, pb.ACTIVE]
        assert [b.segment_id for b in update.dag.segment_brokers] == [1, 2]
    await leading.merge(TOPIC, 1, 2)
    for one in peers:
        assert (await one.update()).dag.epoch == 2


async def test_a_deleted_topic_is_told_and_stays_deleted(broker: Broker, peer: Peer) -> None:
    await peer.watch(ORDERS)
    await topics_of(broker).delete(TOPIC)
    update = await peer.update()
    assert (update.error, update.HasField("dag")) == (pb.TopicNotFound, False)
    await peer.settle()
    assert await topics_of(broker).get(TOPIC) is None


async def test_closing_a_watch_or_the_connection_ends_its_listening(
    lab: BrokerLab, broker: Broker, peer: Peer
) -> None:
    await peer.watch(ORDERS)
    feed = topics_of(broker).feed
    listening = feed.listeners
    await peer.watch(ORDERS, 2)
    assert feed.listeners == listening + 1
    peer.close_watch(2)
    peer.close_watch(2)
    await peer.settle()
    assert feed.listeners == listening
    other = await lab.peer(broker)
    await other.watch(ORDERS, 1)
    await other.watch(ORDERS, 2)
    assert feed.listeners == listening + 2
    await other.close()
    await topics_of(broker).split(TOPIC, 0)
    await peer.update()
    assert feed.listeners == listening


async def test_a_session_id_used_again_replaces_the_former_watch(broker: Broker, peer: Peer) -> None:
    await peer.watch(ORDERS)
    listening = topics_of(broker).feed.listeners
    update = await peer.watch("topic://public/default/others")
    assert update.resolved_topic_name == "topic://public/default/others"
    await topics_of(broker).split(TOPIC, 0)
    assert [c for c in await peer.settle() if c.type == C.SCALABLE_TOPIC_UPDATE] == []
    # The second topic has a controller, which listens too.
    assert topics_of(broker).feed.listeners == listening + 1


async def test_watches_of_one_connection_are_bounded(broker: Broker, peer: Peer) -> None:
    broker.requests.scalable.watches_per_connection_max = 2
    await peer.watch(ORDERS, 1)
    await peer.watch(ORDERS, 2)
    update = await peer.watch(ORDERS, 3)
    assert update.error == pb.TooManyRequests
    assert (await peer.watch(ORDERS, 2)).HasField("dag")


@pytest.mark.parametrize(
    ("topic", "advice"),
    [
        ("persistent://public/default/orders-partition-3", "persistent://public/default/orders"),
        ("non-persistent://public/default/orders", "topic://"),
        ("segment://public/default/orders/0000-ffff-0", "topic://"),
        ("topic://public/orders", "topic://"),
    ],
)
async def test_names_that_cannot_be_watched_are_refused_with_advice(
    peer: Peer, topic: str, advice: str
) -> None:
    update = await peer.watch(topic)
    assert update.error in (pb.NotAllowedError, pb.InvalidTopicName)
    assert advice in update.message


# -- classic topics seen by clients of scalable ones


@pytest.mark.parametrize("asked", [CLASSIC, "orders", ORDERS])
async def test_a_classic_topic_is_shown_and_not_replaced(broker: Broker, peer: Peer, asked: str) -> None:
    await broker.new_topics.create(TopicName.parse(CLASSIC))
    update = await peer.watch(asked)
    assert update.resolved_topic_name == ORDERS
    assert [s.legacy_topic_name for s in update.dag.segments] == [CLASSIC]
    assert update.dag.controller_broker_url == broker.service_url
    assert await topics_of(broker).get(TOPIC) is None


@pytest.mark.parametrize("asked", [CLASSIC, "orders"])
async def test_a_scalable_topic_is_found_by_its_classic_name(broker: Broker, peer: Peer, asked: str) -> None:
    await topics_of(broker).create(TOPIC, 2)
    update = await peer.watch(asked)
    assert update.resolved_topic_name == ORDERS
    assert [s.legacy_topic_name for s in update.dag.segments] == ["", ""]


async def test_a_missing_classic_topic_is_made_as_a_classic_client_would(lab: BrokerLab) -> None:
    broker = await lab.broker(allow_auto_topic_creation_type="partitioned", default_num_partitions=3)
    update = await (await lab.peer(broker)).watch(CLASSIC)
    assert [s.legacy_topic_name for s in update.dag.segments] == [
        f"{CLASSIC}-partition-{n}" for n in range(3)
    ]
    assert await broker.resources.partitions(TopicName.parse(CLASSIC)) == 3
    assert await topics_of(broker).get(TOPIC) is None


async def test_a_missing_classic_topic_is_made_whole(broker: Broker, peer: Peer) -> None:
    update = await peer.watch(CLASSIC)
    assert [s.legacy_topic_name for s in update.dag.segments] == [CLASSIC]
    assert await broker.known.stored(PUBLIC_DEFAULT) == [CLASSIC]


async def test_a_migration_reaches_the_watchers_of_the_classic_topic(broker: Broker, peer: Peer) -> None:
    before = await peer.watch(CLASSIC)
    await topics_of(broker).migrate(TOPIC)
    update = await peer.update()
    assert update.dag.epoch > before.dag.epoch
    assert [(s.state, s.legacy_topic_name) for s in update.dag.segments] == [
        (pb.SEALED, CLASSIC),
        (pb.ACTIVE, ""),
    ]


# -- sessions of consumers


async def test_a_registration_is_answered_with_the_segments_to_read(broker: Broker, peer: Peer) -> None:
    await topics_of(broker).create(TOPIC, 2)
    answer = await peer.register(ORDERS, "a", consumer_id=5)
    assert not answer.HasField("error")
    assert answer.assignment.layout_epoch == 0
    assert [
        (s.segment_id, s.hash_start, s.hash_end, s.segment_topic) for s in answer.assignment.segments
    ] == [
        (0, 0, 0x7FFF, "segment://public/default/orders/0000-7fff-0"),
        (1, 0x8000, 0xFFFF, "segment://public/default/orders/8000-ffff-1"),
    ]


async def test_consumers_are_told_when_others_join_and_leave(
    lab: BrokerLab, broker: Broker, peer: Peer
) -> None:
    await topics_of(broker).create(TOPIC, 2)
    other = await lab.peer(broker)
    assert ids((await peer.register(ORDERS, "a", consumer_id=5)).assignment) == [0, 1]
    joined = (await other.register(ORDERS, "b", consumer_id=9)).assignment
    kept = await peer.assignment(5)
    assert sorted(ids(joined) + ids(kept)) == [0, 1]
    assert len(ids(kept)) == 1
    # A third one finds nothing to do, and disturbs nobody.
    assert ids((await other.register(ORDERS, "c", consumer_id=10)).assignment) == []
    assert (await other.leave(9)).type == C.SUCCESS
    # Its segment has gone to one of the two others, before the answer.
    held = [c for one in (peer, other) for c in await one.settle()]
    pushed = [c.scalableTopicAssignmentUpdate for c in held if c.type == C.SCALABLE_TOPIC_ASSIGNMENT_UPDATE]
    assert [ids(p.assignment) for p in pushed] in ([[0, 1]], [ids(joined)])


async def test_leaving_twice_is_harmless(broker: Broker, peer: Peer) -> None:
    await topics_of(broker).create(TOPIC)
    await peer.register(ORDERS, "a")
    assert (await peer.leave()).type == C.SUCCESS
    assert (await peer.leave()).type == C.SUCCESS
    assert ids((await peer.register(ORDERS, "b")).assignment) == [0]


async def test_a_split_moves_the_layout_epoch_of_assignments(broker: Broker, peer: Peer) -> None:
    await topics_of(broker).create(TOPIC)
    await topics_of(broker).create_subscription(TOPIC, "sub")
    assert (await peer.register(ORDERS, "a")).assignment.layout_epoch == 0
    await topics_of(broker).split(TOPIC, 0)
    # The empty parent is drained as soon as it is sealed.
    assignment = await peer.assignment()
    assert (assignment.layout_epoch, ids(assignment)) == (1, [1, 2])


async def test_a_lost_connection_costs_the_segments_only_after_the_grace_period(lab: BrokerLab) -> None:
    broker = await lab.broker(scalable_topic_consumer_session_grace_period_seconds=3600)
    await topics_of(broker).create(TOPIC)
    first, second = await lab.peer(broker), await lab.peer(broker)
    await first.register(ORDERS, "a")
    await first.close()
    assert ids((await second.register(ORDERS, "b")).assignment) == []
    # The same name comes back to what it had.
    third = await lab.peer(broker)
    assert ids((await third.register(ORDERS, "a", consumer_id=2)).assignment) == [0]
    assert [c for c in await second.settle() if c.type == C.SCALABLE_TOPIC_ASSIGNMENT_UPDATE] == []


async def test_after_the_grace_period_the_segments_go_to_others(lab: BrokerLab) -> None:
    broker = await lab.broker(scalable_topic_consumer_session_grace_period_seconds=0)
    await topics_of(broker).create(TOPIC)
    first, second = await lab.peer(broker), await lab.peer(broker)
    await first.register(ORDERS, "a")
    await second.register(ORDERS, "b")
    await first.close()
    assert ids(await second.assignment()) == [0]


async def test_a_name_that_registers_again_takes_the_session_over(
    lab: BrokerLab, broker: Broker, peer: Peer
) -> None:
    await topics_of(broker).create(TOPIC)
    await peer.register(ORDERS, "a", consumer_id=1)
    newer = await lab.peer(broker)
    assert ids((await newer.register(ORDERS, "a", consumer_id=1)).assignment) == [0]
    # Whatever the older connection still says is about nobody.
    assert (await peer.leave(1)).type == C.SUCCESS
    await peer.close()
    third = await lab.peer(broker)
    assert ids((await third.register(ORDERS, "b")).assignment) == []


async def test_stream_consumers_of_a_classic_topic_are_coordinated_too(
    lab: BrokerLab, broker: Broker, peer: Peer
) -> None:
    name = TopicName.parse(CLASSIC)
    await broker.resources.create_partitioned(name, 2)
    answer = await peer.register(CLASSIC, "a")
    assert [s.segment_topic for s in answer.assignment.segments] == [str(name.partition(n)) for n in (0, 1)]
    # By whichever name it is called, it is one topic.
    other = await lab.peer(broker)
    assert len(ids((await other.register(ORDERS, "b")).assignment)) == 1
    assert len(ids(await peer.assignment())) == 1


async def test_more_partitions_of_a_classic_topic_reach_watchers_and_consumers_at_once(
    lab: BrokerLab,
) -> None:
    brokers = [await lab.broker(), await lab.broker()]
    name = TopicName.parse(CLASSIC)
    await brokers[0].resources.create_partitioned(name, 2)
    peers = [await lab.peer(broker) for broker in brokers]
    for one in peers:
        assert len((await one.watch(CLASSIC)).dag.segments) == 2
    leader = peers[0]
    assert len(ids((await leader.register(CLASSIC, "a")).assignment)) == 2
    await brokers[1].resources.update_partitioned(name, 3)
    for one in peers:
        update = await one.update()
        assert [s.legacy_topic_name for s in update.dag.segments] == [
            str(name.partition(n)) for n in range(3)
        ]
        assert [b.segment_id for b in update.dag.segment_brokers] == [0, 1, 2]
    assert ids(await leader.assignment()) == [0, 1, 2]
    await brokers[1].resources.delete_partitioned(name)
    for one in peers:
        assert (await one.update()).error == pb.TopicNotFound


async def test_a_checkpoint_consumer_reports_finished_segments_by_acknowledging_them(
    broker: Broker, peer: Peer
) -> None:
    await topics_of(broker).create(TOPIC)
    await peer.register(ORDERS, "a", kind=pb.CHECKPOINT)
    await topics_of(broker).split(TOPIC, 0)
    assert [c for c in await peer.settle() if c.type == C.SCALABLE_TOPIC_ASSIGNMENT_UPDATE] == []
    answer = await acknowledge(peer, 0)
    assert (answer.type, answer.ackResponse.HasField("error")) == (C.ACK_RESPONSE, False)
    assert ids(await peer.assignment()) == [1, 2]


async def test_only_checkpoint_consumers_report_segments(broker: Broker, peer: Peer) -> None:
    await topics_of(broker).create(TOPIC)
    await peer.register(ORDERS, "a")
    answer = await acknowledge(peer, 0)
    assert answer.ackResponse.error == pb.NotAllowedError
    await peer.register(ORDERS, "c", consumer_id=2, kind=pb.CHECKPOINT, subscription="other")
    answer = await acknowledge(peer, 0, consumer_id=2, kind=pb.CommandAck.Cumulative)
    assert answer.ackResponse.error == pb.NotAllowedError


async def acknowledge(
    peer: Peer, segment: int, consumer_id: int = 1, kind: int = pb.CommandAck.Individual
) -> pb.BaseCommand:
    ack = pb.CommandAck(consumer_id=consumer_id, request_id=1_000 + segment)
    ack.ack_type = kind  # type: ignore[assignment]  # An int of AckType.
    ack.message_id.add(ledgerId=segment, entryId=0)
    peer.send(C(type=C.ACK, ack=ack))
    return await peer.receive(C.ACK_RESPONSE)


async def test_a_session_and_a_consumer_never_share_an_id(broker: Broker, peer: Peer) -> None:
    await topics_of(broker).create(TOPIC)
    await peer.register(ORDERS, "a", consumer_id=1)
    subscribe = {"topic": "persistent://public/default/plain", "subscription": "s", "subType": 0}
    refused = await peer.ask(C.SUBSCRIBE, "subscribe", consumer_id=1, **subscribe)
    assert refused.error.error == pb.NotAllowedError
    assert "in use" in refused.error.message
    assert (await peer.ask(C.SUBSCRIBE, "subscribe", consumer_id=2, **subscribe)).type == C.SUCCESS
    answer = await peer.register(ORDERS, "b", consumer_id=2)
    assert (answer.error, answer.HasField("assignment")) == (pb.NotAllowedError, False)
    # The ordinary consumer is still there, and closing it is no leaving.
    assert (await peer.leave(2)).type == C.SUCCESS
    assert ids((await peer.register(ORDERS, "a", consumer_id=1)).assignment) == [0]


async def test_a_session_id_belongs_to_one_consumer(broker: Broker, peer: Peer) -> None:
    await topics_of(broker).create(TOPIC)
    await peer.register(ORDERS, "a")
    # The same again is a retry; another consumer with that id is a mistake.
    assert ids((await peer.register(ORDERS, "a")).assignment) == [0]
    assert (await peer.register(ORDERS, "b")).error == pb.NotAllowedError
    assert (await peer.register(ORDERS, "a", subscription="other")).error == pb.NotAllowedError


async def test_registrations_that_cannot_be_are_refused_in_their_own_answer(
    lab: BrokerLab, broker: Broker, peer: Peer
) -> None:
    answer = await peer.register(ORDERS, "a")
    assert (answer.error, answer.HasField("assignment")) == (pb.TopicNotFound, False)
    assert (await peer.register(f"{CLASSIC}-partition-0", "a")).error == pb.NotAllowedError
    assert (await peer.register("topic://nonsense", "a")).error == pb.InvalidTopicName
    assert (await peer.register(ORDERS, "")).error == pb.NotAllowedError
    await topics_of(broker).create(TOPIC)
    broker.requests.scalable.sessions.per_connection_max = 0
    assert (await peer.register(ORDERS, "a")).error == pb.TooManyRequests


async def test_a_broker_that_does_not_lead_says_so(lab: BrokerLab, broker: Broker, peer: Peer) -> None:
    await topics_of(broker).create(TOPIC)
    other = await lab.store.connect()
    await other.create(controller_path(TOPIC), b"pulsar://elsewhere:6650", ephemeral=True)
    answer = await peer.register(ORDERS, "a")
    assert answer.error == pb.ServiceNotReady
    assert "pulsar://elsewhere:6650" in answer.message
    # Nothing is left of the attempt.
    await other.close()
    assert ids((await peer.register(ORDERS, "a")).assignment) == [0]


async def test_a_session_goes_with_its_controller_to_another_broker(lab: BrokerLab, broker: Broker) -> None:
    await topics_of(broker).create(TOPIC)
    new, java = await lab.peer(broker, supports_scalable_topics=True), await lab.peer(broker, V5)
    await new.register(ORDERS, "a", consumer_id=5)
    await java.register(ORDERS, "b", consumer_id=6)
    other = await lab.store.connect()
    lab.stack.push_async_callback(other.close)
    await other.delete(controller_path(TOPIC))
    await other.create(controller_path(TOPIC), b"pulsar://elsewhere:6650", ephemeral=True)
    assert (await new.receive(C.CLOSE_CONSUMER)).close_consumer.consumer_id == 5
    # Nothing of it is left here, and the connection serves on.
    assert (await new.register(ORDERS, "a", consumer_id=5)).error == pb.ServiceNotReady
    # A client that does not understand this looks for the controller when its connection is lost.
    with pytest.raises(ConnectionError):
        await java.receive(C.PONG)


async def test_leaving_a_topic_that_is_gone_is_no_mistake(broker: Broker, peer: Peer) -> None:
    await topics_of(broker).create(TOPIC)
    await peer.register(ORDERS, "a")
    await topics_of(broker).delete(TOPIC, force=True)
    assert (await peer.leave()).type == C.SUCCESS


async def test_a_session_stays_with_a_broker_that_is_elected_again(lab: BrokerLab, broker: Broker) -> None:
    await topics_of(broker).create(TOPIC, 2)
    older, peer, other = [await lab.peer(broker) for _ in range(3)]
    await older.register(ORDERS, "a", consumer_id=4)
    assert ids((await peer.register(ORDERS, "a", consumer_id=5)).assignment) == [0, 1]
    assert ids(await older.assignment(4)) == []
    listening = topics_of(broker).feed.listeners
    await broker.metadata.delete(controller_path(TOPIC))
    # What it has, it has said again; the older one does not come back.
    assert ids(await peer.assignment(5)) == [0, 1]
    await other.register(ORDERS, "b", consumer_id=9)
    assert len(ids(await peer.assignment(5))) == 1
    assert [c for c in await older.settle() if c.type == C.SCALABLE_TOPIC_ASSIGNMENT_UPDATE] == []
    for one in (peer, older, other):
        await one.close()
    last = await lab.peer(broker)
    await last.watch(ORDERS)
    assert topics_of(broker).feed.listeners == listening - 2 + 1


async def test_a_consumer_that_leaves_while_nobody_leads_is_not_brought_to_the_next_leader(
    lab: BrokerLab,
) -> None:
    broker = await lab.broker(scalable_topic_consumer_session_grace_period_seconds=0)
    await topics_of(broker).create(TOPIC, 2)
    leaver, stays = await lab.peer(broker), await lab.peer(broker)
    await leaver.register(ORDERS, "a", consumer_id=1)
    await stays.register(ORDERS, "b", consumer_id=1)
    assert len(ids(await leaver.assignment())) == 1
    # For a moment the topic has a leader that nobody knows.
    other = await lab.store.connect()
    lab.stack.push_async_callback(other.close)
    controller = topics_of(broker).controllers[TOPIC]
    await other.delete(controller_path(TOPIC))
    await other.create(controller_path(TOPIC), b"", ephemeral=True)
    async with asyncio.timeout(10):
        while controller.is_leader:
            await stays.settle()
    assert (await leaver.leave()).error.error == pb.ServiceNotReady
    await other.delete(controller_path(TOPIC))
    async with asyncio.timeout(10):
        while ids(await stays.assignment()) != [0, 1]:
            pass
    consumers = (await topics_of(broker).stats(TOPIC)).subscriptions["sub"].consumers
    assert [c.name for c in consumers] == ["b"]


async def test_a_consumer_whose_controller_moves_while_it_registers_is_sent_after_it(
    lab: BrokerLab, broker: Broker
) -> None:
    await topics_of(broker).create(TOPIC, 2)
    first = await lab.peer(broker)
    assert ids((await first.register(ORDERS, "a")).assignment) == [0, 1]
    await first.close()
    is_asked, is_registered, goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hold(verb: str, path: str) -> None:
        if (verb, path) == ("get", consumer_path(TOPIC, "sub", "a")):
            is_asked.set()
            await is_registered.wait()
        elif (verb, path) == ("get", controller_path(TOPIC)):
            await goes_on.wait()  # The controller learns late that it leads no more.

    lab.held[0].before = hold
    lab.stack.callback(goes_on.set)
    again = await lab.peer(broker)
    registering = asyncio.create_task(again.register(ORDERS, "a"))
    await is_asked.wait()
    controller = topics_of(broker).controllers[TOPIC]
    other = await lab.store.connect()
    lab.stack.push_async_callback(other.close)
    news = asyncio.Event()
    lab.stack.callback(topics_of(broker).feed.listen(TOPIC, lambda part: news.set()))
    await other.delete(controller_path(TOPIC))
    await other.create(controller_path(TOPIC), b"pulsar://elsewhere:6650", ephemeral=True)
    await news.wait()
    is_registered.set()
    assert ids((await registering).assignment) == [0, 1]
    assert controller.is_leader, "as far as it knows"
    goes_on.set()
    with pytest.raises(ConnectionError):
        await again.receive(C.PONG)


async def test_no_update_overtakes_the_answer_to_a_registration() -> None:
    sent: list[pb.BaseCommand] = []
    session = ConsumerSession(3, TOPIC, "sub", "a", SubscriptionKind.STREAM, sent.append)
    layout = SegmentLayout.initial(2, NOW_MS)
    session.send_assignment(TOPIC, 3, Assignment(0, layout.active))
    session.send_assignment(TOPIC, 3, Assignment(0, layout.active[:1]))
    assert sent == []
    session.answer(7, Assignment(0, layout.active[1:]))
    assert ids(sent.pop(0).scalableTopicSubscribeResponse.assignment) == [1]
    assert [ids(c.scalableTopicAssignmentUpdate.assignment) for c in sent] == [[0]]
    session.send_assignment(TOPIC, 3, Assignment(0, ()))
    assert [ids(c.scalableTopicAssignmentUpdate.assignment) for c in sent] == [[0], []]
    session.end()
    session.send_assignment(TOPIC, 3, Assignment(0, layout.active))
    assert len(sent) == 2


async def test_a_connection_lost_while_registering_leaves_no_session_alive(lab: BrokerLab) -> None:
    broker = await lab.broker(scalable_topic_consumer_session_grace_period_seconds=0)
    await topics_of(broker).create(TOPIC)
    for number in range(20):
        hasty = await lab.peer(broker)
        hasty.start(
            C.SCALABLE_TOPIC_SUBSCRIBE,
            "scalableTopicSubscribe",
            topic=ORDERS,
            subscription="sub",
            consumer_name=f"hasty-{number}",
            consumer_id=1,
            consumer_type=pb.STREAM,
        )
        await hasty.close()
    patient = await lab.peer(broker)
    assignment = (await patient.register(ORDERS, "patient")).assignment
    while ids(assignment) != [0]:
        assignment = await patient.assignment()


# -- who may


class Denying(AllowAll):
    """Lets everybody do everything but look up secret topics and consume them."""

    async def may_lookup(self, role: str, topic: TopicName) -> bool:
        return "secret" not in topic.local

    async def may_consume(self, role: str, topic: TopicName, subscription: str) -> bool:
        return "secret" not in topic.local and subscription != "forbidden"


async def test_a_watch_needs_the_right_to_look_up(lab: BrokerLab) -> None:
    broker = await lab.broker(authorizer=Denying())
    peer = await lab.peer(broker)
    secret = TopicName.parse("topic://public/default/secret")
    await topics_of(broker).create(secret)
    for number, topic in enumerate(
        (str(secret), "persistent://public/default/secret", "topic://public/default/secret-2")
    ):
        update = await peer.watch(topic, number)
        assert (update.error, update.HasField("dag")) == (pb.AuthorizationError, False)
        assert "look up" in update.message
    # Nothing was made for somebody who may not even look.
    assert await topics_of(broker).topics(PUBLIC_DEFAULT) == [secret]
    assert (await peer.watch(ORDERS, 9)).HasField("dag")


async def test_a_registration_needs_the_right_to_consume(lab: BrokerLab) -> None:
    broker = await lab.broker(authorizer=Denying())
    peer = await lab.peer(broker)
    await topics_of(broker).create(TOPIC)
    answer = await peer.register(ORDERS, "a", subscription="forbidden")
    assert (answer.error, answer.HasField("assignment")) == (pb.AuthorizationError, False)
    assert "forbidden" in answer.message
    assert await topics_of(broker).subscriptions(TOPIC) == {}
    assert ids((await peer.register(ORDERS, "a")).assignment) == [0]


# -- the switch


async def test_the_feature_flag_says_whether_scalable_topics_are_on(lab: BrokerLab) -> None:
    on = await lab.peer(await lab.broker())
    off = await lab.peer(await lab.broker(scalable_topic_enabled=False))
    assert on.connected.feature_flags.supports_scalable_topics
    assert not off.connected.feature_flags.supports_scalable_topics


async def test_switched_off_every_command_gets_a_clear_answer_in_its_own_shape(lab: BrokerLab) -> None:
    peer = await lab.peer(await lab.broker(scalable_topic_enabled=False), supports_scalable_topics=True)
    messages = []
    update = await peer.watch(ORDERS)
    assert (update.error, update.HasField("dag")) == (pb.NotAllowedError, False)
    messages.append(update.message)
    peer.close_watch()
    answer = await peer.register(ORDERS, "a")
    assert (answer.error, answer.HasField("assignment")) == (pb.NotAllowedError, False)
    messages.append(answer.message)
    watch = await watch_namespace(peer)
    assert (watch.watch_id, watch.error) == (4, pb.NotAllowedError)
    messages.append(watch.message)
    for topic in (ORDERS, "segment://public/default/orders/0000-ffff-0"):
        found = (await peer.ask(C.LOOKUP, "lookupTopic", topic=topic)).lookupTopicResponse
        assert found.error == pb.NotAllowedError
        messages.append(found.message)
        refused = await peer.ask(C.PRODUCER, "producer", topic=topic, producer_id=1)
        messages.append(refused.error.message)
    assert all("scalableTopicEnabled=false" in message for message in messages)
    # Classic topics know nothing of it.
    assert (await peer.ask(C.PRODUCER, "producer", topic=CLASSIC, producer_id=1)).type == C.PRODUCER_SUCCESS


async def test_what_was_stored_is_back_when_switched_on_again(lab: BrokerLab) -> None:
    on = await lab.broker()
    before = await (await lab.peer(on)).watch(ORDERS)
    off = await lab.broker(scalable_topic_enabled=False)
    assert (await (await lab.peer(off)).watch(ORDERS)).error == pb.NotAllowedError
    again = await (await lab.peer(await lab.broker())).watch(ORDERS, create_if_missing=False)
    assert again.dag.segments == before.dag.segments


async def watch_namespace(peer: Peer) -> pb.CommandWatchScalableTopicsUpdate:
    watch = pb.CommandWatchScalableTopics(watch_id=4, namespace="public/default")
    peer.send(C(type=C.WATCH_SCALABLE_TOPICS, watchScalableTopics=watch))
    return (await peer.receive(C.WATCH_SCALABLE_TOPICS_UPDATE)).watchScalableTopicsUpdate


async def test_a_namespace_that_is_gone_has_no_topics_to_watch(broker: Broker, peer: Peer) -> None:
    namespace = NamespaceName("public", "short-lived")
    await broker.resources.create_namespace(namespace)
    assert (await peer.watch("topic://public/short-lived/t")).HasField("dag")
    await topics_of(broker).delete(TopicName.parse("topic://public/short-lived/t"))
    await peer.update()
    await broker.resources.delete_namespace(namespace)
    assert (await peer.watch("topic://public/short-lived/t", 2)).error == pb.TopicNotFound


# -- limits


async def set_subscriptions_max(broker: Broker, most: int) -> None:
    await broker.resources.update_policies(
        PUBLIC_DEFAULT, lambda found: msgspec.structs.replace(found, max_subscriptions_per_topic=most)
    )


async def test_a_topic_that_has_more_subscriptions_than_it_may_have_splits_all_the_same(
    broker: Broker, peer: Peer
) -> None:
    topics = topics_of(broker)
    await topics.create(TOPIC)
    for name in ("s1", "s2"):
        await topics.create_subscription(TOPIC, name)
    await set_subscriptions_max(broker, 1)
    await topics.split(TOPIC, 0)
    for segment, opened in broker.loaded().items():
        assert set(opened.subscriptions) == {"s1", "s2"}, segment


async def test_subscriptions_beyond_the_maximum_are_refused_and_leave_nothing_behind(
    broker: Broker, peer: Peer
) -> None:
    topics = topics_of(broker)
    await topics.create(TOPIC)
    await set_subscriptions_max(broker, 1)
    assert not (await peer.register(ORDERS, "a", subscription="first")).HasField("error")
    refused = await peer.register(ORDERS, "a", subscription="second", consumer_id=2)
    assert refused.error == pb.NotAllowedError
    assert "maximum number of subscriptions" in refused.message
    assert set(await topics.subscriptions(TOPIC)) == {"first"}
    # Those of the first one are welcome as ever.
    assert not (await peer.register(ORDERS, "b", subscription="first", consumer_id=3)).HasField("error")


async def set_most(broker: Broker, **most: int) -> None:
    await broker.resources.update_policies(
        PUBLIC_DEFAULT, lambda found: msgspec.structs.replace(found, **most)
    )


@pytest.mark.parametrize("policy", ["max_consumers_per_topic", "max_consumers_per_subscription"])
async def test_stream_consumers_are_counted_for_the_whole_topic(
    broker: Broker, peer: Peer, policy: str
) -> None:
    """Each of four segments had one consumer, so that a limit of two was never reached."""
    await topics_of(broker).create(TOPIC, 4)
    await set_most(broker, **{policy: 2})
    for number, name in enumerate("ab"):
        assert not (await peer.register(ORDERS, name, number)).HasField("error")
    refused = await peer.register(ORDERS, "c", 7)
    assert refused.error == pb.ConsumerBusy
    assert "reached max consumers limit" in refused.message
    # Who is there may come again, and who leaves makes room.
    assert not (await peer.register(ORDERS, "a", 8)).HasField("error")
    closed = pb.CommandCloseConsumer(consumer_id=1, request_id=99)
    peer.send(C(type=C.CLOSE_CONSUMER, close_consumer=closed))
    await peer.receive(C.SUCCESS)
    assert not (await peer.register(ORDERS, "c", 9)).HasField("error")


async def test_another_subscription_counts_for_the_topic_and_not_for_the_first(
    broker: Broker, peer: Peer
) -> None:
    await topics_of(broker).create(TOPIC, 2)
    await set_most(broker, max_consumers_per_subscription=1)
    assert not (await peer.register(ORDERS, "a", 1, subscription="first")).HasField("error")
    assert not (await peer.register(ORDERS, "a", 2, subscription="second")).HasField("error")
    await set_most(broker, max_consumers_per_topic=2, max_consumers_per_subscription=0)
    assert (await peer.register(ORDERS, "a", 3, subscription="third")).error == pb.ConsumerBusy


async def test_a_limit_of_a_segment_names_it_as_users_know_it(broker: Broker, peer: Peer) -> None:
    (first,) = (await topics_of(broker).create(TOPIC)).layout.active
    segment = first.topic(TOPIC)
    await set_most(broker, max_producers_per_topic=1)
    for number in (1, 2):
        command = pb.CommandProducer(topic=str(segment), producer_id=number, request_id=number)
        peer.send(C(type=C.PRODUCER, producer=command))
    refused = (await peer.receive(C.ERROR)).error
    assert refused.error == pb.ProducerBusy
    assert refused.message == f"Topic 'segment 0 of {TOPIC}' reached max producers limit"
