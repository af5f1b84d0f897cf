"""Which consumer of a subscription reads which segment. Pure.

The module answers two separate questions: which segments may be read now (`frontier`, `ready`), and who reads each of
them (`assign`). Sessions, connections and their stored records are in `sessions.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import HashRange, Segment, SegmentId


def range_order(segment: Segment) -> tuple[HashRange, SegmentId]:
    """The order of every assigned list of segments. Ids separate an ancestor from descendants of the same range."""
    return segment.range, segment.id


# -- which segments may be read


@dataclass(frozen=True, slots=True)
class Frontier:
    """The progress of an order-keeping subscription in a layout."""

    # The segments to assign, in range order: not drained, while every ancestor is.
    ready: tuple[Segment, ...]
    # The segments to ask the owners about: sealed, not drained, and no more than one undrained generation below. The
    # second generation is asked about early, because a segment sealed empty must not be assigned only to be withdrawn.
    watched: tuple[Segment, ...]


def ready(layout: SegmentLayout, is_drained: Callable[[SegmentId], bool]) -> tuple[Segment, ...]:
    """The segments to assign in a subscription that keeps order, in range order."""
    return frontier(layout, is_drained).ready


def frontier(layout: SegmentLayout, is_drained: Callable[[SegmentId], bool]) -> Frontier:
    """Computes the frontier in one pass over the layout; `is_drained` is called at most once for each sealed segment.

    A segment marked for deletion may lose its storage at any moment: it always counts as drained.
    """
    # For each segment, the most undrained segments on any path down to it, itself included.
    undrained: dict[SegmentId, int] = {}
    open_now: list[Segment] = []
    watched: list[Segment] = []
    for (
        number,
        segment,
    ) in layout.segments.items():  # By id, and parents have smaller ids: parents come first.
        above = 0
        for parent in segment.parents:
            above = max(above, undrained[parent])
        is_sealed = segment.is_sealed
        if is_sealed and (segment.is_deleting or is_drained(number)):
            undrained[number] = above
            continue
        undrained[number] = above + 1
        if above == 0:
            open_now.append(segment)
        if above <= 1 and is_sealed:
            watched.append(segment)
    return Frontier(tuple(sorted(open_now, key=range_order)), tuple(sorted(watched, key=range_order)))


# -- who reads them


def assign(
    segments: Sequence[Segment],
    consumers: Collection[str],
    last: Mapping[SegmentId, str],
    inherit: Mapping[SegmentId, str],
) -> dict[SegmentId, str]:
    """Chooses a consumer for each segment, in range order; empty if there are no consumers.

    The numbers of segments of two consumers differ by one at most, and no other such assignment takes fewer segments
    from the consumers that had them in `last`. Among the assignments that take equally few, this one gives the most
    segments that no consumer had to the consumer that `inherit` names (who read the parent). Range order and name
    settle the rest: the same arguments, in any order, give the same result.
    """
    if not consumers:
        return {}
    ordered = sorted(segments, key=range_order)
    held: dict[str, list[SegmentId]] = {name: [] for name in sorted(consumers)}
    claimed: dict[str, list[SegmentId]] = {name: [] for name in held}
    for segment in ordered:
        if (holder := last.get(segment.id)) in held:
            held[holder].append(segment.id)
        elif (heir := inherit.get(segment.id)) in held:
            claimed[heir].append(segment.id)

    chosen: dict[SegmentId, str] = {}
    hungry: list[tuple[int, str, int]] = []  # The present number of segments, the name, the share.
    for name, share in _shares(len(ordered), held, claimed).items():
        mine = (held[name][:share] + claimed[name])[:share]
        chosen.update(dict.fromkeys(mine, name))
        if len(mine) < share:
            hungry.append((len(mine), name, share))

    # The consumer with the fewest segments is always next, so that a first assignment is dealt round by name.
    heapq.heapify(hungry)
    for segment in ordered:
        if segment.id in chosen:
            continue
        count, name, share = heapq.heappop(hungry)
        chosen[segment.id] = name
        if count + 1 < share:
            heapq.heappush(hungry, (count + 1, name, share))
    return {segment.id: chosen[segment.id] for segment in ordered}


def _shares(
    total: int, held: Mapping[str, Collection[SegmentId]], claimed: Mapping[str, Collection[SegmentId]]
) -> dict[str, int]:
    """How many segments each consumer gets. Where some get one more, consumers that benefit from it come first."""
    least, over = divmod(total, len(held))

    def use_of_one_more(name: str) -> int:
        if len(held[name]) > least:
            return 0  # One more saves a move.
        return (
            1 if len(held[name]) + len(claimed[name]) > least else 2
        )  # One more keeps a child with its parent's reader.

    favoured = set(sorted(held, key=lambda name: (use_of_one_more(name), name))[:over])
    return {name: least + (name in favoured) for name in held}
