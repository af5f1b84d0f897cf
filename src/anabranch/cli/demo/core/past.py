"""The history of a topic, gathered from the broker's answers to its own page. Pure.

The page asks again and again and names what it has; so does the demo. Received answers are kept, even when the broker
that sent them was killed since and has lost its history.

Splits and merges have the time of the metadata store, which may be ahead of the clock for a moment after a crash. Such
a time counts as the moment at which it was heard of, so that the record never tells of the future.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

RATES: Final = ("msgRateIn", "bytesRateIn", "msgRateOut", "bytesRateOut")


@dataclass(slots=True)
class SegmentPast:
    """A segment, and its incoming messages a second, sample by sample."""

    id: int
    start: int
    end: int  # The last hash of its range.
    created_ms: int
    sealed_ms: int  # 0 while it is active.
    parents: tuple[int, ...] = ()
    children: tuple[int, ...] = ()
    samples: list[tuple[int, float]] = field(default_factory=list)

    @property
    def is_active(self) -> bool:
        return not self.sealed_ms

    @property
    def rate(self) -> float:
        return self.samples[-1][1] if self.samples else 0.0


@dataclass(frozen=True, slots=True)
class PastChange:
    """A split, a merge or a rebucket, and its reason."""

    at_ms: int
    kind: str
    segments: tuple[int, ...]
    because: str


@dataclass(slots=True)
class TopicPast:
    segments: dict[int, SegmentPast] = field(default_factory=dict)
    changes: dict[tuple[int, str, tuple[int, ...]], PastChange] = field(default_factory=dict)
    split_limit: float = 0.0
    latest_reason: str = ""
    owners: dict[int, str] = field(default_factory=dict)  # The broker of each segment, if there are several.
    _layout: str = ""
    _sampled_ms: int = 0

    @property
    def question(self) -> str:
        """The next query, such that only new data comes back."""
        return f"since={self._sampled_ms}&layout={self._layout}"

    def take(self, answer: Mapping[str, Any], now_ms: int) -> list[PastChange]:
        """Adds an answer that came at `now_ms`; returns the operations that were not known before, oldest first."""
        if answer["kind"] == "elsewhere":
            return []  # The broker that leads the topic does not answer, and the one that was asked knows nothing.
        self.split_limit = float(answer["limits"]["split"]["msgRateIn"])
        if answer.get("layout"):
            self._take_layout(answer["layout"], now_ms)
        self.owners = {int(number): broker for number, broker in (answer.get("owners") or {}).items()}
        for number, samples in (answer.get("samples") or {}).items():
            segment = self.segments.get(int(number))
            for at, *rates in samples:
                if segment is not None and (not segment.samples or at > segment.samples[-1][0]):
                    segment.samples.append((at, rates[0]))
                self._sampled_ms = max(self._sampled_ms, at)
        return self._take_decisions(answer.get("decisions") or [], now_ms)

    def _take_layout(self, layout: Mapping[str, Any], now_ms: int) -> None:
        self._layout = layout["id"]
        for one in layout["segments"]:
            known = self.segments.get(one["id"])
            parents, children = set(one["parents"]), set(one["children"])
            if known is not None:
                # A pruned segment removes its links, so known ones are kept.
                parents |= set(known.parents)
                children |= set(known.children)
            self.segments[one["id"]] = SegmentPast(
                one["id"],
                one["start"],
                one["end"],
                known.created_ms if known is not None else min(one["created"], now_ms),
                (known.sealed_ms if known is not None else 0) or min(one["sealed"], now_ms),
                tuple(sorted(parents)),
                tuple(sorted(children)),
                known.samples if known is not None else [],
            )

    def _take_decisions(self, decisions: list[Mapping[str, Any]], now_ms: int) -> list[PastChange]:
        fresh = []
        for one in decisions:
            self.latest_reason = one["because"]
            if one["kind"] not in ("split", "merge", "rebucket"):
                continue
            change = PastChange(min(one["at"], now_ms), one["kind"], tuple(one["segments"]), one["because"])
            key = (one["at"], change.kind, change.segments)
            if key not in self.changes:
                self.changes[key] = change
                fresh.append(change)
        return fresh

    # -- reading

    @property
    def active(self) -> list[SegmentPast]:
        """The active segments in the order of their hashes."""
        return sorted((s for s in self.segments.values() if s.is_active), key=lambda s: s.start)

    def active_by_owner(self) -> dict[str, int]:
        """How many active segments each broker serves; empty if there is only one."""
        found: dict[str, int] = {}
        for segment in self.active:
            if segment.id in self.owners:
                owner = self.owners[segment.id]
                found[owner] = found.get(owner, 0) + 1
        return found

    def count(self, kind: str) -> int:
        return sum(change.kind == kind for change in self.changes.values())

    def active_at(self) -> list[tuple[int, int]]:
        """The number of active segments, from each moment at which it changed."""
        moved: dict[int, int] = {}
        for segment in self.segments.values():
            moved[segment.created_ms] = moved.get(segment.created_ms, 0) + 1
            if segment.sealed_ms:
                moved[segment.sealed_ms] = moved.get(segment.sealed_ms, 0) - 1
        found: list[tuple[int, int]] = []
        active = 0
        for at in sorted(moved):
            active += moved[at]
            # A parent is sealed a moment before or after its children are created: that is no change of its own.
            if found and at - found[-1][0] < _MOMENT_MS:
                found[-1] = (found[-1][0], active)
            else:
                found.append((at, active))
        return found


_MOMENT_MS: Final = 300
