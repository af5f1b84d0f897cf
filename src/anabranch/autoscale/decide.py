"""Decides whether a scalable topic splits a segment, merges two, or stays as it is (PIP-483). Pure.

`decide` checks first for a split and, if none is due, for a merge; each call returns at most one of them. It has no
clock and keeps no state: times are those of the store, and what must outlive a leader is stored in the layout. The same
facts give the same verdict in any order, so two leaders agree: ties go to the lowest id. Sentences name moments, not
remaining times, so that the same answer keeps its words until something changes.

`decide` does not check operations under way, nor who leads; its caller does.
"""

from __future__ import annotations

from anabranch.autoscale.merges import look_for_merge
from anabranch.autoscale.policy import ScalePolicy, problems
from anabranch.autoscale.splits import Crowd, look_for_split
from anabranch.autoscale.verdict import (
    MAX_DEPTH,
    MAX_SEGMENTS,
    NOTHING,
    Merge,
    NoMerge,
    NoSplit,
    Observation,
    Rule,
    Split,
    Stay,
    Verdict,
)

__all__ = [
    "MAX_DEPTH",
    "MAX_SEGMENTS",
    "Merge",
    "NoMerge",
    "NoSplit",
    "Observation",
    "Rule",
    "Split",
    "Stay",
    "Verdict",
    "decide",
]


def decide(seen: Observation, policy: ScalePolicy, *, consumers_only: bool = False) -> Verdict:
    """The action that is due for the topic now, or the reasons for none.

    `consumers_only` evaluates the consumer rule alone, as when a consumer joins or leaves. A policy with `problems` is
    treated as switched off: half of a contradiction must not be acted on.
    """
    if found := problems(policy):
        return _off(f"Automatic split and merge is off, as the policy is invalid: {'; '.join(found)}.")
    if not policy.enabled:
        return _off("Automatic split and merge is switched off (enabled is false).")
    crowd = Crowd.of(seen)
    split = look_for_split(seen, policy, crowd, consumers_only=consumers_only)
    if isinstance(split, Split):
        return split
    suppressed = frozenset({MAX_SEGMENTS}) if split.is_suppressed else NOTHING
    if consumers_only:
        return Stay(f"No split: {split.because}.", suppressed, split.look_again_ms, split.label)
    merge = look_for_merge(seen, policy, crowd)
    if isinstance(merge, Merge):
        return Merge(merge.one, merge.other, merge.because, suppressed)
    if merge.is_suppressed:
        suppressed |= {MAX_DEPTH}
    times = [ms for ms in (split.look_again_ms, merge.look_again_ms) if ms is not None]
    return Stay(
        f"No split: {split.because}. No merge: {merge.because}.",
        suppressed,
        min(times, default=None),
        split.label,
        merge.label,
    )


def _off(because: str) -> Stay:
    return Stay(because, no_split=NoSplit.OFF, no_merge=NoMerge.OFF)
