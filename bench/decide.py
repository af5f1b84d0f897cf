"""`python -m bench.decide`: how long one decision about a topic takes, by its size and what it finds. Ours only.

The aim is at most 200 µs for 64 segments. CPU time is measured, the best of several rounds, so that a busy machine
says little; each case is decided afresh, with the sentences that explain it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from anabranch.autoscale.decide import Observation, decide
from anabranch.autoscale.load import Load, LoadReport
from anabranch.autoscale.policy import DEFAULT
from anabranch.model.layout import SegmentLayout

AIM_MICROSECONDS = 200.0
NOW_MS = 1_800_000_000_000
LONG_AGO_MS = NOW_MS - 3_600_000

LOADS = {
    "idle": (Load(), LONG_AGO_MS),
    "cold, merged": (Load(10.0, 1e4, 20.0, 2e4), LONG_AGO_MS),
    "cold of late": (Load(10.0, 1e4, 20.0, 2e4), NOW_MS - 1),
    "warm": (Load(5_000.0, 1e7, 5_000.0, 1e7), LONG_AGO_MS),
    "hot": (Load(20_000.0, 6e7, 50_001.0, 1e7), LONG_AGO_MS),
}


def grown(count: int) -> SegmentLayout:
    """A layout of that many active segments that was split and merged into shape, as a lived-in topic has."""
    layout = SegmentLayout.initial(1, LONG_AGO_MS - 10**8)
    at = LONG_AGO_MS - 10**7
    while len(layout.active) < count:
        layout = layout.split(max(layout.active, key=lambda s: (len(s.range), -s.id)).id, at)
    for n in range(0, count - 1, 4):
        layout = layout.merge(layout.active[n].id, layout.active[n + 1].id, at)
        layout = layout.split(layout.active[n].id, at + 1)
    return layout


def cases(count: int) -> Iterator[tuple[str, Observation]]:
    layout = grown(count)
    for name, (load, modified_ms) in LOADS.items():
        reports = {segment.id: LoadReport(load, modified_ms) for segment in layout.active}
        yield name, Observation(layout, reports, {"orders": 3, "audit": 1}, NOW_MS)
    yield "no records", Observation(layout, {}, {"orders": count + 1}, NOW_MS)


def microseconds(seen: Observation, calls: int, rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time_ns()
        for _ in range(calls):
            decide(seen, DEFAULT)
        best = min(best, (time.process_time_ns() - start) / calls / 1000)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    words = parser.parse_args()
    print(f"{'segments':>8}  {'what it finds':<16}{'µs':>8}  verdict")
    worst = 0.0
    for count in (1, 4, 16, 64):
        for name, seen in cases(count):
            cost = microseconds(seen, words.calls, words.rounds)
            print(f"{count:>8}  {name:<16}{cost:>8.1f}  {type(decide(seen, DEFAULT)).__name__}")
            worst = max(worst, cost)
    print(f"worst {worst:.1f} µs, aim {AIM_MICROSECONDS:.0f} µs")
    return 0 if worst <= AIM_MICROSECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
