"""The split pass: whether a segment should split, which one, and why not. Pure.

Consumers go first: a subscription with more consumers than the segments serve leaves some without work. Then load: a
segment over any of its limits. The consumer rule splits the segment with the most incoming messages, since any split
gives a consumer a segment. The load rule does not split a hot key again and again: where one child of a split kept
nearly all of the heat, splitting it divides nothing, so each such split in a row doubles the wait before the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from anabranch.autoscale.crowd import Crowd
from anabranch.autoscale.load import IDLE, Load, describe_amount, describe_rate
from anabranch.autoscale.policy import ScalePolicy
from anabranch.autoscale.verdict import NoSplit, Observation, Split, counted, moment, percent, span
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import Segment, SegmentId

# A sibling with less than this share of the load of both got nothing from the split.
LOPSIDED_SHARE: Final = 0.1
# The wait doubles at most this often: about 17 hours at the default cooldown, so it always ends.
LOPSIDED_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class NotSplit:
    label: NoSplit
    because: str
    is_suppressed: bool = False
    look_again_ms: int | None = None
    # Whether the split would serve more consumers. The halves of a segment have no more entry buckets than the whole,
    # unless that has just one.
    makes_room: bool = False


def split_for_consumers(seen: Observation, policy: ScalePolicy, crowd: Crowd) -> Split | NotSplit | None:
    """The split that serves one consumer more; None if they have room, or can only get it by other means.

    Consumers that can share segments get a split only where it is worth its segments: the load of both halves would
    keep them from being merged back.
    """
    if not crowd.is_short:
        return None
    wanted = _for_consumers(seen, policy, crowd)
    return _braked(seen, policy, wanted) if isinstance(wanted, Split) else wanted


def split_for_load(seen: Observation, policy: ScalePolicy, crowd: Crowd) -> Split | NotSplit:
    wanted = _for_load(seen, policy, crowd)
    return _braked(seen, policy, wanted) if isinstance(wanted, Split) else wanted


def no_split_wanted(seen: Observation, crowd: Crowd) -> NotSplit:
    """The answer where load is not considered."""
    return NotSplit(NoSplit.NOT_NEEDED, _few_consumers(crowd, len(seen.layout.active)))


def _braked(seen: Observation, policy: ScalePolicy, wanted: Split) -> Split | NotSplit:
    """The two brakes come last, so that each is named only when it alone stops a split."""
    active = seen.layout.active
    end_ms = seen.layout.last_split_ms + policy.split_cooldown_ms if seen.layout.last_split_ms else 0
    if seen.now_ms < end_ms:
        because = (
            f"{wanted.because}, but after the last split there is a cooldown of {span(policy.split_cooldown_ms)} "
            f"until {moment(end_ms)}"
        )
        makes_room = seen.layout.segments[wanted.segment].bucket_count == 1
        return NotSplit(NoSplit.COOLDOWN, because, look_again_ms=end_ms, makes_room=makes_room)
    if len(active) >= policy.max_segments:
        because = (
            f"{wanted.because}, but the topic has {counted(len(active), 'segment')} "
            f"and maxSegments is {policy.max_segments}"
        )
        return NotSplit(NoSplit.MAX_SEGMENTS, because, is_suppressed=True)
    return wanted


def _few_consumers(crowd: Crowd, active: int) -> str:
    if not crowd.consumers:
        return "no subscription has ordered consumers"
    room = f" with room for {crowd.served}" if crowd.served > active else ""
    has = f"{counted(active, 'segment')}{room} {'is' if active == 1 else 'are'} enough for consumers"
    return f"{has}, as {crowd} at most"


# -- consumers


def _for_consumers(seen: Observation, policy: ScalePolicy, crowd: Crowd) -> Split | NotSplit:
    active = seen.layout.active
    able = [s for s in active if s.range.start < s.range.end]
    if not able:
        return NotSplit(NoSplit.ONE_HASH, f"{crowd}, but every segment is down to a single hash")
    if crowd.can_share:
        able = [s for s in able if _is_worth(_load_of(seen, s), policy)]
        if not able:
            because = (
                f"{crowd}, but no segment has twice the load of a merge limit: its halves would be merged"
            )
            return NotSplit(NoSplit.NOT_WORTH, because)
    load = seen.load
    busiest, most = able[0], -1.0
    for segment in able:
        report = load.get(segment.id)
        rate = report.load.msg_rate_in if report is not None else 0.0
        if rate > most or (rate == most and segment.id < busiest.id):
            busiest, most = segment, rate
    room = f" with room for {counted(crowd.served, 'consumer')}" if crowd.served > len(active) else ""
    because = (
        f"{crowd} and the topic {counted(len(active), 'segment')}{room}; "
        f"segment {busiest.id} takes in the most, {describe_rate(0, most)}"
    )
    return Split(busiest.id, "consumers", because, _lopsided(seen, policy, busiest, _load_of(seen, busiest)))


def _is_worth(load: Load, policy: ScalePolicy) -> bool:
    """Whether each half of such a load is over a merge limit."""
    half = Load(*(rate / 2 for rate in load.rates))
    return not half.is_under_all(policy.merge)


# -- load


def _for_load(seen: Observation, policy: ScalePolicy, crowd: Crowd) -> Split | NotSplit:
    limits, reports = policy.split, seen.load
    hot: list[tuple[float, Segment, Load]] = []
    warmest: tuple[float, Segment, Load] | None = None
    for segment in seen.layout.active:
        report = reports.get(segment.id)
        if report is None:
            continue
        load = report.load
        heat = load.heat(limits)
        # The rates themselves are compared with the limits: a ratio may be rounded to 1.
        if heat >= 1.0 and load.is_over_any(limits):
            hot.append((heat, segment, load))
        elif warmest is None or (-heat, segment.id) < (-warmest[0], warmest[1].id):
            warmest = (heat, segment, load)
    if not hot:
        return NotSplit(NoSplit.NOT_NEEDED, _all_cool(seen, policy, warmest, crowd))
    hot.sort(key=lambda item: (-item[0], item[1].id))
    return _first_free(seen, policy, hot)


def _all_cool(
    seen: Observation, policy: ScalePolicy, warmest: tuple[float, Segment, Load] | None, crowd: Crowd
) -> str:
    enough = _few_consumers(crowd, len(seen.layout.active))
    if warmest is None:
        return f"no segment has a load record yet, and {enough}"
    heat, segment, load = warmest
    if heat == 0.0:
        return f"every segment is idle, and {enough}"
    return f"segment {segment.id} is the hottest, with {_against(load, policy.split)}, and {enough}"


def _against(load: Load, limits: Load) -> str:
    """`msgRateIn 12,000/s, 120 % of its split limit of 10,000/s`, for the rate with the largest share."""
    at = load.hottest(limits)
    share = percent(load.rates[at] / limits.rates[at])
    limit = describe_amount(at, limits.rates[at])
    return f"{describe_rate(at, load.rates[at])}, {share} of its split limit of {limit}"


def _first_free(
    seen: Observation, policy: ScalePolicy, hot: Sequence[tuple[float, Segment, Load]]
) -> Split | NotSplit:
    """Splits the hottest segment that may split now; else says why the one that may split soonest must wait."""
    soonest: NotSplit | None = None
    for _, segment, load in hot:
        over = f"segment {segment.id} has {_against(load, policy.split)}"
        if segment.range.start == segment.range.end:
            stuck = NotSplit(
                NoSplit.ONE_HASH, f"{over}, but its range is a single hash and cannot be divided further"
            )
            soonest = soonest or stuck
            continue
        times = _lopsided(seen, policy, segment, load)
        free_ms = _free_ms(seen, policy, segment, times)
        if seen.now_ms >= free_ms:
            return Split(segment.id, "load", over, times)
        because = (
            f"{over}, but the split that made it left it nearly all of the load, {_in_a_row(times)}: its keys cannot "
            f"be told apart by splitting, so it waits until {moment(free_ms)}"
        )
        if soonest is None or soonest.look_again_ms is None or free_ms < soonest.look_again_ms:
            soonest = NotSplit(NoSplit.HOT_KEY, because, look_again_ms=free_ms)
    assert soonest is not None
    return soonest


def _in_a_row(times: int) -> str:
    return "once so far" if times == 1 else f"{times} times in a row"


# -- hot keys


def _lopsided(seen: Observation, policy: ScalePolicy, segment: Segment, load: Load) -> int:
    """The number of splits in a row, up to the one that made this segment, that left one child nearly all of the
    heat."""
    if not _is_child_of_split(seen.layout, segment):
        # Neither a merge nor a rebucket changes the keys of a segment or waits for them.
        return segment.lopsided
    if _kept_nearly_all(seen, policy, segment, load):
        return min(segment.lopsided + 1, LOPSIDED_MAX)
    return 0


def _free_ms(seen: Observation, policy: ScalePolicy, segment: Segment, times: int) -> int:
    """The moment from which load may split the segment. A merged segment may split at once: a merge makes no hot
    key."""
    if times == 0 or not _is_child_of_split(seen.layout, segment):
        return 0
    return int(segment.created_ms + policy.split_cooldown_ms * 2**times)


def _is_child_of_split(layout: SegmentLayout, segment: Segment) -> bool:
    """Decided by facts that survive pruning: the time of a merge is the last merge time of its child.

    A segment that replaced another for its number of buckets keeps what that one remembered. Once the other is pruned,
    it counts as the child of a split whose sibling is not measured.
    """
    if segment.created_epoch == 0 or len(segment.parents) > 1:
        return False
    if layout.has_replaced(segment):
        return False
    return not segment.merged_ms or segment.merged_ms[-1] != segment.created_ms


def _kept_nearly_all(seen: Observation, policy: ScalePolicy, segment: Segment, load: Load) -> bool:
    """Whether the sibling got next to nothing of the rate that makes this segment hot."""
    sibling = _sibling(seen.layout, segment)
    if sibling is not None and sibling.is_sealed:
        # Merged away, so it was cold; else it was worth a split of its own.
        return len(sibling.children) == 1
    report = None if sibling is None else seen.load.get(sibling.id)
    if report is None:
        # Pruned, or not measured now. This neither ends nor starts a row of lopsided splits.
        return segment.lopsided > 0
    at = load.hottest(policy.split)
    mine, its = load.rates[at], report.load.rates[at]
    return mine > 0 and its < LOPSIDED_SHARE * (mine + its)


def _sibling(layout: SegmentLayout, segment: Segment) -> Segment | None:
    # A split gives its children two consecutive ids, so no search is needed.
    for number in (SegmentId(segment.id - 1), SegmentId(segment.id + 1)):
        found = layout.segments.get(number)
        if found is not None and found.created_epoch == segment.created_epoch:
            return _latest(layout, found)
    return None


def _latest(layout: SegmentLayout, segment: Segment) -> Segment:
    """The segment that has the place of this one now, after any changes of its number of entry buckets."""
    while len(segment.children) == 1:
        child = layout.segment(segment.children[0])
        if not layout.has_replaced(child):
            break
        segment = child
    return segment


def _load_of(seen: Observation, segment: Segment) -> Load:
    report = seen.load.get(segment.id)
    return IDLE if report is None else report.load
