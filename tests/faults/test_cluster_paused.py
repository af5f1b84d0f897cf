"""A broker of several that is paused until the others have taken its topics: once awake, it confirms nothing that they
have not seen, and serves again."""

from __future__ import annotations

import os
import secrets
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from soak.link import Kind, Link, ProducerClosed, Refused, owner_port, send_frame

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import messages
from faults.test_stopped import ack_was_stored, receipts_until_quiet
from harness.broker_process import until
from harness.cluster_process import ClusterProcess

pytestmark = pytest.mark.timeout(300)

TOPIC = "persistent://public/default/taken"
BEFORE, IN_FLIGHT, AFTER = 20, 200, 20


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path, brokers=3) as made:
        yield made


def owner_now(port: int) -> int | None:
    """The owner's port, as the broker at `port` says; None if it does not know."""
    try:
        return owner_port(port, TOPIC)
    except (Refused, OSError):
        return None


def published(port: int, payload: bytes) -> bool:
    """Whether the owner that the broker at `port` names has stored it."""
    owner = owner_now(port)
    if owner is None:
        return False
    try:
        with Link(owner) as link:
            link.producer(TOPIC)
            link.publish(payload, 0)
    except (Refused, ProducerClosed, OSError):
        return False
    return True


def read_all(port: int, last: bytes, met: Counter[str]) -> dict[tuple[int, int], bytes]:
    """What the topic holds up to that message, in order, by its place; nothing if it moves meanwhile. What stopped it
    is counted in `met`."""
    found: dict[tuple[int, int], bytes] = {}
    owner = None
    try:
        owner = owner_port(port, TOPIC)
        with Link(owner) as link:
            link.subscribe(TOPIC, secrets.token_hex(4), permits=10_000)
            while last not in found.values():
                frame = link.wait(lambda got: got.type in (Kind.MESSAGE, Kind.CLOSE_CONSUMER))
                if frame.command.type == Kind.CLOSE_CONSUMER:
                    raise ConnectionResetError("the consumer was closed")
                at = frame.command.message.message_id
                found[at.ledgerId, at.entryId] = bytes(messages(frame.payload)[0][1])
    except (Refused, OSError) as error:
        met[f"at the broker of port {owner}, behind {max(found, default=None)}: {error!r}"] += 1
        return {}
    return found


@contextmanager
def telling(met: Counter[str]) -> Iterator[None]:
    """A failure within tells what was met."""
    try:
        yield
    except AssertionError as error:
        for what, times in met.items():
            error.add_note(f"{times} times {what}")
        raise


class LogEnd:
    """What is in the log's files behind the last message that was confirmed, asked often."""

    def __init__(self, data: Path, confirmed: bytes) -> None:
        found = {path: path.read_bytes().rfind(confirmed) for path in (data / "log" / "wal").glob("*/*.wal")}
        ((path, self._at),) = ((path, at) for path, at in found.items() if at >= 0)
        self._file = path.open("rb", buffering=0)

    def has(self, text: bytes) -> bool:
        return text in os.pread(self._file.fileno(), 1 << 16, self._at)

    def close(self) -> None:
        self._file.close()


def test_a_broker_paused_until_its_topic_is_taken_confirms_nothing_more(cluster: ClusterProcess) -> None:
    ports = {name: int(url.rpartition(":")[2]) for name, url in cluster.own_urls.items()}
    owner = owner_port(cluster.port, TOPIC)
    (name,) = (one for one, port in ports.items() if port == owner)
    other = next(port for port in ports.values() if port != owner)
    pid = cluster.pids[name]
    texts = {n: b"before %d" % n for n in range(BEFORE)}
    texts |= {n: b"flying %d" % n for n in range(BEFORE, BEFORE + IN_FLIGHT)}
    with Link(owner) as link, Link(owner) as reader:
        reader.subscribe(TOPIC, "s", permits=1000)
        link.producer(TOPIC)
        receipts = {n: link.publish(texts[n], n) for n in range(BEFORE)}
        held = reader.messages(1)[0].command.message.message_id
        # The broker falls asleep as soon as the first of these are in its file, and hardly ever has confirmed them by
        # then. The next owner finds them.
        with closing(LogEnd(cluster.folder / "data", texts[BEFORE - 1])) as log_end:
            link.sock.sendall(b"".join(send_frame([texts[n]], n) for n in range(BEFORE, BEFORE + IN_FLIGHT)))
            until(lambda: log_end.has(texts[BEFORE]), every_s=0)
            os.kill(pid, signal.SIGSTOP)
        # It loses its session. Another broker opens the topic and gets no last word.
        until(lambda: owner_now(other) not in (None, owner))
        until(lambda: published(other, b"taken"))
        link.sock.sendall(
            b"".join(
                send_frame([b"after %d" % n], n)
                for n in range(BEFORE + IN_FLIGHT, BEFORE + IN_FLIGHT + AFTER)
            )
        )
        request = reader.ack([pb.MessageIdData(ledgerId=held.ledgerId, entryId=held.entryId)], wait=False)
        os.kill(pid, signal.SIGCONT)
        late = receipts_until_quiet(link)
        assert not ack_was_stored(reader, request)
    # The process was not ended for it, and is one of three again.
    assert cluster.pids[name] == pid
    until(lambda: published(other, b"last"))
    # Its bundles are its own again, and the topic is on its way back.
    until(lambda: owner_now(other) == owner)
    met: Counter[str] = Counter()
    with telling(met):
        found = until(lambda: read_all(other, b"last", met))
    # Every receipt, whenever it came, is true.
    receipts |= {one.sequence_id: one.message_id for one in late}
    assert max(receipts) < BEFORE + IN_FLIGHT
    for n, at in receipts.items():
        assert found[at.ledgerId, at.entryId] == texts[n]
    in_order = list(dict.fromkeys(found.values()))
    assert in_order[-2:] == [b"taken", b"last"]
    assert in_order[:-2] == [texts[n] for n in range(len(in_order) - 2)]
    assert texts[BEFORE] in in_order
