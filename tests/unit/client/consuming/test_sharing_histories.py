"""A stream consumer through any history of sharing: what it gives out, and what it acknowledges."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.client import Client, Message, StreamConsumer, TimedOut
from anabranch.client.acking.core.state import bits_of
from anabranch.client.consuming import stream
from anabranch.model.layout import SegmentLayout
from anabranch.wire import pulsar_pb2 as pb
from unit.client.scripted import Link, ScriptedBroker, segment_topic

ONE = segment_topic(1)
BUCKETS = 4
EXCLUSIVE = pb.CommandSubscribe.Exclusive


@dataclass
class Stored:
    """An entry: its bucket, how many messages it has, and the bits of those that nobody has acknowledged."""

    bucket: int
    count: int
    left: int


class SegmentOwner:
    """The broker of one segment: sends a consumer, in order, what it has a right to, and judges acknowledgements."""

    def __init__(self, script: ScriptedBroker) -> None:
        self.script = script
        self.log: list[Stored] = []
        self.own: frozenset[int] = frozenset()
        self.sent: set[int] = set()  # To the present consumer.
        self.consumer: tuple[Link, int] | None = None
        self.is_alone = False
        self.faults: list[str] = []
        # By entry, the bits that the application has acknowledged.
        self.dealt_with: dict[int, int] = {}
        script.flowed = self._flowed
        script.acknowledged = self._acknowledged

    def append(self, bucket: int, count: int) -> None:
        self.log.append(Stored(bucket, count, (1 << count) - 1))
        self.send()

    def give(self, own: frozenset[int] | None, *, is_alone: bool) -> None:
        """Assigns the whole segment, some of its buckets, or nothing."""
        shared = None if is_alone else own
        self.own = shared if shared is not None else frozenset()
        self.script.buckets = {} if is_alone else {1: BUCKETS}
        self.script.assigned = (0, [] if own is None else [1])
        self.script.assign(*self.script.assigned)
        self.send()

    def settle_by_others(self) -> None:
        """Others deal with their buckets; not with what the consumer has of them."""
        if not self.is_alone:
            for number, stored in enumerate(self.log):
                if stored.bucket not in self.own and number not in self.sent:
                    stored.left = 0

    def _flowed(self) -> None:
        now = self.script.consumers[ONE]
        if now != self.consumer:
            self.consumer, self.sent = now, set()
            self.is_alone = self.script.subscriptions[-1].subType == EXCLUSIVE
        self.send()

    def send(self) -> None:
        if self.consumer is None:
            return
        for number, stored in enumerate(self.log):
            if number not in self.sent and stored.left and (self.is_alone or stored.bucket in self.own):
                self.sent.add(number)
                self.script.deliver_batch(ONE, number, stored.count, unacked=stored.left)

    def _acknowledged(self, request: pb.CommandAck) -> None:
        last = self.script.subscriptions[-1]
        if request.consumer_id != last.consumer_id:
            return  # Of a consumer that was closed.
        for at in request.message_id:
            left = bits_of(at.ack_set)
            if request.ack_type == pb.CommandAck.Cumulative:
                if last.subType != EXCLUSIVE:
                    self.faults.append(f"a position in a shared segment: {at.entryId}")
                for number in range(at.entryId):
                    self._settle(number, 0)
            self._settle(at.entryId, left)

    def _settle(self, number: int, left: int) -> None:
        stored = self.log[number]
        if wrong := stored.left & ~left & ~self.dealt_with.get(number, 0):
            self.faults.append(f"entry {number}: {wrong:b} is acknowledged, and the application did not")
        stored.left &= left


class Application:
    """Receives and acknowledges, and notes what comes."""

    def __init__(self, consumer: StreamConsumer, owner: SegmentOwner) -> None:
        self.consumer = consumer
        self.owner = owner
        self.received: list[Message] = []
        self.first: dict[int, list[tuple[int, int]]] = {}  # By bucket, the first deliveries.

    async def receive(self, count: int) -> None:
        with contextlib.suppress(TimedOut):
            for _ in range(count):
                message = await self.consumer.receive(timeout_s=0.01)
                self.received.append(message)
                first = self.first.setdefault(self.owner.log[message.entry].bucket, [])
                if (place := (message.entry, message.index)) not in first:
                    first.append(place)

    async def ack(self, back: int) -> None:
        if back < len(self.received):
            upto = len(self.received) - back
            for message in self.received[:upto]:
                self.owner.dealt_with.setdefault(message.entry, 0)
                self.owner.dealt_with[message.entry] |= 1 << message.index
            await self.consumer.ack_cumulative(self.received[upto - 1])


APPEND = st.tuples(st.just("append"), st.integers(0, BUCKETS - 1), st.integers(1, 3))
SHARE = st.tuples(st.just("share"), st.frozensets(st.integers(0, BUCKETS - 1)), st.just(0))
STEP = st.one_of(
    APPEND,
    APPEND,
    SHARE,
    st.tuples(st.sampled_from(["alone", "away", "cut", "others", "flush"]), st.just(0), st.just(0)),
    st.tuples(st.just("receive"), st.integers(1, 4), st.just(0)),
    st.tuples(st.just("receive"), st.integers(1, 4), st.just(0)),
    st.tuples(st.just("ack"), st.integers(0, 3), st.just(0)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(STEP, max_size=25))
def test_each_message_comes_in_order_and_only_what_was_dealt_with_is_acknowledged(
    steps: list[tuple[str, int | frozenset[int], int]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "FLIP_MAX_S", 0.02)
        asyncio.run(play(steps))


async def play(steps: list[tuple[str, int | frozenset[int], int]]) -> None:
    script = ScriptedBroker(SegmentLayout.initial(1, 0))
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    script.assigned = (0, [1])
    owner = SegmentOwner(script)
    async with Client(script.url, chance=random.Random(1), now_ms=lambda: 1) as client:
        consumer = await client.stream_consumer("topic://public/default/t", "s")
        application = Application(consumer, owner)
        for step in steps:
            await take_step(step, script, owner, application)
        owner.give(frozenset(), is_alone=True)
        async with asyncio.timeout(20):
            while any(stored.left for stored in owner.log):
                await application.receive(100)
                await application.ack(0)
                await consumer.flush()
    server.close()
    assert owner.faults == []
    for first in application.first.values():
        assert first == sorted(first)


async def take_step(
    step: tuple[str, int | frozenset[int], int],
    script: ScriptedBroker,
    owner: SegmentOwner,
    application: Application,
) -> None:
    match step:
        case ("append", int(bucket), count):
            owner.append(bucket, count)
        case ("share", frozenset() as own, _):
            owner.give(own, is_alone=False)
        case ("alone", _, _):
            owner.give(frozenset(), is_alone=True)
        case ("away", _, _):
            owner.give(None, is_alone=False)
        case ("others", _, _):
            owner.settle_by_others()
        case ("cut", _, _):
            for link in script.links:
                link.cut()
        case ("receive", int(count), _):
            await application.receive(count)
        case ("ack", int(back), _):
            await application.ack(back)
        case ("flush", _, _):
            await application.consumer.flush(0.05)
        case _:
            raise AssertionError(step)
