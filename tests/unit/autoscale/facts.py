"""Observations written down in a line, and arbitrary ones for properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import strategies as st

from anabranch.autoscale.decide import Merge, Observation, Rebucket, Split, Stay, decide
from anabranch.autoscale.load import Load, LoadReport
from anabranch.autoscale.policy import DEFAULT, ScalePolicy
from anabranch.model.buckets import ONE_BUCKET, BucketBudget
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import SegmentId
from unit.model.layouts import histories

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
NOW = 1_800_000_000_000
LONG_AGO = NOW - 10 * DAY


def seg(number: int) -> SegmentId:
    return SegmentId(number)


def segments(count: int) -> SegmentLayout:
    """Made long ago, with ids from 0 in the order of their ranges."""
    return SegmentLayout.initial(count, LONG_AGO)


def reports(loads: Mapping[int, Load | float], modified_ms: int = LONG_AGO) -> dict[SegmentId, LoadReport]:
    """By segment: a load, or its msgRateIn alone."""
    return {
        seg(number): LoadReport(load if isinstance(load, Load) else Load(load), modified_ms)
        for number, load in loads.items()
    }


def observe(
    layout: SegmentLayout,
    loads: Mapping[int, Load | float] | None = None,
    consumers: Mapping[str, int] | None = None,
    *,
    now_ms: int = NOW,
    modified_ms: int = LONG_AGO,
    shared: bool = False,
    budget: BucketBudget = ONE_BUCKET,
    last_left_ms: int = LONG_AGO,
) -> Observation:
    """`shared`: all consumers know entry buckets, and all entries are stamped."""
    found = consumers or {}
    capacity = {name: buckets_of(layout) for name in found} if shared else {}
    return Observation(
        layout, reports(loads or {}, modified_ms), found, now_ms, capacity, budget, last_left_ms
    )


def buckets_of(layout: SegmentLayout) -> dict[SegmentId, int]:
    """The capacity of segments that consumers can share."""
    return {segment.id: segment.bucket_count for segment in layout.active}


def the_split(seen: Observation, policy: ScalePolicy = DEFAULT, *, consumers_only: bool = False) -> Split:
    verdict = decide(seen, policy, consumers_only=consumers_only)
    assert isinstance(verdict, Split), verdict
    return verdict


def the_rebucket(
    seen: Observation, policy: ScalePolicy = DEFAULT, *, consumers_only: bool = False
) -> Rebucket:
    verdict = decide(seen, policy, consumers_only=consumers_only)
    assert isinstance(verdict, Rebucket), verdict
    return verdict


def the_merge(seen: Observation, policy: ScalePolicy = DEFAULT) -> Merge:
    verdict = decide(seen, policy)
    assert isinstance(verdict, Merge), verdict
    return verdict


def the_stay(seen: Observation, policy: ScalePolicy = DEFAULT, *, consumers_only: bool = False) -> Stay:
    verdict = decide(seen, policy, consumers_only=consumers_only)
    assert isinstance(verdict, Stay), verdict
    return verdict


# -- arbitrary facts, small enough that every rule is met often

rates = st.sampled_from([0.0, 1.0, 4.0, 5.0, 9.0, 10.0, 11.0, 99.0, 100.0, 101.0, 250.0])
loads = st.builds(Load, rates, rates, rates, rates)
quiet = st.sampled_from([0.0, 1.0, 4.0])
quiet_loads = st.builds(Load, quiet, quiet, quiet, quiet)


@st.composite
def policies(draw: st.DrawFn) -> ScalePolicy:
    least = draw(st.integers(1, 3))
    return ScalePolicy(
        max_segments=draw(st.integers(least, 8)),
        min_segments=least,
        max_dag_depth=draw(st.integers(0, 4)),
        split_cooldown_ms=draw(st.sampled_from([0, 10, 60])),
        merge_cooldown_ms=draw(st.sampled_from([0, 30, 300])),
        merge_window_ms=draw(st.sampled_from([0, 30, 300])),
        split=draw(st.sampled_from([Load(100, 100, 100, 100), Load(11, 100, 250, 100)])),
        merge=draw(st.sampled_from([Load(10, 10, 10, 10), Load(10, 99, 5, 99), Load()])),
        merge_depth_window_ms=draw(st.sampled_from([0, 100, 1000])),
        rebucket_cooldown_ms=draw(st.sampled_from([0, 20, 60])),
        rebucket_idle_window_ms=draw(st.sampled_from([0, 100, 500])),
    )


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    layout = draw(histories(changes_max=10))[-1]
    if draw(st.booleans()):
        for segment in layout.active:
            counted = replace(segment, lopsided=draw(st.integers(0, 3)))
            layout = replace(layout, segments={**layout.segments, segment.id: counted})
    now_ms = max(layout.last_split_ms, layout.last_merge_ms, layout.last_rebucket_ms) + draw(
        st.integers(0, 700)
    )
    # Four rates of each segment must be low for a merge, so half of the topics are quiet ones.
    kind, most = draw(st.sampled_from([(loads, 9), (quiet_loads, 1), (quiet_loads | loads, 2)]))
    load = {
        segment.id: LoadReport(draw(kind), draw(st.integers(0, now_ms)))
        for segment in layout.segments.values()
        if draw(st.integers(0, 5))
    }
    consumers = draw(st.dictionaries(st.sampled_from("abc"), st.integers(0, most), max_size=3))
    # Members of some groups know entry buckets, and some segments are not stamped.
    capacity = {
        name: {s.id: s.bucket_count for s in layout.active if draw(st.integers(0, 3))}
        for name in draw(st.sets(st.sampled_from("abc")))
    }
    budget = BucketBudget(draw(st.sampled_from([1, 4, 6])), draw(st.sampled_from([1, 3, 8, 1024])))
    return Observation(layout, load, consumers, now_ms, capacity, budget, draw(st.integers(0, now_ms)))
