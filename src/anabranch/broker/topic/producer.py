"""A producer attached to a topic, and which producers may attach side by side (access modes). Pure apart from its
counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from anabranch.broker.config.listeners import Addresses
from anabranch.broker.ports import Done
from anabranch.broker.state.dedup import WHOLE, LaneIds
from anabranch.model.names import TopicName
from anabranch.storage.port import Buffer
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.frames import Frame


class ProducerLink(Protocol):
    """A producer's connection."""

    @property
    def is_open(self) -> bool: ...

    @property
    def address(self) -> str: ...

    @property
    def client_version(self) -> str: ...

    def write(self, pieces: Sequence[Buffer]) -> None: ...

    def send(self, command: pb.BaseCommand) -> None: ...

    def awaits_producer(self, producer: AttachedProducer) -> bool:
        """False once the client has closed a producer that was still being created, or has asked for another one
        instead."""

    def attach_producer(self, producer: AttachedProducer) -> None:
        """Makes the connection's SENDs with this producer's id publishes of this producer, from now on."""

    def producer_closed(self, producer: AttachedProducer, moved_to: Addresses | None = None) -> None:
        """Notifies the client that the broker has closed this producer; the client reconnects if it wants. `moved_to`:
        the broker that serves the topic now, if known."""

    async def is_alive(self) -> bool:
        """Asks the client; False if it does not answer in time."""

    def owes(self, count: int) -> None:
        """Adds to the publishes that await an answer; while there are too many, the connection is not read."""

    def answered(self, count: int) -> None:
        """Subtracts publishes that have been answered, or never will be."""

    def hold(self, seconds: float) -> None:
        """Stops reading from the connection for that time: its producers are too fast."""


class ProducersPort(Protocol):
    """The producers of a topic as their connections see them."""

    def remove(self, producer: AttachedProducer) -> None: ...

    def answer_again(self, producer: AttachedProducer, request_id: int) -> None: ...


class Publishable(Protocol):
    """A topic as its producers' connections see it."""

    @property
    def name(self) -> TopicName: ...

    @property
    def attached(self) -> ProducersPort: ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def publish(self) -> Callable[[AttachedProducer, Sequence[Frame]], None]: ...

    def close_producer(self, producer: AttachedProducer, answered: Callable[[], None]) -> None: ...

    def stored_ids(self, producer: str) -> StoredIds: ...

    async def settled_ids(self, producer: str) -> StoredIds:
        """The last stored sequence ids, once nothing from that producer is on its way to the disk."""

    def store_epoch(self, done: Done) -> None:
        """Makes the new epoch of an exclusive producer as durable as the topic itself."""


@dataclass(frozen=True, slots=True)
class StoredIds:
    """The last sequence ids that a topic has stored of a producer, as a returning producer learns them."""

    # The highest of all; -1: none, or the topic does not know.
    last: int = -1
    # Where the topic has several entry buckets, the highest id by lane; None elsewhere.
    by_lane: LaneIds | None = None

    def fill(self, success: pb.CommandProducerSuccess) -> None:
        success.last_sequence_id = self.last
        if self.by_lane is None:
            return
        # Set even if it is -1: it tells that ids are judged by bucket here.
        success.anabranch_whole_sequence_id = self.by_lane.get(WHOLE, -1)
        for bucket, last in sorted(self.by_lane.items()):
            if bucket != WHOLE:
                success.anabranch_buckets.add(bucket=bucket, last_sequence_id=last)


@dataclass(eq=False, slots=True)
class AttachedProducer:
    id: int
    name: str
    link: ProducerLink
    # The client's count of its reconnects: a higher epoch replaces a lower one on the same connection.
    epoch: int = 0
    is_name_given: bool = False
    access_mode: int = pb.Shared
    # The topic's epoch as the client last knew it; None on its first attempt.
    claimed_epoch: int | None = None
    schema_version: bytes = b""
    metadata: dict[str, str] = field(default_factory=dict)
    # The role that was authorized to produce here.
    role: str = ""
    # The attempt of a hidden write: readers see this producer's entries once that attempt has won.
    attempt: str | None = None
    created_ms: int = 0
    is_closed: bool = False
    # Set before it is added to the topic's producers.
    topic: Publishable | None = None
    is_encrypted: bool = False
    # The client's request for this producer.
    asked: pb.CommandProducer | None = None
    # The last sequence id in its latest SEND, kept while deduplication is off; -1: nothing yet.
    last_pushed: int = -1
    # Where the topic has several entry buckets: the same by lane, and how many entries were in no single bucket.
    last_ids: LaneIds | None = None
    unstamped: int = 0
    messages_in: int = 0
    bytes_in: int = 0
    rates_in: tuple[float, float] = (0.0, 0.0)
    rates_from: tuple[int, int] = (0, 0)

    @property
    def is_exclusive(self) -> bool:
        return self.access_mode != pb.Shared

    def update_rates(self, seconds: float) -> None:
        messages, size = self.rates_from
        self.rates_in = ((self.messages_in - messages) / seconds, (self.bytes_in - size) / seconds)
        self.rates_from = (self.messages_in, self.bytes_in)

    def replaces(self, other: AttachedProducer) -> bool:
        """Whether this is the same client's producer, reconnecting over the same connection."""
        return self.link is other.link and self.id == other.id and self.epoch > other.epoch


# The largest epoch that the protocol can carry; no real count gets there.
EPOCH_MAX: Final = (1 << 63) - 1


class AdmissionVerdict(Enum):
    """The decision on a producer that asks to attach."""

    ADMIT = "admit"
    WAIT = "wait"
    FENCE_OTHERS = "fence others"
    BUSY = "busy"
    FENCED = "fenced"


class Admission:
    """Which producers may publish to a topic: many shared ones, or one exclusive one.

    `epoch` rises each time a producer becomes exclusive; a producer that reconnects with an older epoch has been
    replaced meanwhile and is fenced for good. A producer that claims an epoch this topic never gave belongs to a
    deleted topic of the same name, or is lying: it is judged like a new producer.
    """

    __slots__ = ("epoch", "holder", "waiting")

    def __init__(self, epoch: int | None = None) -> None:
        self.epoch = None if epoch is None else min(epoch, EPOCH_MAX)
        self.holder: AttachedProducer | None = None
        self.waiting: list[AttachedProducer] = []

    def judge(self, producer: AttachedProducer, others: Sequence[AttachedProducer]) -> AdmissionVerdict:
        """The decision on `producer`, given the producers attached now."""
        mode, claimed = producer.access_mode, producer.claimed_epoch
        is_taken = self.holder is not None or bool(self.waiting)
        if mode == pb.Shared:
            return AdmissionVerdict.BUSY if is_taken else AdmissionVerdict.ADMIT
        if claimed is not None and self.epoch is not None and claimed < self.epoch:
            return AdmissionVerdict.FENCED
        if mode == pb.ExclusiveWithFencing:
            return AdmissionVerdict.FENCE_OTHERS
        if is_taken or others:
            return AdmissionVerdict.WAIT if mode == pb.WaitForExclusive else AdmissionVerdict.FENCED
        return AdmissionVerdict.ADMIT

    def why_not(self, producer: AttachedProducer) -> str:
        """Why a producer was refused, phrased to follow the topic's name."""
        if (
            self.epoch is not None
            and producer.claimed_epoch is not None
            and producer.claimed_epoch < self.epoch
        ):
            return (
                f"has been taken over: its epoch has already moved to {self.epoch}, "
                f"the producer's is {producer.claimed_epoch}"
            )
        if self.holder is not None:
            return f"has an existing exclusive producer: {self.holder.name}"
        if self.waiting:
            return f"has a producer that waits to have it to itself: {self.waiting[0].name}"
        return "has existing shared producers"

    def hold(self, producer: AttachedProducer) -> int:
        """Makes `producer` exclusive from now on; returns the epoch, which is new unless this producer held it
        before."""
        self.holder = producer
        if self.epoch is None:
            self.epoch = 0
        elif producer.claimed_epoch != self.epoch:
            self.epoch = min(self.epoch + 1, EPOCH_MAX)
        return self.epoch

    def release(self, producer: AttachedProducer) -> None:
        if self.holder is producer:
            self.holder = None
        if producer in self.waiting:
            self.waiting.remove(producer)
