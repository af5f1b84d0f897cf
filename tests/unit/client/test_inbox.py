"""The inbox: order, dropping, bounds, and what a cancelled receive leaves behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.client.errors import TimedOut
from anabranch.client.inbox import Inbox
from anabranch.client.message import Entry, Origin
from anabranch.errors import ChecksumMismatch
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, open_entry


class Segment:
    """Counts what its inbox tells it."""

    topic = "segment"

    def __init__(self) -> None:
        self.messages = 0
        self.asked = 0

    def taken(self, entry: Entry, messages: int) -> None:
        self.messages += messages

    def ask_for_more(self) -> None:
        self.asked += 1


def batch(owner: Any, number: int, count: int = 3) -> Entry:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
    singles = [(pb.SingleMessageMetadata(payload_size=0), b"%d.%d" % (number, n)) for n in range(count)]
    parsed, payload = open_entry(build_batch(metadata, singles))
    return Entry(Origin("t"), 1, number, parsed, bytes(payload), owner=owner)


async def test_messages_come_in_order_of_arrival_and_an_entry_is_opened_when_its_turn_comes() -> None:
    opened: list[int] = []
    inbox = Inbox(opened=lambda entry: opened.append(entry.entry))
    one = Segment()
    inbox.put(batch(one, 0))
    inbox.put(batch(one, 1))
    found = [(await inbox.next()).payload for _ in range(4)]
    assert found == [b"0.0", b"0.1", b"0.2", b"1.0"]
    assert opened == [0, 1]
    assert one.messages == 6
    assert [(await inbox.next()).number for _ in range(2)] == [4, 5]


async def test_a_cancelled_receive_swallows_nothing() -> None:
    inbox = Inbox()
    receiving = asyncio.create_task(inbox.next())
    await asyncio.sleep(0)
    # It is woken and cancelled in the same turn of the loop.
    inbox.put(batch(Segment(), 0, count=1))
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert (await inbox.next()).payload == b"0.0"


async def test_each_of_several_receivers_gets_a_message_of_its_own() -> None:
    inbox = Inbox()
    receiving = [asyncio.create_task(inbox.next(5)) for _ in range(3)]
    await asyncio.sleep(0)
    inbox.put(batch(Segment(), 0))
    assert sorted(m.payload for m in await asyncio.gather(*receiving)) == [b"0.0", b"0.1", b"0.2"]


async def test_a_receive_that_takes_too_long_says_so() -> None:
    with pytest.raises(TimedOut, match=r"no message came within 0.001 s"):
        await Inbox().next(0.001)


async def test_what_is_dropped_is_not_given_out_and_the_rest_is() -> None:
    inbox = Inbox()
    one, other = Segment(), Segment()
    for number, owner in enumerate([one, other, one]):
        inbox.put(batch(owner, number))
    assert (await inbox.next()).payload == b"0.0"
    inbox.drop(one)  # type: ignore[arg-type]
    assert [(await inbox.next()).payload for _ in range(3)] == [b"1.0", b"1.1", b"1.2"]
    assert inbox.take_now() is None
    assert inbox.queued_bytes == 0


async def test_a_damaged_entry_is_told_once_and_those_behind_it_are_given_out() -> None:
    inbox = Inbox()
    damaged = batch(Segment(), 0)
    damaged.fault = ChecksumMismatch("damaged")
    inbox.put(damaged)
    inbox.put(batch(Segment(), 1))
    with pytest.raises(ChecksumMismatch):
        await inbox.next()
    assert (await inbox.next()).payload == b"1.0"


async def test_a_final_error_comes_behind_the_messages_and_stays() -> None:
    inbox = Inbox()
    inbox.put(batch(Segment(), 0, count=1))
    inbox.fail(ValueError("over"))
    assert (await inbox.next()).payload == b"0.0"
    for _ in range(2):
        with pytest.raises(ValueError, match="over"):
            await inbox.next()


async def test_a_segment_without_room_is_asked_again_once_half_of_the_bytes_are_taken() -> None:
    inbox = Inbox(bytes_max=100)
    one = Segment()
    for number in range(4):
        inbox.put(batch(one, number))
    assert inbox.queued_bytes > 100
    assert not inbox.has_room(one)  # type: ignore[arg-type]
    while inbox.queued_bytes > 50:
        assert one.asked == 0
        inbox.open_next()
    assert one.asked == 1
    assert inbox.has_room(one)  # type: ignore[arg-type]


async def test_segments_share_the_bound_on_messages() -> None:
    inbox = Inbox(messages_max=100)
    assert inbox.share == 100
    inbox.segments = 4
    assert inbox.share == 25
    inbox.segments = 1000
    assert inbox.share == 1


async def test_the_event_loop_gets_its_turn_while_messages_are_plenty() -> None:
    inbox = Inbox()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    for number in range(40):
        inbox.put(batch(Segment(), number, count=100))
    for _ in range(4000):
        await inbox.next()
    assert turns >= 3
    counting.cancel()
