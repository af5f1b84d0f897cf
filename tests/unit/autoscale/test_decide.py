"""What holds for every decision, whatever the facts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.autoscale.decide import (
    Merge,
    Observation,
    Rebucket,
    Reshape,
    Split,
    Stay,
    Verdict,
    decide,
)
from anabranch.autoscale.load import LoadReport
from anabranch.autoscale.policy import ScalePolicy, problems
from anabranch.model.buckets import BucketBudget
from anabranch.model.layout import SegmentLayout
from unit.autoscale.facts import observations, policies

Key = TypeVar("Key")
Value = TypeVar("Value")


def apply(layout: SegmentLayout, verdict: Reshape, now_ms: int, budget: BucketBudget) -> SegmentLayout:
    match verdict:
        case Split():
            return layout.split(verdict.segment, now_ms, verdict.lopsided)
        case Rebucket():
            return layout.rebucket(verdict.segment, verdict.buckets, now_ms)
        case _:
            return layout.merge(verdict.one, verdict.other, now_ms, budget)


def what(verdict: Verdict) -> object:
    return verdict.suppressed if isinstance(verdict, Stay) else verdict


def shuffled(items: Mapping[Key, Value], chance: random.Random) -> dict[Key, Value]:
    keys = list(items)
    chance.shuffle(keys)
    return {key: items[key] for key in keys}


@given(policies())
def test_the_policies_tried_here_are_valid(policy: ScalePolicy) -> None:
    assert problems(policy) == []


@given(observations(), policies(), st.booleans(), st.randoms(use_true_random=False))
def test_the_order_in_which_facts_come_changes_nothing(
    seen: Observation, policy: ScalePolicy, consumers_only: bool, chance: random.Random
) -> None:
    again = Observation(
        replace(seen.layout, segments=shuffled(seen.layout.segments, chance)),
        shuffled(seen.load, chance),
        shuffled(seen.consumers, chance),
        seen.now_ms,
        {name: shuffled(found, chance) for name, found in shuffled(seen.capacity, chance).items()},
        seen.budget,
        seen.last_left_ms,
    )
    assert decide(again, policy, consumers_only=consumers_only) == decide(
        seen, policy, consumers_only=consumers_only
    )


@given(observations(), policies(), st.booleans())
def test_what_is_decided_is_allowed_by_the_layout_and_by_the_caps(
    seen: Observation, policy: ScalePolicy, consumers_only: bool
) -> None:
    verdict = decide(seen, policy, consumers_only=consumers_only)
    assert verdict.because
    if isinstance(verdict, Stay):
        return
    after = apply(seen.layout, verdict, seen.now_ms, seen.budget)
    after.check()
    if isinstance(verdict, Split):
        assert len(after.active) <= policy.max_segments
        assert (
            seen.now_ms - seen.layout.last_split_ms >= policy.split_cooldown_ms
            or not seen.layout.last_split_ms
        )
    elif isinstance(verdict, Rebucket):
        assert not (consumers_only and verdict.rule == "idle")
        assert verdict.buckets >= 1
        before = seen.layout.segments[verdict.segment].bucket_count
        assert (verdict.buckets > before) == (verdict.rule == "consumers")
        assert verdict.buckets <= max(seen.budget.segment_max, before)
    else:
        assert not consumers_only
        assert len(after.active) >= policy.min_segments
        assert (
            seen.now_ms - seen.layout.last_merge_ms >= policy.merge_cooldown_ms
            or not seen.layout.last_merge_ms
        )


@given(observations(), policies(), st.booleans(), st.integers(0, 2000))
def test_before_the_time_to_look_again_the_same_facts_give_no_other_verdict(
    seen: Observation, policy: ScalePolicy, consumers_only: bool, later: int
) -> None:
    stay = decide(seen, policy, consumers_only=consumers_only)
    if not isinstance(stay, Stay):
        return
    if stay.look_again_ms is not None:
        assert stay.look_again_ms > seen.now_ms
        later = min(later, stay.look_again_ms - seen.now_ms - 1)
    at = replace(seen, now_ms=seen.now_ms + later)
    assert what(decide(at, policy, consumers_only=consumers_only)) == stay.suppressed


@given(observations(), policies())
def test_looking_again_when_told_comes_to_an_end(seen: Observation, policy: ScalePolicy) -> None:
    """Each look has a reason: a handful of moments later there is an action, or nothing more to wait for."""
    for _ in range(60):
        verdict = decide(seen, policy)
        if not isinstance(verdict, Stay) or verdict.look_again_ms is None:
            return
        seen = replace(seen, now_ms=verdict.look_again_ms)
    raise AssertionError("time alone changed the verdict sixty times")


@settings(max_examples=400)  # A merge comes of about one in seven.
@given(observations(), policies())
def test_what_was_just_merged_is_not_due_for_a_split(seen: Observation, policy: ScalePolicy) -> None:
    """Hysteresis: the same load and the same consumers, before and after, do not undo a merge."""
    verdict = decide(seen, policy)
    if not isinstance(verdict, Merge):
        return
    layout = apply(seen.layout, verdict, seen.now_ms, seen.budget)
    child = next(s for s in layout.active if s.created_epoch == layout.epoch)
    capacity = {
        name: {**found, child.id: child.bucket_count}
        if {verdict.one, verdict.other} <= found.keys()
        else found
        for name, found in seen.capacity.items()
    }
    both = seen.load[verdict.one].load + seen.load[verdict.other].load
    load = {**seen.load, child.id: LoadReport(both, seen.now_ms)}
    after = decide(replace(seen, layout=layout, load=load, capacity=capacity), policy)
    assert not isinstance(after, Rebucket) or after.rule != "consumers"
    assert not isinstance(after, Split) or after.segment != child.id
    assert not isinstance(after, Split) or after.rule != "consumers"


@given(observations(), policies())
def test_a_cap_suppresses_exactly_what_would_happen_without_it(
    seen: Observation, policy: ScalePolicy
) -> None:
    verdict = decide(seen, policy)
    if isinstance(verdict, Split):
        return
    unbounded = decide(seen, replace(policy, max_segments=10**6))
    assert ("max_segments" in verdict.suppressed) == isinstance(unbounded, Split)
    if isinstance(verdict, Stay):
        shallow = decide(seen, replace(policy, max_dag_depth=10**6))
        assert ("max_depth" in verdict.suppressed) == isinstance(shallow, Merge)


@given(observations(), policies())
def test_reasons_are_whole_sentences_and_do_not_count_seconds_down(
    seen: Observation, policy: ScalePolicy
) -> None:
    verdict = decide(seen, policy)
    assert any(letter.isdigit() for letter in verdict.because) or "no " in verdict.because
    if isinstance(verdict, Stay):
        assert verdict.because.startswith("No split: ")
        assert ". No merge: " in verdict.because
        assert verdict.because.endswith(".")
        if verdict.look_again_ms is not None and verdict.look_again_ms > seen.now_ms + 1:
            later = decide(replace(seen, now_ms=seen.now_ms + 1), policy)
            assert isinstance(later, Stay)
