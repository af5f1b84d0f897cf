"""How far a query is behind, for its progress events: the topics and segments that lag most, and sums. Pure.

Spark keeps a hundred of these events and passes each to every listener, so they must not grow with the number of
topics.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from anabranch.model.cut import BEGINNING, Cut, MessagePosition
from anabranch.model.resuming import resume
from anabranch.model.segments import SegmentId
from anabranch.spark.plan.plan import TopicView

SHOWN_MAX: Final = 50


class Lag(NamedTuple):
    """The lag of one segment that is not over."""

    topic: str
    segment: SegmentId
    end: MessagePosition
    read: MessagePosition

    @property
    def entries(self) -> int | None:
        """How many entries are still to be read. Across ledgers their number is not known here."""
        if self.end[0] == self.read[0]:
            return self.end[1] - self.read[1]
        return 0 if self.end <= self.read else None

    @property
    def weight(self) -> float:
        """An unknown number may be large."""
        return float("inf") if self.entries is None else self.entries


def told(views: Mapping[str, TopicView], cuts: Mapping[str, Cut]) -> dict[str, Any]:
    """Where each shown segment ends, and how many of its entries are still to be read behind the cuts."""
    lags = [lag for name, view in views.items() for lag in _of(name, view, cuts[name])]
    known = [lag.entries for lag in lags]
    shown = heapq.nsmallest(SHOWN_MAX, lags, key=lambda lag: (-lag.weight, lag.topic, lag.segment))
    topics: dict[str, Any] = {}
    for lag in sorted(shown):
        found = topics.setdefault(lag.topic, {"segments": {}})
        found["segments"][str(lag.segment)] = {
            "end": list(lag.end),
            "entriesBehind": lag.entries,
            "read": list(lag.read),
        }
    return {
        "sums": {
            "entriesBehind": sum(entries for entries in known if entries is not None),
            "segments": len(lags),
            "segmentsBehind": sum(entries != 0 for entries in known),
            "segmentsNotCounted": sum(entries is None for entries in known),
            "topics": len(views),
        },
        "topics": topics,
    }


def _of(name: str, view: TopicView, cut: Cut) -> list[Lag]:
    places = resume(view.layout, cut).places
    found: list[Lag] = []
    for number, end in view.known.ends.items():
        place = places.get(number)
        if place is None or not place.is_over:
            found.append(Lag(name, number, end, BEGINNING if place is None else place.first))
    return found
