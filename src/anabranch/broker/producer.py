"""A producer attached to a topic, and who may attach beside whom (access modes). Pure apart from its counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from anabranch.storage.port import Buffer
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from anabranch.broker.ports import Publishable


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

    def awaits_producer(self, producer: Producer) -> bool:
        """False once the client has closed a producer that was still being created, or asked for another instead."""

    def attach_producer(self, producer: Producer) -> None:
        """From now on the connection's SENDs with this producer's id are its publishes."""

    def producer_closed(self, producer: Producer) -> None:
        """The broker has closed this producer: the client is told and will come back if it wants."""

    async def is_alive(self) -> bool:
        """Asks the other side; False if it does not answer in time."""

    def owes(self, count: int) -> None:
        """So many of its publishes will be answered; while there are too many, the connection is not read."""

    def answered(self, count: int) -> None:
        """So many of them have been, or never will."""

    def hold(self, seconds: float) -> None:
        """Reads nothing from the connection for so long: its producers are too fast."""


@dataclass(eq=False, slots=True)
class Producer:
    id: int
    name: str
    link: ProducerLink
    # The client's count of its own reconnects: a higher one replaces a lower one on the same connection.
    epoch: int = 0
    is_name_given: bool = False
    access_mode: int = pb.Shared
    # The topic's epoch as the client last knew it; None on its first attempt.
    claimed_epoch: int | None = None
    schema_version: bytes = b""
    metadata: dict[str, str] = field(default_factory=dict)
    # Whose it is, and who has been allowed to produce here.
    role: str = ""
    # Of a hidden write: readers see what it publishes once that attempt has won.
    attempt: str | None = None
    created_ms: int = 0
    is_closed: bool = False
    topic: Publishable | None = None
    is_encrypted: bool = False
    # The request by which its client asked for it.
    asked: pb.CommandProducer | None = None
    # The last sequence id that it named in what it sent last, kept while nobody deduplicates; -1: nothing yet.
    last_pushed: int = -1
    messages_in: int = 0
    bytes_in: int = 0
    rates_in: tuple[float, float] = (0.0, 0.0)
    rates_from: tuple[int, int] = (0, 0)

    @property
    def wants_all(self) -> bool:
        return self.access_mode != pb.Shared

    def update_rates(self, seconds: float) -> None:
        messages, size = self.rates_from
        self.rates_in = ((self.messages_in - messages) / seconds, (self.bytes_in - size) / seconds)
        self.rates_from = (self.messages_in, self.bytes_in)

    def replaces(self, other: Producer) -> bool:
        """The same client's producer coming back on the same connection."""
        return self.link is other.link and self.id == other.id and self.epoch > other.epoch


# What the protocol can say, with room: nobody counts that far.
EPOCH_MAX: Final = (1 << 63) - 1


class Verdict(Enum):
    """What becomes of a producer that asks to attach."""

    ADMIT = "admit"
    WAIT = "wait"
    FENCE_OTHERS = "fence others"
    BUSY = "busy"
    FENCED = "fenced"


class Admission:
    """Who publishes to a topic: many shared producers, or one that has it to itself.

    `epoch` rises each time somebody gets the topic to itself; a producer that comes back with an older one has been
    replaced meanwhile and is fenced for good. One that claims an epoch this topic never gave had another topic of that
    name, deleted since, or is lying: it is judged as one that never was here.
    """

    __slots__ = ("epoch", "holder", "waiting")

    def __init__(self, epoch: int | None = None) -> None:
        self.epoch = None if epoch is None else min(epoch, EPOCH_MAX)
        self.holder: Producer | None = None
        self.waiting: list[Producer] = []

    def judge(self, producer: Producer, others: Sequence[Producer]) -> Verdict:
        """What becomes of `producer`, given the producers attached now."""
        mode, claimed = producer.access_mode, producer.claimed_epoch
        is_taken = self.holder is not None or bool(self.waiting)
        if mode == pb.Shared:
            return Verdict.BUSY if is_taken else Verdict.ADMIT
        if claimed is not None and self.epoch is not None and claimed < self.epoch:
            return Verdict.FENCED
        if mode == pb.ExclusiveWithFencing:
            return Verdict.FENCE_OTHERS
        if is_taken or others:
            return Verdict.WAIT if mode == pb.WaitForExclusive else Verdict.FENCED
        return Verdict.ADMIT

    def why_not(self, producer: Producer) -> str:
        """What stands in the way of a producer that was refused, as it goes on behind the topic's name."""
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

    def hold(self, producer: Producer) -> int:
        """`producer` has the topic to itself from now on; returns the epoch, which is new unless it held it before."""
        self.holder = producer
        if self.epoch is None:
            self.epoch = 0
        elif producer.claimed_epoch != self.epoch:
            self.epoch = min(self.epoch + 1, EPOCH_MAX)
        return self.epoch

    def release(self, producer: Producer) -> None:
        if self.holder is producer:
            self.holder = None
        if producer in self.waiting:
            self.waiting.remove(producer)
