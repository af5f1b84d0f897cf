"""Routing and order through splits and merges, without a network: any interleaving of seals, receipts and losses."""

from __future__ import annotations

import asyncio
from collections import deque

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from anabranch.client.producing.core.lanes import NOWHERE, Lane, Lanes, Routing, keyless_hash, segment_for
from anabranch.client.producing.core.runs import (
    BatchLimits,
    BatchRun,
    Item,
    MessageRun,
    SingleMessage,
    WholeRun,
)
from anabranch.client.producing.tables import TableRun, TableRuns
from anabranch.model.keyhash import murmur3_raw
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import SegmentId


def at(hash16: int, number: int) -> Item:
    return (number, hash16 << 16, b"m%d" % number, None)


def add(lanes: Lanes, item: Item) -> SegmentId | None:
    """As a producer does it; the segment it went to, None if it waits."""
    lane = lanes.find(item[1])
    lane.items.append(item)
    lane.size += len(item[2])
    return lane.segment if lane.segment != NOWHERE else None


def cut(lanes: Lanes, *segments: int) -> None:
    for segment in segments:
        lane = lanes.lane(SegmentId(segment))
        assert lane is not None
        lane.cut()


def rows(run: MessageRun) -> list[tuple[int, int]]:
    """Number and hash of each message."""
    if isinstance(run, TableRun):
        return list(zip(run.singles.sequence_ids.tolist(), run.singles.hashes.tolist(), strict=True))
    assert isinstance(run, BatchRun)
    return [(item[0], item[1]) for item in run.items]


def numbers(run: MessageRun) -> list[int]:
    return [number for number, _ in rows(run)]


def ready(lanes: Lanes) -> list[tuple[int, list[int]]]:
    return [(lane.segment, numbers(run)) for lane, run in lanes.ready()]


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
    lanes = Lanes(layout())
    assert [add(lanes, at(0, n)) for n in range(2)] == [0, 0]
    cut(lanes, 0)
    assert add(lanes, at(0, 2)) == 0
    cut(lanes, 0)
    assert [numbers(run) for run in lanes.settled(SegmentId(0), 1)] == [[0, 1]]
    lanes.sealed(SegmentId(0))
    assert ready(lanes) == []
    assert add(lanes, at(0, 3)) is None
    assert ready(lanes) == []
    lanes.learned(layout().split(0, 0))
    assert ready(lanes) == [(1, [2, 3])]


def test_a_refused_run_is_cut_again_for_the_children_as_the_limits_say() -> None:
    lanes = Lanes(layout(), limits=BatchLimits(messages_max=3, bytes_max=1000))
    for number in range(10):
        add(lanes, at(0xFFFF if number % 2 else 0, number))
    lanes.sealed(SegmentId(0))
    lanes.learned(layout().split(0, 0))
    assert sorted(ready(lanes)) == [(1, [0, 2, 4]), (1, [6, 8]), (2, [1, 3, 5]), (2, [7, 9])]


def test_runs_are_never_larger_than_the_limits_allow() -> None:
    lanes = Lanes(layout(), limits=BatchLimits(messages_max=100, bytes_max=5))
    for number in range(4):
        add(lanes, at(0, number))  # Two bytes each.
    lanes.sealed(SegmentId(0))
    lanes.learned(layout().split(0, 0))
    assert ready(lanes) == [(1, [0, 1]), (1, [2, 3])]


def test_a_new_layout_holds_messages_back_until_their_old_segment_has_answered() -> None:
    lanes = Lanes(layout())
    add(lanes, at(0, 0))
    cut(lanes, 0)
    lanes.learned(layout().split(0, 0))
    assert ready(lanes) == []
    assert add(lanes, at(0, 1)) is None
    assert add(lanes, at(0xFFFF, 2)) is None
    assert [numbers(run) for run in lanes.settled(SegmentId(0), 0)] == [[0]]
    assert ready(lanes) == [(1, [1]), (2, [2])]


def test_a_merged_segment_waits_for_both_parents_so_that_its_numbers_only_rise() -> None:
    lanes = Lanes(layout(2))
    for number, hash16 in enumerate((0, 0xFFFF, 0)):
        add(lanes, at(hash16, number))
    cut(lanes, 0, 1)
    lanes.learned(layout(2).merge(0, 1, 0))
    lanes.sealed(SegmentId(0))
    assert ready(lanes) == []
    lanes.sealed(SegmentId(1))
    assert ready(lanes) == [(2, [0, 1, 2])]


def test_a_run_that_is_stored_in_part_leaves_the_rest() -> None:
    lanes = Lanes(layout())
    for number in range(4):
        add(lanes, at(0, number))
    assert [numbers(run) for run in lanes.settled(SegmentId(0), 1)] == [[0, 1]]
    assert [numbers(run) for run in lanes.runs(SegmentId(0))] == [[2, 3]]


def test_a_message_on_its_own_stays_so_and_keeps_its_place() -> None:
    lanes = Lanes(layout())
    whole = WholeRun(1, 0, SingleMessage(b"", None, (), None, 5, None, False), None, 0.0)
    add(lanes, at(0, 0))
    cut(lanes, 0)
    lanes.find(0).add(whole)
    add(lanes, at(0, 2))
    lanes.sealed(SegmentId(0))
    lanes.learned(layout().split(0, 0))
    assert [(run.first, run.count) for _, run in lanes.ready()] == [(0, 1), (1, 1), (2, 1)]
    assert whole in lanes.runs(SegmentId(1))


def test_the_oldest_message_is_found_wherever_it_waits() -> None:
    lanes = Lanes(layout(2))
    assert lanes.oldest_s() is None
    for number, hash16 in enumerate((0, 0xFFFF)):
        add(lanes, at(hash16, number))
        lanes.find(hash16 << 16).since = 7.0 - number
    assert lanes.oldest_s() == 6.0
    lanes.sealed(SegmentId(1))
    assert lanes.oldest_s() == 6.0
    lanes.learned(layout(2).split(1, 0))
    lanes.ready()
    assert lanes.oldest_s() == 6.0
    lanes.settled(SegmentId(3), 1)
    assert lanes.oldest_s() == 7.0


def test_an_older_layout_changes_nothing() -> None:
    lanes = Lanes(layout().split(0, 0))
    lanes.learned(layout())
    assert add(lanes, at(0, 0)) == 1


def test_a_pruned_segment_with_open_sends_holds_everything_back() -> None:
    lanes = Lanes(layout(2))
    add(lanes, at(0, 0))
    cut(lanes, 0)
    lanes.learned(layout(2).split(0, 0).prune([0]))
    assert add(lanes, at(0xFFFF, 1)) is None
    lanes.sealed(SegmentId(0))
    assert ready(lanes) == [(2, [0]), (1, [1])]


def test_a_run_that_no_segment_takes_leaves_the_others_in_order() -> None:
    lanes = Lanes(layout())
    for number in range(3):
        add(lanes, at(0, number))
        cut(lanes, 0)
    dropped = lanes.dropped(SegmentId(0), 1)
    assert dropped is not None
    assert numbers(dropped) == [1]
    assert [numbers(run) for run in lanes.runs(SegmentId(0))] == [[0], [2]]
    assert [numbers(run) for run in lanes.clear()] == [[0], [2]]
    assert len(lanes) == 0


class Segment:
    """A segment's broker: stores in order, drops repetitions, refuses once sealed; answers travel in order too.

    As brokers do, it judges a whole run by its first number.
    """

    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []
        self.last = -1
        self.is_sealed = False
        self.wire: deque[MessageRun] = deque()  # Sent and not yet looked at.
        self.answers: deque[int] = deque()  # Receipts on their way back; -1 is "terminated".

    def work(self) -> None:
        run = self.wire.popleft()
        if self.is_sealed:
            self.answers.append(-1)
            return
        if run.first > self.last:
            self.log += rows(run)
            self.last = run.last
        self.answers.append(run.last)


class Rerouting(RuleBasedStateMachine):
    """A producer with deduplication: whatever happens, each key's messages are stored once and in order.

    Messages come one by one and as tables.
    """

    loop = asyncio.new_event_loop()  # For futures that nobody awaits.
    loop.close()

    @initialize(count=st.integers(1, 4), messages_max=st.integers(1, 4))
    def begin(self, count: int, messages_max: int) -> None:
        self.truth = layout(count)  # As published; the producer may be behind.
        self.lanes = Lanes(self.truth, limits=BatchLimits(messages_max, 1000))
        self.brokers = {number: Segment() for number in self.truth.segments}
        self.pending: SegmentLayout | None = None  # Sealed, but not yet published.
        self.sent = 0
        self.doubt: dict[SegmentId, int] = {}
        self.tables = TableRuns(Routing.HIGH, BatchLimits(messages_max, 1000))
        self.lanes.regroup = self.tables.regroup

    def send(self, segment: SegmentId, run: MessageRun) -> None:
        self.brokers[segment].wire.append(run)

    def dispatch(self) -> None:
        for lane, run in self.lanes.ready():
            self.send(lane.segment, run)

    @rule(hashes=st.lists(st.sampled_from([0, 0x1000, 0x4000, 0x7FFF, 0x8000, 0xC123, 0xFFFF]), max_size=5))
    def hand_in(self, hashes: list[int]) -> None:
        for hash16 in hashes:
            add(self.lanes, at(hash16, self.sent))
            self.sent += 1

    @rule(keys=st.lists(st.sampled_from([None, *"abcdefgh"]), min_size=1, max_size=12))
    def hand_in_table(self, keys: list[str | None]) -> None:
        table = pa.table({"key": pa.array(keys, pa.string()), "value": [b""] * len(keys)})
        names = {"value": "value", "key": "key", "event_time": None, "properties": None}
        sending = self.tables.start(table, names, self.loop.create_future())
        for piece in self.tables.pieces(sending, 1 << 20, 1):
            runs = self.tables.runs(self.lanes, sending, piece.batch, self.sent, 0.0)
            self.sent += piece.batch.num_rows
            for lane, run in runs:
                if lane.segment != NOWHERE:
                    self.leave(lane.segment)
                else:
                    lane.cut()
                lane.add(run)
                if lane.segment != NOWHERE:
                    self.send(lane.segment, run)

    @rule(data=st.data())
    def run_leaves(self, data: st.DataObject) -> None:
        """A batch is full, or has waited long enough."""
        segments = [number for number in self.lanes.segments if self.lane(number).items]
        if segments:
            self.leave(data.draw(st.sampled_from(segments)))

    def lane(self, number: SegmentId) -> Lane:
        lane = self.lanes.lane(number)
        assert lane is not None
        return lane

    def leave(self, number: SegmentId) -> None:
        run = self.lane(number).cut()
        if run is not None:
            self.send(number, run)

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
        runs = self.lanes.runs(number)
        if not runs:
            return
        self.doubt[number] = runs[-1].last
        for _ in range(data.draw(st.integers(0, len(broker.wire)))):
            broker.work()
        broker.wire.clear()
        broker.answers.clear()
        if broker.is_sealed:
            self.refused(number)
            self.dispatch()
        else:
            for run in runs:
                self.send(number, run)

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
            assert broker.log == sorted(broker.log)

    @invariant()
    def no_message_is_in_two_lanes(self) -> None:
        if not hasattr(self, "lanes"):
            return
        found: list[int] = []
        for segment in self.lanes.segments:
            held = [n for run in self.lanes.runs(segment) for n in numbers(run)]
            held += [item[0] for item in self.lane(segment).items]
            assert held == sorted(held)
            found += held
        assert len(found) == len(set(found))

    def teardown(self) -> None:
        if not hasattr(self, "truth"):
            return
        if self.pending is not None:
            self.publish()
        for _ in range(10_000):
            self.layout_arrives()
            for number in self.lanes.segments:
                self.leave(number)
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
        stored = [number for broker in self.brokers.values() for number, _ in broker.log]
        assert sorted(stored) == list(range(self.sent)), "lost or stored twice"
        for number, broker in self.brokers.items():
            for ancestor in self.truth.ancestors(number):
                last = {hash32: number for number, hash32 in self.brokers[ancestor].log}
                for number_, hash32 in broker.log:
                    assert number_ > last.get(hash32, -1), "a child holds what came before its parent"


TestRerouting = Rerouting.TestCase
TestRerouting.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
