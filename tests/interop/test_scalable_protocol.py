"""Scalable topics over raw connections to a real broker process: watches, sessions, the switch, restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from anabranch.wire import pulsar_pb2 as pb
from harness.broker_process import BrokerProcess
from harness.peer import C, Peer

pytestmark = pytest.mark.interop


def open_peer(broker: BrokerProcess, topic: str = "") -> Peer:
    """Connected to the broker that leads the topic, as layouts name it; without a topic, to any."""
    peer = Peer(broker.port)
    peer.connect()
    if not topic or broker.brokers == 1:
        return peer
    with peer:
        look_up(peer, scalable(topic))
        leader = update(peer).dag.controller_broker_url
    peer = Peer(urlsplit(leader).port or 0)
    peer.connect()
    return peer


def own_urls(broker: BrokerProcess) -> set[str]:
    """The URLs at which clients find topics: each broker's own, or the only one."""
    return {broker.url} if broker.brokers == 1 else set(broker.own_urls.values())


def look_up(peer: Peer, topic: str, session_id: int = 1, **values: Any) -> None:
    lookup = pb.CommandScalableTopicLookup(session_id=session_id, topic=topic, **values)
    peer.send(C(type=C.SCALABLE_TOPIC_LOOKUP, scalableTopicLookup=lookup))


def update(peer: Peer, session_id: int = 1) -> pb.CommandScalableTopicUpdate:
    command, _ = peer.wait_for(
        lambda c: c.type == C.SCALABLE_TOPIC_UPDATE and c.scalableTopicUpdate.session_id == session_id
    )
    return command.scalableTopicUpdate


def register(
    peer: Peer, topic: str, name: str, consumer_id: int = 1
) -> pb.CommandScalableTopicSubscribeResponse:
    answer = peer.ask(
        C.SCALABLE_TOPIC_SUBSCRIBE,
        "scalableTopicSubscribe",
        topic=topic,
        subscription="sub",
        consumer_name=name,
        consumer_id=consumer_id,
        consumer_type=pb.STREAM,
    )
    return answer.scalableTopicSubscribeResponse


def scalable(topic: str) -> str:
    return f"topic://public/default/{topic}"


def test_a_split_by_rest_reaches_a_watcher_and_its_consumer(broker: BrokerProcess, topic: str) -> None:
    path = f"scalable/public/default/{topic}"
    urls = own_urls(broker)
    with open_peer(broker, topic) as peer:
        look_up(peer, scalable(topic))
        first = update(peer)
        assert first.dag.epoch == 0
        assert first.dag.controller_broker_url in urls
        assert [b.broker_url in urls for b in first.dag.segment_brokers] == [True]
        broker.put(f"{path}/subscriptions/sub")
        assert [s.segment_id for s in register(peer, scalable(topic), "a").assignment.segments] == [0]
        broker.post(f"{path}/split/0")
        second = update(peer)
        assert second.dag.epoch == 1
        assert [s.state for s in second.dag.segments] == [pb.SEALED, pb.ACTIVE, pb.ACTIVE]
        pushed = peer.receive_kind(C.SCALABLE_TOPIC_ASSIGNMENT_UPDATE)[0].scalableTopicAssignmentUpdate
        assert [s.segment_id for s in pushed.assignment.segments] == [1, 2]
        for segment in pushed.assignment.segments:
            found = peer.ask(C.LOOKUP, "lookupTopic", topic=segment.segment_topic).lookupTopicResponse
            assert found.brokerServiceUrl in urls
        broker.rest("DELETE", f"{path}?force=true")
        assert update(peer).error == pb.TopicNotFound


def test_many_watches_and_sessions_come_and_go_with_their_connections(
    broker: BrokerProcess, topic: str
) -> None:
    with open_peer(broker, topic) as peer:
        look_up(peer, scalable(topic))
        update(peer)
        before = broker.memory_bytes
        for _ in range(20):
            with open_peer(broker, topic) as other:
                for number in range(100):
                    look_up(other, scalable(topic), number)
                    register_only(other, scalable(topic), f"c{number}", number)
                update(other, 99)
        assert broker.memory_bytes - before < 100 << 20
        assert peer.ask(C.LOOKUP, "lookupTopic", topic=f"persistent://public/default/{topic}-other")


def register_only(peer: Peer, topic: str, name: str, consumer_id: int) -> None:
    """Registers without waiting for the answer."""
    subscribe = pb.CommandScalableTopicSubscribe(
        request_id=1_000_000 + consumer_id,
        topic=topic,
        subscription="sub",
        consumer_name=name,
        consumer_id=consumer_id,
        consumer_type=pb.STREAM,
    )
    peer.send(C(type=C.SCALABLE_TOPIC_SUBSCRIBE, scalableTopicSubscribe=subscribe))


def test_layout_and_sessions_are_there_after_the_broker_was_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with open_peer(broker, "t") as peer:
            look_up(peer, scalable("t"))
            update(peer)
            broker.post("scalable/public/default/t/split/0")
            layout = update(peer).dag
            assert len(register(peer, scalable("t"), "a").assignment.segments) == 1
        broker.restart()
        with open_peer(broker, "t") as peer:
            look_up(peer, scalable("t"), create_if_missing=False)
            again = update(peer).dag
            assert (again.epoch, list(again.segments)) == (layout.epoch, list(layout.segments))
            # The consumer that was there keeps its segments for its grace period; a new one has to wait.
            assert list(register(peer, scalable("t"), "b", 2).assignment.segments) == []
            assert len(register(peer, scalable("t"), "a", 3).assignment.segments) == 1


def test_switched_off_and_on_again_everything_is_still_there(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with open_peer(broker) as peer:
            look_up(peer, scalable("t"))
            before = update(peer).dag
        broker.settings["scalableTopicsEnabled"] = False
        broker.restart()
        with Peer(broker.port) as peer:
            assert not peer.connect().feature_flags.supports_scalable_topics
            look_up(peer, scalable("t"))
            refused = update(peer)
            assert (refused.error, refused.HasField("dag")) == (pb.NotAllowedError, False)
            assert "scalableTopicEnabled" in refused.message
            assert register(peer, scalable("t"), "a").error == pb.NotAllowedError
        with Peer(broker.port_for("classic")) as peer:
            peer.connect()
            assert peer.produce_to("classic").type == C.PRODUCER_SUCCESS
        del broker.settings["scalableTopicsEnabled"]
        broker.restart()
        with Peer(broker.port) as peer:
            assert peer.connect().feature_flags.supports_scalable_topics
            look_up(peer, scalable("t"), create_if_missing=False)
            assert list(update(peer).dag.segments) == list(before.segments)


def test_a_client_may_not_send_what_only_a_broker_says(broker: BrokerProcess, topic: str) -> None:
    said = pb.CommandScalableTopicUpdate(session_id=1)
    with open_peer(broker) as peer:
        peer.send(C(type=C.SCALABLE_TOPIC_UPDATE, scalableTopicUpdate=said))
        assert peer.is_closed()
