"""A broker asleep while another takes its log: once awake, it confirms nothing that the other has not seen."""

from __future__ import annotations

import os
import time
from pathlib import Path

from soak.link import Kind, Link, ProducerClosed, Refused, send_frame

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.on_disk.file_store import FileLogStore
from anabranch.storage.on_disk.files import OsFiles
from anabranch.storage.on_disk.takeover import LOCK
from anabranch.storage.port import LedgerState
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import messages
from harness.broker_process import BrokerProcess

TOPIC = "persistent://public/default/taken"
BEFORE, IN_FLIGHT, AFTER = 20, 200, 20


class NoRootLock(OsFiles):
    """Goes past the lock of the folder, as a broker on another machine would; the fence is what must protect."""

    def lock(self, path: Path, *, is_shared: bool) -> int | None:
        if path.parent.name == "log" and path.name == LOCK:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        return super().lock(path, is_shared=is_shared)


def receipts_until_quiet(link: Link) -> list[pb.CommandSendReceipt]:
    """Every receipt that still comes, until the broker closes the producer or the connection, or answers a ping."""
    found: list[pb.CommandSendReceipt] = []
    link.send(pb.BaseCommand(type=Kind.PING, ping=pb.CommandPing()))
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            frame = link.receive(1)
        except OSError:
            return found
        if frame is None or frame.command.type == Kind.CLOSE_PRODUCER:
            return found
        if frame.command.type == Kind.SEND_RECEIPT:
            found.append(frame.command.send_receipt)
    return found


async def take(store: FileLogStore, victim: Incarnation) -> tuple[LedgerId, LedgerState, list[bytes]]:
    """Fences the victim whole; the ledger of its only topic, what it holds, and the payloads of its entries."""
    states = await store.take(victim, None)
    ((ledger, state),) = ((one, state) for one, state in states.items() if state.snapshot)
    entries: list[bytes] = []
    while len(entries) < state.entries_end:
        read = await store.read(ledger, victim, len(entries), state.entries_end, 1000, 1 << 20)
        entries += [bytes(messages(data)[0][1]) for _, _, data in read]
    return ledger, state, entries


async def test_a_broker_stopped_and_fenced_confirms_nothing_more_once_it_continues(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, Link(broker.port) as link, Link(broker.port) as reader:
        reader.subscribe(TOPIC, "s", permits=1000)
        link.producer(TOPIC)
        sent = {n: link.publish(b"before %d" % n, n).entryId for n in range(BEFORE)}
        held = reader.messages(1)[0].command.message.message_id
        # As many as fit are on their way when the broker falls asleep, some of them perhaps already on disk.
        link.sock.sendall(
            b"".join(send_frame([b"flying %d" % n], n) for n in range(BEFORE, BEFORE + IN_FLIGHT))
        )
        broker.pause()
        (victim,) = (Incarnation(one) for one in os.listdir(tmp_path / "data" / "log" / "wal"))
        store = FileLogStore(
            tmp_path / "data" / "log", clock_ms=lambda: 1, files=NoRootLock(), is_shared=True
        )
        await store.start()
        ledger, state, entries = await take(store, victim)
        link.sock.sendall(
            b"".join(
                send_frame([b"after %d" % n], n)
                for n in range(BEFORE + IN_FLIGHT, BEFORE + IN_FLIGHT + AFTER)
            )
        )
        request = reader.ack([pb.MessageIdData(ledgerId=held.ledgerId, entryId=held.entryId)], wait=False)
        broker.resume()
        late = receipts_until_quiet(link)
        sent |= {one.sequence_id: one.message_id.entryId for one in late}
        # What has a receipt, whenever it came, is what the new owner has found, and at that place.
        assert {one.message_id.ledgerId for one in late} <= {ledger}
        assert all(entry < state.entries_end for entry in sent.values())
        assert all(entries[entry].endswith(b" %d" % n) for n, entry in sent.items())
        assert not any(text.startswith(b"after") for text in entries)
        assert max(sent) < BEFORE + IN_FLIGHT
        assert not ack_was_stored(reader, request)
        await store.close()


def ack_was_stored(reader: Link, request: int) -> bool:
    """Whether the broker ever says so; it may close the consumer or the connection, or refuse, instead."""
    try:
        while (frame := reader.receive(2)) is not None:
            answer = frame.command.ackResponse
            if frame.command.type == Kind.ACK_RESPONSE and answer.request_id == request:
                return not answer.HasField("error")
            if frame.command.type == Kind.CLOSE_CONSUMER:
                return False
    except OSError:
        pass
    return False


async def test_what_the_stopped_broker_confirmed_is_served_by_the_next(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with Link(broker.port) as link:
            link.producer(TOPIC)
            for n in range(BEFORE):
                link.publish(b"before %d" % n, n)
        broker.pause()
        (victim,) = (Incarnation(one) for one in os.listdir(tmp_path / "data" / "log" / "wal"))
        store = FileLogStore(
            tmp_path / "data" / "log", clock_ms=lambda: 1, files=NoRootLock(), is_shared=True
        )
        await store.start()
        await take(store, victim)
        await store.close()
        broker.resume()
        # The one that was fenced must say so and cannot serve writes again; a new process can.
        with Link(broker.port) as link:
            try:
                link.producer(TOPIC)
                link.publish(b"too late", BEFORE)
            except (Refused, ProducerClosed, OSError):
                pass
            else:
                raise AssertionError("a fenced broker confirmed a message")
        broker.restart()
        with Link(broker.port) as link:
            link.producer(TOPIC)
            link.publish(b"next", BEFORE)
            link.subscribe(TOPIC, "s", permits=1000)
            found = [bytes(messages(one.payload)[0][1]) for one in link.messages(BEFORE + 1)]
            assert found == [*(b"before %d" % n for n in range(BEFORE)), b"next"]
