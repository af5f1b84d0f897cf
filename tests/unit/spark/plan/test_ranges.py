"""Ranges: which segments have rows that are wanted, and which rows those are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.consuming.core.checkpoint import CLOCKS_APART_MS
from anabranch.model.keyhash import segment_hash
from anabranch.model.segments import WHOLE, HashRange, Segment, SegmentId
from anabranch.spark.columns.row_filter import wanted
from anabranch.spark.plan.ranges import ANY, Ranges
from unit.model.test_cut import ranges as spans

Message = tuple[bytes | None, int]  # Key and time.

keys = st.sampled_from([b"a", b"b", b"c", b"", b"key-17"])
messages = st.lists(st.tuples(st.none() | keys, st.integers(0, 9)), max_size=20)
wishes = st.builds(
    Ranges,
    since_ms=st.none() | st.integers(0, 9),
    until_ms=st.none() | st.integers(0, 9),
    keys=st.none() | st.frozensets(keys),
    hashes=st.none() | st.lists(spans, max_size=3).map(tuple),
    segments=st.none() | st.frozensets(st.integers(0, 3).map(SegmentId)),
)


def batch_of(rows: list[Message]) -> Any:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([key for key, _ in rows], pa.binary()),
            pa.array([time for _, time in rows], pa.timestamp("ms", "UTC")),
        ],
        names=["key", "publish_time"],
    )


def is_wanted(ranges: Ranges, key: bytes | None, time: int) -> bool:
    return (
        (ranges.since_ms is None or time >= ranges.since_ms)
        and (ranges.until_ms is None or time < ranges.until_ms)
        and (ranges.keys is None or key in ranges.keys)
        and (
            ranges.hashes is None
            or (key is not None and any(segment_hash(key) in span for span in ranges.hashes))
        )
    )


@given(messages, wishes)
def test_the_rows_that_are_kept_are_those_within_all_ranges(rows: list[Message], ranges: Ranges) -> None:
    found = wanted(batch_of(rows), ranges)
    assert found.equals(batch_of([row for row in rows if is_wanted(ranges, *row)]))


@given(wishes, keys, st.integers(0, 9))
def test_a_segment_that_has_a_wanted_row_is_read(ranges: Ranges, key: bytes, time: int) -> None:
    at = segment_hash(key)
    segment = Segment(SegmentId(1), HashRange(at, at), created_ms=time, sealed_epoch=1, sealed_ms=time + 1)
    is_named = ranges.segments is None or 1 in ranges.segments
    if is_named and is_wanted(ranges, key, time):
        assert ranges.may_be_in(segment)


def test_segments_are_passed_over_by_their_times_with_room_for_clocks() -> None:
    long = 10 * CLOCKS_APART_MS
    segment = Segment(SegmentId(0), WHOLE, created_ms=long, sealed_epoch=1, sealed_ms=2 * long)
    assert not Ranges(since_ms=3 * long).may_be_in(segment)
    assert not Ranges(until_ms=long // 2).may_be_in(segment)
    assert Ranges(since_ms=2 * long + CLOCKS_APART_MS).may_be_in(segment)
    assert Ranges(until_ms=long - CLOCKS_APART_MS + 1).may_be_in(segment)


def test_a_partition_may_hold_any_key_of_any_time() -> None:
    partition = Segment(SegmentId(0), HashRange(0, 1), classic_topic="t-partition-0", created_ms=1 << 50)
    assert Ranges(until_ms=5, keys=frozenset({b"a"}), hashes=(HashRange(9, 9),)).may_be_in(partition)


def test_nothing_is_looked_at_where_everything_is_wanted() -> None:
    batch = batch_of([(b"a", 1)])
    assert wanted(batch, ANY) is batch
