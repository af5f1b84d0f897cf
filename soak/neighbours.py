"""How neighbours affect one topic: a million-entry backlog, a thousand idle topics, and peers that misbehave.

A probe publishes one message at a time to its own topic and waits until it has come back through its own consumer. Its
round trip is measured alone, then beside each neighbour, then alone again; the ratio is what the neighbour costs.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_entry, encode_send
from soak.broker import BrokerProcess
from soak.link import Kind, Link, send_frame

PROBE = "persistent://public/default/probe"
BACKLOG = "persistent://public/default/backlog"
WARM_UP = 200
TRIES = 3
ENTRIES_PER_WRITE = 500
UNANSWERED_MAX = 5_000
SILENT = 1_000
DEAF = 50


@dataclass(frozen=True, slots=True)
class Reading:
    name: str
    p50_ms: float
    p99_ms: float
    memory_mb: float


class Probe:
    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._out = Link(broker.port)
        self._out.producer(PROBE)
        self._in = Link(broker.port)
        self._in.subscribe(PROBE, "probe", permits=1_000_000_000)
        self._sequence = 0

    def once(self) -> float:
        """Seconds from sending a message until its receipt and the message itself have come."""
        began = time.perf_counter()
        self._out.sock.sendall(send_frame([b"." * 1000], self._sequence))
        self._sequence += 1
        message = self._in.wait(lambda got: got.type == Kind.MESSAGE).command.message.message_id
        self._out.wait_receipt()
        took = time.perf_counter() - began
        self._in.ack([pb.MessageIdData(ledgerId=message.ledgerId, entryId=message.entryId)], wait=False)
        self._in.frames.clear()
        return took

    def measure(self, name: str, count: int) -> Reading:
        """The least disturbed of several tries: other work on the machine only makes them slower."""
        for _ in range(WARM_UP):
            self.once()
        tries = [sorted(self.once() for _ in range(count)) for _ in range(TRIES)]
        p50 = min(taken[count // 2] for taken in tries)
        p99 = min(taken[count * 99 // 100] for taken in tries)
        return Reading(name, p50 * 1000, p99 * 1000, self._broker.rss_bytes() / 1e6)

    def close(self) -> None:
        self._out.close()
        self._in.close()


def run(folder: Path, entries: int, topics: int, probes: int) -> list[Reading]:
    folder.mkdir(parents=True, exist_ok=True)
    broker = BrokerProcess(folder / "data")
    readings: list[Reading] = []
    try:
        broker.start()
        probe = Probe(broker)

        def measure(name: str) -> None:
            readings.append(probe.measure(name, probes))
            print(row(readings[-1], readings[0]), flush=True)

        measure("alone")
        with Link(broker.port) as link:
            link.subscribe(BACKLOG, "slow")
        grow_backlog(broker.port, entries)
        measure(f"beside a backlog of {entries:,} entries")
        with open_idle_topics(broker.port, topics):
            measure(f"and {topics:,} idle topics with a producer and a consumer each")
            with hostile_peers(broker.port):
                measure(
                    f"and {SILENT:,} silent connections, {DEAF} consumers that never read, one deaf producer"
                )
        with draining(broker.port):
            measure("and a consumer draining the backlog at full speed")
        measure("alone again (the backlog stays)")
        probe.close()
        return readings
    finally:
        if broker.is_running:
            broker.kill()


def grow_backlog(port: int, entries: int) -> None:
    """Entries of one small message each, published as fast as they are confirmed."""
    with Link(port) as link:
        link.producer(BACKLOG)
        metadata = pb.MessageMetadata(
            producer_name="raw", sequence_id=0, publish_time=int(time.time() * 1000)
        )
        entry = build_entry(metadata, b"." * 100)
        unanswered = sent = 0
        while sent < entries or unanswered:
            if sent < entries and unanswered < UNANSWERED_MAX:
                frames = [
                    encode_send(entry, producer_id=1, sequence_id=sent + n) for n in range(ENTRIES_PER_WRITE)
                ]
                link.sock.sendall(b"".join(frames))
                sent += ENTRIES_PER_WRITE
                unanswered += ENTRIES_PER_WRITE
                continue
            frame = link.receive()
            assert frame is not None
            if frame.command.type != Kind.SEND_RECEIPT:
                raise RuntimeError(f"publishing stopped: {frame.command}")
            unanswered -= 1


@contextlib.contextmanager
def open_idle_topics(port: int, count: int) -> Iterator[None]:
    with Link(port) as link:
        for number in range(count):
            topic = f"persistent://public/default/idle-{number}"
            link.producer(topic, number)
            link.subscribe(topic, "s", number, permits=1000)
            link.sock.sendall(send_frame([b"once"], 0, number))
            link.wait_receipt()
        yield


@contextlib.contextmanager
def hostile_peers(port: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for _ in range(SILENT):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        for number in range(DEAF):
            deaf = stack.enter_context(Link(port, receive_bytes=4096))
            deaf.subscribe(BACKLOG, f"deaf-{number}", permits=1_000_000_000)
        stack.enter_context(beside(lambda ending: _send_and_never_read(port, ending)))
        stack.enter_context(beside(lambda ending: _send_garbage(port, ending)))
        yield


@contextlib.contextmanager
def draining(port: int) -> Iterator[None]:
    """A consumer on the backlog that reads it again and again from the beginning."""
    with beside(lambda ending: _drain(port, ending)):
        yield


@contextlib.contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    ending = threading.Event()
    thread = threading.Thread(target=work, args=(ending,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join(30)


def _send_and_never_read(port: int, ending: threading.Event) -> None:
    burst = b"".join(send_frame([b"x"], n) for n in range(200))
    while not ending.is_set():
        with contextlib.suppress(OSError), Link(port, receive_bytes=4096, timeout=5) as link:
            link.producer("persistent://public/default/deaf")
            while not ending.is_set():
                link.sock.sendall(burst)
                # Fast enough to be a nuisance, slow enough to leave the machine to the broker.
                ending.wait(0.02)


def _send_garbage(port: int, ending: threading.Event) -> None:
    while not ending.wait(0.01):
        with contextlib.suppress(OSError), Link(port, greet=False) as link:
            link.sock.sendall(b"\xff\x00GET / HTTP/1.1\r\n" * 10)


def _drain(port: int, ending: threading.Event) -> None:
    number = 0
    while not ending.is_set():
        number += 1
        with contextlib.suppress(OSError), Link(port) as link:
            link.subscribe(BACKLOG, f"drain-{number}", permits=1_000_000_000)
            while not ending.is_set() and link.sock.recv(1 << 20):
                pass


HEADER = f"{'p50':>9} {'p99':>9} {'ratio p50':>10} {'p99':>6} {'memory':>9}"


def row(reading: Reading, base: Reading) -> str:
    return (
        f"{reading.p50_ms:6.2f} ms {reading.p99_ms:6.2f} ms {reading.p50_ms / base.p50_ms:9.2f}x "
        f"{reading.p99_ms / base.p99_ms:5.2f}x {reading.memory_mb:6.0f} MB  {reading.name}"
    )
