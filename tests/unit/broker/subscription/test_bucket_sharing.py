"""Who may share a segment by its entry buckets."""

from __future__ import annotations

import tracemalloc

import pytest

from anabranch.broker.errors import ConsumerAssignError
from anabranch.broker.subscription.bucket_sharing import check_declared
from anabranch.model import buckets
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.dispatch.bucket_rig import SPLITS, declared


@pytest.mark.parametrize("splits", SPLITS)
def test_a_sharer_declares_all_buckets_and_nothing_else(splits: buckets.Splits) -> None:
    check_declared(pb.CommandSubscribe(keySharedMeta=declared(splits)), splits)
    others = [one for one in SPLITS if one != splits]
    for other in others:
        with pytest.raises(ConsumerAssignError, match="declared ranges"):
            check_declared(pb.CommandSubscribe(keySharedMeta=declared(other)), splits)


@pytest.mark.parametrize(("start", "end"), [(-1, 0xFFFF), (0xFFFF, 0), (0, 2**31 - 1), (-(2**31), -1)])
def test_ranges_that_no_bucket_has_are_refused(start: int, end: int) -> None:
    meta = pb.KeySharedMeta(keySharedMode=pb.STICKY, entryBucketDispatch=True)
    meta.hashRanges.add(start=start, end=end)
    with pytest.raises(ConsumerAssignError, match="declared ranges"):
        check_declared(pb.CommandSubscribe(keySharedMeta=meta), ())


def test_a_list_as_long_as_a_frame_is_refused_unread() -> None:
    meta = pb.KeySharedMeta(keySharedMode=pb.STICKY, entryBucketDispatch=True)
    for _ in range(100_000):
        meta.hashRanges.add(start=0, end=0)
    request = pb.CommandSubscribe(keySharedMeta=meta)
    tracemalloc.start()
    try:
        with pytest.raises(ConsumerAssignError, match="declared ranges"):
            check_declared(request, buckets.even(1024))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
