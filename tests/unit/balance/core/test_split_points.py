"""Where a bundle is cut: Pulsar's algorithms by example, and that each topic ends in exactly one part."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from anabranch.balance.core.settings import BalanceSettings, SplitAlgorithm
from anabranch.balance.core.split_points import (
    NoPoints,
    SplitPoints,
    TopicTraffic,
    automatic_points,
    children,
    split_points,
)
from anabranch.model.bundles import HASH_SPACE_END, BundleName, bundle_hash
from anabranch.model.names import NamespaceName

SALES = NamespaceName("acme", "sales")
DEFAULT = BalanceSettings()
# A bundle of a thousand hashes.
BUNDLE = BundleName(SALES, f"0x{1_000:08x}_0x{2_000:08x}")
WHOLE = BundleName(SALES, "0x00000000_0xffffffff")


def at(*places: int) -> list[TopicTraffic]:
    return [TopicTraffic(place) for place in places]


def points(
    algorithm: SplitAlgorithm,
    topics: list[TopicTraffic],
    settings: BalanceSettings = DEFAULT,
    **words: object,
) -> tuple[int, ...] | str:
    """The points, or the reason for none."""
    found = split_points(BUNDLE, algorithm, topics, settings, **words)  # type: ignore[arg-type]
    return found.points if isinstance(found, SplitPoints) else found.because


# -- the range


def test_a_range_is_halved_whatever_its_topics() -> None:
    assert points(SplitAlgorithm.RANGE, []) == (1_500,)
    assert points(SplitAlgorithm.RANGE, at(1_001, 1_002)) == (1_500,)
    found = split_points(WHOLE, SplitAlgorithm.RANGE, [], DEFAULT)
    assert found == SplitPoints((0x7FFFFFFF,), "the range is halved")


def test_a_single_hash_has_no_points() -> None:
    narrow = BundleName(SALES, "0x00000001_0x00000002")
    for algorithm in SplitAlgorithm:
        found = split_points(narrow, algorithm, at(1), DEFAULT, positions=[1, 2])
        assert found == NoPoints(f"{narrow} covers a single hash and cannot be divided further")


# -- the number of topics


def test_topics_are_divided_between_the_two_in_the_middle() -> None:
    assert points(SplitAlgorithm.TOPIC_COUNT, at(1_010, 1_020, 1_040, 1_900)) == (1_030,)
    assert points(SplitAlgorithm.TOPIC_COUNT, at(1_900, 1_010, 1_021)) == (1_015,)


def test_neighbouring_hashes_are_told_apart() -> None:
    # The middle, 1,010, would leave both topics on one side.
    assert points(SplitAlgorithm.TOPIC_COUNT, at(1_010, 1_011)) == (1_011,)


def test_topics_of_equal_hashes_stay_together() -> None:
    assert points(SplitAlgorithm.TOPIC_COUNT, at(1_010, 1_500, 1_500, 1_500, 1_600)) == (1_255,)
    assert points(SplitAlgorithm.TOPIC_COUNT, at(1_500, 1_500)) == "all 2 topics have the same hash"


def test_a_single_topic_cannot_be_divided() -> None:
    because = "the bundle has 1 topic, and two are needed to divide them"
    assert points(SplitAlgorithm.TOPIC_COUNT, at(1_500)) == because
    # Topics that hash elsewhere do not count.
    assert points(SplitAlgorithm.TOPIC_COUNT, at(1_500, 999, 2_000, 5)) == because


def test_the_last_bundle_has_the_end_of_the_hash_space() -> None:
    last = BundleName(SALES, "0xfffffff0_0xffffffff")
    found = split_points(last, SplitAlgorithm.TOPIC_COUNT, at(0xFFFFFFF0, HASH_SPACE_END), DEFAULT)
    assert isinstance(found, SplitPoints)
    assert found.points == (0xFFFFFFF7,)
    ends = [TopicTraffic(place, 30_000.0) for place in (HASH_SPACE_END - 1, HASH_SPACE_END)]
    assert split_points(last, SplitAlgorithm.TOPIC_COUNT, ends, DEFAULT) == NoPoints(
        "all 2 topics have the same hash"
    )
    assert split_points(last, SplitAlgorithm.TRAFFIC, ends, DEFAULT) == NoPoints(
        "fewer than two topics have traffic"
    )


# -- positions


def test_positions_within_the_bundle_are_points() -> None:
    topics = at(1_010, 1_020)
    given_positions = [1_700, 1_000, 2_000, 1_300, 1_300, 5]
    assert points(SplitAlgorithm.POSITIONS, topics, positions=given_positions) == (1_300, 1_700)
    assert (
        points(SplitAlgorithm.POSITIONS, topics, positions=[1_000, 2_000])
        == f"no position lies within {BUNDLE}"
    )
    assert points(SplitAlgorithm.POSITIONS, topics) == f"no position lies within {BUNDLE}"


def test_positions_need_two_topics_unless_they_are_forced() -> None:
    because = "the bundle has 0 topics, and two are needed to divide them"
    assert points(SplitAlgorithm.POSITIONS, [], positions=[1_300]) == because
    assert points(SplitAlgorithm.POSITIONS, [], positions=[1_300], is_forced=True) == (1_300,)


# -- traffic


def busy(*rates: tuple[int, float]) -> list[TopicTraffic]:
    return [TopicTraffic(place, rate) for place, rate in rates]


def test_traffic_is_cut_where_the_next_topic_would_be_too_much() -> None:
    topics = busy((1_100, 20_000.0), (1_200, 9_000.0), (1_300, 9_000.0), (1_400, 25_000.0))
    assert points(SplitAlgorithm.TRAFFIC, topics) == (1_251, 1_351)
    data = [TopicTraffic(place, 1.0, 60.0 * 1024 * 1024) for place in (1_100, 1_200)]
    assert points(SplitAlgorithm.TRAFFIC, data) == (1_151,)


def test_a_topic_that_is_too_much_alone_gets_a_part_of_its_own() -> None:
    assert points(SplitAlgorithm.TRAFFIC, busy((1_100, 1.0), (1_200, 10**6), (1_300, 1.0))) == (1_151, 1_251)


def test_neighbouring_busy_topics_are_told_apart() -> None:
    assert points(SplitAlgorithm.TRAFFIC, busy((1_100, 30_000.0), (1_101, 30_000.0))) == (1_101,)


def test_traffic_that_is_hardly_too_much_is_not_cut() -> None:
    because = "its traffic is not 10 % over what a bundle may have"
    assert points(SplitAlgorithm.TRAFFIC, busy((1_100, 16_000.0), (1_200, 16_999.0))) == because
    assert points(SplitAlgorithm.TRAFFIC, busy((1_100, 16_500.0), (1_200, 16_500.0))) == (1_151,)
    exact = replace(DEFAULT, traffic_difference_percent=0)
    at_limit = busy((1_100, 15_000.0), (1_200, 15_000.0))
    assert points(SplitAlgorithm.TRAFFIC, at_limit, exact) == "no cut would divide its traffic"


def test_idle_topics_do_not_count_as_traffic() -> None:
    assert (
        points(SplitAlgorithm.TRAFFIC, busy((1_100, 10**6), (1_200, 0.0)))
        == "fewer than two topics have traffic"
    )


def test_topics_of_one_hash_are_one_flow() -> None:
    assert points(SplitAlgorithm.TRAFFIC, busy((1_100, 20_000.0), (1_100, 20_000.0), (1_200, 5.0))) == (
        1_151,
    )


# -- automatic


def automatic(
    topics: list[TopicTraffic], algorithm: SplitAlgorithm = SplitAlgorithm.RANGE, room: int = 100
) -> SplitPoints | NoPoints:
    return automatic_points(BUNDLE, topics, room, replace(DEFAULT, split_algorithm=algorithm))


def test_the_configured_algorithm_cuts() -> None:
    assert automatic(at(1_100, 1_900)) == SplitPoints((1_500,), "the range is halved")
    busy_ones = busy((1_100, 30_000.0), (1_200, 30_000.0))
    found = automatic(busy_ones, SplitAlgorithm.TRAFFIC)
    assert found == SplitPoints((1_151,), "the traffic makes 2 parts")


def test_a_half_without_topics_is_not_cut_off() -> None:
    found = automatic(at(1_100, 1_200, 1_300, 2_500))
    assert found == SplitPoints(
        (1_150,),
        "1 of the topics on one side and 2 on the other, as a half of the range would have no topics",
    )


@pytest.mark.parametrize("algorithm", [SplitAlgorithm.TRAFFIC, SplitAlgorithm.POSITIONS])
def test_the_number_of_topics_decides_where_the_configured_algorithm_cannot(
    algorithm: SplitAlgorithm,
) -> None:
    found = automatic(at(1_100, 1_200), algorithm)
    assert isinstance(found, SplitPoints)
    assert found.points == (1_150,)


def test_topics_that_cannot_be_told_apart_are_not_cut() -> None:
    assert automatic(at(1_100, 1_100)) == NoPoints("all 2 topics have the same hash")


def test_there_are_no_more_parts_than_there_is_room_for() -> None:
    topics = busy(*((1_000 + 100 * number, 30_000.0) for number in range(6)))
    assert len(children(BUNDLE, _points(automatic(topics, SplitAlgorithm.TRAFFIC)))) == 6
    assert len(children(BUNDLE, _points(automatic(topics, SplitAlgorithm.TRAFFIC, room=2)))) == 3
    assert isinstance(automatic(topics, SplitAlgorithm.TRAFFIC, room=0), NoPoints)


def _points(found: SplitPoints | NoPoints) -> tuple[int, ...]:
    assert isinstance(found, SplitPoints)
    return found.points


# -- every cut

edges = st.lists(st.integers(0, HASH_SPACE_END), min_size=2, max_size=2, unique=True).map(sorted)
traffic = st.builds(TopicTraffic, st.integers(0, HASH_SPACE_END), st.floats(0, 1e5), st.floats(0, 2e8))


@given(edges, st.lists(traffic, max_size=30), st.sampled_from(SplitAlgorithm), st.data())
def test_every_topic_ends_in_exactly_one_part_and_no_part_is_empty(
    span: list[int], topics: list[TopicTraffic], algorithm: SplitAlgorithm, data: st.DataObject
) -> None:
    bundle = BundleName(SALES, f"0x{span[0]:08x}_0x{span[1]:08x}")
    positions = data.draw(st.lists(st.integers(*span), max_size=5))
    found = split_points(bundle, algorithm, topics, DEFAULT, positions=positions)
    assume(isinstance(found, SplitPoints))
    assert isinstance(found, SplitPoints)
    parts = children(bundle, found.points)
    assert len(parts) == len(found.points) + 1 >= 2
    assert parts[0].edges[0] == span[0]
    assert parts[-1].edges[1] == span[1]
    assert all(one.edges[1] == other.edges[0] for one, other in pairwise(parts))
    if algorithm in (SplitAlgorithm.TOPIC_COUNT, SplitAlgorithm.TRAFFIC):
        assert all(any(_holds(part, topic.place) for topic in topics) for part in parts)


def _holds(bundle: BundleName, place: int) -> bool:
    first, last = bundle.edges
    return first <= place < last or place == last == HASH_SPACE_END


@given(st.sets(st.text("abcdefgh0123", min_size=1, max_size=8), min_size=2, max_size=50))
def test_an_automatic_cut_of_real_topics_divides_them(names: set[str]) -> None:
    topics = [SALES.topic(one) for one in names]
    found = automatic_points(WHOLE, [TopicTraffic.of(one) for one in topics], 1, DEFAULT)
    assume(len({bundle_hash(one) for one in topics}) > 1)
    parts = children(WHOLE, _points(found))
    held = [sum(part.holds(topic) for topic in topics) for part in parts]
    assert sum(held) == len(topics)
    assert min(held) >= 1
