"""Which bundles their owner splits: thresholds, hits in a row, and limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.balance.core.load import BundleLoad, namespace_of
from anabranch.balance.core.settings import BalanceSettings
from anabranch.balance.core.split import KeptWhole, SplitReason, SplitState, SplitVerdict, decide_splits
from unit.balance.core.facts import name

DEFAULT = BalanceSettings()
# One hit is enough, so that an example is one decision.
AT_ONCE = replace(DEFAULT, split_hits=0)
FEW = {"acme/sales": 4}
LARGE = BundleLoad(bundle=name(0), topics=1_001)
MEGABYTE = 1024 * 1024


def decided(
    *bundles: BundleLoad,
    counts: dict[str, int] = FEW,
    splitting: tuple[str, ...] = (),
    state: SplitState | None = None,
    settings: BalanceSettings = AT_ONCE,
) -> SplitVerdict:
    return decide_splits(bundles, counts, splitting, state or SplitState(), settings)


def split_names(verdict: SplitVerdict) -> list[str]:
    return [one.bundle for one in verdict.splits]


# -- thresholds


@pytest.mark.parametrize(
    ("at", "over", "reason", "because"),
    [
        ({"topics": 1_000}, {"topics": 1_001}, SplitReason.TOPICS, "1,001 topics, 100 % of its limit"),
        (
            {"sessions": 1_000},
            {"sessions": 2_000},
            SplitReason.SESSIONS,
            "2,000 sessions, 200 % of its limit",
        ),
        (
            {"msg_rate_in": 15_000.0, "msg_rate_out": 15_000.0},
            {"msg_rate_in": 15_000.0, "msg_rate_out": 21_000.0},
            SplitReason.MSG_RATE,
            "36,000 messages a second, 120 % of its limit",
        ),
        (
            {"throughput_in": 50.0 * MEGABYTE, "throughput_out": 50.0 * MEGABYTE},
            {"throughput_in": 50.0 * MEGABYTE, "throughput_out": 100.0 * MEGABYTE},
            SplitReason.BANDWIDTH,
            "150.0 MB a second, 150 % of its limit",
        ),
    ],
)
def test_a_bundle_over_a_threshold_is_split_and_one_at_it_is_not(
    at: dict[str, float], over: dict[str, float], reason: SplitReason, because: str
) -> None:
    allowed = BundleLoad(**{"bundle": name(0), "topics": 2, **at})  # type: ignore[arg-type]
    assert decided(allowed) == SplitVerdict((), (), SplitState())
    (split,) = decided(BundleLoad(**{"bundle": name(0), "topics": 2, **over})).splits  # type: ignore[arg-type]
    assert (split.bundle, split.reason, split.because) == (name(0), reason, f"{name(0)} has {because}")


def test_no_limit_of_sessions_is_no_limit() -> None:
    crowded = BundleLoad(bundle=name(0), topics=2, sessions=10**6)
    assert decided(crowded, settings=replace(AT_ONCE, bundle_sessions_max=0)).splits == ()


def test_a_limit_of_zero_is_exceeded_by_anything() -> None:
    (split,) = decided(
        BundleLoad(bundle=name(0), topics=2), settings=replace(AT_ONCE, bundle_topics_max=0)
    ).splits
    assert split.because == f"{name(0)} has 2 topics, and may have none"


def test_the_threshold_that_is_exceeded_the_most_gives_the_reason() -> None:
    both = BundleLoad(bundle=name(0), topics=1_500, msg_rate_in=90_000.0)
    assert [one.reason for one in decided(both).splits] == [SplitReason.MSG_RATE]


# -- hits


def test_a_bundle_is_split_after_more_hits_than_the_threshold() -> None:
    state, found = SplitState(), []
    for _ in range(6):
        verdict = decided(LARGE, state=state, settings=DEFAULT)
        found.append(len(verdict.splits))
        state = verdict.state
    # It begins again after the split.
    assert found == [0, 0, 0, 1, 0, 0]
    assert state.hits == {name(0): 2}


def test_hits_count_only_in_a_row() -> None:
    small = replace(LARGE, topics=10)
    state = SplitState()
    for one in (LARGE, LARGE, LARGE, small, LARGE, LARGE, LARGE):
        verdict = decided(one, state=state, settings=DEFAULT)
        assert verdict.splits == ()
        state = verdict.state
    assert decided(LARGE, state=state, settings=DEFAULT).splits


def test_bundles_that_are_gone_are_forgotten() -> None:
    assert decided(LARGE, state=SplitState({name(5): 3}), settings=DEFAULT).state.hits == {name(0): 1}


def test_a_bundle_that_waits_says_for_how_many_hits() -> None:
    (kept,) = decided(LARGE, settings=DEFAULT).not_divided
    assert kept.label is KeptWhole.HIT_COUNT
    assert kept.because.endswith("100 % of its limit, but only 1 time in a row, and splits need 4")


# -- limits


def test_so_many_bundles_are_split_in_a_cycle_and_no_more() -> None:
    bundles = [replace(LARGE, bundle=name(at), topics=1_001 + at) for at in range(12)]
    verdict = decided(*bundles)
    # Those furthest over their threshold.
    assert split_names(verdict) == [name(at) for at in range(11, 1, -1)]
    assert [(one.bundle, one.label) for one in verdict.not_divided] == [
        (name(1), KeptWhole.LIMIT),
        (name(0), KeptWhole.LIMIT),
    ]
    # They come first in the next cycle only if they are the furthest over; their hits go on.
    assert verdict.state.hits == {name(0): 1, name(1): 1}


def test_of_bundles_equally_far_over_the_lower_name_comes_first() -> None:
    settings = replace(AT_ONCE, splits_max=1)
    assert split_names(decided(replace(LARGE, bundle=name(7)), LARGE, settings=settings)) == [name(0)]


def test_a_namespace_never_gets_more_bundles_than_its_maximum() -> None:
    bundles = [replace(LARGE, bundle=name(at)) for at in range(3)]
    verdict = decided(*bundles, counts={"acme/sales": 126})
    assert [(one.bundle, one.room) for one in verdict.splits] == [(name(0), 1), (name(1), 1)]
    assert [one.label for one in verdict.not_divided] == [KeptWhole.MAX_BUNDLES]
    assert decided(LARGE, counts={"acme/sales": 128}).splits == ()
    other = replace(LARGE, bundle=name(0, "zoo/cats"))
    assert split_names(decided(LARGE, other, counts={"acme/sales": 128, "zoo/cats": 1})) == [other.bundle]


def test_the_first_split_of_a_namespace_may_make_as_many_parts_as_there_is_room_for() -> None:
    bundles = [replace(LARGE, bundle=name(at)) for at in range(3)]
    other = replace(LARGE, bundle=name(0, "zoo/cats"))
    verdict = decided(*bundles, other, counts={"acme/sales": 120, "zoo/cats": 1})
    assert [(one.bundle, one.room) for one in verdict.splits] == [
        (name(0), 6),
        (name(1), 1),
        (name(2), 1),
        (other.bundle, 127),
    ]


def test_a_namespace_with_an_unknown_number_of_bundles_is_left_alone() -> None:
    verdict = decided(LARGE, counts={})
    assert [one.label for one in verdict.not_divided] == [KeptWhole.UNKNOWN]


def test_a_single_topic_cannot_be_divided() -> None:
    verdict = decided(BundleLoad(bundle=name(0), topics=1, msg_rate_in=1e6), state=SplitState({name(0): 9}))
    assert verdict.splits == ()
    assert [one.label for one in verdict.not_divided] == [KeptWhole.FEW_TOPICS]
    assert verdict.state.hits == {}


def test_a_single_hash_cannot_be_divided() -> None:
    narrow = replace(LARGE, bundle="acme/sales/0x00000001_0x00000002")
    assert [one.label for one in decided(narrow).not_divided] == [KeptWhole.NARROW]
    assert decided(replace(LARGE, bundle="acme/sales/0x00000001_0x00000003")).splits


def test_a_child_waits_until_its_parent_is_split() -> None:
    parent = "acme/sales/0x00000000_0x00200000"
    verdict = decided(LARGE, splitting=(parent,))
    assert [one.label for one in verdict.not_divided] == [KeptWhole.IN_FLIGHT]
    assert decided(LARGE, splitting=("zoo/cats/0x00000000_0x00200000", name(1))).splits


@pytest.mark.parametrize("off", ["is_enabled", "is_splitting"])
def test_nothing_is_split_while_it_is_switched_off(off: str) -> None:
    settings = replace(AT_ONCE, is_enabled=off != "is_enabled", is_splitting=off != "is_splitting")
    assert decided(LARGE, state=SplitState({name(0): 9}), settings=settings) == SplitVerdict(
        (), (), SplitState()
    )


bundle_lists = st.lists(
    st.builds(
        lambda number, space, topics, rate: BundleLoad(
            bundle=name(number, space), topics=topics, msg_rate_in=float(rate)
        ),
        st.integers(0, 200),
        st.sampled_from(["acme/sales", "zoo/cats"]),
        st.sampled_from([0, 1, 2, 999, 1_001, 5_000]),
        st.sampled_from([0, 29_999, 30_001, 10**6]),
    ),
    unique_by=lambda one: one.bundle,
    max_size=30,
)


@given(
    bundle_lists,
    st.fixed_dictionaries({"acme/sales": st.integers(100, 130), "zoo/cats": st.integers(1, 130)}),
    st.dictionaries(st.integers(0, 200).map(name), st.integers(1, 6)),
)
def test_every_split_is_allowed_and_every_other_bundle_over_a_threshold_says_why_not(
    bundles: list[BundleLoad], counts: dict[str, int], hits: dict[str, int]
) -> None:
    verdict = decided(*bundles, counts=counts, state=SplitState(hits), settings=DEFAULT)
    named = split_names(verdict)
    assert len(named) == len(set(named)) <= DEFAULT.splits_max
    for space, count in counts.items():
        assert count + sum(one.room for one in verdict.splits if namespace_of(one.bundle) == space) <= max(
            128, count
        )
    over = {one.bundle for one in bundles if one.topics > 1_000 or one.msg_rate > 30_000}
    assert set(named) | {one.bundle for one in verdict.not_divided} == over
    assert not set(named) & {one.bundle for one in verdict.not_divided}
    assert all(hits.get(one, 0) + 1 > DEFAULT.split_hits for one in named)
    assert set(verdict.state.hits) <= over - set(named)
    shuffled = decided(*reversed(bundles), counts=counts, state=SplitState(hits), settings=DEFAULT)
    assert shuffled == verdict
