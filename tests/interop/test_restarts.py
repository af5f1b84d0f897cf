"""Brokers that are killed, stopped or paused under Pulsar's client: nothing acked is lost, order is kept."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition
from pulsar.schema import JsonSchema, Record, String, StringSchema

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import parse_metadata, payload
from harness.broker_process import BrokerProcess, until
from harness.peer import C, Peer
from interop.conftest import Connect
from interop.receiving import WAIT_MS, assert_silent, drain, numbered, payloads, receive, send_all

pytestmark = pytest.mark.interop

EARLIEST = InitialPosition.Earliest


class Person(Record):  # type: ignore[misc]  # The client has no type information.
    name = String()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of this test's own, which deduplicates."""
    with BrokerProcess(tmp_path, {"brokerDeduplicationEnabled": True}) as process:
        yield process


class Sender(threading.Thread):
    """Sends numbered messages until told to stop; remembers which were acknowledged."""

    def __init__(self, producer: pulsar.Producer) -> None:
        super().__init__()
        self._producer = producer
        self._is_over = threading.Event()
        self.acked: list[int] = []
        self.failed: list[object] = []
        self.sent = 0

    def run(self) -> None:
        while not self._is_over.is_set():
            self._send(self.sent)
            self.sent += 1
        self._producer.flush()

    def _send(self, number: int) -> None:
        def answered(result: object, _: object) -> None:
            if result == pulsar.Result.Ok:
                self.acked.append(number)
            else:
                self.failed.append(result)

        self._producer.send_async(b"m%d" % number, answered)

    def finish(self) -> None:
        self._is_over.set()
        self.join(60)
        assert not self.is_alive()
        until(lambda: len(self.acked) + len(self.failed) == self.sent)


def test_producing_through_kills_loses_doubles_and_reorders_nothing(
    mortal: BrokerProcess, connect: Connect
) -> None:
    client = connect(mortal)
    # Somebody has yet to read it, so that nothing is given up however long this takes.
    client.subscribe("t", "keeper").close()
    producer = client.create_producer(
        "t",
        producer_name="p",
        batching_enabled=True,
        max_pending_messages=500,
        block_if_queue_full=True,
        send_timeout_millis=0,
    )
    sender = Sender(producer)
    sender.start()
    for _ in range(3):
        goal = len(sender.acked) + 500
        until(lambda goal=goal: len(sender.acked) > goal, within_s=30)  # type: ignore[misc]
        mortal.restart()
    sender.finish()
    assert sender.failed == []
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    got = []
    while reader.has_message_available():
        got.append(reader.read_next(WAIT_MS).data())
    assert got == numbered(sender.sent)


def test_sequence_ids_are_remembered_over_a_kill(mortal: BrokerProcess, connect: Connect) -> None:
    before = connect(mortal)
    producer = before.create_producer("t", producer_name="p")
    for n in range(1, 6):
        producer.send(b"m%d" % n, sequence_id=n)
    before.shutdown()
    mortal.restart()
    client = connect(mortal)
    again = client.create_producer("t", producer_name="p")
    assert again.last_sequence_id() == 5
    for n in range(3, 8):
        again.send(b"m%d" % n, sequence_id=n)
    consumer = client.subscribe("t", "s", initial_position=EARLIEST)
    assert payloads(consumer, 7) == numbered(7, start=1)
    assert_silent(consumer)


def test_sequence_ids_are_known_also_of_what_was_trimmed_after_a_kill(
    tmp_path: Path, connect: Connect
) -> None:
    settings = {"defaultRetentionTimeInMinutes": 0, "logLingerSeconds": 0, "logLingerBytes": 0}
    with BrokerProcess(tmp_path, settings) as broker:
        client = connect(broker)
        producer = client.create_producer("t", producer_name="p", batching_enabled=False)
        for sequence_id in (0, 1, 2):
            producer.send(b"x", sequence_id=sequence_id)
        broker.restart()
        # Nobody has subscribed, so nothing is kept of it.
        broker.post("persistent/public/default/t/trim")
        assert broker.stats("t")["storageSize"] == 0
        broker.post("persistent/public/default/t/deduplicationEnabled", True)
        # One that closes while it connects again leaves its producer behind, and the name is taken.
        until(lambda: broker.stats("t")["publishers"])
        producer.close()
        again = client.create_producer("t", producer_name="p", batching_enabled=False)
        assert again.last_sequence_id() == 2


@pytest.mark.parametrize("is_deduplicating", [True, False])
def test_sequence_ids_of_what_was_trimmed_are_known_after_a_kill(
    tmp_path: Path, connect: Connect, is_deduplicating: bool
) -> None:
    settings = {
        "brokerDeduplicationEnabled": is_deduplicating,
        "defaultRetentionTimeInMinutes": 0,
        "logLingerSeconds": 0,
        "logLingerBytes": 0,
    }
    with BrokerProcess(tmp_path, settings) as broker:
        client = connect(broker)
        producer = client.create_producer("t", producer_name="p", batching_enabled=False)
        for sequence_id in (0, 1, 2):
            producer.send(b"x", sequence_id=sequence_id)
        broker.post("persistent/public/default/t/trim")
        assert broker.stats("t")["storageSize"] == 0
        broker.restart()
        broker.post("persistent/public/default/t/deduplicationEnabled", True)
        # One that closes while it connects again leaves its producer behind, and the name is taken.
        until(lambda: broker.stats("t")["publishers"])
        producer.close()
        again = client.create_producer("t", producer_name="p", batching_enabled=False)
        assert again.last_sequence_id() == 2


def test_a_chunked_message_cut_off_by_a_kill_is_stored_whole(mortal: BrokerProcess, connect: Connect) -> None:
    client = connect(mortal)
    producer = client.create_producer("t", producer_name="p", chunking_enabled=True, send_timeout_millis=0)
    results: list[object] = []
    for n in range(3):
        producer.send_async(b"%d" % n * (12 << 20), lambda result, _: results.append(result))
    mortal.restart()
    until(lambda: len(results) == 3, within_s=30)
    assert results == [pulsar.Result.Ok] * 3
    # Chunks stored before the kill may be there twice, which this client's consumer cannot put together.
    with Peer(mortal.port_for("t")) as peer:
        peer.connect()
        peer.subscribe_to("t", "s", initialPosition=pb.CommandSubscribe.Earliest)
        peer.flow(1000)
        assert [next(_whole_messages(peer)) for _ in range(3)] == [b"%d" % n * (12 << 20) for n in range(3)]
        with pytest.raises(TimeoutError):
            peer.receive_kind(C.MESSAGE, within_s=0.3)


def _whole_messages(peer: Peer) -> Iterator[bytes]:
    """Puts chunks together; a first chunk starts over, and one that was stored without a receipt comes twice."""
    parts: list[bytes] = []
    while True:
        entry = peer.receive_kind(C.MESSAGE)[1]
        metadata = parse_metadata(entry)
        if metadata.chunk_id == 0:
            parts = []
        if metadata.chunk_id < len(parts):
            continue
        assert metadata.chunk_id == len(parts)
        parts.append(bytes(payload(entry)))
        if len(parts) == metadata.num_chunks_from_msg:
            yield b"".join(parts)
            parts = []


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared])
def test_acknowledged_messages_stay_acknowledged_over_a_kill(
    mortal: BrokerProcess, connect: Connect, kind: object
) -> None:
    client = connect(mortal)
    consumer = client.subscribe("t", "s", consumer_type=kind)
    send_all(client.create_producer("t"), numbered(100))
    for n, message in enumerate(receive(consumer, 100, acknowledge=False)):
        if n % 2:
            consumer.acknowledge(message)
    # Acknowledgements are stored before the close is answered.
    consumer.close()
    mortal.restart()
    client = connect(mortal)
    assert payloads(client.subscribe("t", "all", initial_position=EARLIEST), 100) == numbered(100)
    again = client.subscribe("t", "s", consumer_type=kind)
    assert sorted(payloads(again, 50)) == sorted(b"m%d" % n for n in range(0, 100, 2))
    assert_silent(again)


def test_batch_index_acks_survive_a_kill(mortal: BrokerProcess, connect: Connect) -> None:
    client = connect(mortal)
    consumer = client.subscribe("t", "s", batch_index_ack_enabled=True)
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=10_000)
    send_all(producer, numbered(10))
    for message in receive(consumer, 10, acknowledge=False)[:7]:
        consumer.acknowledge(message)
    consumer.close()
    mortal.restart()
    again = connect(mortal).subscribe("t", "s", batch_index_ack_enabled=True)
    assert payloads(again, 3) == numbered(3, start=7)
    assert_silent(again)


def test_consuming_through_kills_misses_nothing(mortal: BrokerProcess, connect: Connect) -> None:
    client = connect(mortal)
    producer = client.create_producer("t", send_timeout_millis=0)
    consumer = client.subscribe("t", "s", receiver_queue_size=50)
    send_all(producer, numbered(300))
    seen: list[bytes] = []
    for _ in range(3):
        seen += payloads(consumer, 60)
        mortal.restart()
    while numbered(300)[-1] not in seen:
        seen += payloads(consumer, 1)
    # A kill may bring messages back whose acknowledgement had not left the client; it may not skip or swap any.
    first_seen = list(dict.fromkeys(seen))
    assert first_seen == numbered(300)


def test_a_stopped_broker_ends_cleanly_and_has_everything_when_it_returns(
    mortal: BrokerProcess, connect: Connect
) -> None:
    client = connect(mortal)
    consumer = client.subscribe("t", "s")
    producer = client.create_producer("t", send_timeout_millis=0)
    send_all(producer, numbered(20))
    receive(consumer, 10)
    assert mortal.stop() == 0
    assert "Traceback" not in mortal.log
    assert "ERROR" not in mortal.log
    mortal.start()
    send_all(producer, numbered(5, start=20))
    # What the client had queued and acknowledged while the broker was away is its own affair; nothing is missing.
    got = {message.data() for message in drain(consumer, quiet_ms=1000)}
    assert got >= set(numbered(15, start=10))


def test_a_paused_broker_goes_on_where_it_was(mortal: BrokerProcess, connect: Connect) -> None:
    client = connect(mortal)
    producer = client.create_producer("t", send_timeout_millis=0)
    consumer = client.subscribe("t", "s")
    producer.send(b"m0")
    mortal.pause()
    results: list[object] = []
    for content in numbered(10, start=1):
        producer.send_async(content, lambda result, _: results.append(result))
    mortal.resume()
    assert payloads(consumer, 11) == numbered(11)
    until(lambda: results == [pulsar.Result.Ok] * 10)


def test_partitions_schemas_and_namespaces_survive_a_kill(mortal: BrokerProcess, connect: Connect) -> None:
    mortal.put("namespaces/public/n")
    mortal.put("persistent/public/n/t/partitions", 3)
    topic = "persistent://public/n/t"
    producer = connect(mortal).create_producer(topic, schema=StringSchema())
    for n in range(9):
        producer.send(f"m{n}")
    mortal.restart()
    client = connect(mortal)
    assert len(client.get_topic_partitions(topic)) == 3
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=JsonSchema(Person))
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert sorted(payloads(consumer, 9)) == numbered(9)


def test_a_terminated_topic_stays_terminated_over_a_kill(mortal: BrokerProcess, connect: Connect) -> None:
    connect(mortal).create_producer("t").send(b"last")
    mortal.post("persistent/public/default/t/terminate")
    mortal.restart()
    client = connect(mortal)
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer("t")
    assert payloads(client.subscribe("t", "s", initial_position=EARLIEST), 1) == [b"last"]


def test_a_second_broker_on_the_same_ports_or_folder_says_why_it_cannot_start(
    mortal: BrokerProcess, tmp_path: Path
) -> None:
    same_port, same_folder = BrokerProcess(tmp_path / "other"), BrokerProcess(mortal.folder)
    same_port.port = mortal.port
    for rival in (same_port, same_folder):
        ended = subprocess.run(rival.command, capture_output=True, text=True, timeout=30)
        assert ended.returncode == 1
        assert ended.stderr.splitlines()[-1].startswith("anabranch: ")
    assert mortal.get("brokers/health") == "ok"
