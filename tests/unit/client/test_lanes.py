"""Routing and order through splits and merges, without a network: any interleaving of seals, receipts and losses."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from anabranch.client.lanes import Lanes, Routing, keyless_hash, segment_for
from anabranch.model.keyhash import murmur3_raw
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import SegmentId


@dataclass(frozen=True, slots=True)
class Message:
    number: int
    hash32: int


def at(hash16: int, number: int) -> Message:
    return Message(number, hash16 << 16)


def layout(count: int = 1) -> SegmentLayout:
    return SegmentLayout.initial(count, 0)


# -- where messages go


def test_the_high_bits_of_the_raw_hash_choose_the_segment() -> None:
    four = layout(4)
    for key in ("a", "customer-7", "ключ"):
        raw = murmur3_raw(key.encode())
        assert segment_for(four, raw, Routing.HIGH) == four.find_active(raw >> 16).id
        assert segment_for(four, raw, Routing.LOW) == four.find_active(raw & 0xFFFF).id


def test_keys_of_a_classic_topic_go_by_the_remainder_of_their_hash() -> None:
    synthetic = SegmentLayout.synthetic([f"persistent://a/b/t-partition-{n}" for n in range(3)], 0)
    assert [segment_for(synthetic, hash32, Routing.HIGH) for hash32 in (0, 1, 2, 3, 0x80000001)] == [
        0,
        1,
        2,
        0,
        1,
    ]


@pytest.mark.parametrize("routing", list(Routing))
def test_messages_without_a_key_take_turns_and_stay_in_their_segments_range(routing: Routing) -> None:
    three = layout(3)
    went = [segment_for(three, keyless_hash(three, turn, routing), routing) for turn in range(300)]
    assert went == [0, 1, 2] * 100
    split = three.split(1, 0)
    children = set(split.segments[SegmentId(1)].children)
    moved = {segment_for(split, keyless_hash(three, turn, routing), routing) for turn in range(1, 300, 3)}
    assert moved == children


# -- when


def test_what_a_sealed_segment_refused_goes_before_anything_newer() -> None:
    lanes: Lanes[Message] = Lanes(layout())
    assert [lanes.add(at(0, n)) for n in range(3)] == [0, 0, 0]
    assert [m.number for m in lanes.settled(SegmentId(0), 0)] == [0]
    lanes.sealed(SegmentId(0))
    assert lanes.add(at(0, 3)) is None
    assert lanes.ready() == []
    lanes.learned(layout().split(0, 0))
    assert [(segment, m.number) for segment, m in lanes.ready()] == [(1, 1), (1, 2), (1, 3)]


def test_a_new_layout_holds_messages_back_until_their_old_segment_has_answered() -> None:
    lanes: Lanes[Message] = Lanes(layout())
    lanes.add(at(0, 0))
    lanes.learned(layout().split(0, 0))
    assert lanes.add(at(0, 1)) is None
    assert lanes.add(at(0xFFFF, 2)) is None
    assert [m.number for m in lanes.settled(SegmentId(0), 0)] == [0]
    assert [(segment, m.number) for segment, m in lanes.ready()] == [(1, 1), (2, 2)]


def test_a_merged_segment_waits_for_both_parents_so_that_its_numbers_only_rise() -> None:
    lanes: Lanes[Message] = Lanes(layout(2))
    lanes.add(at(0, 0))
    lanes.add(at(0xFFFF, 1))
    lanes.add(at(0, 2))
    lanes.learned(layout(2).merge(0, 1, 0))
    lanes.sealed(SegmentId(0))
    assert lanes.ready() == []
    lanes.sealed(SegmentId(1))
    assert [(segment, m.number) for segment, m in lanes.ready()] == [(2, 0), (2, 1), (2, 2)]


def test_an_older_layout_changes_nothing() -> None:
    lanes: Lanes[Message] = Lanes(layout().split(0, 0))
    lanes.learned(layout())
    assert lanes.add(at(0, 0)) == 1


def test_a_pruned_segment_with_open_sends_holds_everything_back() -> None:
    lanes: Lanes[Message] = Lanes(layout(2))
    lanes.add(at(0, 0))
    lanes.learned(layout(2).split(0, 0).prune([0]))
    assert lanes.add(at(0xFFFF, 1)) is None
    lanes.sealed(SegmentId(0))
    assert [(segment, m.number) for segment, m in lanes.ready()] == [(2, 0), (1, 1)]


def test_a_message_that_no_segment_takes_leaves_the_others_in_order() -> None:
    lanes: Lanes[Message] = Lanes(layout())
    for number in range(3):
        lanes.add(at(0, number))
    dropped = lanes.dropped(SegmentId(0), 1)
    assert dropped is not None
    assert dropped.number == 1
    assert [m.number for m in lanes.lane(SegmentId(0))] == [0, 2]
    assert [m.number for m in lanes.clear()] == [0, 2]
    assert len(lanes) == 0


class Segment:
    """A segment's broker: stores in order, drops repetitions, refuses once sealed; answers travel in order too."""

    def __init__(self) -> None:
        self.log: list[Message] = []
        self.last = -1
        self.is_sealed = False
        self.wire: deque[Message] = deque()  # Sent and not yet looked at.
        self.answers: deque[int] = deque()  # Receipts on their way back; -1 is "terminated".

    def work(self) -> None:
        message = self.wire.popleft()
        if self.is_sealed:
            self.answers.append(-1)
            return
        if message.number > self.last:
            self.log.append(message)
            self.last = message.number
        self.answers.append(message.number)


class Rerouting(RuleBasedStateMachine):
    """A producer with deduplication: whatever happens, each key's messages are stored once and in order."""

    @initialize(count=st.integers(1, 4))
    def begin(self, count: int) -> None:
        self.truth = layout(count)  # As published; the producer may be behind.
        self.lanes: Lanes[Message] = Lanes(self.truth)
        self.brokers = {number: Segment() for number in self.truth.segments}
        self.pending: SegmentLayout | None = None  # Sealed, but not yet published.
        self.sent = 0
        self.doubt: dict[SegmentId, int] = {}

    def send(self, segment: SegmentId, message: Message) -> None:
        self.brokers[segment].wire.append(message)

    def dispatch(self) -> None:
        for segment, message in self.lanes.ready():
            self.send(segment, message)

    @rule(hash16=st.sampled_from([0, 0x1000, 0x4000, 0x7FFF, 0x8000, 0xC123, 0xFFFF]))
    def hand_in(self, hash16: int) -> None:
        message = at(hash16, self.sent)
        self.sent += 1
        segment = self.lanes.add(message)
        if segment is not None:
            self.send(segment, message)

    @rule(data=st.data())
    def broker_works(self, data: st.DataObject) -> None:
        busy = [number for number, one in self.brokers.items() if one.wire]
        if busy:
            self.brokers[data.draw(st.sampled_from(busy))].work()

    @rule(data=st.data())
    def answer_arrives(self, data: st.DataObject) -> None:
        busy = [number for number, one in self.brokers.items() if one.answers]
        if busy:
            self.answer(data.draw(st.sampled_from(busy)))

    def answer(self, number: SegmentId) -> None:
        answer = self.brokers[number].answers.popleft()
        if answer >= 0:
            self.lanes.settled(number, answer)
        else:
            self.refused(number)
        self.dispatch()

    def refused(self, number: SegmentId) -> None:
        broker = self.brokers[number]
        broker.answers.clear()
        broker.wire.clear()
        first = self.lanes.first_number(number)
        if first is not None and first <= self.doubt.get(number, -1):
            self.lanes.settled(number, broker.last)
        self.lanes.sealed(number)

    @rule(data=st.data())
    def connection_is_lost(self, data: st.DataObject) -> None:
        """What was on its way is lost, in either direction; the lane is sent again, or asked about if sealed."""
        number = data.draw(st.sampled_from(sorted(self.brokers)))
        broker = self.brokers[number]
        lane = self.lanes.lane(number)
        if not lane:
            return
        self.doubt[number] = lane[-1].number
        for _ in range(data.draw(st.integers(0, len(broker.wire)))):
            broker.work()
        broker.wire.clear()
        broker.answers.clear()
        if broker.is_sealed:
            self.refused(number)
            self.dispatch()
        else:
            broker.wire.extend(lane)

    @precondition(lambda self: self.pending is None)
    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        splittable = [s.id for s in self.truth.active if len(s.range) > 1]
        self.pending = self.truth.split(data.draw(st.sampled_from(splittable)), 0)
        self.seal()

    @precondition(lambda self: self.pending is None and len(self.truth.active) > 1)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        left = data.draw(st.integers(0, len(self.truth.active) - 2))
        one, other = self.truth.active[left : left + 2]
        self.pending = self.truth.merge(one.id, other.id, 0)
        self.seal()

    def seal(self) -> None:
        assert self.pending is not None
        for number, segment in self.pending.segments.items():
            self.brokers.setdefault(number, Segment()).is_sealed = segment.is_sealed

    @precondition(lambda self: self.pending is not None)
    @rule()
    def publish(self) -> None:
        assert self.pending is not None
        self.truth, self.pending = self.pending, None

    @rule()
    def layout_arrives(self) -> None:
        self.lanes.learned(self.truth)
        self.dispatch()

    @invariant()
    def each_segments_numbers_rise(self) -> None:
        for broker in getattr(self, "brokers", {}).values():
            assert broker.log == sorted(broker.log, key=lambda m: m.number)

    def teardown(self) -> None:
        if not hasattr(self, "truth"):
            return
        if self.pending is not None:
            self.publish()
        for _ in range(10_000):
            self.layout_arrives()
            busy = [number for number, one in self.brokers.items() if one.wire or one.answers]
            if not busy:
                break
            for number in busy:
                if self.brokers[number].wire:
                    self.brokers[number].work()
                if self.brokers[number].answers:
                    self.answer(number)
        assert len(self.lanes) == 0, "something was never stored"
        self.check_logs()

    def check_logs(self) -> None:
        stored = [m.number for broker in self.brokers.values() for m in broker.log]
        assert sorted(stored) == list(range(self.sent)), "lost or stored twice"
        for number, broker in self.brokers.items():
            for ancestor in self.truth.ancestors(number):
                last: dict[int, int] = {m.hash32: m.number for m in self.brokers[ancestor].log}
                for message in broker.log:
                    assert message.number > last.get(message.hash32, -1), (
                        "a child holds what came before its parent"
                    )


TestRerouting = Rerouting.TestCase
TestRerouting.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
