"""The bucket pass: whether a segment should get another number of entry buckets, which one, and why not. Pure.

Consumers that share segments (PIP-486) first use the entry buckets that are there. Where those are too few, and no
split would be worth its segments, a segment is replaced by one with more: the least power of two that serves them all
once all segments have it. Raising is fast. Lowering is lazy: buckets that no consumer has needed for a window of time
are given back, down to the topic's share, as each bucket makes batches smaller.

A cooldown stands between two changes. Raising further segments to the number that was chosen last is the same change,
so a topic with many segments serves its consumers at once. Further ones are lowered one in each cooldown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from anabranch.autoscale.crowd import Crowd, served
from anabranch.autoscale.load import describe_rate
from anabranch.autoscale.policy import ScalePolicy
from anabranch.autoscale.verdict import NoRebucket, Observation, Rebucket, counted, moment, span
from anabranch.model.segments import Segment


@dataclass(frozen=True, slots=True)
class NotRebucketed:
    label: NoRebucket
    because: str = ""
    look_again_ms: int | None = None


NOT_NEEDED = NotRebucketed(NoRebucket.NOT_NEEDED)


def look_for_more(seen: Observation, policy: ScalePolicy, crowd: Crowd) -> Rebucket | NotRebucketed:
    """More buckets for a crowd that needs them."""
    if not crowd.is_short:
        return NOT_NEEDED
    shared = [s for s in seen.layout.active if s.id in crowd.capacity]
    if not shared:
        return NotRebucketed(NoRebucket.NOT_SHARED)
    most = seen.budget.segment_max
    alone = len(seen.layout.active) - len(shared)
    wanted = _for_each(len(shared), crowd.consumers - alone, most)
    able = [s for s in shared if s.bucket_count < wanted]
    has = f"{crowd} and the topic {_room(seen, crowd)}"
    if not able:
        return NotRebucketed(
            NoRebucket.MAX_BUCKETS, f"{has}, but a segment may have {counted(most, 'entry bucket')} at most"
        )
    end_ms = 0 if _is_same_change(seen, wanted) else _cooled_ms(seen, policy)
    if seen.now_ms < end_ms:
        because = (
            f"{has}, but after the last rebucket there is a cooldown of {span(policy.rebucket_cooldown_ms)} "
            f"until {moment(end_ms)}"
        )
        return NotRebucketed(NoRebucket.COOLDOWN, because, end_ms)
    chosen = min(able, key=lambda s: (-_rate(seen, s), s.id))
    because = (
        f"{has}; segment {chosen.id} takes in the most, {describe_rate(0, _rate(seen, chosen))}, and gets "
        f"{counted(wanted, 'entry bucket')}"
    )
    return Rebucket(chosen.id, wanted, "consumers", because)


def look_for_fewer(seen: Observation, policy: ScalePolicy) -> Rebucket | NotRebucketed:
    """Fewer buckets for a segment that has had more than its consumers need, for long enough."""
    layout = seen.layout
    total, share = sum(s.bucket_count for s in layout.active), seen.budget.share(len(layout.active))
    # Without a rebucket the topic has the buckets that it was made with: another budget is for new topics alone.
    if not layout.last_rebucket_ms or total <= max(seen.budget.total, len(layout.active)):
        return NOT_NEEDED
    raised = [s for s in layout.active if s.bucket_count > share]
    lower = {s.id: _least_needed(seen, s, share) for s in raised}
    able = [s for s in raised if lower[s.id] < s.bucket_count]
    if not able:
        return NOT_NEEDED if not raised else NotRebucketed(NoRebucket.CONSUMERS)
    chosen = min(able, key=lambda s: (lower[s.id] - s.bucket_count, s.id))
    buckets = lower[chosen.id]
    idle_ms = policy.rebucket_idle_window_ms
    due_ms = max(seen.last_left_ms + idle_ms, _cooled_ms(seen, policy))
    if not _is_same_change(seen, buckets):
        due_ms = max(due_ms, layout.last_rebucket_ms + idle_ms)
    over = f"segment {chosen.id} has {counted(chosen.bucket_count, 'entry bucket')} and {buckets} would be enough"
    if seen.now_ms < due_ms:
        because = f"{over}, but not yet for {span(idle_ms)}: it waits until {moment(due_ms)}"
        return NotRebucketed(NoRebucket.WINDOW, because, due_ms)
    return Rebucket(chosen.id, buckets, "idle", f"{over}, for {span(idle_ms)} or longer")


def _room(seen: Observation, crowd: Crowd) -> str:
    segments = counted(len(seen.layout.active), "segment")
    return f"{segments} with room for {counted(crowd.served, 'consumer')}"


def _rate(seen: Observation, segment: Segment) -> float:
    report = seen.load.get(segment.id)
    return 0.0 if report is None else report.load.msg_rate_in


def _powers(most: int) -> Iterator[int]:
    """1, 2, 4 and so on, and at last the most itself."""
    at = 1
    while at < most:
        yield at
        at *= 2
    yield most


def _for_each(segments: int, consumers: int, most: int) -> int:
    """The least power of two that serves everybody if each of the segments has it; else the most that one may have.

    Segments that have more already do not count for more: the number would change while the others are replaced.
    """
    return next((n for n in _powers(most) if n * segments >= consumers), most)


def _least_needed(seen: Observation, segment: Segment, share: int) -> int:
    """The number of buckets, not below the share, with which the segment serves every subscription as well as if it was
    raised for them now."""
    layout, needed = seen.layout, share
    for name, consumers in seen.consumers.items():
        capacity = seen.capacity.get(name, {})
        if segment.id not in capacity:
            continue
        shared = [s for s in layout.active if s.id in capacity]
        alone = len(layout.active) - len(shared)
        others = served(layout, capacity) - capacity[segment.id]
        even = _for_each(len(shared), consumers - alone, segment.bucket_count)
        needed = max(needed, even, consumers - others)
    if needed == share:
        return share
    return next((n for n in _powers(segment.bucket_count) if n >= needed), segment.bucket_count)


def _cooled_ms(seen: Observation, policy: ScalePolicy) -> int:
    last_ms = seen.layout.last_rebucket_ms
    return last_ms + policy.rebucket_cooldown_ms if last_ms else 0


def _is_same_change(seen: Observation, buckets: int) -> bool:
    """Whether the last rebucket was for that number too."""
    last_ms = seen.layout.last_rebucket_ms
    return any(s.created_ms == last_ms and s.bucket_count == buckets for s in seen.layout.active if last_ms)
