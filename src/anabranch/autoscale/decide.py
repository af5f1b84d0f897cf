"""Decides whether a scalable topic splits a segment, merges two, replaces one for its entry buckets, or stays as it is
(PIP-483, PIP-486). Pure.

`decide` looks for room for consumers first (a split that is worth it, else more entry buckets), then for a split for
load, then for a merge, and last for entry buckets to give back; each call returns at most one of them. It has no
clock and keeps no state: times are those of the store, and what must outlive a leader is stored in the layout. The same
facts give the same verdict in any order, so two leaders agree: ties go to the lowest id. Sentences name moments, not
remaining times, so that the same answer keeps its words until something changes.

`decide` does not check operations under way, nor who leads; its caller does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from anabranch.autoscale.buckets import NOT_NEEDED, NotRebucketed, look_for_fewer, look_for_more
from anabranch.autoscale.crowd import Crowd
from anabranch.autoscale.merges import NotMerged, look_for_merge
from anabranch.autoscale.policy import ScalePolicy, problems
from anabranch.autoscale.splits import NotSplit, no_split_wanted, split_for_consumers, split_for_load
from anabranch.autoscale.verdict import (
    MAX_DEPTH,
    MAX_SEGMENTS,
    NOTHING,
    Merge,
    NoMerge,
    NoRebucket,
    NoSplit,
    Observation,
    Rebucket,
    Reshape,
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
    "NoRebucket",
    "NoSplit",
    "Observation",
    "Rebucket",
    "Reshape",
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
    split = split_for_consumers(seen, policy, crowd)
    if isinstance(split, Split):
        return split
    # A split that only has to wait is awaited, if it makes room at all.
    is_awaited = split is not None and split.label is NoSplit.COOLDOWN and split.makes_room
    more = NOT_NEEDED if is_awaited else look_for_more(seen, policy, crowd)
    if isinstance(more, Rebucket):
        return replace(more, suppressed=_suppressed(split))
    if not consumers_only and (split is None or split.label in _OPEN_TO_LOAD):
        loaded = split_for_load(seen, policy, crowd)
        if isinstance(loaded, Split):
            return loaded
        if split is None or loaded.label is not NoSplit.NOT_NEEDED:
            split = loaded
    split = split or no_split_wanted(seen, crowd)
    suppressed = _suppressed(split)
    if consumers_only:
        return _stay(split, None, more, suppressed)
    merge = look_for_merge(seen, policy, crowd)
    if isinstance(merge, Merge):
        return Merge(merge.one, merge.other, merge.because, suppressed)
    if merge.is_suppressed:
        suppressed |= {MAX_DEPTH}
    if more is NOT_NEEDED:
        fewer = look_for_fewer(seen, policy)
        if isinstance(fewer, Rebucket):
            return replace(fewer, suppressed=suppressed)
        more = fewer
    return _stay(split, merge, more, suppressed)


# Where consumers alone lead to no split, load still may.
_OPEN_TO_LOAD: Final = frozenset({NoSplit.ONE_HASH, NoSplit.NOT_WORTH})


def _suppressed(split: NotSplit | None) -> frozenset[str]:
    return frozenset({MAX_SEGMENTS}) if split is not None and split.is_suppressed else NOTHING


def _stay(
    split: NotSplit, merge: NotMerged | None, rebucket: NotRebucketed, suppressed: frozenset[str]
) -> Stay:
    sentences = [f"No split: {split.because}."]
    if merge is not None:
        sentences.append(f"No merge: {merge.because}.")
    if rebucket.because:
        sentences.append(f"No rebucket: {rebucket.because}.")
    times = [split.look_again_ms, rebucket.look_again_ms, None if merge is None else merge.look_again_ms]
    return Stay(
        " ".join(sentences),
        suppressed,
        min((ms for ms in times if ms is not None), default=None),
        split.label,
        NoMerge.NOT_ASKED if merge is None else merge.label,
        rebucket.label,
    )


def _off(because: str) -> Stay:
    return Stay(because, no_split=NoSplit.OFF, no_merge=NoMerge.OFF, no_rebucket=NoRebucket.OFF)
