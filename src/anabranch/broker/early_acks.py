"""Acknowledgements that come for a consumer which is still being made.

Java's client sends what it held back as soon as it is connected again, before it is subscribed again, and never again:
a sealed segment would wait for it for ever.
"""

from __future__ import annotations

from typing import Final

from anabranch.wire import pulsar_pb2 as pb

# For one consumer, and in bytes for all consumers of a connection.
EARLY_ACKS_MAX: Final = 1_000
EARLY_ACKS_BYTES_MAX: Final = 1 << 20


class EarlyAcks:
    """Those of one connection, by consumer."""

    __slots__ = ("_bytes", "_kept")

    def __init__(self) -> None:
        self._kept: dict[int, list[tuple[int, pb.CommandAck]]] = {}
        self._bytes = 0

    def keep(self, ack: pb.CommandAck) -> bool:
        """False if there is no room for it."""
        # It may lack required fields, and then has no size but this one.
        size = len(ack.SerializePartialToString())
        kept = self._kept.setdefault(ack.consumer_id, [])
        if len(kept) >= EARLY_ACKS_MAX or self._bytes + size > EARLY_ACKS_BYTES_MAX:
            return False
        kept.append((size, ack))
        self._bytes += size
        return True

    def take(self, consumer_id: int) -> list[pb.CommandAck]:
        """What was kept for the consumer, which is not kept any longer."""
        kept = self._kept.pop(consumer_id, [])
        self._bytes -= sum(size for size, _ in kept)
        return [ack for _, ack in kept]
