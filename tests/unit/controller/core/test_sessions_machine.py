"""Sessions under any run of joins, losses, layout changes, seeks and leaders that die between any two effects.

The machine plays the store, the connections, the timers and the cursors, and checks after every single effect that no
segment and no entry bucket is promised to two consumers, that none is handed out before its ancestors are drained, and
that nobody was told anything a new leader would not find in the store.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from anabranch.controller.core.group import ConsumerGroup
from anabranch.controller.core.sessions import (
    CancelGrace,
    Drained,
    Effect,
    Event,
    FenceSession,
    Finished,
    GraceExpired,
    JoinAnswer,
    Joined,
    LayoutChanged,
    Left,
    MemberLost,
    Push,
    RefuseJoin,
    RemoveSession,
    Restored,
    SettlingOver,
    SharingRefused,
    StartGrace,
    StartSettling,
    StopSettling,
    StoreSession,
    SubscriptionDeleted,
    Undrained,
    WatchDrain,
    step,
)
from anabranch.controller.core.sharing import UNSHARED
from anabranch.model.layout import SegmentLayout
from anabranch.model.scalable import ConsumerRecord, SubscriptionKind
from anabranch.model.segments import SegmentId
from unit.model.layouts import layouts, roots

names = st.sampled_from(["ana", "bo", "cy", "di", "ed", "flo"])
# Whether a consumer knows buckets; mostly it does.
knowledge = st.sampled_from([True, True, True, False])
# The effect after which the leader dies; mostly it does not.
deaths = st.one_of(st.none(), st.none(), st.none(), st.integers(0, 5))
picks = st.integers(0, 10**6)
kinds = st.sampled_from([SubscriptionKind.STREAM, SubscriptionKind.CHECKPOINT])

Link = tuple[str, int]  # The consumer's name, and which of its connections.


class Sessions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.layout = SegmentLayout.initial(1, 0)
        self.kind = SubscriptionKind.STREAM
        self.group = ConsumerGroup(self.layout)
        self.drained: set[SegmentId] = set()  # The truth, which the group may know only in part.
        self.store: dict[str, ConsumerRecord] = {}
        self.links: dict[str, Link] = {}  # Open connections.
        self.told: dict[Link, tuple[SegmentId, ...]] = {}
        self.told_shared: dict[Link, set[SegmentId]] = {}
        self.timers: dict[str, int] = {}
        self.settling = 0
        self.shares_sealed = True
        self.watched: tuple[SegmentId, ...] = ()
        self.links_made = 0
        self.joining = ""
        self.now_ms = 0

    @initialize(
        layout=layouts(changes_max=6), kind=kinds, members=st.sets(names), shares_sealed=st.booleans()
    )
    def begin(
        self, layout: SegmentLayout, kind: SubscriptionKind, members: set[str], shares_sealed: bool
    ) -> None:
        self.layout, self.kind, self.shares_sealed = layout, kind, shares_sealed
        self.group = self.new_group()
        for name in sorted(members):
            self.join(name, True, None)

    def new_group(self) -> ConsumerGroup:
        return ConsumerGroup(self.layout, self.kind, shares_sealed=self.shares_sealed)

    # -- the world around the step

    def happen(self, event: Event, death: int | None) -> bool:
        """Whether the leader lived to perform every effect."""
        self.group, effects = step(self.group, event)
        for number, effect in enumerate(effects):
            if number == death:
                self.new_leader(frozenset())
                return False
            self.perform(effect)
        return True

    def perform(self, effect: Effect) -> None:
        match effect:
            case StoreSession(record) | FenceSession(record):
                self.store[record.name] = record
                self.check_records()
            case RemoveSession(name):
                del self.store[name]
            case Push(link, _, epoch, segments, shares):
                assert isinstance(link, tuple)
                assert epoch == self.layout.epoch
                assert link in self.told, "pushed over a closed connection"
                self.tell(link, segments, set(shares))
            case JoinAnswer(name, epoch, segments, shares):
                assert name == self.joining
                assert epoch == self.layout.epoch
                assert (segments, shares) == self.group.told(self.group.sessions[name])
                self.tell(self.links[name], segments, set(shares))
            case StartGrace(name, timer):
                assert timer > max(self.timers.values(), default=0)
                self.timers[name] = timer
            case CancelGrace(name):
                del self.timers[name]
            case StartSettling(timer):
                assert timer > max(self.settling, *self.timers.values(), 0)
                self.settling = timer
            case StopSettling():
                assert self.settling
                self.settling = 0
            case WatchDrain(segments):
                assert segments != self.watched
                self.watched = segments
            case RefuseJoin():
                raise AssertionError("every consumer here is of the same kind")

    def check_records(self) -> None:
        """Every bucket is named by one record at most, and a record with a whole segment is the only one with it."""
        whole: Counter[SegmentId] = Counter()
        named: Counter[tuple[SegmentId, int]] = Counter()
        for stored in self.store.values():
            assert stored.shares.keys() <= set(stored.assigned)
            for number in stored.assigned:
                if number in stored.shares:
                    assert stored.shares[number], "a share of nothing"
                    named.update((number, bucket) for bucket in stored.shares[number])
                else:
                    whole[number] += 1
        assert all(count == 1 for count in whole.values()), "two records name one segment"
        assert all(count == 1 for count in named.values()), "two records name one bucket"
        assert not whole.keys() & {number for number, _ in named}, "a whole segment is named by two records"

    def tell(self, link: Link, segments: tuple[SegmentId, ...], shared: set[SegmentId]) -> None:
        if segments:
            assert self.links[link[0]] == link, "a connection that was taken over hears of segments"
            stored = self.store[link[0]]
            # Members of a checkpoint group are not told of what is finished.
            is_stream = self.kind is SubscriptionKind.STREAM
            assert stored.assigned == segments or not (is_stream or set(segments) - set(stored.assigned)), (
                "told what is not stored"
            )
            assert stored.shares.keys() & set(segments) == shared, "told what is not stored"
        was_shared = any(self.told_shared.values())
        self.told[link], self.told_shared[link] = segments, shared
        if not was_shared and not any(record.shares for record in self.store.values()):
            promised = Counter(number for held in self.told.values() for number in held)
            assert all(count == 1 for count in promised.values()), "promised to two consumers"
        for number in segments:
            self.check_order(number)

    def check_order(self, number: SegmentId) -> None:
        ahead = {n for n in self.layout.ancestors(number) if not self.layout.segment(n).is_deleting}
        assert ahead <= self.drained, f"segment {number} is handed out before {ahead - self.drained}"

    def new_leader(self, known: frozenset[SegmentId]) -> None:
        self.links.clear()
        self.told.clear()
        self.told_shared.clear()
        self.timers.clear()
        self.settling = 0
        self.watched = ()
        self.group = self.new_group()
        assert self.happen(Restored(tuple(self.store.values()), known), death=None)
        if self.kind is SubscriptionKind.CHECKPOINT:
            # There are no cursors: what is stored is all there is.
            self.drained = set(self.group.done & self.layout.segments.keys())

    def open_link(self, name: str) -> Link:
        self.links_made += 1
        link = name, self.links_made
        self.links[name] = link
        self.told[link], self.told_shared[link] = (), set()
        return link

    def close_link(self, name: str) -> Link:
        link = self.links.pop(name)
        del self.told[link], self.told_shared[link]
        return link

    # -- consumers

    @rule(name=names, knows=knowledge, death=deaths)
    def join(self, name: str, knows: bool, death: int | None) -> None:
        self.joining = name
        others = {n: s.holding() for n, s in self.group.sessions.items() if n != name}
        was_known = name in self.group.sessions and self.group.sessions[name].knows_buckets is knows
        link = self.open_link(name)
        if self.happen(Joined(name, self.kind, link, 1, knows), death):
            assert self.group.sessions[name].knows_buckets is knows
            if was_known:
                assert others == {n: s.holding() for n, s in self.group.sessions.items() if n != name}

    @rule(name=names, death=deaths)
    def read_all_of_what_it_was_to_share(self, name: str, death: int | None) -> None:
        if name in self.links:
            self.happen(SharingRefused(name, self.links[name]), death)

    @precondition(lambda self: self.settling)
    @rule(death=deaths)
    def settle(self, death: int | None) -> None:
        timer, self.settling = self.settling, 0
        if self.happen(SettlingOver(timer), death):
            assert not self.group.alone

    @rule(number=picks)
    def a_stale_settling_timer_fires(self, number: int) -> None:
        timer = number % (self.group.timers + 2)
        if timer and self.settling != timer:
            before = self.group
            assert self.happen(SettlingOver(timer), None)
            assert self.group == before

    @rule(name=names)
    def join_again_over_the_same_connection(self, name: str) -> None:
        if name in self.links and self.group.sessions[name].link == self.links[name]:
            self.joining, before = name, self.group
            event = Joined(name, self.kind, self.links[name], 1, before.sessions[name].knows_buckets)
            assert self.happen(event, None)
            assert self.group == before

    @rule(name=names, death=deaths)
    def leave(self, name: str, death: int | None) -> None:
        if name in self.links:
            facts = self.drained & self.group.layout.segments.keys()
            self.happen(Left(name, self.close_link(name)), death)
            if self.kind is SubscriptionKind.CHECKPOINT:
                assert not self.group.sessions or self.group.done >= facts, "a finished segment was forgotten"
                self.drained = set(self.group.done & self.layout.segments.keys())

    @rule(name=names)
    def lose_the_connection(self, name: str) -> None:
        if name in self.links:
            before = self.store.copy()
            assert self.happen(MemberLost(name, self.close_link(name)), None)
            assert self.store == before

    @rule(name=names, number=picks, says_goodbye=st.booleans())
    def an_older_connection_ends(self, name: str, number: int, says_goodbye: bool) -> None:
        link = name, number % (self.links_made + 1)
        if self.links.get(name) != link:
            before = self.group
            assert self.happen(Left(name, link) if says_goodbye else MemberLost(name, link), None)
            assert self.group == before

    @rule(name=names, death=deaths)
    def grace_ends(self, name: str, death: int | None) -> None:
        if name in self.timers:
            timer = self.timers.pop(name)
            if self.happen(GraceExpired(name, timer), death):
                assert name not in self.group.sessions
            if self.kind is SubscriptionKind.CHECKPOINT and not self.group.sessions:
                self.drained = set()

    @rule(name=names, number=picks)
    def a_stale_timer_fires(self, name: str, number: int) -> None:
        timer = number % (self.group.timers + 2)
        if timer and self.timers.get(name) != timer:
            before = self.group
            assert self.happen(GraceExpired(name, timer), None)
            assert self.group == before

    # -- layouts

    def change_layout(self, layout: SegmentLayout, death: int | None) -> None:
        self.layout = layout
        self.drained &= layout.segments.keys()
        self.now_ms += 1
        self.happen(LayoutChanged(layout), death)

    @rule(at=picks, death=deaths)
    def split(self, at: int, death: int | None) -> None:
        segment = self.layout.active[at % len(self.layout.active)]
        if len(segment.range) > 1:
            self.change_layout(self.layout.split(segment.id, self.now_ms), death)

    @rule(at=picks, death=deaths)
    def merge(self, at: int, death: int | None) -> None:
        if len(self.layout.active) > 1:
            at %= len(self.layout.active) - 1
            one, other = self.layout.active[at : at + 2]
            self.change_layout(self.layout.merge(one.id, other.id, self.now_ms), death)

    @rule(death=deaths, marks_only=st.booleans())
    def collect_garbage(self, death: int | None, marks_only: bool) -> None:
        gone = [number for number in roots(self.layout) if number in self.drained]
        if gone:
            marked = self.layout.mark_deleting(gone)
            self.change_layout(marked if marks_only else marked.prune(gone), death)

    # -- cursors

    @rule(at=picks, death=deaths)
    def drain_what_is_read(self, at: int, death: int | None) -> None:
        self.drain(at, True, death)

    @rule(at=picks, is_next=st.booleans(), death=deaths)
    def drain(self, at: int, is_next: bool, death: int | None) -> None:
        waiting = list(self.watched) if is_next else [segment.id for segment in self.layout.sealed]
        if not waiting:
            return
        number = waiting[at % len(waiting)]
        if self.kind is SubscriptionKind.STREAM:
            self.drained.add(number)
            self.happen(Drained(frozenset({number})), death)
        elif self.group.sessions:
            standing = {s.id for s in self.layout.segments.values() if not s.is_deleting}
            before = self.drained & standing
            self.drained.add(number)
            member = sorted(self.group.sessions)[at % len(self.group.sessions)]
            event = Finished(member if is_next else "stranger", frozenset({number}))
            if not self.happen(event, death):
                assert before <= self.drained & standing <= before | {number}

    @precondition(lambda self: self.kind is SubscriptionKind.CHECKPOINT and self.group.sessions)
    @rule(at=picks, bucket=picks, death=deaths)
    def finish_a_bucket(self, at: int, bucket: int, death: int | None) -> None:
        """The last of a segment's buckets finishes the segment, whichever members had the others."""
        sharers = [
            (name, n)
            for name, s in sorted(self.group.sessions.items())
            for n in s.shares
            if n in self.layout.segments and self.layout.segment(n).is_sealed
        ]
        if not sharers:
            return
        name, number = sharers[at % len(sharers)]
        own = self.group.sessions[name].shares[number]
        bucket = own[bucket % len(own)]
        known = self.group.finished_buckets.get(number, frozenset()) | {bucket}
        is_last = len(known) == self.layout.segment(number).bucket_count
        if is_last:
            self.drained.add(number)
        if self.happen(Finished(name, frozenset(), {number: frozenset({bucket})}), death):
            assert (number in self.group.finished) is is_last
            assert is_last or self.group.finished_buckets[number] == known

    @precondition(lambda self: self.kind is SubscriptionKind.STREAM and self.drained)
    @rule(at=picks, death=deaths)
    def seek_back(self, at: int, death: int | None) -> None:
        # What is marked for deletion has no cursors to move any more.
        ordered = sorted(number for number in self.drained if not self.layout.segment(number).is_deleting)
        back = frozenset(ordered[at % (len(ordered) + 1) :])
        if self.happen(Undrained(back), death):
            self.drained -= back  # Only now are the cursors moved.
            for held in self.told.values():
                for number in held:
                    self.check_order(number)

    # -- leaders

    @rule(at=picks, can_ask=st.booleans())
    def a_new_leader_takes_over(self, at: int, can_ask: bool) -> None:
        before = {name: session.holding() for name, session in self.group.sessions.items()}
        can_ask = can_ask and self.kind is SubscriptionKind.STREAM
        # Some owners, or all, cannot be asked.
        known = frozenset(n for n in self.drained if can_ask and (n + at) % 3)
        knows_as_much = self.group.drained == known
        self.new_leader(known)
        assert self.group.sessions.keys() == before.keys()
        was_shared = any(held != UNSHARED for holding in before.values() for held in holding.values())
        for name, session in self.group.sessions.items():
            if knows_as_much:
                assert session.holding() == before[name], "a new leader changed something"
            # Unless it learned that something was drained meanwhile. Sharers go where a segment seems to be undrained.
            assert can_ask or was_shared or before[name].keys() <= set(session.assigned), (
                "a new leader took a segment away"
            )

    @rule(at=picks)
    def delete_the_subscription(self, at: int) -> None:
        if at % 5:
            return  # Whatever came before is forgotten: not too often.
        assert self.happen(SubscriptionDeleted(), None)
        assert not self.store
        assert not self.timers
        assert not self.settling
        assert not any(self.told.values())
        self.drained.clear()
        self.links.clear()
        self.told.clear()
        self.told_shared.clear()
        self.group = self.new_group()

    # -- what holds between events

    @invariant()
    def what_is_stored_is_what_is_known(self) -> None:
        assert self.store == {name: s.record(self.kind) for name, s in self.group.sessions.items()}

    @invariant()
    def the_group_believes_nothing_untrue(self) -> None:
        # Records may name pruned segments still, and what is marked for deletion counts as drained.
        standing = {s.id for s in self.layout.segments.values() if not s.is_deleting}
        assert self.group.done & standing <= self.drained

    @property
    def ready(self) -> list[SegmentId]:
        done = self.group.done | {s.id for s in self.layout.segments.values() if s.is_deleting}
        return [
            s.id
            for s in self.layout.segments.values()
            if self.layout.ancestors(s.id) <= done and not (s.is_sealed and s.id in done)
        ]

    @invariant()
    def every_bucket_of_what_is_ready_has_one_consumer_and_nothing_else_has(self) -> None:
        if not self.group.sessions:
            return
        ready = self.ready
        held = {number for s in self.group.sessions.values() for number in s.assigned}
        stored = [record for record in self.store.values() if record.assigned]
        for number in ready:
            shares = [record.shares.get(number, ()) for record in stored if number in record.assigned]
            if not shares:
                assert not any(s.knows_buckets for s in self.group.sessions.values()) or not held
            elif shares != [()]:
                segment = self.layout.segment(number)
                assert sorted(n for share in shares for n in share) == list(range(segment.bucket_count))
                assert segment.is_active or self.shares_sealed, "a sealed segment is shared"
        assert held <= set(ready)
        for number in held:
            self.check_order(number)

    @invariant()
    def every_segment_that_is_ready_has_a_consumer(self) -> None:
        held = {number for s in self.group.sessions.values() for number in s.assigned}
        assert held == (set(self.ready) if self.group.sessions else set())

    @invariant()
    def who_does_not_know_buckets_never_shares(self) -> None:
        for session in self.group.sessions.values():
            assert session.knows_buckets or not session.shares

    @invariant()
    def counts_differ_by_one_at_most_and_nobody_is_idle_while_there_is_room(self) -> None:
        sessions = self.group.sessions.values()
        counts = [len(s.assigned) for s in sessions]
        if len(counts) <= len(self.ready) or not any(s.shares for s in sessions):
            assert not counts or max(counts) - min(counts) <= 1
        if counts and all(s.knows_buckets for s in sessions):
            room = sum(self.group.room(self.layout.segment(number)) for number in self.ready)
            assert sum(count > 0 for count in counts) == min(room, len(counts)) or len(counts) <= len(
                self.ready
            )

    @invariant()
    def who_shares_with_nobody_will_read_it_whole(self) -> None:
        assert self.settling == self.group.settling
        assert bool(self.settling) == bool(self.group.alone)

    @invariant()
    def who_is_connected_was_told_and_who_is_not_has_one_timer(self) -> None:
        away = {n: s.timer for n, s in self.group.sessions.items() if not s.is_connected}
        assert self.timers == away
        for name, session in self.group.sessions.items():
            if session.is_connected:
                segments, shares = self.group.told(session)
                assert self.told[self.links[name]] == segments
                assert self.told_shared[self.links[name]] == set(shares)

    @invariant()
    def what_something_waits_for_is_watched(self) -> None:
        held = [number for s in self.group.sessions.values() for number in s.assigned]
        assert {n for n in held if self.layout.segment(n).is_sealed} <= set(self.watched)
        assert self.watched == self.group.watched


TestSessions = Sessions.TestCase
# Not shrunk: that takes longer than a test may, and then the time limit is all one sees.
TestSessions.settings = settings(
    max_examples=80,
    stateful_step_count=50,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
