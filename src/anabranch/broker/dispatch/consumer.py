"""Data plane. One consumer of a subscription: what it may still be sent, what it has not acknowledged, what it was
sent.

Permits count messages, as the protocol defines: an entry of N messages costs N, less those of its batch already
acknowledged. The last entry sent may take permits below zero, since entries are never split.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from anabranch.broker.config.listeners import Addresses
from anabranch.broker.ports import Done, LogReader
from anabranch.broker.state.cursor import words_of_bits
from anabranch.model.position import Position
from anabranch.storage.port import Buffer
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.encode import encode_message_header
from anabranch.wire.subscription_types import EXCLUSIVE, TYPE_NAMES

_PERMITS_MAX: Final = 2**31 - 1
# Smaller entries are copied into one piece. Two objects for each would take several times its bytes while they wait for
# a slow socket, and a quarter more of the broker's time when they need not wait.
_JOIN_BYTES: Final = 2048


class ConsumerLink(Protocol):
    """A consumer's connection."""

    @property
    def address(self) -> str: ...

    @property
    def client_version(self) -> str: ...

    @property
    def is_writable(self) -> bool:
        """False while the socket's buffer is over its limit. `Subscription.link_writable` is called when it drains."""

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Queues bytes (whole frames, in pieces) for the socket, without copying large pieces."""

    def send(self, command: pb.BaseCommand) -> None:
        """Queues one simple command."""

    def work_begun(self) -> None:
        """A request of the client takes several turns of the event loop: the connection is not read meanwhile."""

    def work_ended(self) -> None: ...

    async def is_alive(self) -> bool:
        """Asks the client; False if it does not answer in time."""

    def consumer_closed(self, consumer: AttachedConsumer, moved_to: Addresses | None = None) -> None:
        """Notifies the client that the broker has closed this consumer; the client reconnects if it wants. `moved_to`:
        the broker that serves the topic now, if known."""


class SubscriptionPort(Protocol):
    """A subscription as its consumers' connections see it; of a persistent topic or of a non-persistent one."""

    name: str
    topic: str

    @property
    def type_name(self) -> str: ...

    @property
    def topic_log(self) -> LogReader:
        """Raises NotAllowedError for a non-persistent topic."""

    @property
    def mark_delete(self) -> Position: ...

    def backlog_messages(self) -> int: ...

    def consumer_ready(self, consumer: AttachedConsumer) -> None: ...

    def remove_consumer(self, consumer: AttachedConsumer) -> None: ...

    async def unsubscribe(self, consumer: AttachedConsumer, *, force: bool = False) -> None: ...

    def flow(self, consumer: AttachedConsumer, permits: int) -> None: ...

    def link_writable(self, link: ConsumerLink) -> None: ...

    def ack(self, consumer: AttachedConsumer, command: pb.CommandAck, done: Done | None = None) -> None: ...

    def when_stored(self, done: Done) -> None: ...

    def redeliver(
        self, consumer: AttachedConsumer, positions: Iterable[Position] | None, epoch: int | None = None
    ) -> None: ...

    async def seek(self, at: Position, ack_set: Sequence[int] = ()) -> None: ...

    async def seek_to_time(self, publish_time_ms: int) -> None: ...


class AttachedConsumer:
    """`link` is its connection; `subscription` is set when the consumer is added to one."""

    __slots__ = (
        "address",
        "bytes_out",
        "client_version",
        "connected_ms",
        "entries_out",
        "epoch",
        "first_flow_ms",
        "first_sent_ms",
        "has_reached_end",
        "id",
        "is_blocked",
        "is_open",
        "is_queued",
        "is_ready",
        "key_shared",
        "kind",
        "last_acked_ms",
        "last_flow_ms",
        "last_sent_ms",
        "link",
        "messages_acked",
        "messages_out",
        "messages_redelivered",
        "metadata",
        "name",
        "partition",
        "pending",
        "permits",
        "priority",
        "rates",
        "start_of_rates",
        "subscription",
        "takes_any_schema",
        "unacked",
        "unacked_max",
    )

    def __init__(
        self,
        id: int,
        name: str,
        link: ConsumerLink,
        *,
        kind: int = EXCLUSIVE,
        priority: int = 0,
        epoch: int | None = None,
        partition: int = -1,
        metadata: dict[str, str] | None = None,
        key_shared: pb.KeySharedMeta | None = None,
        address: str = "",
        client_version: str = "",
        connected_ms: int = 0,
        takes_any_schema: bool = False,
    ) -> None:
        self.id = id
        self.name = name
        self.link = link
        self.kind = kind
        # 0 is the highest; consumers with larger numbers wait until those have no room.
        self.priority = priority
        # A count of the client's requests to resend everything: it drops messages that carry an older one.
        self.epoch = epoch
        self.partition = partition
        self.metadata = metadata or {}
        self.key_shared = key_shared
        self.address = address
        self.client_version = client_version
        self.connected_ms = connected_ms
        self.takes_any_schema = takes_any_schema
        self.subscription: SubscriptionPort
        self.is_open = True
        # Set once the client has its answer that it subscribed: nothing else may be sent before that.
        self.is_ready = False
        self.permits = 0
        # Messages sent and not acknowledged, and where they are: (messages, key hash) by position. Shared types only;
        # the other types go back to the cursor instead.
        self.unacked = 0
        self.unacked_max = 0
        self.pending: dict[Position, tuple[int, int]] = {}
        self.is_blocked = False
        # Set while the consumer is in the dispatcher's round of consumers that may have room.
        self.is_queued = False
        self.has_reached_end = False
        self.messages_out = 0
        self.bytes_out = 0
        self.entries_out = 0
        self.messages_acked = 0
        self.messages_redelivered = 0
        self.first_flow_ms = 0
        self.last_flow_ms = 0
        self.first_sent_ms = 0
        self.last_sent_ms = 0
        self.last_acked_ms = 0
        self.start_of_rates: tuple[int, int, int, int] = (0, 0, 0, 0)
        self.rates: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    @classmethod
    def asked_for(
        cls, request: pb.CommandSubscribe, link: ConsumerLink, partition: int, now_ms: int
    ) -> AttachedConsumer:
        """A consumer as the client's request describes it."""
        return cls(
            request.consumer_id,
            request.consumer_name or secrets.token_hex(5),
            link,
            kind=request.subType,
            priority=request.priority_level,
            epoch=request.consumer_epoch if request.HasField("consumer_epoch") else None,
            partition=partition,
            metadata={item.key: item.value for item in request.metadata},
            key_shared=request.keySharedMeta if request.HasField("keySharedMeta") else None,
            address=link.address,
            client_version=link.client_version,
            connected_ms=now_ms,
            takes_any_schema=request.HasField("schema") and request.schema.type == pb.Schema.AutoConsume,
        )

    # -- room

    @property
    def has_room(self) -> bool:
        """Whether another entry may be sent now."""
        return self.permits > 0 and not self.is_blocked and self.link.is_writable

    def flow(self, permits: int, now_ms: int) -> None:
        if not self.first_flow_ms:
            self.first_flow_ms = now_ms
        self.last_flow_ms = now_ms
        self.permits = min(self.permits + permits, _PERMITS_MAX)

    # -- sending

    def header(self, at: Position, size: int, redeliveries: int, unacked: int | None) -> bytes:
        """A MESSAGE frame up to the entry's bytes."""
        words = words_of_bits(unacked) if unacked else None
        return encode_message_header(
            self.id, at[0], at[1], redeliveries, self.partition, words, self.epoch, size
        )

    def write(self, pieces: Sequence[Buffer], entries: int, messages: int, size: int, now_ms: int) -> None:
        """Sends frames made by `header`. The dispatcher maintains permits and unacked counts."""
        if not self.first_sent_ms:
            self.first_sent_ms = now_ms
        self.last_sent_ms = now_ms
        self.entries_out += entries
        self.messages_out += messages
        self.bytes_out += size
        if size < _JOIN_BYTES * entries:
            pieces = (b"".join(pieces),)
        self.link.write(pieces)

    def send_active_change(self, is_active: bool) -> None:
        command = pb.BaseCommand(type=pb.BaseCommand.ACTIVE_CONSUMER_CHANGE)
        command.active_consumer_change.consumer_id = self.id
        command.active_consumer_change.is_active = is_active
        self.link.send(command)

    def send_reached_end(self) -> None:
        if self.has_reached_end:
            return
        self.has_reached_end = True
        command = pb.BaseCommand(type=pb.BaseCommand.REACHED_END_OF_TOPIC)
        command.reachedEndOfTopic.consumer_id = self.id
        self.link.send(command)

    # -- unacknowledged messages

    def take(self, at: Position, messages: int, key_hash: int) -> None:
        """Notes an entry as sent."""
        self.permits -= messages
        self.pending[at] = (messages, key_hash)
        self.unacked += messages
        if self.unacked_max and self.unacked >= self.unacked_max:
            self.is_blocked = True

    def limit_unacked(self, most: int) -> None:
        self.unacked_max = most
        self.is_blocked = bool(most) and self.unacked >= most

    def give_back(self, at: Position) -> tuple[int, int] | None:
        """Forgets a sent entry: it is acknowledged, or will be sent again. Returns (messages, key hash), or None."""
        found = self.pending.pop(at, None)
        if found is not None:
            self.lower_unacked(found[0])
        return found

    def lower_unacked(self, messages: int) -> None:
        self.unacked -= messages
        # Half the limit, so that a consumer at the limit does not stop and start with every acknowledgement.
        if self.is_blocked and self.unacked <= self.unacked_max // 2:
            self.is_blocked = False

    # -- figures

    def update_rates(self, seconds: float) -> None:
        """Updates the rates over the given interval. Called at a steady interval."""
        now = (self.messages_out, self.bytes_out, self.messages_redelivered, self.messages_acked)
        before = self.start_of_rates
        self.rates = (
            (now[0] - before[0]) / seconds,
            (now[1] - before[1]) / seconds,
            (now[2] - before[2]) / seconds,
            (now[3] - before[3]) / seconds,
        )
        self.start_of_rates = now

    def __repr__(self) -> str:
        return f"Consumer({self.id}, {self.name!r}, {TYPE_NAMES[self.kind]}, permits={self.permits})"
