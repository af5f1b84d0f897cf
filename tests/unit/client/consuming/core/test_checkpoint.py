"""What a checkpoint consumer may start from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from anabranch.client.consuming.core.checkpoint import begin_of, merge_checkpoints, unresolved
from anabranch.client.errors import BadArgument, BadCheckpoint
from anabranch.model.cut import Cut, Place
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import WHOLE, SegmentId

MINUTE = 60_000


def test_a_start_is_an_end_of_the_topic_a_checkpoint_or_a_time() -> None:
    assert begin_of("earliest") == Cut()
    assert begin_of("latest") == "latest"
    cut = Cut((Place(SegmentId(3), WHOLE, 2, ((4, 5, 6),)),))
    assert begin_of(cut.encode()) == cut
    assert begin_of(datetime(2026, 1, 1, tzinfo=UTC)) == 1_767_225_600_000
    assert begin_of(datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))) == 1_767_225_600_000


@pytest.mark.parametrize("start", ["first", None, 5, datetime(2026, 1, 1)])
def test_other_starts_are_refused_with_what_to_give(start: object) -> None:
    with pytest.raises(BadArgument, match="give"):
        begin_of(start)  # type: ignore[arg-type]  # On purpose.


def test_bytes_that_are_no_checkpoint_are_refused() -> None:
    with pytest.raises(BadCheckpoint):
        begin_of(b"earliest")


def test_a_checkpoint_with_a_position_for_each_entry_bucket_is_a_start() -> None:
    cut = Cut((Place(SegmentId(0), WHOLE, 0, ((1, 1, 0), (1, 2, 0))),))
    assert begin_of(cut.encode()) == cut


def test_checkpoints_of_a_groups_members_make_one() -> None:
    layout = SegmentLayout.initial(2, 0)
    lower, upper = (Place.of(segment).moved((7, segment.id, 0)) for segment in layout.active)
    assert merge_checkpoints([Cut((lower,)).encode(), Cut((upper,)).encode()]) == Cut((lower, upper)).encode()


def test_latest_is_asked_of_every_active_segment() -> None:
    layout = SegmentLayout.initial(2, 0).split(0, 0)
    assert [place.segment for place in unresolved(layout, "latest")] == [2, 3, 1]


def test_a_time_is_asked_of_the_segments_that_may_have_messages_of_then() -> None:
    # 0 was sealed long before, 1 and 2 shortly before, and 3 and 4, made of 1, are not from before either.
    layout = SegmentLayout.initial(1, 0).split(0, 5 * MINUTE).split(1, 10 * MINUTE)
    found = unresolved(layout, 10 * MINUTE + 1000)
    assert [(place.segment, place.is_apart) for place in found] == [
        (1, False),
        (2, False),
        (3, True),
        (4, True),
    ]
    # An hour later only the active ones can have any.
    found = unresolved(layout, 70 * MINUTE)
    assert [(place.segment, place.is_apart) for place in found] == [(2, False), (3, False), (4, False)]
    # And at the time of the first split, 3 and 4 are read from their beginnings.
    found = unresolved(layout, 5 * MINUTE)
    assert [(place.segment, place.is_apart) for place in found] == [(0, False), (1, True), (2, True)]


def test_every_partition_is_asked_for_a_time() -> None:
    layout = SegmentLayout.synthetic(["a", "b"], 0)
    assert [place.is_classic for place in unresolved(layout, MINUTE)] == [True, True]
