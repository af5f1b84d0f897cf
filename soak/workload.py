"""The mixed load of the kill test, as plain values: topics, who publishes to them and who consumes."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from soak.checker import Rules

# Everything is kept, so that in the end the whole log can be read and compared with every receipt.
KEPT = "public/soak"
# The same, with deduplication.
ONCE = "public/once"
# Topics are deleted when they are unused, and whatever was visible in them is kept.
BRIEF = "public/brief"
# Consumed entries are deleted at once, so that trimming and rewriting run all the time.
LEAN = "public/lean"

# Small, so that a message of some hundred KB is chunked and files, checkpoints and rewriting come by often.
BROKER_SETTINGS = {
    "maxMessageSize": 256 * 1024,
    "logFileBytes": 8 << 20,
    "logCacheBytes": 8 << 20,
    "defaultRetentionTimeInMinutes": 0,
    "logLingerSeconds": 0,
    "logLingerBytes": 0,
    "retentionCheckIntervalInSeconds": 1,
    "activeConsumerFailoverDelayTimeMillis": 100,
    "brokerDeleteInactiveTopicsFrequencySeconds": 1,
}


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    partitions: int = 0

    @property
    def url(self) -> str:
        return f"persistent://{self.name}"

    @property
    def file(self) -> str:
        return self.name.replace("/", "-")

    @property
    def is_kept(self) -> bool:
        return not self.name.startswith(LEAN)

    @property
    def is_deduplicated(self) -> bool:
        return self.name.startswith(ONCE)


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    name: str
    topic: Topic
    # "single", "batched", "keyed-batches" or "chunked".
    style: str = "single"
    keys: int = 0
    # A fixed name and explicit sequence ids; it also closes and comes back now and then.
    fixed: bool = False
    per_second: int = 150
    payload_bytes_max: int = 2000


@dataclass(frozen=True, slots=True)
class SubscriptionPlan:
    name: str
    topic: Topic
    # "exclusive", "failover", "shared", "key-shared" or "reader".
    kind: str
    consumers: int = 1
    # "each", "cumulative" or (raw only) "index": parts of a batch.
    acks: str = "each"
    # True: our own socket, which sees the answers to its acks.
    raw: bool = False
    is_chunked: bool = False
    # Its producers make a batch of each key, so only the keys have an order.
    is_keyed: bool = False

    @property
    def file(self) -> str:
        return f"sub-{self.topic.file}-{self.name}.log"

    @property
    def rules(self) -> Rules:
        order = {"shared": "none", "key-shared": "key"}.get(self.kind, "key" if self.is_keyed else "producer")
        if self.is_chunked:
            # Pulsar's client keeps the first chunks over a reconnect, refuses them when they come again and drops the
            # message until the next time; reading the log in the end shows that it is there, and in order.
            order = "none"
        return Rules(
            order=order,
            acks=self.kind != "reader",
            once=self.kind == "reader" and self.topic.is_deduplicated,
            once_per_connection=self.raw and self.kind == "exclusive",
            single_place=self.topic.is_deduplicated,
        )


@dataclass(frozen=True, slots=True)
class Workload:
    producers: tuple[ProducerPlan, ...]
    # Jobs that write hidden, by `soak/hidden.py`.
    writers: tuple[ProducerPlan, ...]
    subscriptions: tuple[SubscriptionPlan, ...]

    @property
    def topics(self) -> list[Topic]:
        """The topics that always exist."""
        return sorted({plan.topic for plan in self.producers}, key=lambda topic: topic.name)

    @property
    def brief_topics(self) -> list[Topic]:
        return sorted({plan.topic for plan in self.writers}, key=lambda topic: topic.name)

    def producers_of(self, topic: Topic) -> list[ProducerPlan]:
        return [plan for plan in (*self.producers, *self.writers) if plan.topic == topic]


def mixed() -> Workload:
    stream = Topic(f"{KEPT}/stream")
    keys = Topic(f"{KEPT}/keys")
    parts = Topic(f"{KEPT}/parts", partitions=3)
    chunks = Topic(f"{KEPT}/chunks")
    fixed = Topic(f"{ONCE}/fixed")
    lean = Topic(f"{LEAN}/flow")
    once_keys = Topic(f"{ONCE}/keys")
    once_chunks = Topic(f"{ONCE}/chunks")
    writers = tuple(ProducerPlan(f"night-{n}", Topic(f"{BRIEF}/night-{n}")) for n in range(2))
    return Workload(
        writers=writers,
        producers=(
            ProducerPlan("stream-batched", stream, "batched", per_second=400, payload_bytes_max=1000),
            ProducerPlan("stream-single", stream),
            ProducerPlan("keys-single", keys, keys=40),
            ProducerPlan("keys-batched", keys, "keyed-batches", keys=40, per_second=300),
            ProducerPlan("parts-keyed", parts, keys=20),
            ProducerPlan("parts-batched", parts, "batched", per_second=300),
            ProducerPlan("chunks", chunks, "chunked", per_second=10, payload_bytes_max=700_000),
            ProducerPlan("fixed-single", fixed, fixed=True),
            ProducerPlan("fixed-batched", fixed, "batched", fixed=True, per_second=300),
            ProducerPlan("lean-single", lean),
            ProducerPlan("lean-batched", lean, "batched", per_second=300, payload_bytes_max=8000),
            ProducerPlan("once-keyed", once_keys, "keyed-batches", keys=7, per_second=300),
            # One lives through everything, the other comes back, asks what is stored and continues after it.
            ProducerPlan("once-chunks", once_chunks, "chunked", per_second=10, payload_bytes_max=700_000),
            ProducerPlan(
                "fixed-chunks", once_chunks, "chunked", fixed=True, per_second=10, payload_bytes_max=700_000
            ),
        ),
        subscriptions=(
            SubscriptionPlan("exclusive", stream, "exclusive", acks="cumulative"),
            SubscriptionPlan("failover", stream, "failover", consumers=2),
            SubscriptionPlan("raw-cumulative", stream, "exclusive", acks="cumulative", raw=True),
            SubscriptionPlan("reader", stream, "reader"),
            SubscriptionPlan("key-shared", keys, "key-shared", consumers=3),
            SubscriptionPlan("shared", keys, "shared", consumers=2),
            SubscriptionPlan("raw-each", keys, "shared", consumers=2, raw=True),
            SubscriptionPlan("raw-index", keys, "shared", acks="index", raw=True),
            SubscriptionPlan("shared", parts, "shared", consumers=2),
            SubscriptionPlan("failover", parts, "failover", consumers=2, acks="cumulative"),
            SubscriptionPlan("exclusive", chunks, "exclusive", is_chunked=True),
            SubscriptionPlan("exclusive", fixed, "exclusive"),
            SubscriptionPlan("raw-cumulative", fixed, "exclusive", acks="cumulative", raw=True),
            SubscriptionPlan("reader", fixed, "reader"),
            SubscriptionPlan("shared", lean, "shared", consumers=2),
            SubscriptionPlan("raw-cumulative", lean, "exclusive", acks="cumulative", raw=True),
            SubscriptionPlan("key-shared", once_keys, "key-shared", consumers=2),
            SubscriptionPlan("reader", once_keys, "reader", is_keyed=True),
            SubscriptionPlan("exclusive", once_chunks, "exclusive", is_chunked=True),
        ),
    )


# -- messages: their whole content follows from producer and index, so that they can be made again and checked


def key_of(plan: ProducerPlan, index: int) -> str:
    return f"k{zlib.crc32(f'{plan.name} {index}'.encode()) % plan.keys}" if plan.keys else ""


def lane_of(plan: ProducerPlan, index: int) -> str:
    """Messages of one lane keep their order: all of a producer, unless it makes a batch of each key."""
    return key_of(plan, index) if plan.style == "keyed-batches" else ""


def payload_of(plan: ProducerPlan, index: int) -> bytes:
    head = f"{plan.name}|{index}|{key_of(plan, index)}|".encode()
    mixed_up = zlib.crc32(head)
    size = mixed_up % plan.payload_bytes_max
    return head + mixed_up.to_bytes(4, "big") * (size // 4)


def read_payload(payload: bytes) -> tuple[str, int, str]:
    """(producer, index, key) of a message; raises if any byte of it is not what was sent."""
    producer, index, key, filler = payload.split(b"|", 3)
    head = b"|".join((producer, index, key, b""))
    if filler != zlib.crc32(head).to_bytes(4, "big") * (len(filler) // 4):
        raise ValueError(f"message {index!r} of {producer!r} has bytes that were never sent")
    return producer.decode(), int(index), key.decode()
