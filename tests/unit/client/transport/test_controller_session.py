"""What a controller assigns to a member, as it is read from the wire."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.client.transport.controller_session import Assigned, read_assigned
from anabranch.errors import PeerError
from anabranch.model.buckets import even, ranges
from anabranch.model.segments import HashRange
from anabranch.wire import pulsar_pb2 as pb


def segment(**fields: Any) -> pb.ScalableAssignedSegment:
    return pb.ScalableAssignedSegment(
        segment_id=3, hash_start=0, hash_end=0x7FFF, segment_topic="s", **fields
    )


def test_a_segment_that_is_whole_the_members_own_has_no_buckets() -> None:
    assert read_assigned(segment()) == Assigned("s", HashRange(0, 0x7FFF))
    assert not read_assigned(segment()).is_shared


def test_a_segment_that_comes_to_be_shared_is_another_value() -> None:
    shared = read_assigned(
        segment(
            bucket_ranges=[pb.IntRange(start=one.start, end=one.end) for one in ranges(even(4))],
            anabranch_own_buckets=[1, 3],
        )
    )
    assert shared == Assigned("s", HashRange(0, 0x7FFF), ranges(even(4)), (1, 3))
    assert shared.is_shared
    assert shared != read_assigned(segment())


@pytest.mark.parametrize(("start", "end"), [(5, 4), (-1, 4), (0, 1 << 16)])
def test_ranges_that_there_cannot_be_are_refused(start: int, end: int) -> None:
    with pytest.raises(PeerError, match="the assignment of segment 3"):
        read_assigned(segment(bucket_ranges=[pb.IntRange(start=start, end=end)]))


def test_buckets_that_the_segment_does_not_have_are_refused() -> None:
    bounds = [pb.IntRange(start=one.start, end=one.end) for one in ranges(even(2))]
    with pytest.raises(PeerError, match="segment 3: it has no bucket 2"):
        read_assigned(segment(bucket_ranges=bounds, anabranch_own_buckets=[0, 2]))
    assert read_assigned(segment(bucket_ranges=bounds, anabranch_own_buckets=[1, 0, 1])).own_buckets == (0, 1)
