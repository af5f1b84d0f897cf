"""Which consumer gets which key."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.dispatch.selector import HashRing, KeyHalves, KeyRanges
from anabranch.broker.errors import ConsumerAssignError
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.subscription_types import KEY_SHARED
from unit.broker.rig import RecordingLink


def named(name: str, *ranges: tuple[int, int]) -> AttachedConsumer:
    meta = pb.KeySharedMeta(keySharedMode=pb.STICKY if ranges else pb.AUTO_SPLIT)
    for start, end in ranges:
        meta.hashRanges.add(start=start, end=end)
    return AttachedConsumer(1, name, RecordingLink(), kind=KEY_SHARED, key_shared=meta)


SLOTS = range(1, 65536, 97)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.text(max_size=5), min_size=1, max_size=6), st.data())
def test_a_consumer_that_leaves_moves_only_its_own_keys(names: list[str], data: st.DataObject) -> None:
    ring = HashRing()
    consumers = [named(name) for name in names]
    for consumer in consumers:
        ring.add(consumer)
    before = {slot: ring.select(slot) for slot in SLOTS}
    leaving = data.draw(st.sampled_from(consumers))
    ring.remove(leaving)
    for slot, owner in before.items():
        if owner is not leaving:
            assert ring.select(slot) is owner
        else:
            assert ring.select(slot) is not leaving
    ring.add(leaving)
    for consumer in consumers:
        ring.remove(consumer)
    assert ring.select(5) is None
    assert ring.ranges() == {}


def test_the_ring_spreads_keys_fairly_even_over_equal_names() -> None:
    ring = HashRing()
    consumers = [named("same") for _ in range(4)]
    for consumer in consumers:
        ring.add(consumer)
    shares = [sum(1 for slot in SLOTS if ring.select(slot) is consumer) for consumer in consumers]
    assert min(shares) > len(SLOTS) / 4 * 0.6


def test_the_ranges_shown_cover_every_slot_once_and_agree_with_the_choice() -> None:
    ring = HashRing()
    for name in "abc":
        ring.add(named(name))
    covered = sorted((start, end, owner) for owner, spans in ring.ranges().items() for start, end in spans)
    at = 1
    for start, end, owner in sorted(covered, key=lambda one: one[0]):
        assert start == at
        assert ring.select(start) is ring.select(end) is owner
        at = end + 1
    assert at == 65536


@settings(deadline=None, max_examples=50)
@given(st.lists(st.booleans(), min_size=1, max_size=20), st.data())
def test_halved_ranges_always_cover_every_slot_once(steps: list[bool], data: st.DataObject) -> None:
    halves = KeyHalves()
    present: list[AttachedConsumer] = []
    for comes in steps:
        if comes or not present:
            present.append(named("c"))
            halves.add(present[-1])
        else:
            halves.remove(present.pop(data.draw(st.integers(0, len(present) - 1))))
        covered = sorted((span, owner.name) for owner, spans in halves.ranges().items() for span in spans)
        assert len(covered) == len(present)
        edges = [span for span, _ in covered]
        if present:
            assert [start for start, _ in edges] == [0, *(end + 1 for _, end in edges[:-1])]
            assert edges[-1][1] == 65535
    for owner, [(start, end)] in halves.ranges().items():
        assert halves.select(start) is halves.select(end) is owner


def test_halves_go_to_whoever_comes_and_back_to_a_neighbour() -> None:
    halves, first, second, third = KeyHalves(), named("1"), named("2"), named("3")
    for consumer in (first, second, third):
        halves.add(consumer)
    assert halves.ranges() == {third: [(0, 16384)], second: [(16385, 32768)], first: [(32769, 65535)]}
    halves.remove(first)
    assert halves.ranges() == {third: [(0, 16384)], second: [(16385, 65535)]}
    halves.remove(third)
    assert halves.select(1) is second


def test_sticky_ranges_choose_their_owner_and_leave_gaps_to_nobody() -> None:
    ranges = KeyRanges()
    low, high = named("low", (0, 99)), named("high", (200, 299), (400, 65535))
    ranges.add(low)
    ranges.add(high)
    assert [ranges.select(slot) for slot in (1, 99, 100, 200, 299, 300, 65535)] == [
        low,
        low,
        None,
        high,
        high,
        None,
        high,
    ]
    ranges.remove(high)
    assert ranges.select(250) is None
    assert ranges.ranges() == {low: [(0, 99)]}


@pytest.mark.parametrize(
    "wanted", [[(50, 60)], [(99, 120)], [(0, 65535)], [(150, 199), (299, 300)], [(100, 200)]]
)
def test_a_range_that_overlaps_another_consumers_is_refused(wanted: list[tuple[int, int]]) -> None:
    ranges = KeyRanges()
    ranges.add(named("one", (0, 99), (200, 299)))
    with pytest.raises(ConsumerAssignError) as refused:
        ranges.add(named("two", *wanted))
    assert refused.value.code == pb.ConsumerAssignError
    assert len(ranges.ranges()) == 1


@pytest.mark.parametrize("wanted", [[], [(5, 4)], [(0, 65536)], [(0, 10), (10, 20)]])
def test_malformed_ranges_are_refused(wanted: list[tuple[int, int]]) -> None:
    with pytest.raises(ConsumerAssignError):
        KeyRanges().add(named("one", *wanted))
