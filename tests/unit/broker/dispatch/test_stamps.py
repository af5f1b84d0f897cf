"""The stamps of entries, and readers that want some entry buckets only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.dispatch.stamps import WantedHashes
from anabranch.broker.errors import ConsumerAssignError
from anabranch.model.segments import HashRange
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import WANTED_HASHES, hashes_text
from anabranch.wire.stamps import stamp_of
from anabranch.wire.subscription_types import EXCLUSIVE, KEY_SHARED, SHARED
from unit.broker.rig import Rig

HASHES = st.integers(0, 0xFFFF)


def wanting(*ranges: tuple[int, int]) -> dict[str, str]:
    return {WANTED_HASHES: hashes_text(HashRange(*one) for one in ranges)}


@pytest.mark.parametrize(
    ("stamp", "found"),
    [
        ((3, 7), (3, 7)),
        ((0, 0), (0, 0)),
        ((0xFFFF, 0xFFFF), (0xFFFF, 0xFFFF)),
        ((7, 3), None),
        ((7, 0x10000), None),
        ((7, None), None),
        ((None, 7), None),
        ((None, None), None),
    ],
)
def test_half_a_stamp_or_a_wrong_one_is_none(
    stamp: tuple[int | None, int | None], found: tuple[int, int] | None
) -> None:
    assert stamp_of(pb.MessageMetadata(entry_hash_min=stamp[0], entry_hash_max=stamp[1])) == found


@given(edges=st.lists(HASHES, unique=True, min_size=2, max_size=8), one=HASHES, other=HASHES)
def test_an_entry_is_wanted_if_its_stamp_meets_a_range(edges: list[int], one: int, other: int) -> None:
    edges = sorted(edges[: len(edges) // 2 * 2])
    ranges = list(zip(edges[::2], edges[1::2], strict=True))
    low, high = min(one, other), max(one, other)
    wanted = WantedHashes(hashes_text(HashRange(*one) for one in ranges))
    meets = any(start <= high and low <= end for start, end in ranges)
    assert wanted.touch(pb.MessageMetadata(entry_hash_min=low, entry_hash_max=high)) is meets


def test_a_reader_of_some_buckets_gets_their_entries_whole_and_all_that_may_be_theirs(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(is_durable=False)
    reader, link = rig.consumer(EXCLUSIVE, metadata=wanting((0, 99), (200, 299)), permits=0)
    stamps = [(0, 5), (100, 199), (150, 220), (300, 400), (50, 600), (None, None), (9, 8), (250, 250)]
    places = [rig.publish(1, hashes=stamp)[0] for stamp in stamps]
    rig.subscription.flow(reader, 1000)
    rig.loop.settle()
    assert link.places == [places[n] for n in (0, 2, 4, 5, 6, 7)]


def test_of_several_entries_that_are_passed_over_the_last_one_is_sent(make_rig: Callable[..., Rig]) -> None:
    """So that the reader knows how far it has come."""
    rig = make_rig(is_durable=False)
    reader, link = rig.consumer(EXCLUSIVE, metadata=wanting((0, 99)), permits=0)
    places = [rig.publish(1, hashes=(200, 300))[0] for _ in range(5)]
    rig.subscription.flow(reader, 1000)
    rig.loop.settle()
    assert link.places == [places[-1]]
    (more,) = rig.publish(1, hashes=(500, 600))
    rig.loop.settle()
    assert link.places == [places[-1], more]


@pytest.mark.parametrize("text", ["", "0000", "0005-0003", "0000-00ff,00ff-0fff", "0000-ffff,", "all"])
def test_a_reader_of_malformed_ranges_is_refused(make_rig: Callable[..., Rig], text: str) -> None:
    rig = make_rig(is_durable=False)
    with pytest.raises(ConsumerAssignError, match=f"{WANTED_HASHES}="):
        rig.consumer(EXCLUSIVE, metadata={WANTED_HASHES: text})
    rig.consumer(EXCLUSIVE)


def test_a_durable_consumer_is_sent_everything(make_rig: Callable[..., Rig]) -> None:
    """What it is not sent would stay unacknowledged for good."""
    rig = make_rig()
    _, link = rig.consumer(EXCLUSIVE, metadata=wanting((0, 99)))
    rig.publish(1, hashes=(200, 300))
    rig.publish(1, hashes=(200, 300))
    rig.loop.settle()
    assert len(link.places) == 2


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_plain_shared_and_key_shared_consumers_get_the_same_whether_entries_are_stamped_or_not(
    make_rig: Callable[..., Rig], kind: int
) -> None:
    found = []
    for stamps in ([(None, None)] * 12, [(n * 0x1500, n * 0x1500 + 9) for n in range(12)]):
        rig = make_rig()
        links = [rig.consumer(kind, permits=100, key_shared=None)[1] for _ in range(3)]
        for number, stamp in enumerate(stamps):
            rig.publish(1, key=f"key-{number % 5}", hashes=stamp)
        rig.loop.settle()
        found.append([link.places for link in links])
    assert found[0] == found[1]
    assert sum(len(places) for places in found[0]) == 12
    assert sum(bool(places) for places in found[0]) > 1
