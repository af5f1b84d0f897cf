"""Entries published to a segment with several entry buckets, on a log in memory."""

from __future__ import annotations

import pytest

from anabranch.broker.state.bucket_dedup import lane_of
from anabranch.broker.state.dedup import WHOLE, LaneIds
from anabranch.model.buckets import even, ranges
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_entry
from anabranch.wire.frames import BAD_CHECKSUM, Frame
from unit.broker.topic.test_publishing import Rig, unreadable

FOUR = even(4)


def stamped(last: int, bucket: int | None, *, is_encrypted: bool = False) -> pb.MessageMetadata:
    made = pb.MessageMetadata(producer_name="p", sequence_id=last, publish_time=1)
    if bucket is not None:
        made.entry_hash_min = made.entry_hash_max = ranges(FOUR)[bucket].end
    if is_encrypted:
        made.encryption_keys.add(key="k", value=b"v")
    return made


def frame(last: int, bucket: int | None, **more: bool) -> Frame:
    return (6, 1, last, 1, last, 0, memoryview(build_entry(stamped(last, bucket, **more), b"x")))


async def test_the_ids_of_a_run_of_entries_are_noted_by_bucket() -> None:
    rig = await Rig(FOUR).open()
    rig.publishing.publish(rig.producer, [frame(1, 0), frame(2, 3), frame(3, None)])
    rig.publishing.publish(rig.producer, [frame(4, 3)])
    assert await rig.until_answered(4) == [("receipt", n + 1, n) for n in range(4)]
    assert rig.producer.last_ids == {0: 1, 3: 4, WHOLE: 3}
    assert rig.producer.last_pushed == 4
    assert rig.stamps is not None
    assert (rig.stamps.unstamped, rig.producer.unstamped) == (1, 1)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([(4, 1), (3, 0)], {0: 3}),
        ([(4, 1), (4, 1)], {1: 4}),
        ([(1, 0), (4, 1), (0, 2), (1, 0)], {2: 0, 0: 1}),
        ([(90, None), (0, 2)], {2: 0}),
    ],
)
async def test_ids_that_were_not_judged_are_noted_from_the_last_one_that_went_back(
    ids: list[tuple[int, int | None]], expected: LaneIds
) -> None:
    rig = await Rig(FOUR).open()
    rig.publishing.publish(rig.producer, [frame(last, bucket) for last, bucket in ids])
    assert rig.producer.last_ids == expected


@pytest.mark.parametrize("is_limited", [True, False])
async def test_metadata_that_nobody_can_read_names_no_bucket(is_limited: bool) -> None:
    rig = await Rig(FOUR).open()
    if is_limited:
        rig.publishing.limit_messages(1000, 0)
    rig.publishing.publish(rig.producer, [(6, 1, 7, 1, 7, 0, unreadable())])
    assert await rig.until_answered(1) == [("receipt", 7, 0)]
    assert rig.producer.last_ids == {WHOLE: 7}
    assert rig.producer.unstamped == 1


async def test_what_is_not_stored_is_not_counted() -> None:
    rig = await Rig(FOUR).open()
    rig.publishing.deduplicate(True)
    rig.send(1)
    rig.send(1)
    rig.send(2, flags=BAD_CHECKSUM)
    rig.store.set_accepting(False)
    rig.send(3)
    rig.publishing.deduplicate(False)
    rig.send(3)
    assert rig.producer.unstamped == 1
    assert rig.producer.last_ids is None


async def test_nothing_but_the_cleartext_of_an_encrypted_entry_is_needed() -> None:
    rig = await Rig(FOUR).open()
    rig.publishing.deduplicate(True)
    rig.publishing.require_encryption(True)
    sends = [frame(4, 1, is_encrypted=True), frame(3, 0, is_encrypted=True), frame(4, 1, is_encrypted=True)]
    rig.publishing.publish(rig.producer, sends)
    assert await rig.until_answered(3) == [("receipt", 4, 0), ("receipt", 3, 1), ("receipt", 4, -1)]


async def test_an_answer_that_is_due_later_confirms_the_bucket_of_its_own_entry() -> None:
    rig = await Rig(FOUR).open()
    rig.publishing.deduplicate(True)
    rig.publishing.publish(rig.producer, [frame(4, 1), frame(3, 0), frame(5, None)])
    assert rig.dedup.last_confirmed("p") == -1
    await rig.until_answered(3)
    assert rig.dedup.pushed_by("p") == {1: 4, 0: 3, WHOLE: 5}
    assert not rig.dedup.is_behind("p")


def test_a_field_that_is_missing_is_not_a_hash_of_0() -> None:
    for low, high, lane in [(0, 0, 0), (None, 0, WHOLE), (0, None, WHOLE), (None, None, WHOLE)]:
        made = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        if low is not None:
            made.entry_hash_min = low
        if high is not None:
            made.entry_hash_max = high
        assert lane_of(FOUR, made) == lane
