"""The consumers of one subscription as its controller knows them, and what each of them reads. Pure.

A consumer reads a segment whole, or shares it by entry buckets (PIP-486) with others. Every bucket of a segment is
named by one session at most, and a session that names a whole segment is the only one that names that segment. The same
holds for the stored records, at any moment: see `sessions.py`, where sessions change.

A consumer that is left alone with a segment keeps sharing it, with all of its buckets, until the group has settled: its
client reads shared segments in another way, and should not change that with each consumer that comes and goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from anabranch.controller.core.assignment import frontier
from anabranch.controller.core.sharing import UNSHARED, Buckets, Holders, share
from anabranch.model.layout import SegmentLayout
from anabranch.model.scalable import ConsumerRecord, SubscriptionKind
from anabranch.model.segments import Segment, SegmentId

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
    # Only there: the buckets that it has read to the end, of segments that are not in `finished`.
    finished_buckets: Mapping[SegmentId, frozenset[int]] = field(default_factory=dict)
    knows_buckets: bool = False  # Whether its client can share a segment.

    @property
    def is_connected(self) -> bool:
        return self.link is not None

    def record(self, kind: SubscriptionKind) -> ConsumerRecord:
        finished = tuple(sorted(self.finished))
        buckets = {number: tuple(sorted(found)) for number, found in sorted(self.finished_buckets.items())}
        return ConsumerRecord(
            self.name, kind, self.assigned, finished, self.shares, self.knows_buckets, buckets
        )

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
    # Whether consumers share sealed segments, too.
    shares_sealed: bool = True
    # The timer until consumers that are alone with a shared segment read it whole; 0 for none.
    settling: int = 0

    @property
    def finished(self) -> frozenset[SegmentId]:
        """The segments that any member finished, or several together; each fact is stored with a member's session."""
        whole = frozenset().union(*(s.finished for s in self.sessions.values()))
        segments = self.layout.segments
        return whole | {
            number
            for number, found in self.finished_buckets.items()
            if number in segments and len(found) >= segments[number].bucket_count
        }

    @property
    def finished_buckets(self) -> dict[SegmentId, frozenset[int]]:
        """The buckets that any member finished, of segments that it shared."""
        found: dict[SegmentId, frozenset[int]] = {}
        for session in self.sessions.values():
            for number, buckets in session.finished_buckets.items():
                found[number] = found.get(number, frozenset()) | buckets
        return found

    def told(self, session: MemberSession) -> tuple[tuple[SegmentId, ...], Mapping[SegmentId, Buckets]]:
        """What the session's client is told of its assignment: segments, and its buckets of those that it shares.

        The members of a checkpoint group are not told of buckets that are finished. Other clients do not learn which
        buckets are theirs.
        """
        if self.kind is not SubscriptionKind.CHECKPOINT or not session.shares:
            return session.assigned, session.shares
        over = self.finished_buckets
        shares = {
            number: tuple(bucket for bucket in buckets if bucket not in over.get(number, ()))
            for number, buckets in session.shares.items()
        }
        numbers = tuple(
            number for number in session.assigned if shares.get(number, UNSHARED) or number not in shares
        )
        return numbers, {number: buckets for number, buckets in shares.items() if buckets}

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

    def room(self, segment: Segment) -> int:
        """How many consumers that know buckets can read the segment at once."""
        if segment.is_sealed and not self.shares_sealed:
            return 1
        return segment.bucket_count

    @property
    def knows_buckets(self) -> bool:
        """Whether all its present consumers can share segments."""
        return all(session.knows_buckets for session in self.sessions.values())

    @property
    def alone(self) -> frozenset[SegmentId]:
        """The segments that are shared in name, and have one consumer: to be given to it whole, unless some of their
        buckets are finished."""
        segments, begun = self.layout.segments, self.finished_buckets
        return frozenset(
            number
            for session in self.sessions.values()
            for number, buckets in session.shares.items()
            if number in segments and number not in begun and len(buckets) == segments[number].bucket_count
        )

    @property
    def draining(self) -> frozenset[SegmentId]:
        """The sealed segments that several consumers share."""
        segments = self.layout.segments
        return frozenset(n for n in self.sharers if n in segments and segments[n].is_sealed)

    @property
    def sharers(self) -> dict[SegmentId, dict[str, Buckets]]:
        """Who has which buckets of the segments that several consumers share."""
        found: dict[SegmentId, dict[str, Buckets]] = {}
        for name in sorted(self.sessions):
            for number, buckets in self.sessions[name].shares.items():
                found.setdefault(number, {})[name] = buckets
        return {number: found[number] for number in sorted(found) if len(found[number]) > 1}


def dealt(group: ConsumerGroup, *, is_settled: bool = False) -> ConsumerGroup:
    """The group with all segments that may be read assigned again. `is_settled`: none is shared in name only."""
    if not group.sessions:
        return replace(group, watched=())
    layout, done = group.layout, group.done
    front = frontier(layout, done.__contains__)
    last: dict[SegmentId, dict[str, Buckets]] = {}
    for name in sorted(group.sessions):
        for number, buckets in group.sessions[name].holding().items():
            last.setdefault(number, {})[name] = buckets
    has_new = any(segment.id not in last for segment in front.ready)
    knows = {name: session.knows_buckets for name, session in group.sessions.items()}
    chosen = share(front.ready, group.room, knows, last, _heirs(layout, last) if has_new else {})
    was_shared = {number for session in group.sessions.values() for number in session.shares}
    begun = group.finished_buckets
    holdings: dict[str, dict[SegmentId, Buckets]] = {name: {} for name in group.sessions}
    for number, held in chosen.items():  # In range order.
        for name, buckets in held.items():
            holdings[name][number] = buckets
            segment = layout.segments[number]
            stays_shared = number in begun or (number in was_shared and not is_settled)
            if buckets == UNSHARED and stays_shared and knows[name] and group.room(segment) > 1:
                holdings[name][number] = tuple(range(segment.bucket_count))
    sessions = {name: _reassigned(s, holdings[name], layout) for name, s in group.sessions.items()}
    return replace(group, sessions=sessions, watched=tuple(s.id for s in front.watched))


def _reassigned(
    session: MemberSession, holding: Mapping[SegmentId, Buckets], layout: SegmentLayout
) -> MemberSession:
    changed = session.with_holding(holding)
    if changed == session:
        return session
    # The record is written anyway, so facts about pruned segments are dropped now and cause no write of their own.
    return replace(
        changed,
        finished=session.finished & layout.segments.keys(),
        finished_buckets={n: b for n, b in session.finished_buckets.items() if n in layout.segments},
    )


def _heirs(layout: SegmentLayout, last: Mapping[SegmentId, Holders]) -> dict[SegmentId, tuple[str, ...]]:
    """For each segment, the consumers that read it or the nearest of its ancestors, in the order of their buckets."""
    heirs: dict[SegmentId, tuple[str, ...]] = {}
    for number, segment in layout.segments.items():  # Parents come first: their ids are smaller.
        for relative in (number, *segment.parents):
            held = last.get(relative, {})
            if names := tuple(sorted(held, key=lambda name: (held[name], name))) or heirs.get(relative):
                heirs[number] = names
                break
    return heirs
