"""Who shares which segment by entry buckets: everyone active, evenly, with the fewest moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from anabranch.controller.core.assignment import assign
from anabranch.controller.core.sharing import UNSHARED, Buckets, Holders, share
from anabranch.model import buckets
from anabranch.model.segments import HashRange, Segment, SegmentId

EVERYONE = [f"c{n}" for n in range(9)]
Shared = Mapping[SegmentId, Holders]


def segments_of(*counts: int) -> list[Segment]:
    """Segments side by side, with so many buckets each."""
    spans = HashRange.even(len(counts))
    return [
        Segment(SegmentId(n), span, bucket_splits=buckets.even(count))
        for n, (span, count) in enumerate(zip(spans, counts, strict=True))
    ]


def room_of(segment: Segment) -> int:
    return segment.bucket_count


def knowing(names: Sequence[str], *others: str) -> dict[str, bool]:
    return dict.fromkeys(names, True) | dict.fromkeys(others, False)


def owned(segment: Segment, share: Buckets) -> set[int]:
    return set(range(segment.bucket_count)) if share == UNSHARED else set(share)


def kept(segments: Sequence[Segment], last: Shared, chosen: Shared) -> int:
    """How many buckets stay with who had them."""
    return sum(
        len(owned(segment, share) & owned(segment, last[segment.id][name]))
        for segment in segments
        for name, share in chosen.get(segment.id, {}).items()
        if name in last.get(segment.id, {})
    )


def active(chosen: Shared) -> set[str]:
    return {name for held in chosen.values() for name in held}


def level(numbers: Sequence[int], rooms: Sequence[int]) -> bool:
    """Whether no two numbers differ by more than one, except where there is no room for more."""
    return all(
        other - one <= 1 or one == room for one, room in zip(numbers, rooms, strict=True) for other in numbers
    )


def cuts(count: int, slots: int) -> Iterator[list[Buckets]]:
    """Every way to cut the buckets in slices that are even up to one."""
    width, wide = divmod(count, slots)
    for widths in set(permutations([width + 1] * wide + [width] * (slots - wide))):
        at, slices = 0, []
        for one in widths:
            slices.append(tuple(range(at, at + one)))
            at += one
        yield slices if slots > 1 else [UNSHARED]


def every_even(segments: Sequence[Segment], names: Sequence[str]) -> Iterator[Shared]:
    """Every assignment of more consumers than segments that is even in both ways and leaves nobody idle who need not
    be."""
    rooms = [segment.bucket_count for segment in segments]
    total = min(len(names), sum(rooms))
    for slots in product(*(range(1, room + 1) for room in rooms)):
        if sum(slots) != total or not level(slots, rooms):
            continue
        ways = [list(cuts(s.bucket_count, slot)) for s, slot in zip(segments, slots, strict=True)]
        for way in product(*ways):
            for order in permutations(names, total):
                dealt = iter(order)
                yield {
                    segment.id: {next(dealt): one for one in slices}
                    for segment, slices in zip(segments, way, strict=True)
                }


@st.composite
def crowds(
    draw: st.DrawFn, segments_max: int = 8, buckets_max: int = 9, names_max: int = 9
) -> tuple[list[Segment], list[str]]:
    counts = draw(st.lists(st.integers(1, buckets_max), min_size=1, max_size=segments_max))
    names = draw(st.lists(st.sampled_from(EVERYONE[:names_max]), min_size=1, unique=True))
    return segments_of(*counts), names


@st.composite
def lasts(draw: st.DrawFn, segments: Sequence[Segment], names: Sequence[str]) -> Shared:
    """What consumers had: neighbouring buckets of one segment each."""
    left = list(draw(st.permutations(names)))
    last: dict[SegmentId, Holders] = {}
    for segment in segments:
        at, held = 0, dict[str, Buckets]()
        while left and at < segment.bucket_count and draw(st.booleans()):
            end = draw(st.integers(at + 1, segment.bucket_count))
            whole = (at, end) == (0, segment.bucket_count) and draw(st.booleans())
            held[left.pop()] = UNSHARED if whole else tuple(range(at, end))
            at = end
        last[segment.id] = held
    return last


@given(st.data(), crowds(), st.lists(st.sampled_from(EVERYONE), unique=True))
def test_every_bucket_has_one_consumer_and_a_whole_segment_only_one(
    data: st.DataObject, crowd: tuple[list[Segment], list[str]], unknowing: list[str]
) -> None:
    segments, names = crowd
    last = data.draw(lasts(segments, EVERYONE))
    knows = {name: name not in unknowing for name in names}
    chosen = share(segments, room_of, knows, last, {})
    for segment in segments:
        held = chosen.get(segment.id, {})
        whole = [name for name, one in held.items() if one == UNSHARED]
        assert not whole or len(held) == 1
        assert sorted(n for one in held.values() for n in owned(segment, one)) == list(
            range(segment.bucket_count)
        )
        for name, one in held.items():
            assert name in knows
            assert one == UNSHARED or knows[name], "who does not know buckets never shares"
            assert one == UNSHARED or one == tuple(range(one[0], one[-1] + 1)), "neighbours"


@given(st.data(), crowds(segments_max=12))
def test_while_there_is_a_segment_for_each_consumer_nobody_shares_and_the_assignment_is_todays(
    data: st.DataObject, crowd: tuple[list[Segment], list[str]]
) -> None:
    segments, names = crowd
    assume(len(names) <= len(segments))
    some = st.dictionaries(st.sampled_from([s.id for s in segments]), st.sampled_from(EVERYONE))
    last, inherit = data.draw(some), data.draw(some)
    knows = {name: data.draw(st.booleans()) for name in names}
    chosen = share(
        segments,
        room_of,
        knows,
        {number: {name: UNSHARED} for number, name in last.items()},
        {number: (name,) for number, name in inherit.items()},
    )
    assert chosen == {n: {name: UNSHARED} for n, name in assign(segments, names, last, inherit).items()}


@given(st.data(), crowds(buckets_max=1))
def test_with_one_bucket_each_the_assignment_is_todays_whatever_the_crowd(
    data: st.DataObject, crowd: tuple[list[Segment], list[str]]
) -> None:
    segments, names = crowd
    last = data.draw(st.dictionaries(st.sampled_from([s.id for s in segments]), st.sampled_from(EVERYONE)))
    chosen = share(segments, room_of, knowing(names), {n: {name: UNSHARED} for n, name in last.items()}, {})
    assert chosen == {n: {name: UNSHARED} for n, name in assign(segments, names, last, {}).items()}


@given(st.data(), crowds(segments_max=4, buckets_max=4))
def test_nobody_is_idle_while_there_is_room(
    data: st.DataObject, crowd: tuple[list[Segment], list[str]]
) -> None:
    segments, names = crowd
    last = data.draw(lasts(segments, EVERYONE))
    room = sum(map(room_of, segments))
    assert len(active(share(segments, room_of, knowing(names), last, {}))) == min(len(names), room)


@given(st.data(), crowds(segments_max=4, buckets_max=4), st.lists(st.sampled_from(EVERYONE), unique=True))
def test_consumers_that_do_not_know_buckets_leave_as_many_active_as_can_be(
    data: st.DataObject, crowd: tuple[list[Segment], list[str]], unknowing: list[str]
) -> None:
    segments, names = crowd
    last = data.draw(lasts(segments, EVERYONE))
    knows = {name: name not in unknowing for name in names}
    able = sum(knows.values())
    best = max(
        min(len(given_whole), len(names) - able)
        + min(able, sum(s.bucket_count for s in segments if s.id not in given_whole))
        for given_whole in _subsets([s.id for s in segments])
        if len(given_whole) <= len(names) - able
    )
    assert len(active(share(segments, room_of, knows, last, {}))) == best


def _subsets(numbers: Sequence[SegmentId]) -> Iterator[set[SegmentId]]:
    for mask in range(1 << len(numbers)):
        yield {number for at, number in enumerate(numbers) if mask >> at & 1}


@given(st.data(), crowds())
def test_consumers_and_buckets_are_spread_evenly(
    data: st.DataObject, crowd: tuple[list[Segment], list[str]]
) -> None:
    segments, names = crowd
    assume(len(names) > len(segments))
    chosen = share(segments, room_of, knowing(names), data.draw(lasts(segments, EVERYONE)), {})
    assert level([len(chosen[s.id]) for s in segments], [s.bucket_count for s in segments])
    for segment in segments:
        widths = [len(owned(segment, one)) for one in chosen[segment.id].values()]
        assert max(widths) - min(widths) <= 1


@settings(max_examples=60, deadline=None)
@given(st.data(), crowds(segments_max=2, buckets_max=4, names_max=5))
def test_no_even_assignment_takes_fewer_buckets_from_who_had_them(
    data: st.DataObject, crowd: tuple[list[Segment], list[str]]
) -> None:
    segments, names = crowd
    assume(len(names) > len(segments))
    last = data.draw(lasts(segments, EVERYONE[:5]))
    chosen = share(segments, room_of, knowing(names), last, {})
    assert kept(segments, last, chosen) == max(
        kept(segments, last, other) for other in every_even(segments, names)
    )


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(2, 7))
def test_of_one_segment_no_even_cut_takes_fewer_buckets_from_who_had_them(
    data: st.DataObject, count: int
) -> None:
    segments, names = segments_of(count), EVERYONE[: data.draw(st.integers(2, 6))]
    last = data.draw(lasts(segments, EVERYONE[:6]))
    chosen = share(segments, room_of, knowing(names), last, {})
    assert kept(segments, last, chosen) == max(
        kept(segments, last, other) for other in every_even(segments, names)
    )


@given(st.data(), crowds(), st.lists(st.sampled_from(EVERYONE), unique=True))
def test_the_same_facts_in_any_order_give_the_same_shares(
    data: st.DataObject, crowd: tuple[list[Segment], list[str]], unknowing: list[str]
) -> None:
    segments, names = crowd
    knows = {name: name not in unknowing for name in names}
    last = data.draw(lasts(segments, EVERYONE))
    heirs = {s.id: tuple(data.draw(st.lists(st.sampled_from(EVERYONE), unique=True))) for s in segments}
    turned = {number: dict(list(last[number].items())[::-1]) for number in reversed(list(last))}
    one = share(segments, room_of, knows, last, heirs)
    assert one == share(
        segments[::-1], room_of, dict(reversed(knows.items())), turned, dict(reversed(heirs.items()))
    )
    assert list(one) == [s.id for s in segments if s.id in one]


@given(st.data(), crowds(), st.lists(st.sampled_from(EVERYONE), unique=True))
def test_shares_chosen_again_move_nothing(
    data: st.DataObject, crowd: tuple[list[Segment], list[str]], unknowing: list[str]
) -> None:
    segments, names = crowd
    knows = {name: name not in unknowing for name in names}
    chosen = share(segments, room_of, knows, data.draw(lasts(segments, EVERYONE)), {})
    assert share(segments, room_of, knows, chosen, {}) == chosen


def test_four_buckets_serve_four_consumers_and_a_fifth_waits() -> None:
    chosen = share(segments_of(4), room_of, knowing(EVERYONE[:5]), {}, {})
    assert chosen == {0: {"c0": (0,), "c1": (1,), "c2": (2,), "c3": (3,)}}


def test_a_consumer_that_leaves_costs_no_move_where_others_can_take_its_buckets_evenly() -> None:
    last: Shared = {SegmentId(0): {"c0": (0,), "c1": (1,), "c2": (2,), "c3": (3,)}}
    chosen = share(segments_of(4), room_of, knowing(["c0", "c2", "c3"]), last, {})
    assert chosen == {0: {"c0": (0, 1), "c2": (2,), "c3": (3,)}}


def test_the_next_consumer_goes_where_a_segment_is_shared_already() -> None:
    last: Shared = {
        SegmentId(0): {"c0": UNSHARED},
        SegmentId(1): {"c1": (0, 1, 2, 3)},
        SegmentId(2): {"c2": UNSHARED},
    }
    chosen = share(segments_of(4, 4, 4), room_of, knowing(["c0", "c1", "c2", "c3"]), last, {})
    assert chosen == {0: {"c0": UNSHARED}, 1: {"c1": (0, 1), "c3": (2, 3)}, 2: {"c2": UNSHARED}}


def test_the_sharers_of_a_segment_share_its_successor() -> None:
    segments = segments_of(4, 8)
    last: Shared = {SegmentId(0): {"c1": UNSHARED}}
    chosen = share(segments, room_of, knowing(["c0", "c1", "c2"]), last, {SegmentId(1): ("c2", "c0")})
    assert chosen == {0: {"c1": UNSHARED}, 1: {"c2": (0, 1, 2, 3), "c0": (4, 5, 6, 7)}}


def test_a_consumer_that_does_not_know_buckets_keeps_its_segment_and_the_others_share_the_rest() -> None:
    last: Shared = {SegmentId(1): {"old": UNSHARED}}
    chosen = share(segments_of(4, 4), room_of, knowing(["c0", "c1", "c2"], "old"), last, {})
    assert chosen == {0: {"c0": (0, 1), "c1": (2,), "c2": (3,)}, 1: {"old": UNSHARED}}


def test_consumers_that_do_not_know_buckets_are_given_the_segments_that_have_the_fewest() -> None:
    chosen = share(segments_of(4, 1), room_of, knowing(["c0", "c1"], "old"), {}, {})
    assert chosen == {0: {"c0": (0, 1), "c1": (2, 3)}, 1: {"old": UNSHARED}}


def test_two_hundred_consumers_of_64_segments_with_four_buckets_all_have_something() -> None:
    segments, names = segments_of(*[4] * 64), [f"c{n:03}" for n in range(200)]
    chosen: Shared = {}
    for count in (1, 63, 64, 65, 128, 199, 200):
        before, chosen = chosen, share(segments, room_of, knowing(names[:count]), chosen, {})
        assert active(chosen) == set(names[:count])
        assert not before or kept(segments, before, chosen) > 0
    assert {len(held) for held in chosen.values()} == {3, 4}
    # One more takes buckets of one segment alone.
    more = share(segments, room_of, knowing([*names, "new"]), chosen, {})
    assert sum(more[number] != chosen[number] for number in chosen) == 1


def test_records_that_contradict_each_other_still_give_each_bucket_one_consumer() -> None:
    last: Shared = {SegmentId(0): {"c0": (0, 1), "c1": (1, 2), "c2": (3, 9), "c3": (7,)}}
    chosen = share(segments_of(4), room_of, knowing(["c0", "c1", "c2", "c3"]), last, {})
    assert sorted(n for one in chosen[SegmentId(0)].values() for n in one) == [0, 1, 2, 3]


def test_a_newcomer_among_two_hundred_sharers_of_a_thousand_buckets_leaves_most_where_they_were() -> None:
    segments, names = segments_of(1024), [f"c{n:03}" for n in range(200)]
    before = share(segments, room_of, knowing(names), {}, {})
    assert share(segments, room_of, knowing(names), before, {}) == before
    after = share(segments, room_of, knowing([*names, "new"]), before, {})
    assert active(after) == {*names, "new"}
    assert kept(segments, before, after) > 700


def test_who_could_share_waits_rather_than_take_the_only_segment_from_one_who_could_not() -> None:
    last: Shared = {SegmentId(0): {"old": UNSHARED}}
    assert share(segments_of(4), room_of, knowing(["c0"], "old"), last, {}) == last
    # Two are more than one.
    chosen = share(segments_of(4), room_of, knowing(["c0", "c1"], "old"), last, {})
    assert chosen == {0: {"c0": (0, 1), "c1": (2, 3)}}
