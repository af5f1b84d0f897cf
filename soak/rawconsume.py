"""A consumer on a plain socket for the kill test: it sees each connection begin and each ack answered.

Pulsar's Python client does not wait for the answers to its acks. Only after the answer is it certain that a message
must not come back; and only a client that sees where a connection begins can check that it began at the right position.
"""

from __future__ import annotations

import random
import threading
import time

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import messages, open_entry
from anabranch.wire.entry import is_batch
from soak.history import Place, Writer
from soak.link import Kind, Link, Refused, owner_port
from soak.workload import SubscriptionPlan, read_payload

PERMITS = 1000
RECEIVE_SECONDS = 0.2
CUMULATIVE_EVERY = 20
WITHHELD_PERCENT = 5


class RawConsuming(threading.Thread):
    def __init__(
        self,
        port: int,
        plan: SubscriptionPlan,
        number: int,
        history: Writer,
        seed: int,
        stop: threading.Event,
        drain: threading.Event,
    ) -> None:
        super().__init__(name=f"{plan.name}-{number}", daemon=True)
        self.is_subscribed = threading.Event()
        self._port = port
        self._plan = plan
        self._history = history
        self._random = random.Random(f"{seed} {plan.topic.name} {plan.name} {number}")
        self._ending = stop
        self._drain = drain
        # Unanswered acks, by request: what to note once they are answered.
        self._asked: dict[int, tuple[str, list[Place]]] = {}
        self._used = 0
        self._entries = 0
        self._last: pb.MessageIdData | None = None

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                with Link(owner_port(self._port, self._plan.topic.url, timeout=10), timeout=10) as link:
                    self._session(link)
            except (OSError, Refused):
                # The broker is down, or not ready for us yet.
                time.sleep(0.05)

    def _session(self, link: Link) -> None:
        kind = pb.CommandSubscribe.Shared if self._plan.kind == "shared" else pb.CommandSubscribe.Exclusive
        link.subscribe(self._plan.topic.url, self._plan.name, kind=kind)
        self._history.note("o", self.name)
        self._asked.clear()
        self._used = 0
        self._last = None
        self.is_subscribed.set()
        link.flow(PERMITS)
        while not self._ending.is_set():
            frame = link.receive(RECEIVE_SECONDS)
            if frame is None:
                if self._drain.is_set() and self._last is not None:
                    self._ack_cumulative(link)
                continue
            kind_of = frame.command.type
            if kind_of == Kind.MESSAGE:
                self._message(link, frame.command.message, frame.payload)
            elif kind_of == Kind.ACK_RESPONSE:
                self._answered(frame.command.ackResponse)
            elif kind_of in (Kind.CLOSE_CONSUMER, Kind.ERROR):
                raise ConnectionResetError("the broker closed the consumer")

    def _message(self, link: Link, message: pb.CommandMessage, entry: bytes) -> None:
        found = messages(entry)
        at = message.message_id
        in_batch = message.ack_set or len(found) > 1 or is_batch(open_entry(entry)[0])
        waiting = [n for n in range(len(found)) if not message.ack_set or _bit(message.ack_set, n)]
        for number in waiting:
            producer, index, key = read_payload(bytes(found[number][1]))
            batch = number if in_batch else -1
            self._history.note(
                "m", self.name, producer, index, key or "-", -1, at.ledgerId, at.entryId, batch
            )
        self._used += len(found)
        if self._used >= PERMITS // 2:
            link.flow(self._used)
            self._used = 0
        self._acknowledge(link, at, len(found), waiting, bool(in_batch))

    def _acknowledge(
        self, link: Link, at: pb.MessageIdData, count: int, waiting: list[int], in_batch: bool
    ) -> None:
        draining = self._drain.is_set()
        if self._plan.acks == "cumulative":
            self._last = at
            self._entries += 1
            if self._entries % CUMULATIVE_EVERY == 0:
                self._ack_cumulative(link)
        elif not draining and self._random.uniform(0, 100) < WITHHELD_PERCENT:
            return
        elif self._plan.acks == "index" and in_batch and not draining:
            chosen = [number for number in waiting if self._random.random() < 0.5]
            if chosen:
                self._ack_indexes(link, at, count, waiting, chosen)
        else:
            place = Place(-1, at.ledgerId, at.entryId, -1)
            self._history.note("a", self.name, *place)
            self._asked[link.ack([_id(at)], wait=False)] = ("A", [place])

    def _ack_cumulative(self, link: Link) -> None:
        assert self._last is not None
        at, self._last = self._last, None
        place = Place(-1, at.ledgerId, at.entryId, -1)
        self._history.note("c", self.name, *place)
        self._asked[link.ack([_id(at)], cumulative=True, wait=False)] = ("C", [place])

    def _ack_indexes(
        self, link: Link, at: pb.MessageIdData, count: int, waiting: list[int], chosen: list[int]
    ) -> None:
        """Some messages of a batch. On the wire a set bit means: this one is still to be acknowledged."""
        left = 0
        for number in range(count):
            if number not in chosen:
                left |= 1 << number
        words = [(left >> shift) & ((1 << 64) - 1) for shift in range(0, count, 64)]
        identity = _id(at)
        identity.ack_set.extend(word - (1 << 64) if word >> 63 else word for word in words)
        identity.batch_size = count
        places = [Place(-1, at.ledgerId, at.entryId, number) for number in chosen]
        for place in places:
            self._history.note("a", self.name, *place)
        self._asked[link.ack([identity], wait=False)] = ("A", places)

    def _answered(self, response: pb.CommandAckResponse) -> None:
        asked = self._asked.pop(response.request_id, None)
        if asked is not None and not response.HasField("error"):
            for place in asked[1]:
                self._history.note(asked[0], self.name, *place)


def _id(at: pb.MessageIdData) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=at.ledgerId, entryId=at.entryId)


def _bit(words: object, number: int) -> bool:
    word = list(words)[number // 64]  # type: ignore[call-overload]
    return bool((word >> (number % 64)) & 1)
