"""Garbage, giants, half-open sockets and slow readers cost their own connection and nothing else."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator

import pulsar
import pytest
from crc32c import crc32c

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import encode_send
from anabranch.wire.encode import encode_command
from harness.broker_process import BrokerProcess, until
from harness.peer import C, Peer
from interop.conftest import Connect
from interop.receiving import numbered, payloads, send_all

pytestmark = pytest.mark.interop

MIB = 1 << 20


@pytest.fixture(scope="module")
def hardened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("hardened")) as process:
        yield process


@pytest.fixture(autouse=True)
def bystander(hardened: BrokerProcess, connect: Connect, topic: str) -> Iterator[None]:
    """Another client's traffic, before and after: it must not notice."""
    client = connect(hardened)
    name = f"{topic}-bystander"
    producer, consumer = client.create_producer(name), client.subscribe(name, "s")
    send_all(producer, numbered(5))
    yield
    assert producer.is_connected()
    assert consumer.is_connected()
    send_all(producer, numbered(5, start=5))
    assert payloads(consumer, 10) == numbered(10)
    assert hardened.is_running
    assert "Traceback" not in hardened.log


@pytest.mark.parametrize("seed", range(8))
def test_garbage_before_connect(hardened: BrokerProcess, seed: int) -> None:
    with Peer(hardened.port) as peer:
        peer.send_bytes(random.Random(seed).randbytes(64 * 1024))
        assert peer.is_closed()


@pytest.mark.parametrize("seed", range(8))
def test_garbage_after_connect(hardened: BrokerProcess, seed: int) -> None:
    chance = random.Random(seed)
    with Peer(hardened.port) as peer:
        peer.connect()
        body = chance.randbytes(chance.randrange(1, 400))
        peer.send_bytes(struct.pack(">II", len(body) + 4, len(body)) + body)
        assert peer.is_closed()


@pytest.mark.parametrize(
    "head",
    [
        struct.pack(">II", 0xFFFFFFFF, 10),
        struct.pack(">II", 64 * MIB, 10),
        struct.pack(">II", 10, 0xFFFFFFFF) + bytes(6),
        struct.pack(">II", 0, 0),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["largest", "large", "command larger than frame", "empty", "http"],
)
def test_impossible_sizes(hardened: BrokerProcess, head: bytes) -> None:
    with Peer(hardened.port) as peer:
        peer.connect()
        peer.send_bytes(head)
        assert peer.is_closed()


def test_a_message_over_the_limit(hardened: BrokerProcess, topic: str) -> None:
    with Peer(hardened.port_for(topic)) as peer:
        peer.connect()
        peer.produce_to(topic)
        try:
            peer.send_message(bytes(6 * MIB))
        except ConnectionError:
            return
        assert peer.is_closed()


def test_commands_that_only_a_broker_sends(hardened: BrokerProcess) -> None:
    for kind in (C.CONNECTED, C.SEND_RECEIPT, C.MESSAGE, C.SUCCESS):
        with Peer(hardened.port) as peer:
            peer.connect()
            peer.send_bytes(encode_command(C(type=kind)))
            assert peer.is_closed()


def test_requests_before_connect(hardened: BrokerProcess) -> None:
    with Peer(hardened.port) as peer:
        command = C(type=C.LOOKUP)
        command.lookupTopic.topic = "persistent://public/default/t"
        command.lookupTopic.request_id = 1
        peer.send(command)
        assert peer.is_closed()


def test_metadata_that_is_no_metadata(hardened: BrokerProcess, connect: Connect, topic: str) -> None:
    with Peer(hardened.port_for(topic)) as peer:
        peer.connect()
        peer.produce_to(topic)
        command = C(type=C.SEND)
        command.send.producer_id = 1
        command.send.sequence_id = 0
        head = command.SerializeToString()
        entry = struct.pack(">I", 1000) + b"short"
        peer.send_bytes(struct.pack(">II", 4 + len(head) + len(entry), len(head)) + head + entry)
        assert peer.is_closed()
    # The topic goes on.
    connect(hardened).create_producer(topic).send(b"m")


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Key_Shared])
def test_metadata_that_nobody_can_parse_is_delivered_as_it_is(
    hardened: BrokerProcess, topic: str, domain: str, kind: int
) -> None:
    name = f"{domain}://public/default/{topic}"
    with Peer(hardened.port_for(name)) as peer:
        peer.connect()
        peer.subscribe_to(name, "s", subType=kind)
        peer.flow(10)
        peer.produce_to(name)
        peer.send_message(b"before", sequence_id=0)
        head = b"\xff" * 20
        body = len(head).to_bytes(4, "big") + head + b"payload"
        entry = b"\x0e\x01" + crc32c(body).to_bytes(4, "big") + body
        peer.send_bytes(encode_send(entry, producer_id=1, sequence_id=1))
        peer.send_message(b"after", sequence_id=2)
        for _ in range(3):
            peer.receive_kind(C.SEND_RECEIPT)
        got = [peer.receive_kind(C.MESSAGE)[1] for _ in range(3)]
    for one, end in zip(got, (b"before", b"payload", b"after"), strict=True):
        assert one.endswith(end)


def test_a_half_open_connection_in_mid_frame(hardened: BrokerProcess, topic: str) -> None:
    with Peer(hardened.port_for(topic)) as peer:
        peer.connect()
        assert peer.produce_to(topic, producer_name="p").type == C.PRODUCER_SUCCESS
        peer.send_bytes(struct.pack(">II", 1000, 20) + b"half a fr")
    with Peer(hardened.port_for(topic)) as peer:
        peer.connect()

        def is_free() -> bool:
            return peer.produce_to(topic, producer_name="p").type == C.PRODUCER_SUCCESS

        until(is_free)


def test_acks_flows_and_seeks_of_things_that_do_not_exist(hardened: BrokerProcess) -> None:
    with Peer(hardened.port) as peer:
        peer.connect()
        peer.flow(1000, consumer_id=9)
        place = pb.MessageIdData(ledgerId=1 << 63, entryId=(1 << 64) - 1)
        answer = peer.ask(C.ACK, "ack", consumer_id=9, ack_type=0, message_id=[place])
        assert answer.ackResponse.error == pb.ConsumerNotFound
        answer = peer.ask(C.SEEK, "seek", consumer_id=9, message_publish_time=1)
        assert answer.error.error == pb.ConsumerNotFound
        peer.ask(C.CLOSE_PRODUCER, "close_producer", producer_id=9)
        peer.ask(C.CLOSE_CONSUMER, "close_consumer", consumer_id=9)


def test_acks_of_messages_that_were_never_sent(hardened: BrokerProcess, connect: Connect, topic: str) -> None:
    with Peer(hardened.port_for(topic)) as peer:
        peer.connect()
        peer.subscribe_to(topic, "s", subType=1)
        for ledger, entry in ((1 << 62, 5), ((1 << 64) - 1, (1 << 64) - 1), (0, 1 << 40)):
            place = pb.MessageIdData(ledgerId=ledger, entryId=entry)
            peer.ask(C.ACK, "ack", consumer_id=1, ack_type=0, message_id=[place])
        client = connect(hardened)
        client.create_producer(topic).send(b"m")
        peer.flow(10)
        assert peer.receive_kind(C.MESSAGE)[1].endswith(b"m")


def test_a_reader_that_never_reads_holds_a_bounded_amount(
    hardened: BrokerProcess, connect: Connect, topic: str
) -> None:
    producer = connect(hardened).create_producer(topic, max_pending_messages=20, block_if_queue_full=True)
    send_all(producer, [os.urandom(MIB)] * 60)
    before = hardened.memory_bytes
    slow = [Peer(hardened.port_for(topic), receive_buffer_bytes=4096) for _ in range(4)]
    try:
        for n, peer in enumerate(slow):
            peer.connect()
            peer.subscribe_to(topic, f"slow{n}", initialPosition=pb.CommandSubscribe.Earliest)
            peer.flow(1000)
        fast = connect(hardened).subscribe(
            topic, "fast", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=10
        )
        assert {len(content) for content in payloads(fast, 60)} == {MIB}
        # Each may have its socket buffer and one burst above it, never the backlog.
        assert hardened.memory_bytes - before < 4 * 20 * MIB
    finally:
        for peer in slow:
            peer.socket.close()


def test_a_peer_that_asks_and_never_reads_is_cut_off(hardened: BrokerProcess) -> None:
    with Peer(hardened.port, receive_buffer_bytes=4096) as peer:
        peer.connect()
        command = C(type=C.GET_TOPICS_OF_NAMESPACE)
        command.getTopicsOfNamespace.namespace = "public/default"
        command.getTopicsOfNamespace.request_id = 1
        many = encode_command(command) * 20_000
        before = hardened.memory_bytes
        try:
            for _ in range(20):
                peer.send_bytes(many)
        except (ConnectionError, TimeoutError):
            pass
        assert hardened.memory_bytes - before < 200 * MIB


def test_many_connections_that_say_nothing(hardened: BrokerProcess) -> None:
    peers = [Peer(hardened.port) for _ in range(300)]
    try:
        with Peer(hardened.port) as peer:
            peer.connect()
            peer.ping()
    finally:
        for peer in peers:
            peer.socket.close()
