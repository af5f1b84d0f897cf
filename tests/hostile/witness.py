"""A well-behaved client of an attacked topic: whatever the attacker did, its messages reach its consumers."""

from __future__ import annotations

import contextlib
import time
from typing import Final

from anabranch.errors import AnabranchError
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import parse_metadata
from harness.peer import C
from hostile.link import Link, Refused
from hostile.states import BOTH

PERMITS: Final = 1_000
AGAIN_S: Final = 0.5
NAME: Final = "peer"  # As the metadata of its messages says.
_SHARED, _COMPACTED, _IDLE = 1, 2, 3


class Starved(Exception):
    """What was published did not arrive, or did not reach a consumer that had asked for it."""


class Witness:
    def __init__(
        self, port: int, topic: str, *, reads_compacted: bool, stays: bool, patience_s: float = 15.0
    ) -> None:
        """`stays`: it keeps its producer. Otherwise it makes one for each check, and has the topic for itself then."""
        self.topic = topic
        self._patience_s = patience_s
        self._stays = stays
        self._is_persistent = not topic.startswith("non-persistent")
        # Sequence ids grow from one life to the next: deduplication would drop others.
        self._sent = time.time_ns() // 1_000_000
        self._link = Link(port)
        try:
            self._link.sign_in(BOTH)
            self._consumers = [_SHARED, *([_COMPACTED] if reads_compacted else [])]
            self._subscribe(_SHARED, "witness", subType=pb.CommandSubscribe.Shared)
            if reads_compacted:
                self._subscribe(_COMPACTED, "witness-compacted", read_compacted=True)
            if topic.startswith("segment"):
                # It reads nothing, so nothing is trimmed before the broker has looked at the keys of segments.
                self._subscribe(_IDLE, "witness-idle", permits=0)
            if stays:
                self._produce()
        except BaseException:
            self._link.__exit__(None, None, None)
            raise

    def _subscribe(self, number: int, name: str, permits: int = PERMITS, **values: object) -> None:
        earliest = pb.CommandSubscribe.Earliest
        answer = self._link.subscribe_to(self.topic, name, number, initialPosition=earliest, **values)  # type: ignore[arg-type]
        self._link.must(answer)
        if permits:
            self._link.flow(permits, number)

    def _produce(self) -> None:
        """Where somebody else has the topic for itself, its connection is being closed."""
        end = time.monotonic() + self._patience_s
        mode = pb.Shared if self._stays else pb.Exclusive
        while True:
            try:
                answer = self._link.produce_to(
                    self.topic,
                    producer_name=NAME,
                    user_provided_producer_name=True,
                    producer_access_mode=mode,
                )
                self._link.must(answer)
                return
            except Refused as error:
                if time.monotonic() > end:
                    raise Starved(f"no producer can be made: {error}") from error

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._link.socket.close()

    def check(self, *, reads: bool = True) -> None:
        """Starved if a message published now does not get through."""
        try:
            if not self._stays:
                self._produce()
            self._check(reads)
            if not self._stays:
                self._link.must(self._link.ask(C.CLOSE_PRODUCER, "close_producer", producer_id=1))
        except OSError as error:
            raise Starved(f"{type(error).__name__}: {error}") from error

    def leave_one(self) -> None:
        """Publishes a message that this witness does not acknowledge before its next check: it stays until then."""
        if self._stays:
            try:
                self._publish()
                self._link.wait_for(self._is_receipt, self._patience_s)
            except OSError as error:
                raise Starved(f"{type(error).__name__}: {error}") from error

    def _publish(self) -> bytes:
        self._sent += 1
        content = f"witness {self._sent}".encode()
        self._link.send_message(content, sequence_id=self._sent)
        return content

    def _is_receipt(self, command: pb.BaseCommand) -> bool:
        return command.type == C.SEND_RECEIPT and command.send_receipt.sequence_id == self._sent

    def _check(self, reads: bool) -> None:
        end = time.monotonic() + self._patience_s
        content = self._publish()
        is_stored, waits_for = False, set(self._consumers if reads else ())
        while not is_stored or waits_for:
            left = end - time.monotonic()
            if not self._is_persistent and is_stored and left > 0:
                # Such a topic may drop messages, though not all of them.
                left = min(left, AGAIN_S)
            if left <= 0:
                names = ["the receipt"] * (not is_stored) + [f"consumer {one}" for one in sorted(waits_for)]
                raise Starved(f"nothing came within {self._patience_s:.0f} s for {', '.join(names)}")
            try:
                command, entry = self._link.receive(left)
            except TimeoutError:
                if not self._is_persistent:
                    content = self._publish()
                continue
            if command.type == C.PING:
                self._link.send(C(type=C.PONG, pong=pb.CommandPong()))
            elif self._is_receipt(command):
                is_stored = True
            elif command.type == C.MESSAGE:
                self._received(command.message, entry)
                if entry.endswith(content):
                    waits_for.discard(command.message.consumer_id)
            elif command.type == C.CLOSE_PRODUCER:
                # Whoever may produce may ask to be the only one, and is so while its connection lasts.
                self._produce()
                content, is_stored = self._publish(), False
            elif command.type in (C.CLOSE_CONSUMER, C.SEND_ERROR, C.ERROR):
                raise Starved(f"the broker says {str(command).strip()[:300]}")

    def _received(self, message: pb.CommandMessage, entry: bytes) -> None:
        """Acknowledged, and asked for again as many as it was: as the metadata says, which is all that clients see."""
        count = 1
        with contextlib.suppress(AnabranchError):
            metadata = parse_metadata(memoryview(entry))
            if metadata.HasField("num_messages_in_batch"):
                count = min(max(1, metadata.num_messages_in_batch), 1 << 20)
        if self._is_persistent:
            ack = C(type=C.ACK)
            ack.ack.consumer_id, ack.ack.ack_type = message.consumer_id, pb.CommandAck.Individual
            place = ack.ack.message_id.add()
            place.ledgerId, place.entryId = message.message_id.ledgerId, message.message_id.entryId
            self._link.send(ack)
        self._link.flow(count, message.consumer_id)
