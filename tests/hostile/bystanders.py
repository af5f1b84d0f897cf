"""Clients that only want to work: they publish, read and write down what was acknowledged, in a process of their own.

Each topic has one publisher, which waits for each receipt and notes how long it took, and one consumer, which reads and
acknowledges all of it. Lines on the standard input steer them: `check` stops the publishers, waits until the consumers
have had all that was acknowledged and answers with a line of JSON; `go on` lets them publish again. What was
acknowledged is in a file for each topic, a line each, written at the receipt: it outlives the process and the broker.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from anabranch.errors import AnabranchError
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, build_message, encode_send, open_entry, unpack
from harness.peer import C
from hostile.link import Link, Refused

ROLE: Final = "bystander"
PACE_S: Final = 0.02
CATCH_UP_S: Final = 30.0
BATCH: Final = 5
RECEIVE_S: Final = 0.5


def payload(topic: str, number: int) -> bytes:
    """Of a size that varies up to some kilobytes, and unlike any other."""
    chance = random.Random(f"{topic}:{number}")
    return f"{number}:".encode() + chance.randbytes(chance.choice((10, 100, 1_000, 5_000)))


def digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


class Publisher:
    """Publishes alone to its topic: single messages, or batches where the topic's name says so."""

    def __init__(
        self, port: int, topic: str, history: Path, is_over: threading.Event, may_publish: threading.Event
    ):
        self.topic = topic
        self.latencies_s: list[float] = []
        self.last = -1  # The number of the last message that was acknowledged.
        self.trouble = ""
        self.is_pausing = False
        self._port = port
        self._history = history
        self._is_over = is_over
        self._may_publish = may_publish

    def run(self) -> None:
        try:
            with Link(self._port) as link, self._history.open("a", encoding="utf-8") as history:
                link.sign_in(ROLE)
                link.must(
                    link.produce_to(self.topic, producer_name="bystander", user_provided_producer_name=True)
                )
                number = 0
                while not self._is_over.is_set():
                    self.is_pausing = not self._may_publish.is_set()
                    if self.is_pausing:
                        self._may_publish.wait(0.05)
                        continue
                    number = self._publish(link, history, number)
                    time.sleep(PACE_S)  # The pace of a client, not a wait for something.
        except (OSError, Refused) as error:
            self.trouble = f"{type(error).__name__}: {error}"

    def _publish(self, link: Link, history: Any, number: int) -> int:
        count = BATCH if "batch" in self.topic else 1
        metadata = pb.MessageMetadata(
            producer_name="bystander", sequence_id=number, publish_time=time.time_ns() // 1_000_000
        )
        contents = [payload(self.topic, number + n) for n in range(count)]
        if count == 1:
            metadata.partition_key = f"key-{number % 7}"
            entry = build_message(metadata, contents[0])
        else:
            metadata.highest_sequence_id = number + count - 1
            entry = build_batch(metadata, [(pb.SingleMessageMetadata(), content) for content in contents])
        frame = encode_send(
            entry,
            producer_id=1,
            sequence_id=number,
            num_messages=count,
            highest_sequence_id=number + count - 1,
        )
        began = time.perf_counter()
        link.send_bytes(frame)
        while True:
            answer = link.receive(60)[0]
            if answer.type == C.PING:
                link.send(C(type=C.PONG, pong=pb.CommandPong()))
            elif answer.type == C.SEND_RECEIPT:
                break
            else:
                raise Refused(f"a publish to {self.topic} was answered with {answer}")
        self.latencies_s.append(time.perf_counter() - began)
        place = answer.send_receipt.message_id
        for content in contents:
            history.write(f"{number} {place.ledgerId} {place.entryId} {digest(content)}\n")
            number += 1
        history.flush()
        self.last = number - 1
        return number


class Reader:
    """Reads the topic from its beginning, in order, and acknowledges."""

    def __init__(self, port: int, topic: str, is_over: threading.Event) -> None:
        self.topic = topic
        self.next = 0  # The number that must come next.
        self.trouble = ""
        self._port = port
        self._is_over = is_over

    def run(self) -> None:
        try:
            with Link(self._port) as link:
                link.sign_in(ROLE)
                link.must(
                    link.subscribe_to(self.topic, "reading", initialPosition=pb.CommandSubscribe.Earliest)
                )
                link.flow(1_000)
                while not self._is_over.is_set():
                    self._receive(link)
        except (OSError, Refused, ValueError, AnabranchError) as error:
            self.trouble = f"{type(error).__name__}: {error}"

    def _receive(self, link: Link) -> None:
        try:
            command, entry = link.receive(RECEIVE_S)
        except TimeoutError:
            return
        if command.type == C.PING:
            link.send(C(type=C.PONG, pong=pb.CommandPong()))
            return
        if command.type != C.MESSAGE:
            raise Refused(f"the consumer of {self.topic} got {command}")
        contents = messages(entry)
        for content in contents:
            if content != payload(self.topic, self.next):
                raise ValueError(f"{self.topic}: message {self.next} was expected, {content[:20]!r} came")
            self.next += 1
        acked = C(type=C.ACK)
        acked.ack.consumer_id, acked.ack.ack_type = 1, pb.CommandAck.Individual
        acked.ack.message_id.add().CopyFrom(command.message.message_id)
        link.send(acked)
        link.flow(len(contents))


def messages(entry: bytes) -> list[bytes]:
    metadata, content = open_entry(entry)
    if not metadata.HasField("num_messages_in_batch"):
        return [bytes(content)]
    return [bytes(one) for _, one in unpack(metadata, content)]


class Crowd:
    def __init__(self, topics: list[tuple[int, str]], folder: Path) -> None:
        """Each topic with the port at which it is served."""
        self._is_over, self._may_publish = threading.Event(), threading.Event()
        self._may_publish.set()
        self.publishers = [
            Publisher(port, topic, folder / f"{n}.history", self._is_over, self._may_publish)
            for n, (port, topic) in enumerate(topics)
        ]
        self.readers = [Reader(port, topic, self._is_over) for port, topic in topics]
        self._everybody: list[Publisher | Reader] = [*self.readers, *self.publishers]
        self._threads = [threading.Thread(target=one.run, daemon=True) for one in self._everybody]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def check(self) -> dict[str, Any]:
        """Waits until readers have had all that was acknowledged, then says how things are."""
        self._may_publish.clear()
        end = time.monotonic() + CATCH_UP_S
        while time.monotonic() < end and not self._is_settled():
            time.sleep(0.02)  # A poll: threads of blocking sockets have no better word for it.
        found = self.report()
        return found

    def go_on(self) -> None:
        self._may_publish.set()

    def _is_settled(self) -> bool:
        pairs = zip(self.publishers, self.readers, strict=True)
        return all(
            one.trouble or other.trouble or (one.is_pausing and other.next > one.last) for one, other in pairs
        )

    def report(self) -> dict[str, Any]:
        latencies = sorted(second for one in self.publishers for second in one.latencies_s)
        unread = [
            f"{one.topic}: acknowledged up to {one.last}, read up to {other.next - 1}"
            for one, other in zip(self.publishers, self.readers, strict=True)
            if other.next <= one.last
        ]
        return {
            "published": sum(one.last + 1 for one in self.publishers),
            "latencies_ms": [round(second * 1000, 2) for second in latencies],
            "unread": unread,
            "trouble": [one.trouble for one in self._everybody if one.trouble],
        }

    def stop(self) -> None:
        self._is_over.set()
        self._may_publish.set()
        for thread in self._threads:
            thread.join(10)


def main() -> None:
    folder, *named = sys.argv[1:]
    topics = [(int(port), topic) for port, _, topic in (text.partition("=") for text in named)]
    crowd = Crowd(topics, Path(folder))
    crowd.start()
    for line in sys.stdin:
        match line.strip():
            case "check":
                print(json.dumps(crowd.check()), flush=True)
            case "report":
                print(json.dumps(crowd.report()), flush=True)
            case "go on":
                crowd.go_on()
            case "stop":
                break
    with contextlib.suppress(BrokenPipeError):
        crowd.stop()


if __name__ == "__main__":
    main()
