"""Places in the log of what compaction has left, against a sorted list."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.compaction.index import BadIndex, CompactedIndex

PLACES = st.lists(st.tuples(st.sampled_from([3, 7, 12]), st.integers(0, 30)), unique=True, max_size=30).map(
    sorted
)


@given(PLACES, st.tuples(st.integers(-1, 13), st.integers(-1, 31)))
def test_places_and_numbers_are_those_of_a_sorted_list(
    places: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    made = CompactedIndex()
    for place in places:
        made.add(place)
    stored = CompactedIndex()
    for part in made.parts():
        stored.add_part(part)
    for index in (made, stored):
        assert len(index) == len(places)
        assert [index.place(n) for n in range(len(places))] == places
        assert index.number(asked) == bisect_left(places, (asked[0], max(0, asked[1])))
        assert (index.first, index.last) == ((places or [(-1, -1)])[0], (places or [(-1, -1)])[-1])
        for n, (ledger, _) in enumerate(places):
            assert index.run_end(n) == bisect_left(places, (ledger + 1, 0))


def test_what_is_no_index_is_refused() -> None:
    with pytest.raises(BadIndex):
        CompactedIndex().add_part(b"\x01\x00\x00\x00\x00\x00\x00\x00\xff\x00\x00\x00")
