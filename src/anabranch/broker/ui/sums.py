"""Series of several brokers as one. Pure.

Each broker takes samples at times of its own, so sums are made on a common grid of times. A point of the grid is told
once every broker has had the time to take a sample for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# A sample: its time in milliseconds, then figures.
Sample = Sequence[float]
# A broker without a newer sample has stopped taking some: its last one counts for so many steps of the grid.
VALID_STEPS: Final = 2.5
# How many steps before the samples that the page has a sum may still need.
BACK_STEPS: Final = 3


def back(since_ms: int, step_ms: int) -> int:
    """From when on samples are needed if the page has those until `since_ms`."""
    return max(0, since_ms - BACK_STEPS * step_ms)


def summed(series: Sequence[Sequence[Sample]], step_ms: int, since_ms: int, now_ms: int) -> list[list[float]]:
    """The sums of all series at the points of the grid after that time; the page drops those that it has."""
    series = [one for one in series if one]
    if not series:
        return []
    first = max(min(int(one[0][0]) for one in series), back(since_ms, step_ms) + 1)
    at = -(-first // step_ms) * step_ms
    places = [0] * len(series)
    found: list[list[float]] = []
    width = len(series[0][0]) - 1
    while at <= now_ms - step_ms:
        sums = [0.0] * width
        for number, one in enumerate(series):
            place = places[number]
            while place + 1 < len(one) and one[place + 1][0] <= at:
                place += 1
            places[number] = place
            has_next = place + 1 < len(one)
            if one[place][0] <= at and (has_next or at - one[place][0] < VALID_STEPS * step_ms):
                for column in range(width):
                    sums[column] += one[place][column + 1]
        found.append([at, *(round(value, 2) for value in sums)])
        at += step_ms
    return found
