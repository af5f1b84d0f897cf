"""Packs the slices of a batch into tasks: few enough that tasks cost little, and about as many bytes in each. Pure.

Spark spends some 40 ms of CPU on each task of a Python source, whatever it reads. A batch that takes a few rows from
each of many segments would spend its time on that alone. So small slices share a task, while large ones have their own.
In key order, all that a batch reads of a segment's entry bucket is one slice, so it is in one task.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from anabranch.model.cut import BEGINNING
from anabranch.model.segments import WHOLE
from anabranch.spark.plan.plan import SegmentSlice

# The amount of data that is worth a task.
TASK_BYTES: Final = 16 << 20
# The cost of beginning a slice, as the bytes that are read in that time.
SLICE_BYTES: Final = 64 << 10
# The assumed size of an unknown message.
ENTRY_BYTES: Final = 1 << 10
TASKS_PER_CORE: Final = 2


@dataclass(frozen=True, slots=True)
class SegmentSize:
    """The size of a segment's data."""

    bytes: int
    entries: int


def weight(one: SegmentSlice, kept: SegmentSize | None) -> int:
    """The approximate cost of a slice, in bytes. Where its entries cannot be counted, it counts as its whole
    segment."""
    start, end = one.start or BEGINNING, one.end
    is_counted = end is not None and (one.start is None or start[0] == end[0])
    entries = end[1] + bool(end[2]) - start[1] if end is not None and is_counted else None
    if kept is None or not kept.entries:
        size = (entries or 0) * ENTRY_BYTES
    else:
        size = kept.bytes if entries is None else min(kept.bytes, entries * kept.bytes // kept.entries)
    return SLICE_BYTES + (size if one.hashes is None else size * len(one.hashes) // len(WHOLE))


def tasks_for(weights: Sequence[int], cores: int) -> int:
    """How many tasks are enough where users do not give a number."""
    return max(TASKS_PER_CORE * cores, -(-sum(weights) // TASK_BYTES))


def packed(weights: Sequence[int], tasks_max: int) -> list[list[int]]:
    """The indices of the weights, by task: each once, in their order, in at most so many tasks.

    A weight above the tasks' average is alone in its task.
    """
    if len(weights) <= tasks_max:
        return [[place] for place in range(len(weights))]
    # The heaviest first, each to the lightest task.
    tasks: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(tasks_max)]
    for place in sorted(range(len(weights)), key=lambda at: (-weights[at], at)):
        load, number, places = tasks[0]
        places.append(place)
        heapq.heapreplace(tasks, (load + weights[place], number, places))
    return sorted(sorted(places) for _, _, places in tasks if places)
