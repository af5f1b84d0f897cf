"""The inbox: order, dropping, bounds, and what a cancelled receive leaves behind."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from anabranch.client.consuming.inbox import Inbox
from anabranch.client.errors import TimedOut
from anabranch.client.message import EntryOrigin, ReceivedEntry
from anabranch.errors import ChecksumMismatch
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, open_entry


class Segment:
    """Counts what its inbox tells it."""

    topic = "segment"
    is_shared = False

    def __init__(self) -> None:
        self.messages = 0
        self.asked = 0

    def taken(self, entry: ReceivedEntry, messages: int) -> None:
        self.messages += messages

    def ask_for_more(self) -> None:
        self.asked += 1


def batch(owner: Any, number: int, count: int = 3) -> ReceivedEntry:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
    singles = [(pb.SingleMessageMetadata(payload_size=0), b"%d.%d" % (number, n)) for n in range(count)]
    parsed, payload = open_entry(build_batch(metadata, singles))
    return ReceivedEntry(EntryOrigin("t"), 1, number, parsed, bytes(payload), owner=owner)


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
    inbox.drop(one)
    assert [(await inbox.next()).payload for _ in range(3)] == [b"1.0", b"1.1", b"1.2"]
    assert inbox.take_now() is None
    assert inbox.queued_bytes == 0


async def test_the_first_message_that_was_opened_and_is_dropped_is_told() -> None:
    dropped: list[bytes] = []
    inbox = Inbox(dropped=lambda message: dropped.append(message.payload))
    one, other = Segment(), Segment()
    for number, owner in enumerate([one, one, other]):
        inbox.put(batch(owner, number))
    await inbox.next()
    inbox.drop(other)
    assert dropped == []
    inbox.drop(one)
    assert dropped == [b"0.1"]
    inbox.put(batch(one, 3, count=1))
    await inbox.next()
    inbox.drop(one)
    assert dropped == [b"0.1"]


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
    assert not inbox.has_room(one)
    while inbox.queued_bytes > 50:
        assert one.asked == 0
        inbox.open_next()
    assert one.asked == 1
    assert inbox.has_room(one)


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


# -- taken by other threads


async def test_entries_opened_ahead_keep_their_order_and_leave_half_of_the_queue_alone() -> None:
    opened: list[int] = []
    inbox = Inbox(messages_max=20, opened=lambda entry: opened.append(entry.entry))
    one = Segment()
    for number in range(6):
        inbox.put(batch(one, number))
    first = await inbox.next()
    inbox.open_ahead()
    assert opened == [0, 1, 2, 3]
    assert inbox.ready_of(one) == 11
    found = [first, *(inbox.ready.pop() for _ in range(11))]
    assert [message.payload for message in found] == [b"%d.%d" % (n, m) for n in range(4) for m in range(3)]
    assert [(await inbox.next()).number for _ in range(6)] == list(range(12, 18))


async def test_an_entry_that_cannot_be_read_is_told_of_once_those_opened_before_it_are_taken() -> None:
    inbox, one = Inbox(), Segment()
    broken = batch(one, 1)
    broken.fault = ChecksumMismatch("broken")
    for entry in (batch(one, 0), broken, batch(one, 2)):
        inbox.put(entry)
    await inbox.next()
    inbox.open_ahead()
    assert [(await inbox.next()).payload for _ in range(2)] == [b"0.1", b"0.2"]
    with pytest.raises(ChecksumMismatch):
        await inbox.next()
    assert (await inbox.next()).payload == b"2.0"


async def test_dropping_a_segment_leaves_messages_of_others_that_were_opened_ahead() -> None:
    inbox, one, two = Inbox(), Segment(), Segment()
    for number, owner in enumerate((one, two, one, two)):
        inbox.put(batch(owner, number))
    await inbox.next()
    inbox.open_ahead()
    dropped: list[bytes] = []
    inbox.dropped = lambda message: dropped.append(message.payload)
    inbox.drop(one)
    assert dropped == [b"0.1"]
    assert [(await inbox.next()).payload for _ in range(2)] == [b"1.0", b"1.1"]
    entries = inbox.take_whole(100)
    assert [(entry.entry, entry.wanted) for entry in entries] == [(1, 0b100), (3, 0b111)]


async def test_threads_that_take_while_a_segment_is_dropped_get_the_rest_once_and_in_order() -> None:
    inbox, one, two = Inbox(), Segment(), Segment()
    found: list[list[int]] = [[], []]
    is_over = False

    def take(mine: list[int]) -> None:
        while not is_over or inbox.ready:
            try:
                message = inbox.ready.pop()
            except IndexError:
                continue
            if message.container.owner is two:
                mine.append(message.container.entry * 3 + message.index)

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(2) as threads:
        taking = [loop.run_in_executor(threads, take, mine) for mine in found]
        for number in range(600):
            inbox.put(batch(one if number % 2 else two, number))
            if number % 20 == 0:
                inbox.open_ahead()
                inbox.drop(one)
        while inbox.queued_messages:
            inbox.open_ahead()
            await asyncio.sleep(0)
        is_over = True
        await asyncio.gather(*taking)
    assert sorted(found[0] + found[1]) == [n * 3 + m for n in range(0, 600, 2) for m in range(3)]
    for mine in found:
        assert mine == sorted(mine)
