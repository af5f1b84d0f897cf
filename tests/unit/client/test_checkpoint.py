"""Checkpoints: their bytes, and where segments are read from because of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.checkpoint import Checkpoint, Edge, readable, start_of
from anabranch.client.errors import BadCheckpoint
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import SegmentId

ONE = SegmentLayout.initial(1, 0)
# 0 splits into 1 and 2; 1 splits into 3 and 4; 2 and 4 merge into 5.
RIVER = ONE.split(0, 0).split(1, 0).merge(4, 2, 0)

numbers = st.integers(0, 2**62)


def where(number: int, start: Checkpoint | Edge, since_epoch: int = 0) -> object:
    return start_of(RIVER, SegmentId(number), start, since_epoch)


@given(
    st.dictionaries(numbers, st.tuples(numbers, numbers, st.integers(-1, 2**31 - 1))), st.frozensets(numbers)
)
def test_bytes_come_back_as_the_same_checkpoint(
    positions: dict[int, tuple[int, int, int]], finished: frozenset[int]
) -> None:
    checkpoint = Checkpoint(positions, finished)
    assert Checkpoint.decode(checkpoint.encode()) == checkpoint
    assert Checkpoint(dict(reversed(positions.items())), finished).encode() == checkpoint.encode()


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"version":2}', b'{"version":1,"positions":{"x":[1]}}']
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadCheckpoint):
        Checkpoint.decode(data)


def test_a_segment_is_read_behind_its_position() -> None:
    assert where(3, Checkpoint({3: (7, 9, -1)})) == (7, 9, -1)


def test_ancestors_of_a_segment_that_was_reached_are_over_and_its_descendants_are_new() -> None:
    start = Checkpoint({4: (7, 9, -1)}, frozenset({2}))
    assert [where(n, start) for n in (0, 1, 2)] == [Edge.OVER] * 3
    assert where(5, start) is Edge.EARLIEST
    # Nobody had come to it, though its parent was over.
    assert where(3, start) is Edge.EARLIEST


def test_latest_skips_what_was_sealed_then_and_reads_all_of_what_came_later() -> None:
    assert where(0, Edge.LATEST, since_epoch=1) is Edge.OVER
    assert where(1, Edge.LATEST, since_epoch=1) is Edge.LATEST
    assert where(3, Edge.LATEST, since_epoch=1) is Edge.EARLIEST


def test_a_segment_may_be_read_once_all_its_ancestors_are_finished() -> None:
    def may(*finished: int) -> list[int]:
        return [*readable(RIVER, frozenset(SegmentId(n) for n in finished))]

    assert may() == [0]
    assert may(0) == [1, 2]
    assert may(0, 1) == [2, 3, 4]
    assert may(0, 1, 4) == [2, 3]
    assert may(0, 1, 2, 4) == [3, 5]
