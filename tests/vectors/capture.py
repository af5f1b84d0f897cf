"""Records what Pulsar's own client and broker say to each other, as the `.hex` files beside this script.

Usage: capture.py --broker-port 6650 [--listen-port 6651] [--out FOLDER]

Run it against a real Apache Pulsar on loopback, started with

    maxMessageSize=10240            so that chunks stay small
    keepAliveIntervalSeconds=2      so that pings come soon
    acknowledgmentAtBatchIndexLevelEnabled=true

It stands between client and broker and forwards bytes as they are, with one exception: in what goes to
the client, the broker's port is replaced by our own, so that lookups lead back here. What is written
down is what the broker sent. Lines are `> hex` (client to broker) or `< hex`, one frame each.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pulsar

from anabranch.wire import pulsar_pb2 as pb

Recorded = list[tuple[str, bytes]]


class Recorder:
    """A loopback proxy that keeps every frame in the order it was forwarded."""

    def __init__(self, broker_port: int, listen_port: int) -> None:
        self.frames: Recorded = []
        self._lock = threading.Lock()
        self._broker_port = broker_port
        self._swap = (b":%d" % broker_port, b":%d" % listen_port)
        self._server = socket.create_server(("127.0.0.1", listen_port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._server.accept()
            broker = socket.create_connection(("127.0.0.1", self._broker_port))
            for source, sink, mark in ((client, broker, ">"), (broker, client, "<")):
                threading.Thread(target=self._pump, args=(source, sink, mark), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, mark: str) -> None:
        stream = source.makefile("rb")
        try:
            while len(size := stream.read(4)) == 4:
                frame = size + stream.read(struct.unpack(">I", size)[0])
                with self._lock:
                    self.frames.append((mark, frame))
                sink.sendall(frame if mark == ">" else frame.replace(*self._swap))
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # The scenario is over and closed its sockets.

    def take(self) -> Recorded:
        with self._lock:
            frames, self.frames = self.frames, []
        return frames


def name_of(frame: bytes) -> str:
    """The type of a frame, read from the second byte of its command."""
    return str(pb.BaseCommand.Type.Name(frame[9]))


def write(folder: Path, name: str, how: str, frames: Iterable[tuple[str, bytes]]) -> None:
    version = importlib.metadata.version("pulsar-client")
    lines = [f"# Captured by capture.py: pulsar-client {version} and Apache Pulsar 5.0.0-M1, {how}."]
    for mark, frame in frames:
        lines += [f"# {name_of(frame)}", f"{mark} {frame.hex()}"]
    (folder / f"{name}.hex").write_text("\n".join(lines) + "\n")


Scenario = Callable[[pulsar.Client, str], None]


def publish(*, batch: bool = True, **options: object) -> Scenario:
    """A scenario that sends three small messages, in one batch unless told otherwise."""

    def run(client: pulsar.Client, topic: str) -> None:
        producer = client.create_producer(
            topic, batching_enabled=batch, batching_max_publish_delay_ms=5000, **options
        )
        for number in range(3):
            producer.send_async(b"message %d " % number * 4, lambda *_: None)
        producer.flush()
        producer.close()

    return run


def keyed(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False, producer_name="golden")
    producer.send(
        b"payload",
        partition_key="key",
        ordering_key="order",
        properties={"colour": "blue"},
        event_timestamp=1234567890123,
        sequence_id=300,
    )
    producer.send(b"", deliver_at=4102444800000)
    producer.close()


def chunked(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    producer.send(b"0123456789" * 1500)
    producer.close()


def encrypted(client: pulsar.Client, topic: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        private, public = f"{folder}/private.pem", f"{folder}/public.pem"
        subprocess.run(["openssl", "genrsa", "-out", private, "2048"], check=True, capture_output=True)
        subprocess.run(
            ["openssl", "rsa", "-in", private, "-pubout", "-out", public], check=True, capture_output=True
        )
        reader = pulsar.CryptoKeyReader(public, private)
        producer = client.create_producer(topic, encryption_key="river", crypto_key_reader=reader)
        producer.send(b"secret")
        producer.close()


def consume(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", receiver_queue_size=10, properties={"team": "north"})
    publish()(client, topic)
    messages = [consumer.receive(5000) for _ in range(3)]
    consumer.acknowledge(messages[0])
    consumer.acknowledge_cumulative(messages[2])
    time.sleep(0.5)  # Acknowledgements are grouped for 100 ms.
    consumer.close()


def shared(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic,
        "sub",
        consumer_type=pulsar.ConsumerType.KeyShared,
        initial_position=pulsar.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=100,
        batch_index_ack_enabled=True,
    )
    publish()(client, topic)
    messages = [consumer.receive(5000) for _ in range(3)]
    consumer.acknowledge(messages[1])
    consumer.negative_acknowledge(messages[0])
    consumer.receive(5000)
    consumer.redeliver_unacknowledged_messages()
    consumer.receive(5000)
    consumer.close()


def seek(client: pulsar.Client, topic: str) -> None:
    publish(batch=False)(client, topic)
    consumer = client.subscribe(topic, "sub")
    consumer.seek(pulsar.MessageId.earliest)
    time.sleep(1)
    consumer.seek(1234567890123)
    time.sleep(1)
    consumer.unsubscribe()


def read(client: pulsar.Client, topic: str) -> None:
    publish()(client, topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    while reader.has_message_available():
        reader.read_next(5000)
    reader.close()


def busy(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    try:
        client.subscribe(topic, "sub")
    except pulsar.PulsarException:
        consumer.close()


def missing(client: pulsar.Client, topic: str) -> None:
    try:
        client.create_producer("persistent://nobody/nowhere/topic")
    except pulsar.PulsarException:
        return


def pattern(client: pulsar.Client, topic: str) -> None:
    import re

    client.create_producer(topic).close()
    client.subscribe(re.compile(re.escape(topic) + ".*"), "sub").close()


def schema(client: pulsar.Client, topic: str) -> None:
    class Reading(pulsar.schema.Record):  # type: ignore[misc]
        celsius = pulsar.schema.Float()

    producer = client.create_producer(topic, schema=pulsar.schema.JsonSchema(Reading))
    producer.send(Reading(celsius=3.5))
    producer.close()


def idle(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    time.sleep(5)
    producer.close()


KINDS: dict[str, tuple[Scenario, str, str]] = {
    # name: what the client does, which frames are kept, what to say about it
    "connect": (publish(), "CONNECT CONNECTED", "opening a connection"),
    "lookup": (
        publish(),
        "PARTITIONED_METADATA PARTITIONED_METADATA_RESPONSE LOOKUP LOOKUP_RESPONSE",
        "finding a topic",
    ),
    "producer": (publish(), "PRODUCER PRODUCER_SUCCESS CLOSE_PRODUCER SUCCESS", "a producer opens and closes"),
    "send_single": (publish(batch=False), "SEND SEND_RECEIPT", "three messages, not batched"),
    "send_batch": (publish(), "SEND SEND_RECEIPT", "three messages in one batch"),
    "send_keyed": (keyed, "SEND SEND_RECEIPT", "keys, properties, times and a chosen sequence id"),
    "send_chunked": (chunked, "SEND SEND_RECEIPT", "15,000 bytes where 10,240 are the limit"),
    "send_encrypted": (encrypted, "SEND SEND_RECEIPT", "one encrypted message with a key made for this run"),
    "consume": (consume, "SUBSCRIBE SUCCESS FLOW ACTIVE_CONSUMER_CHANGE MESSAGE ACK ACK_RESPONSE CLOSE_CONSUMER",
                "an exclusive consumer reads a batch and acknowledges it"),
    "key_shared": (shared, "SUBSCRIBE SUCCESS FLOW MESSAGE ACK REDELIVER_UNACKNOWLEDGED_MESSAGES CLOSE_CONSUMER",
                   "Key_Shared, batch index acks, negative acks and redelivery"),
    "seek": (seek, "SEEK SUCCESS CLOSE_CONSUMER UNSUBSCRIBE", "seek to earliest and to a time, unsubscribe"),
    "reader": (read, "SUBSCRIBE FLOW MESSAGE GET_LAST_MESSAGE_ID GET_LAST_MESSAGE_ID_RESPONSE",
               "a reader reads to the end"),
    "error": (busy, "SUBSCRIBE ERROR", "a second exclusive consumer is refused"),
    "error_lookup": (missing, "PARTITIONED_METADATA PARTITIONED_METADATA_RESPONSE", "a tenant that does not exist"),
    "pattern": (pattern, "GET_TOPICS_OF_NAMESPACE GET_TOPICS_OF_NAMESPACE_RESPONSE", "topics of a namespace"),
    "schema": (schema, "PRODUCER PRODUCER_SUCCESS SEND", "a producer with a JSON schema"),
    "ping": (idle, "PING PONG", "an idle connection"),
}  # fmt: skip
for _kind in ("LZ4", "ZLib", "ZSTD", "SNAPPY"):
    KINDS[f"send_{_kind.lower()}"] = (
        publish(compression_type=getattr(pulsar.CompressionType, _kind)),
        "SEND SEND_RECEIPT",
        f"a batch of three compressed with {_kind}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--broker-port", type=int, required=True)
    parser.add_argument("--listen-port", type=int, default=6651)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("kinds", nargs="*", default=sorted(KINDS))
    options = parser.parse_args()
    recorder = Recorder(options.broker_port, options.listen_port)
    for kind in options.kinds:
        scenario, wanted, how = KINDS[kind]
        client = pulsar.Client(
            f"pulsar://127.0.0.1:{options.listen_port}",
            operation_timeout_seconds=10,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        scenario(client, f"persistent://public/default/golden-{kind}")
        client.close()
        frames = recorder.take()
        kept = [(mark, frame) for mark, frame in frames if name_of(frame) in wanted.split()]
        write(options.out, kind, how, kept)
        print(f"{kind}: {len(kept)} of {len(frames)} frames")


if __name__ == "__main__":
    main()
