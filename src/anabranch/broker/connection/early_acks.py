"""Acknowledgements for a consumer that is still being created.

Java's client sends pending acknowledgements as soon as it is reconnected, before it has subscribed again, and only
once: without them a sealed segment would never drain.
"""

from __future__ import annotations

from typing import Final

from anabranch.wire import pulsar_pb2 as pb

# The limits for one consumer, and in bytes for all consumers of a connection.
EARLY_ACKS_MAX: Final = 1_000
EARLY_ACKS_BYTES_MAX: Final = 1 << 20


class EarlyAcks:
    """The early acknowledgements of one connection, by consumer."""

    __slots__ = ("_bytes", "_kept")

    def __init__(self) -> None:
        self._kept: dict[int, list[tuple[int, pb.CommandAck]]] = {}
        self._bytes = 0

    def keep(self, ack: pb.CommandAck) -> bool:
        """Keeps the acknowledgement. False if there is no room for it."""
        # The command may lack required fields, and then has no other size than this one.
        size = len(ack.SerializePartialToString())
        kept = self._kept.setdefault(ack.consumer_id, [])
        if len(kept) >= EARLY_ACKS_MAX or self._bytes + size > EARLY_ACKS_BYTES_MAX:
            return False
        kept.append((size, ack))
        self._bytes += size
        return True

    def take(self, consumer_id: int) -> list[pb.CommandAck]:
        """Removes and returns the acknowledgements that were kept for the consumer."""
        kept = self._kept.pop(consumer_id, [])
        self._bytes -= sum(size for size, _ in kept)
        return [ack for _, ack in kept]
