"""Bytes of the log that changed on disk: found, reported with file and offset, never delivered, given up on request."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak.link import Kind, Link

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import messages
from harness.broker_process import BrokerProcess, until

HIT = "persistent://public/default/hit"
UNHURT = "persistent://public/default/unhurt"
COUNT, BAD = 30, 11
COMMIT_MAGIC = b"\xa7anbrcm1"


def payload(topic: str, n: int) -> bytes:
    return b"%b %d |" % (topic.encode(), n) + b"." * 500


def fill(broker: BrokerProcess) -> None:
    """Both topics get their messages in turn, each message in a commit of its own."""
    with Link(broker.port) as link:
        link.producer(HIT, 1)
        link.producer(UNHURT, 2)
        for n in range(COUNT):
            link.publish(payload(HIT, n), n, 1)
            link.publish(payload(UNHURT, n), n, 2)


def spoil(folder: Path, where: str) -> Path:
    """Changes a byte of the record of message BAD, or of the header of the commit that holds it."""
    wanted = b"%b %d |" % (HIT.encode(), BAD)
    for path in (folder / "data" / "log" / "wal").glob("*/*.wal"):
        data = path.read_bytes()
        at = data.find(wanted)
        if at >= 0:
            if where == "commit header":
                at = data.rfind(COMMIT_MAGIC, 0, at) + len(COMMIT_MAGIC) + 20
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([data[at] ^ 0xFF]))
            return path
    raise AssertionError("the message is in no file")


def texts(link: Link, count: int) -> list[bytes]:
    return [bytes(messages(one.payload)[0][1]) for one in link.messages(count)]


def dispatch_error(broker: BrokerProcess, subscription: str) -> str:
    found = broker.stats(HIT)["subscriptions"][subscription]
    return str(found.get("dispatchError", ""))


@pytest.mark.parametrize(
    ("end", "where"), [("killed", "record"), ("stopped", "record"), ("killed", "commit header")]
)
def test_damage_is_reported_and_never_delivered_and_can_be_skipped(
    tmp_path: Path, end: str, where: str
) -> None:
    with BrokerProcess(tmp_path) as broker:
        fill(broker)
        if end == "killed":
            broker.kill()
        else:
            broker.stop()
        path = spoil(tmp_path, where)
        broker.start()
        with Link(broker.port) as link, Link(broker.port) as other:
            # Readers of the ledger get what lies before the damage and stop there.
            link.subscribe(HIT, "s", permits=1000)
            assert texts(link, BAD) == [payload(HIT, n) for n in range(BAD)]
            until(lambda: dispatch_error(broker, "s"))
            assert str(path) in dispatch_error(broker, "s")
            assert "at byte" in dispatch_error(broker, "s")
            assert str(path) in broker.log
            # Other topics go on, and so does publishing to this one.
            other.subscribe(UNHURT, "s", permits=1000)
            assert texts(other, COUNT) == [payload(UNHURT, n) for n in range(COUNT)]
            other.producer(HIT)
            other.publish(b"new", 0)
            assert not any(frame.command.type == Kind.MESSAGE for frame in link.frames)
            assert link.receive(0.2) is None
            # Until somebody gives the damaged entries up.
            assert broker.post("persistent/public/default/hit/skip-damage") == {"skippedEntries": 1}
            rest = texts(link, COUNT - BAD)
            assert rest == [*(payload(HIT, n) for n in range(BAD + 1, COUNT)), b"new"]
            assert dispatch_error(broker, "s") == ""


def test_a_damaged_commit_header_hides_nothing_in_a_finished_file(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        fill(broker)
        broker.stop()
        spoil(tmp_path, "commit header")
        broker.start()
        with Link(broker.port) as link:
            # The file's own index says where each record lies, and each record has a checksum of its own.
            link.subscribe(HIT, "s", permits=1000)
            assert texts(link, COUNT) == [payload(HIT, n) for n in range(COUNT)]


def test_what_was_skipped_stays_skipped_after_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        fill(broker)
        broker.kill()
        spoil(tmp_path, "record")
        broker.start()
        with Link(broker.port) as link:
            link.subscribe(HIT, "s", permits=1000)
            texts(link, BAD)
            until(lambda: dispatch_error(broker, "s"))
            broker.post("persistent/public/default/hit/skip-damage")
            last = link.messages(COUNT - BAD - 1)[-1].command.message.message_id
            link.ack([pb.MessageIdData(ledgerId=last.ledgerId, entryId=last.entryId)], cumulative=True)
        broker.restart()
        with Link(broker.port) as link:
            link.subscribe(HIT, "again", permits=1000)
            wanted = [payload(HIT, n) for n in range(COUNT) if n != BAD]
            assert texts(link, COUNT - 1) == wanted
