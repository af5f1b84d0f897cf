"""How consumers share segments by entry buckets (PIP-486), where they outnumber the segments. Pure.

A segment with several buckets can be read by as many consumers as it has buckets, each with neighbouring buckets of its
own. While consumers do not outnumber the segments that may be read, no consumer shares: `assignment.assign` decides.
Beyond that the consumers that know buckets are spread evenly over the segments, and the buckets of a segment evenly
over its consumers. A consumer that does not know buckets is only ever given whole segments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from anabranch.controller.core.assignment import assign, range_order
from anabranch.model.segments import Segment, SegmentId

# The numbers of the entry buckets that one consumer has of a segment: neighbours, ascending.
Buckets = tuple[int, ...]
# In place of buckets: the segment is not shared, and all of it is the consumer's.
UNSHARED: Final[Buckets] = ()
# Of more buckets in one segment, the wider slices always come first: choosing which are wider would take too long, and
# saves few moves.
CHOSEN_WIDTHS_MAX: Final = 64
# Who reads a segment, and which of its buckets: one consumer with UNSHARED, or several.
Holders = Mapping[str, Buckets]
# Neighbouring buckets of a segment and who had them: the first, one past the last, the consumer.
Run = tuple[int, int, str]


def share(
    segments: Iterable[Segment],
    room: Callable[[Segment], int],
    knows: Mapping[str, bool],
    last: Mapping[SegmentId, Holders],
    inherit: Mapping[SegmentId, Sequence[str]],
) -> dict[SegmentId, Holders]:
    """Chooses the consumers of each segment, in range order; empty if there are no consumers.

    `room`: how many consumers a segment may have at once, 1 or the number of its buckets. `knows`: all consumers, and
    whether they know buckets. `inherit` names who read a segment's nearest ancestor.

    As many consumers as possible get something. The number of consumers of two segments differs by one at most, unless
    one has no room for more; so do the numbers of buckets of two consumers of one segment. Among such assignments, none
    takes fewer buckets from consumers that each had buckets of one segment (up to CHOSEN_WIDTHS_MAX buckets). Range
    order and name settle the rest.
    """
    ordered = sorted(segments, key=range_order)
    able = [name for name in sorted(knows) if knows[name]]
    rooms = {segment.id: room(segment) for segment in ordered}
    if len(knows) <= len(ordered) or not able or max(rooms.values(), default=1) == 1:
        return _unshared(ordered, knows, last, inherit)
    chosen: dict[SegmentId, Holders] = {}
    others = [name for name in sorted(knows) if not knows[name]]
    for number, name in _given_whole(ordered, rooms, others, len(able), last).items():
        chosen[number] = {name: UNSHARED}
    rest = [segment for segment in ordered if segment.id not in chosen]
    if not rest:
        pass  # The others wait: taking a segment from its consumer would make no more of them active.
    elif len(able) <= len(rest):
        chosen |= _unshared(rest, able, last, inherit)
    else:
        chosen |= _spread(rest, rooms, able, last, inherit)
    return {segment.id: chosen[segment.id] for segment in ordered if segment.id in chosen}


def _unshared(
    segments: Sequence[Segment],
    names: Iterable[str],
    last: Mapping[SegmentId, Holders],
    inherit: Mapping[SegmentId, Sequence[str]],
) -> dict[SegmentId, Holders]:
    # Of several consumers that shared a segment, the one with the most buckets has the best claim to all of it.
    holder = {
        number: min(held, key=lambda n: (held[n] != UNSHARED, -len(held[n]), n))
        for number, held in last.items()
        if held
    }
    heirs = {number: names[0] for number, names in inherit.items() if names}
    chosen = assign(segments, set(names), holder, heirs)
    return {number: {name: UNSHARED} for number, name in chosen.items()}


# -- consumers that do not know buckets


def _given_whole(
    ordered: Sequence[Segment],
    rooms: Mapping[SegmentId, int],
    names: Sequence[str],
    able: int,
    last: Mapping[SegmentId, Holders],
) -> dict[SegmentId, str]:
    """The segments that consumers who do not know buckets get, so that as many consumers as possible have one.

    `able`: how many others there are.
    """
    total = sum(rooms.values())
    smallest = sorted(rooms.values())
    # With so many of the smallest segments given away whole, so many consumers have something.
    active = [
        count + min(able, total - sum(smallest[:count])) for count in range(min(len(names), len(ordered)) + 1)
    ]
    best = [count for count, number in enumerate(active) if number == max(active)]
    holder = {
        number: name
        for number, held in last.items()
        if number in rooms
        for name, buckets in held.items()
        if name in names and buckets == UNSHARED
    }
    holding = len(set(holder.values()))
    count = min(max(holding, best[0]), best[-1])
    wanted = min(able, total - sum(smallest[:count]))

    def by_holder(segment: Segment) -> tuple[object, ...]:
        return segment.id not in holder, rooms[segment.id], bool(last.get(segment.id)), range_order(segment)

    def by_room(segment: Segment) -> tuple[object, ...]:
        return rooms[segment.id], segment.id not in holder, bool(last.get(segment.id)), range_order(segment)

    picked = sorted(ordered, key=by_holder)[:count]
    if total - sum(rooms[segment.id] for segment in picked) < wanted:
        picked = sorted(ordered, key=by_room)[:count]
    chosen: dict[SegmentId, str] = {}
    for segment in picked:
        if (name := holder.get(segment.id, "")) and name not in chosen.values():
            chosen[segment.id] = name
    # Then those who lose what they had, then by name.
    free = [name for name in sorted(names, key=lambda n: (n not in holder.values(), n))]
    free = [name for name in free if name not in chosen.values()]
    for segment in picked:
        if segment.id not in chosen:
            chosen[segment.id] = free.pop(0)
    return chosen


# -- consumers that do


def _spread(
    segments: Sequence[Segment],
    rooms: Mapping[SegmentId, int],
    names: Sequence[str],
    last: Mapping[SegmentId, Holders],
    inherit: Mapping[SegmentId, Sequence[str]],
) -> dict[SegmentId, Holders]:
    """Deals the segments to more consumers than there are segments."""
    runs = _runs(segments, names, last)
    slots = _slots(segments, rooms, len(names), runs, last)
    slices = {s.id: _slices(s.bucket_count, slots[s.id], runs[s.id])[1] for s in segments}
    free = dict.fromkeys(names)
    for found in slices.values():
        for _, _, name in found:
            free.pop(name, None)
    # First the children of what a consumer has read, then the others by name.
    for number, found in slices.items():
        heirs = [name for name in inherit.get(number, ()) if name in free]
        _fill(found, heirs, free)
    for found in slices.values():
        _fill(found, list(free), free)
    return {
        number: {
            name: tuple(range(start, end)) if len(found) > 1 else UNSHARED
            for start, end, name in found
            if name
        }
        for number, found in slices.items()
    }


def _fill(slices: list[Run], names: Sequence[str], free: dict[str, None]) -> None:
    coming = iter(names)
    for at, (start, end, name) in enumerate(slices):
        if not name and (newcomer := next(coming, "")):
            slices[at] = start, end, newcomer
            del free[newcomer]


def _runs(
    segments: Sequence[Segment], names: Sequence[str], last: Mapping[SegmentId, Holders]
) -> dict[SegmentId, list[Run]]:
    """What these consumers had, in the order of buckets. Of what one had in several segments, only the most counts."""
    known = set(names)
    most: dict[str, tuple[int, Segment, int, int]] = {}
    for segment in segments:
        for name, buckets in last.get(segment.id, {}).items():
            start, end = _ends(buckets, segment.bucket_count)
            if name in known and end - start > most.get(name, (0,))[0]:
                most[name] = end - start, segment, start, end
    runs: dict[SegmentId, list[Run]] = {segment.id: [] for segment in segments}
    for name, (_, segment, start, end) in most.items():
        runs[segment.id].append((start, end, name))
    for number, found in runs.items():
        found.sort()
        # Two leaders may have stored the same bucket for two consumers: one of them had it.
        runs[number] = [run for at, run in enumerate(found) if at == 0 or found[at - 1][1] <= run[0]]
    return runs


def _ends(buckets: Buckets, count: int) -> tuple[int, int]:
    """The first of the buckets and one past the last; (0, 0) if they are no neighbours of this segment."""
    if buckets == UNSHARED:
        return 0, count
    start, end = buckets[0], buckets[-1] + 1
    return (start, end) if 0 <= start < end <= count and end - start == len(buckets) else (0, 0)


def _slots(
    segments: Sequence[Segment],
    rooms: Mapping[SegmentId, int],
    names: int,
    runs: Mapping[SegmentId, Sequence[Run]],
    last: Mapping[SegmentId, Holders],
) -> dict[SegmentId, int]:
    """How many consumers each segment gets."""
    limits = [rooms[segment.id] for segment in segments]
    total = min(names, sum(limits))
    level = 1
    while level < max(limits) and sum(min(room, level + 1) for room in limits) <= total:
        level += 1
    slots = {segment.id: min(rooms[segment.id], level) for segment in segments}
    over = total - sum(slots.values())
    if not over:
        return slots

    def cost_of_one_more(segment: Segment) -> tuple[object, ...]:
        kept = [_slices(segment.bucket_count, count, runs[segment.id])[0] for count in (level, level + 1)]
        is_shared = any(buckets != UNSHARED for buckets in last.get(segment.id, {}).values())
        # Where it costs the same, no further consumer has to go over from reading all to sharing.
        return kept[0] - kept[1], not is_shared, range_order(segment)

    roomy = [segment for segment in segments if rooms[segment.id] > level]
    for segment in sorted(roomy, key=cost_of_one_more)[:over]:
        slots[segment.id] += 1
    return slots


def _slices(count: int, slots: int, runs: Sequence[Run]) -> tuple[int, list[Run]]:
    """Cuts so many buckets in slices, even up to one bucket, so that the most buckets stay with who had them.

    Returns how many stay, and the slices, each with the consumer that keeps it; "" where any may have it.
    """
    starts, ends = [run[0] for run in runs], [run[1] for run in runs]
    width, wide = divmod(count, slots)
    # The best ways to cut the first slices, by the number of wide ones among them, and whether the consumer whose run
    # goes on behind the cut has a slice already.
    ways: dict[tuple[int, bool], _Way] = {(0, False): (0, None)}
    for slot in range(slots):
        longer: dict[tuple[int, bool], _Way] = {}
        for (used, has_slice), way in ways.items():
            start = slot * width + used
            choices = (1, 0) if count <= CHOSEN_WIDTHS_MAX else (int(used < wide),)
            for more in choices:
                if not wide - (slots - slot - 1) <= used + more <= wide:
                    continue
                end = start + width + more
                for kept, name, goes_on in _keepers(start, end, has_slice, runs, starts, ends):
                    key, value = (used + more, goes_on), way[0] + kept
                    if key not in longer or value > longer[key][0]:
                        longer[key] = value, (way, (start, end, name))
        ways = longer
    # The last cut is at the end, where no run goes on.
    found = best = ways[wide, False]
    slices: list[Run] = []
    while found[1] is not None:
        found, cut = found[1]
        slices.append(cut)
    return best[0], slices[::-1]


# How many buckets stay with who had them, and the slices so far: all but the last, and the last.
_Way = tuple[int, "tuple[_Way, Run] | None"]


def _keepers(
    start: int, end: int, has_slice: bool, runs: Sequence[Run], starts: Sequence[int], ends: Sequence[int]
) -> list[tuple[int, str, bool]]:
    """Who may keep the slice: how many of its buckets that keeps, and whether a run that goes on behind the slice is
    then of a consumer with a slice. `has_slice`: the same of a run that came from before it."""
    best, keeper = 0, ""
    going_on: list[tuple[int, str, bool]] = []
    is_going_on_served = False
    for at in range(bisect_right(ends, start), len(runs)):
        if starts[at] >= end:
            break
        is_served = has_slice and starts[at] < start
        kept = min(ends[at], end) - max(starts[at], start)
        if ends[at] > end:
            is_going_on_served = is_served
            if not is_served:
                going_on.append((kept, runs[at][2], True))
        elif kept > best and not is_served:
            best, keeper = kept, runs[at][2]
    return [*going_on, (best, keeper, is_going_on_served)]
