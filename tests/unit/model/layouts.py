"""Layouts as splits, merges and prunes make them, for properties."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from anabranch.model.buckets import BucketBudget
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import SegmentId

Draw = Callable[[st.SearchStrategy[int]], int]


# What topics of the histories may have of entry buckets.
BUDGET = BucketBudget(4, 8)


def roots(layout: SegmentLayout) -> list[SegmentId]:
    """The sealed segments whose parents are all gone: what garbage collection may take next."""
    return [segment.id for segment in layout.sealed if not segment.parents]


@st.composite
def histories(draw: Draw, changes_max: int = 14, roots_first: bool = True) -> list[SegmentLayout]:
    """Every layout of a topic, from its making on. `roots_first` prunes as garbage collection does."""
    layout = SegmentLayout.initial(draw(st.integers(1, 5)), now_ms=1, budget=BUDGET)
    history = [layout]
    for step in range(draw(st.integers(0, changes_max))):
        layout = _changed(draw, layout, 10 * (step + 1), roots_first)
        history.append(layout)
    return history


def _changed(draw: Draw, layout: SegmentLayout, now_ms: int, roots_first: bool) -> SegmentLayout:
    prunable = roots(layout) if roots_first else [segment.id for segment in layout.sealed]
    choice = draw(st.integers(0, 5))
    if choice == 0 and prunable:
        return layout.prune([prunable[draw(st.integers(0, len(prunable) - 1))]])
    at = draw(st.integers(0, len(layout.active) - 1))
    if choice <= 2 and at + 1 < len(layout.active):
        one, other = layout.active[at].id, layout.active[at + 1].id
        pair = (one, other) if choice == 1 else (other, one)
        return layout.merge(*pair, now_ms, BUDGET)
    if choice == 5:
        parent = layout.active[at]
        others = [n for n in range(1, BUDGET.segment_max + 1) if n != parent.bucket_count]
        return layout.rebucket(parent.id, others[draw(st.integers(0, len(others) - 1))], now_ms)
    if len(layout.active[at].range) > 1:
        return layout.split(layout.active[at].id, now_ms, lopsided=draw(st.integers(0, 2)))
    return layout.merge(layout.active[0].id, layout.active[1].id, now_ms, BUDGET)


def layouts(changes_max: int = 14, roots_first: bool = True) -> st.SearchStrategy[SegmentLayout]:
    return histories(changes_max, roots_first).map(lambda history: history[-1])
