"""The consumers of one subscription as its controller knows them, and what each of them reads. Pure.

A consumer reads a segment whole, or shares it by entry buckets (PIP-486) with others. Every bucket of a segment is
named by one session at most, and a session that names a whole segment is the only one that names that segment. The same
holds for the stored records, at any moment: see `sessions.py`, where sessions change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from anabranch.controller.core.assignment import assign, frontier
from anabranch.controller.core.sharing import UNSHARED, Buckets
from anabranch.model.layout import SegmentLayout
from anabranch.model.scalable import ConsumerRecord, SubscriptionKind
from anabranch.model.segments import SegmentId

# Identifies a consumer's connection. Links are only compared, so the connection itself will do.
Link = object


@dataclass(frozen=True, slots=True)
class MemberSession:
    """One consumer, by its name: connected over `link`, or disconnected and awaited until timer number `timer`
    expires."""

    name: str
    link: Link | None = None
    consumer_id: int = 0
    timer: int = 0  # 0 for none.
    assigned: tuple[SegmentId, ...] = ()  # In range order.
    # The buckets that it has of those of the assigned segments that are shared.
    shares: Mapping[SegmentId, Buckets] = field(default_factory=dict)
    finished: frozenset[SegmentId] = frozenset()  # Only in a CHECKPOINT group.

    @property
    def is_connected(self) -> bool:
        return self.link is not None

    def record(self, kind: SubscriptionKind) -> ConsumerRecord:
        return ConsumerRecord(self.name, kind, self.assigned, tuple(sorted(self.finished)), self.shares)

    def holding(self) -> dict[SegmentId, Buckets]:
        """What it has of each segment assigned to it, in range order."""
        return {number: self.shares.get(number, UNSHARED) for number in self.assigned}

    def with_holding(self, holding: Mapping[SegmentId, Buckets]) -> MemberSession:
        shares = {number: buckets for number, buckets in holding.items() if buckets != UNSHARED}
        return replace(self, assigned=tuple(holding), shares=shares)

    def gains_over(self, before: MemberSession | None) -> bool:
        """Whether it has something now that it did not have before."""
        held = {} if before is None else before.holding()
        for number, buckets in self.holding().items():
            had = held.get(number)
            if had is None or (had != UNSHARED and (buckets == UNSHARED or not set(buckets) <= set(had))):
                return True
        return False

    def kept_from(self, before: MemberSession) -> MemberSession:
        """This session with only what it had before, too."""
        held, kept = before.holding(), {}
        for number, buckets in self.holding().items():
            had = held.get(number)
            if had is None:
                continue
            if buckets == UNSHARED or had == UNSHARED:
                kept[number] = buckets or had
            elif both := tuple(bucket for bucket in buckets if bucket in set(had)):
                kept[number] = both
        return self.with_holding(kept)


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """The controller's knowledge of the consumers of one subscription."""

    layout: SegmentLayout
    # STREAM or CHECKPOINT once known, and then every member has this kind; the subscription's record may have set it.
    kind: SubscriptionKind | None = None
    # Segments known to be read to their end. They count once they are sealed in the layout.
    drained: frozenset[SegmentId] = frozenset()
    sessions: Mapping[str, MemberSession] = field(default_factory=dict)
    watched: tuple[SegmentId, ...] = ()
    timers: int = 0  # The number of timers started, which is the number of the latest.

    @property
    def finished(self) -> frozenset[SegmentId]:
        """The segments that any member finished; each of these is stored with a member's session."""
        return frozenset().union(*(s.finished for s in self.sessions.values()))

    @property
    def done(self) -> frozenset[SegmentId]:
        return self.drained | self.finished

    @property
    def unknown(self) -> tuple[SegmentId, ...]:
        """Sealed segments not known to be drained: before the first join the shell asks about all of them at once.

        Not asking is safe, but slow: drained generations would be assigned and withdrawn one after the other.
        """
        done = self.done
        return tuple(s.id for s in self.layout.sealed if s.id not in done and not s.is_deleting)


def dealt(group: ConsumerGroup) -> ConsumerGroup:
    """The group with all segments that may be read assigned again."""
    if not group.sessions:
        return replace(group, watched=())
    layout, done = group.layout, group.done
    front = frontier(layout, done.__contains__)
    holders: dict[SegmentId, str] = {}
    for name in sorted(group.sessions):
        for number in group.sessions[name].assigned:
            holders.setdefault(number, name)
    has_new = any(segment.id not in holders for segment in front.ready)
    chosen = assign(front.ready, group.sessions, holders, _heirs(layout, holders) if has_new else {})
    holdings: dict[str, dict[SegmentId, Buckets]] = {name: {} for name in group.sessions}
    for number, name in chosen.items():  # In range order.
        holdings[name][number] = UNSHARED
    sessions = {name: _reassigned(s, holdings[name], layout) for name, s in group.sessions.items()}
    return replace(group, sessions=sessions, watched=tuple(s.id for s in front.watched))


def _reassigned(
    session: MemberSession, holding: Mapping[SegmentId, Buckets], layout: SegmentLayout
) -> MemberSession:
    changed = session.with_holding(holding)
    if changed == session:
        return session
    # The record is written anyway, so facts about pruned segments are dropped now and cause no write of their own.
    return replace(changed, finished=session.finished & layout.segments.keys())


def _heirs(layout: SegmentLayout, holders: Mapping[SegmentId, str]) -> dict[SegmentId, str]:
    """For each segment, the consumer that reads it or the nearest of its ancestors."""
    heirs: dict[SegmentId, str] = {}
    for number, segment in layout.segments.items():  # Parents come first: their ids are smaller.
        for relative in (number, *segment.parents):
            if (name := holders.get(relative) or heirs.get(relative)) is not None:
                heirs[number] = name
                break
    return heirs
