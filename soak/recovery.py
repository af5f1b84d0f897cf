"""How long a broker takes to serve again after kill -9, against how much log there is and how much was unfinished.

A checkpoint lies at the end of every log file, so recovery reads at most the file that was being written. Each case
fills a log, kills the broker, starts it again and measures from the start of the process to the first confirmed
publish and to the first message read from the log's end.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, encode_send
from soak.broker import BrokerProcess
from soak.link import Kind, Link, Refused

GB = 1_000_000_000
MB = 1_000_000
TOPICS = 8
ENTRY_BYTES = 128 * 1024
MESSAGES_PER_ENTRY = 64
UNANSWERED_MAX = 400
NAMESPACE = "public/kept"
# How much of the disk's free bytes a run leaves unused.
SPARE_BYTES = 4 * GB
SERVE_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True)
class Case:
    log_bytes: int
    # How far the file being written is filled when the broker is killed.
    since_checkpoint: int


@dataclass(frozen=True, slots=True)
class Outcome:
    case: Case
    disk_bytes: int
    files: int
    publish_seconds: float
    read_seconds: float
    ready_seconds: float
    # CPU time of the process at the first publish: the wall clock also includes other work on the machine.
    cpu_seconds: float
    memory_bytes: int


def topics() -> list[str]:
    return [f"persistent://{NAMESPACE}/topic-{n}" for n in range(TOPICS)]


class Filler:
    """Publishes large batches to several topics as fast as the broker confirms them."""

    def __init__(self, port: int) -> None:
        self.link = Link(port)
        self.sent = 0
        self._sequence = 0
        self._unanswered = 0
        single = pb.SingleMessageMetadata()
        payload = os.urandom(ENTRY_BYTES // MESSAGES_PER_ENTRY - 8)
        metadata = pb.MessageMetadata(
            producer_name="filler", sequence_id=0, publish_time=int(time.time() * 1000)
        )
        self._entry = build_batch(metadata, [(single, payload) for _ in range(MESSAGES_PER_ENTRY)])
        for number, topic in enumerate(topics()):
            self.link.producer(topic, number, f"filler-{number}")

    def fill(self, count: int) -> None:
        """Returns once at least `count` more bytes are confirmed."""
        end = self.sent + count
        while self.sent < end:
            self._send()
            while self._unanswered >= UNANSWERED_MAX:
                self._take_receipts()
        while self._unanswered:
            self._take_receipts()

    def _send(self) -> None:
        frame = encode_send(
            self._entry,
            producer_id=self._sequence % TOPICS,
            sequence_id=self._sequence,
            num_messages=MESSAGES_PER_ENTRY,
        )
        self._sequence += 1
        self.link.sock.sendall(frame)
        self.sent += len(self._entry)
        self._unanswered += 1

    def _take_receipts(self) -> None:
        frame = self.link.receive()
        assert frame is not None
        if frame.command.type == Kind.SEND_RECEIPT:
            self._unanswered -= 1
        elif frame.command.type in (Kind.SEND_ERROR, Kind.CLOSE_PRODUCER, Kind.ERROR):
            raise RuntimeError(f"publishing stopped: {frame.command}")


def run(cases: list[Case], folder: Path, file_bytes: int) -> list[Outcome]:
    """One log that grows from case to case; nothing is ever consumed, so all of it stays."""
    folder.mkdir(parents=True, exist_ok=True)
    needed = max(case.log_bytes for case in cases) * 1.05 + SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SystemExit(f"soak: {needed / GB:.0f} GB are needed in {folder}, {free / GB:.0f} GB are free")
    broker = BrokerProcess(folder / "data", {"logFileBytes": file_bytes})
    outcomes: list[Outcome] = []
    total = 0
    try:
        broker.start()
        broker.kill()
        empty = _measure(broker, Case(0, 0), read=False)
        outcomes.append(empty)
        print(_row(empty), flush=True)
        broker.rest("PUT", f"namespaces/{NAMESPACE}", {})
        keep = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        broker.rest("POST", f"namespaces/{NAMESPACE}/retention", keep)
        for case in sorted(cases, key=lambda case: (case.log_bytes, case.since_checkpoint)):
            filler = Filler(broker.port)
            began = time.monotonic()
            filler.fill(max(0, case.log_bytes - total))
            total = max(total, case.log_bytes)
            took = time.monotonic() - began
            if filler.sent:
                print(
                    f"filled {filler.sent / GB:.2f} GB in {took:.0f} s ({filler.sent / took / MB:.0f} MB/s)",
                    flush=True,
                )
            _fill_file_to(broker, filler, case.since_checkpoint, file_bytes)
            broker.kill()
            outcomes.append(_measure(broker, case))
            print(_row(outcomes[-1]), flush=True)
        return outcomes
    finally:
        if broker.is_running:
            broker.kill()
        shutil.rmtree(folder / "data", ignore_errors=True)


def _open_file_bytes(broker: BrokerProcess) -> int:
    """How much is written to the newest log file; the rest of it is allocated and zero."""
    files = [path for path in (broker.data / "log" / "wal").glob("*/*.wal")]
    incarnation = max(path.parent.name for path in files)
    best = 0
    for path in sorted(path for path in files if path.parent.name == incarnation)[-2:]:
        written = _written(path)
        if written > 1000:
            best = written
    return best


def _written(path: Path) -> int:
    """The end of the last block that holds anything."""
    block = 64 * 1024
    size = path.stat().st_size
    low = 0
    with path.open("rb") as file:
        blocks = range(0, size, block)
        high = len(blocks)
        # Everything before the end is written, everything behind it is zero.
        while low < high:
            middle = (low + high) // 2
            file.seek(blocks[middle])
            if file.read(block).strip(b"\0"):
                low = middle + 1
            else:
                high = middle
    return low * block


def _fill_file_to(broker: BrokerProcess, filler: Filler, wanted: int, file_bytes: int) -> None:
    """Publishes until the file being written holds about `wanted` bytes."""
    if _open_file_bytes(broker) > wanted:
        # To the next file first.
        filler.fill(file_bytes - _open_file_bytes(broker))
    missing = wanted - _open_file_bytes(broker)
    if missing > 0:
        filler.fill(missing)


def _measure(broker: BrokerProcess, case: Case, *, read: bool = True) -> Outcome:
    wal = list((broker.data / "log").rglob("*.wal"))
    disk = sum(path.stat().st_blocks * 512 for path in (broker.data / "log").rglob("*") if path.is_file())
    _forget_pages(broker.data / "log")
    began = broker.spawn()
    # On a topic that has to be recovered first, unless there is none.
    topic = topics()[0] if read else "persistent://public/default/first"
    published = _first(broker, began, partial(_publish, topic=topic))
    cpu = broker.cpu_seconds()
    tail = _first(broker, began, _read_tail) if read else 0.0
    broker.wait_ready()
    ready = time.monotonic() - began
    return Outcome(case, disk, len(wal), published, tail, ready, cpu, broker.rss_peak_bytes())


def _forget_pages(folder: Path) -> None:
    """Makes the system read these files from the disk again."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def _first(broker: BrokerProcess, began: float, attempt: Callable[[int], None]) -> float:
    while True:
        try:
            attempt(broker.port)
            return time.monotonic() - began
        except (OSError, Refused):
            if not broker.is_running or time.monotonic() - began > SERVE_SECONDS_MAX:
                raise RuntimeError(f"the broker does not serve:\n{broker.log_tail()}") from None
            time.sleep(0.005)


def _publish(port: int, topic: str) -> None:
    with Link(port) as link:
        link.producer(topic)
        link.publish(b"first", 0)


def _read_tail(port: int) -> None:
    """Reads the last message that was confirmed before the kill, on another topic."""
    with Link(port) as link:
        link.subscribe(topics()[1], "end", durable=False)
        ask = pb.CommandGetLastMessageId(consumer_id=1, request_id=link.next_request())
        answer = link.ask(
            pb.BaseCommand(type=Kind.GET_LAST_MESSAGE_ID, getLastMessageId=ask),
            Kind.GET_LAST_MESSAGE_ID_RESPONSE,
        )
        last = answer.command.getLastMessageIdResponse.last_message_id
    with Link(port) as link:
        request = pb.CommandSubscribe(
            topic=topics()[1],
            subscription="tail",
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=1,
            request_id=link.next_request(),
            durable=False,
            start_message_id=pb.MessageIdData(ledgerId=last.ledgerId, entryId=last.entryId),
        )
        link.ask(pb.BaseCommand(type=Kind.SUBSCRIBE, subscribe=request), Kind.SUCCESS)
        link.flow(1000)
        frame = link.messages(1)[0]
        assert len(frame.payload) > ENTRY_BYTES // 2


HEADER = (
    f"{'log':>9} {'files':>6} {'since checkpoint':>17} {'first publish':>14} {'tail read':>10} "
    f"{'REST ready':>11} {'CPU':>7} {'peak memory':>12}"
)


def _row(outcome: Outcome) -> str:
    return (
        f"{outcome.disk_bytes / GB:6.2f} GB {outcome.files:6} {outcome.case.since_checkpoint / MB:14.0f} MB "
        f"{outcome.publish_seconds:12.2f} s {outcome.read_seconds:8.2f} s {outcome.ready_seconds:9.2f} s "
        f"{outcome.cpu_seconds:5.2f} s {outcome.memory_bytes / MB:9.0f} MB"
    )


def table(outcomes: list[Outcome]) -> Iterator[str]:
    yield HEADER
    for outcome in outcomes:
        yield _row(outcome)
