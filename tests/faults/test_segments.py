"""Segments of a real broker over REST and the wire, and after SIGKILL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.wire import pulsar_pb2 as pb
from harness.broker_process import BrokerProcess, RestFailed
from harness.peer import C, Peer

ROOT = "segments/public/default/orders/0000-ffff-0"
PARENT = "segment://public/default/orders/0000-ffff-0"
CHILDREN = ["segment://public/default/orders/0000-7fff-1", "segment://public/default/orders/8000-ffff-2"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, {"brokerDeduplicationEnabled": True}) as process:
        process.put("scalable/public/default/orders?numInitialSegments=1")
        process.put("scalable/public/default/orders/subscriptions/s")
        yield process


def publish(broker: BrokerProcess, topic: str, *payloads: bytes) -> None:
    with Peer(broker.port) as peer:
        peer.connect()
        made = peer.produce_to(topic, producer_name="peer", user_provided_producer_name=True)
        assert made.type == C.PRODUCER_SUCCESS, made
        first = made.producer_success.last_sequence_id + 1
        for number, payload in enumerate(payloads, first):
            peer.send_message(payload, sequence_id=number)
        for _ in payloads:
            peer.receive_kind(C.SEND_RECEIPT)


def read(broker: BrokerProcess, topic: str, count: int) -> list[bytes]:
    with Peer(broker.port) as peer:
        peer.connect()
        assert peer.subscribe_to(topic, "s").type == C.SUCCESS
        peer.flow(count)
        found = [peer.receive_kind(C.MESSAGE) for _ in range(count)]
        for command, _ in found:
            ack = peer.ask(C.ACK, "ack", consumer_id=1, ack_type=0, message_id=[command.message.message_id])
            assert not ack.ackResponse.HasField("error")
    return [entry[-3:] for _, entry in found]


def refusal(broker: BrokerProcess, method: str, path: str) -> int:
    with pytest.raises(RestFailed) as failed:
        broker.rest(method, path)
    return failed.value.status


def cursor(broker: BrokerProcess, segment: str) -> Any:
    stats = broker.get("scalable/public/default/orders/stats")
    return stats["segments"][segment]["subscriptions"]["s"]


def test_a_split_holds_through_sigkill(broker: BrokerProcess) -> None:
    publish(broker, PARENT, b"one", b"two")
    broker.post("scalable/public/default/orders/split/0")
    for child in CHILDREN:
        publish(broker, child, b"new")
    broker.restart()
    with Peer(broker.port) as peer:
        peer.connect()
        refused = peer.produce_to(PARENT)
        assert refused.type == C.ERROR
        assert "terminated" in refused.error.message
        asked = peer.produce_to(
            PARENT,
            producer_id=2,
            producer_name="peer",
            metadata=[pb.KeyValue(key="anabranch.sealed", value="ok")],
        )
        assert asked.producer_success.last_sequence_id == 1
    assert not cursor(broker, "0")["drained"]
    assert read(broker, PARENT, 2) == [b"one", b"two"]
    assert cursor(broker, "0")["drained"]
    broker.restart()
    assert cursor(broker, "0")["drained"]
    for child in CHILDREN:
        publish(broker, child, b"too")
        assert read(broker, child, 2) == [b"new", b"too"]


def test_segment_requests_are_repeatable_and_checked_against_the_record(broker: BrokerProcess) -> None:
    for _ in range(2):
        broker.put(ROOT, ["s"])
    assert refusal(broker, "POST", f"{ROOT}/terminate") == 409
    assert refusal(broker, "DELETE", f"{ROOT}?force=true") == 409
    assert refusal(broker, "PUT", "segments/public/default/orders/0000-7fff-1") == 409
    publish(broker, PARENT, b"one")
    assert broker.get(f"{ROOT}/subscription/s/backlog") == 1
    broker.post(f"{ROOT}/subscription/s/skip-all")
    assert broker.get(f"{ROOT}/subscription/s/backlog") == 0
    broker.post(f"{ROOT}/subscription/s/seek?timestamp=0")
    assert broker.get(f"{ROOT}/subscription/s/backlog") == 1
    broker.post("scalable/public/default/orders/split/0")
    for _ in range(2):
        broker.post(f"{ROOT}/terminate")


def test_segments_are_in_no_list_of_classic_topics_and_go_with_their_namespace(broker: BrokerProcess) -> None:
    broker.put("namespaces/public/gone")
    broker.put("scalable/public/gone/t?numInitialSegments=2")
    assert broker.get("persistent/public/gone") == []
    assert refusal(broker, "DELETE", "namespaces/public/gone") == 409
    broker.rest("DELETE", "namespaces/public/gone?force=true")
    assert "public/gone" not in broker.get("namespaces/public")


def test_a_deleted_topic_starts_clean_when_its_name_is_used_again(broker: BrokerProcess) -> None:
    publish(broker, PARENT, b"old")
    broker.rest("DELETE", "scalable/public/default/orders?force=true")
    broker.restart()
    broker.put("scalable/public/default/orders?numInitialSegments=1")
    broker.put("scalable/public/default/orders/subscriptions/s")
    publish(broker, PARENT, b"new")
    assert read(broker, PARENT, 1) == [b"new"]
