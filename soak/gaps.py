"""How long topics were without a receipt around faults. Pure, but for the reading of histories."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from soak.history import Follower, place
from soak.workload import Workload

# Fields of a receipt that has a time.
_TIMED = 8


@dataclass(frozen=True, slots=True)
class FaultMoment:
    """What was done, and the machine's monotonic time at which it began."""

    kind: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The longest time without a receipt of one topic, or of one partition, around one fault."""

    ms: int
    topic: str


def receipt_times(workload: Workload, folder: Path) -> dict[str, list[int]]:
    """The times of all receipts in histories, in order, by topic or partition."""
    found: dict[str, list[int]] = {}
    for plan in workload.producers:
        for event in Follower(folder / f"producer-{plan.name}.log").new():
            if event[0] == "r" and len(event) == _TIMED:
                partition = place(event, 3).partition
                name = plan.topic.name if partition < 0 else f"{plan.topic.name}-partition-{partition}"
                found.setdefault(name, []).append(int(event[-1]))
    for times in found.values():
        times.sort()
    return found


def gaps_around(
    times: Mapping[str, Sequence[int]], faults: Sequence[FaultMoment], end_ms: int
) -> Iterator[tuple[FaultMoment, list[Gap]]]:
    """For each fault, which are in order, the gap of each topic. A gap belongs to the first fault within it, or else to
    the last one before it. A topic that gets no receipt any more waits until the end."""
    longest = [dict.fromkeys(sorted(times), 0) for _ in faults]
    moments = [fault.at_ms for fault in faults]
    for name, found in times.items():
        for begin, end in pairwise([*found, max(end_ms, *found[-1:])]):
            number = bisect_right(moments, begin)
            if number == len(moments) or moments[number] > end:
                number -= 1
            if number >= 0:
                longest[number][name] = max(longest[number][name], end - begin)
    for fault, of_fault in zip(faults, longest, strict=True):
        yield fault, [Gap(ms, name) for name, ms in of_fault.items()]


def table(times: Mapping[str, Sequence[int]], faults: Sequence[FaultMoment], end_ms: int) -> Iterator[str]:
    """A line for each kind of fault."""
    yield (
        f"  {'longest gap between receipts':28} {'times':>6}   each topic: p50      p99   "
        "slowest topic: p50    worst"
    )
    by_kind: dict[str, list[list[Gap]]] = {}
    for fault, gaps in gaps_around(times, faults, end_ms):
        by_kind.setdefault(fault.kind, []).append(gaps)
    for kind, found in sorted(by_kind.items()):
        every = sorted(gap.ms for gaps in found for gap in gaps) or [0]
        slowest = sorted(
            (max(gaps, key=lambda gap: gap.ms) for gaps in found if gaps), key=lambda gap: gap.ms
        )
        if slowest:
            yield (
                f"  {kind:28} {len(found):6}   {_at(every, 50):8,} ms {_at(every, 99):5,} ms   "
                f"{slowest[(len(slowest) - 1) // 2].ms:12,} ms {slowest[-1].ms:5,} ms ({slowest[-1].topic})"
            )


def _at(ordered: Sequence[int], percent: int) -> int:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
