"""Data plane. One consumer of a subscription: what it may still be sent, what it has not acknowledged, what it was
sent.

Permits count messages, as the protocol has it: an entry of N messages costs N, less those of its batch already
acknowledged. The last entry sent may take permits below zero, since entries are never cut.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from anabranch.broker.cursor import words_of_bits
from anabranch.broker.ports import ConsumerLink
from anabranch.broker.written_time import written_time
from anabranch.model.position import Position
from anabranch.storage.port import Buffer
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.encode import encode_message_header

if TYPE_CHECKING:
    from anabranch.broker.ports import Subscribed
    from anabranch.broker.session import Session

EXCLUSIVE: Final = pb.CommandSubscribe.Exclusive
SHARED: Final = pb.CommandSubscribe.Shared
FAILOVER: Final = pb.CommandSubscribe.Failover
KEY_SHARED: Final = pb.CommandSubscribe.Key_Shared

TYPE_NAMES: Final[dict[int, str]] = {
    EXCLUSIVE: "Exclusive",
    SHARED: "Shared",
    FAILOVER: "Failover",
    KEY_SHARED: "Key_Shared",
}

_PERMITS_MAX: Final = 2**31 - 1
# Entries smaller than this are copied into one piece. Two objects for each would take several times its bytes while
# they wait for a slow socket, and a quarter more of the broker's time when they need not wait.
_JOIN_BYTES: Final = 2048


class Consumer:
    """`link` is its connection; `subscription` is set when it is added to one."""

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
        # 0 is the highest; larger numbers wait until it has no room.
        self.priority = priority
        # Counts the client's own "send it all again": it drops messages that carry an older one.
        self.epoch = epoch
        self.partition = partition
        self.metadata = metadata or {}
        self.key_shared = key_shared
        self.address = address
        self.client_version = client_version
        self.connected_ms = connected_ms
        self.takes_any_schema = takes_any_schema
        self.subscription: Subscribed
        self.is_open = True
        # Set once the client has been told that it subscribed: nothing else may be sent before that.
        self.is_ready = False
        self.permits = 0
        # Messages sent and not acknowledged, and where they are: (messages, key hash) by position. Shared types only;
        # the other types go back to the cursor instead.
        self.unacked = 0
        self.unacked_max = 0
        self.pending: dict[Position, tuple[int, int]] = {}
        self.is_blocked = False
        # Set while the consumer stands in the dispatcher's round of consumers that may have room.
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
        cls, request: pb.CommandSubscribe, session: Session, partition: int, now_ms: int
    ) -> Consumer:
        """As a client asks for it."""
        return cls(
            request.consumer_id,
            request.consumer_name or secrets.token_hex(5),
            session,
            kind=request.subType,
            priority=request.priority_level,
            epoch=request.consumer_epoch if request.HasField("consumer_epoch") else None,
            partition=partition,
            metadata={item.key: item.value for item in request.metadata},
            key_shared=request.keySharedMeta if request.HasField("keySharedMeta") else None,
            address=session.address,
            client_version=session.client_version,
            connected_ms=now_ms,
            takes_any_schema=request.HasField("schema") and request.schema.type == pb.Schema.AutoConsume,
        )

    @property
    def unacked_messages(self) -> int:
        return self.unacked

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
        """Sends frames made by `header`. Permits and unacked counts are the dispatcher's business."""
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
        """Forgets an entry as sent: it is acknowledged, or will be sent again. (messages, key hash), or None."""
        found = self.pending.pop(at, None)
        if found is not None:
            self.lower_unacked(found[0])
        return found

    def lower_unacked(self, messages: int) -> None:
        self.unacked -= messages
        # Half the limit, so that a consumer at it does not stop and start with every acknowledgement.
        if self.is_blocked and self.unacked <= self.unacked_max // 2:
            self.is_blocked = False

    # -- figures

    def update_rates(self, seconds: float) -> None:
        """Called at a steady interval; rates are over that interval."""
        now = (self.messages_out, self.bytes_out, self.messages_redelivered, self.messages_acked)
        before = self.start_of_rates
        self.rates = (
            (now[0] - before[0]) / seconds,
            (now[1] - before[1]) / seconds,
            (now[2] - before[2]) / seconds,
            (now[3] - before[3]) / seconds,
        )
        self.start_of_rates = now

    def stats(self) -> dict[str, Any]:
        """Pulsar's ConsumerStats JSON."""
        messages, size, redelivered, acked = self.rates
        return {
            "msgRateOut": messages,
            "msgThroughputOut": size,
            "bytesOutCounter": self.bytes_out,
            "msgOutCounter": self.messages_out,
            "msgRateRedeliver": redelivered,
            "messageAckRate": acked,
            "chunkedMessageRate": 0.0,
            "consumerName": self.name,
            "availablePermits": self.permits,
            "unackedMessages": self.unacked,
            "avgMessagesPerEntry": round(self.messages_out / self.entries_out) if self.entries_out else 0,
            "blockedConsumerOnUnackedMsgs": self.is_blocked,
            "lastAckedTimestamp": self.last_acked_ms,
            "lastConsumedTimestamp": self.last_sent_ms,
            "lastConsumedFlowTimestamp": self.last_flow_ms,
            "firstMessagesSentTimestamp": self.first_sent_ms,
            "firstConsumedFlowTimestamp": self.first_flow_ms,
            "address": self.address,
            "lastAckedTime": written_time(self.last_acked_ms),
            "lastConsumedTime": written_time(self.last_sent_ms),
            "drainingHashesCount": 0,
            "drainingHashesClearedTotal": 0,
            "drainingHashesUnackedMessages": 0,
            "connectedSince": written_time(self.connected_ms),
            "clientVersion": self.client_version,
            "metadata": self.metadata,
        }

    def __repr__(self) -> str:
        return f"Consumer({self.id}, {self.name!r}, {TYPE_NAMES[self.kind]}, permits={self.permits})"
