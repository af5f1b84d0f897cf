"""What the protocol promises and Pulsar's Python client does not show, over a raw connection."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.encode import encode_command
from harness.broker_process import BrokerProcess, rest_path
from harness.peer import C, Peer

pytestmark = pytest.mark.interop

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
EARLIEST = 1


@pytest.fixture
def peer(broker: BrokerProcess, topic: str) -> Any:
    with Peer(broker.port_for(topic)) as peer:
        peer.connect()
        yield peer


# -- connection


@pytest.mark.parametrize(("spoken", "agreed"), [(21, 21), (19, 19), (10, 10), (99, 21)])
def test_the_lower_protocol_version_is_spoken(broker: BrokerProcess, spoken: int, agreed: int) -> None:
    with Peer(broker.port) as peer:
        connected = peer.connect(spoken)
        assert connected.protocol_version == agreed
        assert connected.max_message_size == 5 * 1024 * 1024


def test_silent_peers_are_probed_and_then_dropped(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, {"keepAliveIntervalSeconds": 1}) as broker,
        Peer(broker.port) as silent,
        Peer(broker.port) as mute,
    ):
        silent.connect()
        # One that answers stays; one that does not, or never introduces itself, goes.
        for _ in range(3):
            silent.pong()
        assert mute.is_closed()
        silent.receive_kind(C.PING)
        assert silent.is_closed()


def test_an_abandoned_connection_frees_its_producer_name(broker: BrokerProcess, topic: str) -> None:
    with Peer(broker.port_for(topic)) as second:
        second.connect()
        with Peer(broker.port_for(topic)) as first:
            first.connect()
            assert first.produce_to(topic, producer_name="p").type == C.PRODUCER_SUCCESS
            # Before it refuses the second, the broker makes sure that the first is alive.
            with ThreadPoolExecutor(1) as pool:
                answering = pool.submit(first.pong)
                refused = second.produce_to(topic, producer_name="p")
                answering.result()
            assert refused.error.error == pb.ProducerBusy
        # The first is gone: its socket is closed.
        assert second.produce_to(topic, producer_name="p").type == C.PRODUCER_SUCCESS


# -- producers


def test_a_reconnecting_producer_replaces_its_former_self(peer: Peer, topic: str) -> None:
    assert peer.produce_to(topic, producer_name="p", epoch=0).type == C.PRODUCER_SUCCESS
    assert peer.produce_to(topic, producer_name="p", epoch=1).type == C.PRODUCER_SUCCESS
    # The same request again gets the same answer.
    assert peer.produce_to(topic, producer_name="p", epoch=1).type == C.PRODUCER_SUCCESS
    peer.send_message(b"m")
    assert peer.receive_kind(C.SEND_RECEIPT)[0].send_receipt.sequence_id == 0


def test_a_waiting_producer_is_told_that_it_waits_and_when_it_may_start(
    broker: BrokerProcess, peer: Peer, topic: str
) -> None:
    held = peer.produce_to(topic, producer_access_mode=pb.Exclusive)
    assert held.producer_success.producer_ready
    assert held.producer_success.topic_epoch == 0
    waiting = peer.produce_to(topic, producer_id=2, producer_access_mode=pb.WaitForExclusive)
    assert not waiting.producer_success.producer_ready
    peer.ask(C.CLOSE_PRODUCER, "close_producer", producer_id=1)
    started = peer.receive_kind(C.PRODUCER_SUCCESS)[0].producer_success
    assert started.producer_ready
    assert started.topic_epoch == 1
    # Whoever comes back with an older epoch has been replaced meanwhile.
    late = peer.produce_to(topic, producer_id=3, producer_access_mode=pb.Exclusive, topic_epoch=0)
    assert late.error.error == pb.ProducerFenced


def test_refusals_have_the_words_that_pulsars_clients_look_for(peer: Peer, topic: str) -> None:
    peer.produce_to(topic, producer_name="one", producer_access_mode=pb.Exclusive)
    refused = {
        "ProducerBusy: Producer with name 'one' is already connected to topic": peer.produce_to(
            topic, producer_id=2, producer_name="one"
        ),
        "ProducerBusy: ": peer.produce_to(topic, producer_id=2, producer_name="two"),
        "ProducerFenced: ": peer.produce_to(
            topic, producer_id=2, producer_name="two", producer_access_mode=pb.Exclusive
        ),
        "existing exclusive producer: one": peer.produce_to(topic, producer_id=2, producer_name="two"),
    }
    peer.subscribe_to(topic, "s")
    refused["Exclusive consumer is already connected"] = peer.subscribe_to(topic, "s", consumer_id=2)
    for words, answer in refused.items():
        assert words in answer.error.message


def test_a_producer_closed_while_it_is_made_holds_nothing(peer: Peer, topic: str) -> None:
    create, close = C(type=C.PRODUCER), C(type=C.CLOSE_PRODUCER)
    create.producer.topic = f"persistent://public/default/{topic}"
    create.producer.producer_id = close.close_producer.producer_id = 1
    create.producer.producer_access_mode = pb.Exclusive
    first = create.producer.request_id = peer.request_id()
    second = close.close_producer.request_id = peer.request_id()
    peer.send_bytes(encode_command(create) + encode_command(close))
    assert peer.answer(second).type == C.SUCCESS
    assert peer.answer(first).type == C.ERROR
    assert peer.produce_to(topic, producer_id=2, producer_access_mode=pb.Exclusive).type == C.PRODUCER_SUCCESS


def test_an_entry_comes_back_byte_for_byte(peer: Peer, topic: str) -> None:
    peer.subscribe_to(topic, "s")
    peer.flow(10)
    peer.produce_to(topic)
    key = pb.EncryptionKeys(key="k", value=bytes(range(256)))
    sent = peer.send_message(
        bytes(range(256)) * 5,
        encryption_keys=[key],
        encryption_algo="none known here",
        encryption_param=b"\x00\xff",
        compression=pb.ZSTD,
        uncompressed_size=99,
    )
    assert peer.receive_kind(C.MESSAGE)[1] == sent


def test_a_spoilt_checksum_is_refused_and_not_stored(peer: Peer, topic: str) -> None:
    peer.subscribe_to(topic, "s")
    peer.flow(10)
    peer.produce_to(topic)
    peer.send_message(b"spoilt", sequence_id=0, spoil_checksum=True)
    assert peer.receive_kind(C.SEND_ERROR)[0].send_error.error == pb.ChecksumError
    sent = peer.send_message(b"good", sequence_id=1)
    assert peer.receive_kind(C.SEND_RECEIPT)[0].send_receipt.sequence_id == 1
    assert peer.receive_kind(C.MESSAGE)[1] == sent


def test_closing_a_producer_waits_for_its_receipts(peer: Peer, topic: str) -> None:
    peer.produce_to(topic)
    for n in range(50):
        peer.send_message(b"m", sequence_id=n)
    peer.ask(C.CLOSE_PRODUCER, "close_producer", producer_id=1)
    receipts = [peer.receive_kind(C.SEND_RECEIPT)[0].send_receipt.sequence_id for _ in range(50)]
    assert receipts == list(range(50))


# -- consumers


def test_an_ack_sent_before_the_consumer_is_there_counts(
    broker: BrokerProcess, peer: Peer, topic: str
) -> None:
    # Java's client, connected again, first flushes what it held back and does not say it twice.
    peer.produce_to(topic)
    peer.subscribe_to(topic, "s")
    peer.send_message(b"m")
    peer.flow(1)
    place = peer.receive_kind(C.MESSAGE)[0].message.message_id
    with Peer(broker.port_for(topic)) as again:
        again.connect()
        peer.ask(C.CLOSE_CONSUMER, "close_consumer", consumer_id=1)
        subscribe = C(type=C.SUBSCRIBE)
        subscribe.subscribe.topic = f"persistent://public/default/{topic.rsplit('/', 1)[-1]}"
        subscribe.subscribe.subscription = "s"
        subscribe.subscribe.subType = EXCLUSIVE  # type: ignore[assignment]  # An int of SubType.
        subscribe.subscribe.consumer_id = 7
        subscribe.subscribe.request_id = 1
        ack = C(type=C.ACK)
        ack.ack.consumer_id = 7
        ack.ack.ack_type = pb.CommandAck.Cumulative
        ack.ack.message_id.add().CopyFrom(place)
        again.send_bytes(encode_command(subscribe) + encode_command(ack))
        again.receive_kind(C.SUCCESS)
        stats = again.ask(C.CONSUMER_STATS, "consumerStats", consumer_id=7)
        assert stats.consumerStatsResponse.msgBacklog == 0


def test_a_consumer_that_was_handed_a_segment_waits_for_the_last_one(peer: Peer, topic: str) -> None:
    # V5 clients call themselves so at each segment; "busy" would make Java's give up.
    peer.subscribe_to(topic, "s", consumer_id=1, consumer_name="one-seg-4")
    waiting = C(type=C.SUBSCRIBE)
    waiting.subscribe.topic = f"persistent://public/default/{topic.rsplit('/', 1)[-1]}"
    waiting.subscribe.subscription = "s"
    waiting.subscribe.subType = EXCLUSIVE  # type: ignore[assignment]  # An int of SubType.
    waiting.subscribe.consumer_id = 2
    waiting.subscribe.consumer_name = "two-seg-4"
    waiting.subscribe.request_id = 77
    peer.send(waiting)
    peer.ping()
    assert peer.subscribe_to(topic, "s", consumer_id=3).error.error == pb.ConsumerBusy
    assert peer.ask(C.CLOSE_CONSUMER, "close_consumer", consumer_id=1).type == C.SUCCESS
    assert peer.answer(77).type == C.SUCCESS


def test_an_ack_is_answered_once_it_is_stored(peer: Peer, topic: str) -> None:
    peer.subscribe_to(topic, "s")
    peer.flow(10)
    peer.produce_to(topic)
    peer.send_message(b"m")
    place = peer.receive_kind(C.MESSAGE)[0].message.message_id
    answer = peer.ask(C.ACK, "ack", consumer_id=1, ack_type=0, message_id=[place])
    assert answer.type == C.ACK_RESPONSE
    assert not answer.ackResponse.HasField("error")
    stats = peer.ask(C.CONSUMER_STATS, "consumerStats", consumer_id=1)
    assert stats.consumerStatsResponse.msgBacklog == 0


def test_permits_are_never_overdrawn(peer: Peer, topic: str) -> None:
    peer.subscribe_to(topic, "s")
    peer.produce_to(topic)
    for n in range(10):
        peer.send_message(b"m", sequence_id=n)
    for _ in range(10):
        peer.receive_kind(C.SEND_RECEIPT)
    peer.flow(3)
    for _ in range(3):
        peer.receive_kind(C.MESSAGE)
    peer.ping()
    with pytest.raises(TimeoutError):
        peer.receive_kind(C.MESSAGE, within_s=0.2)
    stats = peer.ask(C.CONSUMER_STATS, "consumerStats", consumer_id=1).consumerStatsResponse
    assert (stats.availablePermits, stats.msgBacklog, stats.type) == (0, 10, "Exclusive")


def test_consumer_stats_of_a_consumer_that_is_not_there_are_an_error(peer: Peer) -> None:
    answer = peer.ask(C.CONSUMER_STATS, "consumerStats", consumer_id=77)
    assert answer.consumerStatsResponse.error_code == pb.ConsumerNotFound


def test_failover_consumers_are_told_who_is_active(peer: Peer, topic: str) -> None:
    def told() -> tuple[int, bool]:
        change = peer.receive_kind(C.ACTIVE_CONSUMER_CHANGE)[0].active_consumer_change
        return change.consumer_id, change.is_active

    peer.subscribe_to(topic, "s", 1, FAILOVER, consumer_name="b", priority_level=1)
    assert told() == (1, True)
    peer.subscribe_to(topic, "s", 2, FAILOVER, consumer_name="a", priority_level=0)
    assert sorted([told(), told()]) == [(1, False), (2, True)]
    peer.ask(C.CLOSE_CONSUMER, "close_consumer", consumer_id=2)
    assert told() == (1, True)


def test_consumers_are_told_that_a_terminated_topic_has_ended(
    broker: BrokerProcess, peer: Peer, topic: str
) -> None:
    peer.subscribe_to(topic, "s")
    peer.produce_to(topic)
    peer.send_message(b"last")
    peer.receive_kind(C.SEND_RECEIPT)
    broker.post(f"{rest_path(topic)}/terminate")
    peer.flow(10)
    place = peer.receive_kind(C.MESSAGE)[0].message.message_id
    peer.ask(C.ACK, "ack", consumer_id=1, ack_type=0, message_id=[place])
    assert peer.receive_kind(C.REACHED_END_OF_TOPIC)[0].reachedEndOfTopic.consumer_id == 1
    # One that comes later hears it too.
    peer.subscribe_to(topic, "s2", 2)
    assert peer.receive_kind(C.REACHED_END_OF_TOPIC)[0].reachedEndOfTopic.consumer_id == 2


def test_an_unknown_subscription_type_or_topic_name_is_an_error_not_a_hang(peer: Peer) -> None:
    for name in ("", "a/b", "persistent://only/two", "ftp://a/b/c", "persistent://public/default/"):
        command = C(type=C.LOOKUP)
        command.lookupTopic.topic = name
        number = command.lookupTopic.request_id = peer.request_id()
        peer.send(command)
        answer = peer.answer(number)
        assert answer.lookupTopicResponse.response == pb.CommandLookupTopicResponse.Failed, name


# -- schemas and lists


def test_a_schema_is_made_found_and_missed(peer: Peer, topic: str) -> None:
    full = f"persistent://public/default/{topic}"
    schema = pb.Schema(name="", type=pb.Schema.String, schema_data=b"")
    command = C(type=C.GET_OR_CREATE_SCHEMA)
    command.getOrCreateSchema.topic = full
    command.getOrCreateSchema.schema.CopyFrom(schema)
    number = command.getOrCreateSchema.request_id = peer.request_id()
    peer.send(command)
    made = peer.answer(number).getOrCreateSchemaResponse
    assert made.schema_version == bytes(8)
    found = peer.ask(C.GET_SCHEMA, "getSchema", topic=full).getSchemaResponse
    assert (found.schema.type, found.schema_version) == (pb.Schema.String, bytes(8))
    missed = peer.ask(C.GET_SCHEMA, "getSchema", topic=f"{full}-none").getSchemaResponse
    assert missed.error_code == pb.TopicNotFound


def test_topics_that_come_later_are_in_the_next_list(peer: Peer, topic: str) -> None:
    def listed(**more: Any) -> set[str]:
        answer = peer.ask(
            C.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", namespace="public/default", **more
        )
        return set(answer.getTopicsOfNamespaceResponse.topics)

    full = f"persistent://public/default/{topic}"
    assert full not in listed()
    peer.produce_to(topic)
    assert full in listed()
    assert listed(topics_pattern=f"{full[:-1]}.*") == {full}
    assert listed(mode=pb.CommandGetTopicsOfNamespace.NON_PERSISTENT) == set()


# -- what is not there


@pytest.mark.parametrize(
    ("kind", "field", "values"),
    [
        (C.TC_CLIENT_CONNECT_REQUEST, "tcClientConnectRequest", {"tc_id": 0}),
        (C.NEW_TXN, "newTxn", {}),
        (C.ADD_PARTITION_TO_TXN, "addPartitionToTxn", {"txnid_least_bits": 1, "txnid_most_bits": 0}),
        (C.ADD_SUBSCRIPTION_TO_TXN, "addSubscriptionToTxn", {"txnid_least_bits": 1, "txnid_most_bits": 0}),
        (C.END_TXN, "endTxn", {"txnid_least_bits": 1, "txnid_most_bits": 0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_transactions_are_refused_clearly(peer: Peer, kind: int, field: str, values: dict[str, int]) -> None:
    answer = peer.ask(kind, field, **values)
    told = next(value for _, value in answer.ListFields() if hasattr(value, "request_id"))
    assert "transaction" in (told.message if hasattr(told, "message") else told.error_message).lower()


def test_a_watch_for_transaction_coordinators_is_refused_clearly(peer: Peer) -> None:
    watch = C(type=C.WATCH_TC_ASSIGNMENTS)
    watch.watchTcAssignments.watch_id = 5
    peer.send(watch)
    told = peer.receive_kind(C.WATCH_TC_ASSIGNMENTS_UPDATE)[0].watchTcAssignmentsUpdate
    assert (told.watch_id, told.error) == (5, pb.NotAllowedError)
    assert "transaction" in told.message
    close = C(type=C.WATCH_TC_ASSIGNMENTS_CLOSE)
    close.watchTcAssignmentsClose.watch_id = 5
    peer.send(close)
    peer.ping()


def test_a_message_of_a_transaction_is_refused_and_the_connection_lives(peer: Peer, topic: str) -> None:
    peer.produce_to(topic)
    peer.send_message(b"in a transaction", transaction=1)
    answer = peer.wait_for(lambda command: command.type in (C.SEND_ERROR, C.SEND_RECEIPT))[0]
    assert answer.type == C.SEND_ERROR
    assert answer.send_error.error == pb.NotAllowedError
    peer.ping()


def test_a_topic_of_another_kind_is_refused_clearly(peer: Peer) -> None:
    answer = peer.produce_to("topic://public/default/t")
    assert answer.error.error == pb.NotAllowedError
