"""Slices read through a broker that begin among the chunks of a message. No session: only a broker."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.model.cut import MessagePosition
from anabranch.model.segments import WHOLE, SegmentId
from anabranch.spark.plan.plan import SegmentSlice
from anabranch.spark.task.read_slice import Task, read
from anabranch.wire import pulsar_pb2 as pb
from harness.broker_process import BrokerProcess
from harness.peer import Peer

_numbers = itertools.count(1)


class Stream:
    """A classic topic, written entry by entry."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.name = f"chunks-{next(_numbers)}"
        self.topic = f"persistent://public/default/{self.name}"
        self._sent = itertools.count()
        self._open()

    def _open(self) -> None:
        self._peer = Peer(self.broker.port_for(self.topic))
        self._peer.connect()
        self._peer.produce_to(self.topic)

    def send(self, payload: bytes, **metadata: Any) -> tuple[int, int]:
        """The place of the entry."""
        self._peer.send_message(payload, sequence_id=next(self._sent), **metadata)
        receipt = self._peer.receive_kind(pb.BaseCommand.SEND_RECEIPT)[0].send_receipt.message_id
        return receipt.ledgerId, receipt.entryId

    def chunk(self, number: int, payload: bytes) -> tuple[int, int]:
        return self.send(
            payload, uuid="whole", chunk_id=number, num_chunks_from_msg=2, total_chunk_msg_size=10
        )

    def next_ledger(self) -> None:
        self.close()
        self.broker.put(f"persistent/public/default/{self.name}/unload")
        self._open()

    def values(self, start: MessagePosition | None, end: MessagePosition | None = None) -> list[bytes]:
        slice_ = SegmentSlice(SegmentId(0), start, end)
        task = Task(self.broker.url, self.topic, self.topic, WHOLE, slice_, read_mode="broker")
        return [row["value"] for batch in read(task) for row in batch.to_pylist()]

    def close(self) -> None:
        self._peer.socket.close()


@pytest.fixture
def stream(broker: BrokerProcess) -> Iterator[Stream]:
    made = Stream(broker)
    yield made
    made.close()


def test_rows_around_a_chunk_whose_message_began_before_the_slice_come_once_and_in_order(
    stream: Stream,
) -> None:
    stream.send(b"before")
    stream.chunk(0, b"left-")
    inside = stream.send(b"1")
    stream.send(b"2")
    last = stream.chunk(1, b"right")
    after = stream.send(b"3")
    stream.send(b"4")
    assert stream.values((*inside, 0)) == [b"1", b"2", b"left-right", b"3", b"4"]
    assert stream.values((*last, 0)) == [b"left-right", b"3", b"4"]
    assert stream.values((*inside, 0), (*last, 0)) == [b"1", b"2"]
    assert stream.values((*after, 0)) == [b"3", b"4"]


def test_a_message_whose_first_chunk_lies_in_an_earlier_ledger_is_put_together(stream: Stream) -> None:
    stream.send(b"before")
    first = stream.chunk(0, b"left-")
    stream.next_ledger()
    inside = stream.send(b"1")
    last = stream.chunk(1, b"right")
    stream.send(b"2")
    assert inside[0] > first[0]
    assert stream.values((*inside, 0)) == [b"1", b"left-right", b"2"]
    assert stream.values((*last, 0)) == [b"left-right", b"2"]
