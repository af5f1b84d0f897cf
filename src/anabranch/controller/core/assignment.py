"""Which consumer of a subscription reads which segment. Pure.

Two questions, answered apart: which segments may be read at all now (`frontier`, `ready`), and who reads each of them
(`assign`). Sessions, connections and what is stored about them are `sessions.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import HashRange, Segment, SegmentId


def range_order(segment: Segment) -> tuple[HashRange, SegmentId]:
    """The order of every list of segments handed out. Ids part an ancestor from descendants of the same range."""
    return segment.range, segment.id


# -- what may be read


@dataclass(frozen=True, slots=True)
class Frontier:
    """How far an order-keeping subscription has come in a layout."""

    # To be handed out: not drained, and every ancestor is. In range order.
    ready: tuple[Segment, ...]
    # Sealed, not drained, and no more than one undrained generation below: what to ask the owners about. The second
    # generation is asked about early, because a segment sealed empty must not be handed out only to be taken back.
    watched: tuple[Segment, ...]


def ready(layout: SegmentLayout, is_drained: Callable[[SegmentId], bool]) -> tuple[Segment, ...]:
    """The segments to hand out in a subscription that keeps order, in range order."""
    return frontier(layout, is_drained).ready


def frontier(layout: SegmentLayout, is_drained: Callable[[SegmentId], bool]) -> Frontier:
    """One pass over the layout; `is_drained` is asked at most once for each sealed segment.

    A segment marked for deletion may lose its storage at any moment: it counts as drained whatever is known of it.
    """
    # For each segment, the most undrained segments on any way down to it, itself included.
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


# -- who reads it


def assign(
    segments: Sequence[Segment],
    consumers: Collection[str],
    last: Mapping[SegmentId, str],
    inherit: Mapping[SegmentId, str],
) -> dict[SegmentId, str]:
    """A consumer for each segment, in range order; nothing if there are no consumers.

    The numbers that two consumers get differ by one at most, and no other such assignment takes fewer segments from
    the consumers that had them in `last`. Among those that take equally few, the most segments that none of these
    consumers had go to the one `inherit` names (who read the parent). The remaining freedom is used up by range
    order and name: the same arguments, in whatever order, give the same result.
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
    hungry: list[tuple[int, str, int]] = []  # How many it has by now, its name, its share.
    for name, share in _shares(len(ordered), held, claimed).items():
        mine = (held[name][:share] + claimed[name])[:share]
        chosen.update(dict.fromkeys(mine, name))
        if len(mine) < share:
            hungry.append((len(mine), name, share))

    # Always to whoever has the fewest by now, so that a first assignment is dealt round by name.
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
    """How many segments each consumer gets. Whoever makes use of one more comes first when there are some over."""
    least, over = divmod(total, len(held))

    def use_of_one_more(name: str) -> int:
        if len(held[name]) > least:
            return 0  # It saves a move.
        return (
            1 if len(held[name]) + len(claimed[name]) > least else 2
        )  # It keeps a child with its parent's reader.

    favoured = set(sorted(held, key=lambda name: (use_of_one_more(name), name))[:over])
    return {name: least + (name in favoured) for name in held}
