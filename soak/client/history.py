"""What the client's run promises beyond `simulation.history`: no repetition without a reason, nothing left unacked,
and checkpoints that lose and repeat nothing. Pure: events with their times in, violations out.

* A message comes again to a subscription only if the consumer that had it was cut off or ended since, or gave it or
  another of its batch back, or if the one that gets it was cut off when the other had it; in an ordered one also if its
  segment moved, or some other member was cut off or ended. What began after its acknowledgement was answered is no
  reason, be it the death of the broker.
* Every message with a receipt is acknowledged in the end: one that was received and not acknowledged comes again. A
  stream whose oldest message stays the same for longer than a group may take to find a reader stalls: order is kept in
  each segment, so a stream that is merely behind acknowledges its oldest one next.
* What a checkpoint consumer received up to a checkpoint, and what the next one received that was started from that
  checkpoint, is each key's messages in order, without a gap and without a repetition. Of a group's members that goes
  for each by itself, but that others may have read what it skips; they may read again what others had read since the
  checkpoint they started from.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from anabranch.simulation.world.history import History, HistoryPlace, Sent
from soak.client.troubles import Troubles

Lane = tuple[str, str]
# Producer and key: how far a reader has come.
Progress = dict[Lane, int]


# How long it may take until a returned message comes again: it may stay in an inbox for a while.
BACK_AFTER_S = 60.0


def entry_of(place: HistoryPlace) -> HistoryPlace:
    return place._replace(index=-1)


class Held(NamedTuple):
    consumer: str
    since: float
    place: HistoryPlace
    how: str


@dataclass(slots=True)
class Scope:
    """What a subscription must receive, and how its members disturb each other."""

    producers: Callable[[str], bool]
    keeps_order: bool
    # Whether each segment has one reader, and goes from member to member.
    has_moves: bool
    troubles: Troubles
    acked: set[Sent] = field(default_factory=set)
    # When each unacknowledged message got its receipt, the first one first.
    waiting: dict[Sent, float] = field(default_factory=dict)
    # The first of these, and since when it has been the first.
    oldest: tuple[Sent, float] | None = None
    # When their acknowledgements were answered.
    answered: dict[Sent, float] = field(default_factory=dict)
    # Which consumer had the message last, and when.
    held: dict[Sent, Held] = field(default_factory=dict)
    given_back: set[Sent] = field(default_factory=set)
    # When messages of that entry were returned: brokers redeliver all of it that is not acknowledged by then, to any
    # consumer.
    disturbed_entries: dict[HistoryPlace, list[float]] = field(default_factory=dict)
    copied: set[Sent] = field(default_factory=set)
    # What happened to messages that came again or were returned.
    trails: dict[Sent, list[str]] = field(default_factory=dict)

    def trail(self, message: Sent, now: float, what: str) -> str:
        if message not in self.trails:
            held = self.held[message]
            self.trails[message] = [f"{held.since:.3f} {held.consumer} {held.how}"]
        self.trails[message].append(f"{now:.3f} {what}")
        return ", ".join(self.trails[message])


class ClientHistory(History):
    """The judge. `now` is any clock that rises. Each life of a consumer has its own name."""

    def __init__(self, now: Callable[[], float], *, may_double: Callable[[str], bool]) -> None:
        super().__init__()
        self.repeats: Counter[str] = Counter()
        # Where receipts say that messages are.
        self.places: dict[Sent, HistoryPlace] = {}
        self._now = now
        self._may_double = may_double
        self._scopes: dict[str, Scope] = {}
        self._members: dict[str, str] = {}
        self._numbers: dict[Lane, list[int]] = {}
        self._readers: dict[str, Progress] = {}
        self._groups: dict[str, Progress] = {}
        self._furthest: dict[str, Progress] = {}

    def fail(self, what: str) -> None:
        self._fail(what)

    def sent(self, producer: str, number: int, key: str) -> None:
        super().sent(producer, number, key)
        self._numbers.setdefault((producer, key), []).append(number)

    def stored(self, producer: str, number: int, place: HistoryPlace) -> None:
        self.receipt(producer, number)
        message = Sent(producer, number)
        self.places[message] = place
        for scope in self._scopes.values():
            if message not in scope.acked and scope.producers(producer):
                scope.waiting.setdefault(message, self._now())

    # -- subscriptions

    def expect(
        self,
        name: str,
        producers: Callable[[str], bool],
        *,
        keeps_order: bool,
        echo_s: float,
        has_moves: bool | None = None,
    ) -> None:
        """From now on that subscription must receive everything of those producers.

        `echo_s`: how long the effects of a member's end, or of a cut, may still show.
        """
        self._scopes[name] = Scope(
            producers, keeps_order, keeps_order if has_moves is None else has_moves, Troubles(echo_s)
        )
        self.subscribed(name, keeps_order=keeps_order)

    def joined(self, name: str, consumer: str) -> None:
        self.opened(consumer)
        self._members[consumer] = name
        if self._scopes[name].has_moves:
            self._troubles_of(consumer).shaken(consumer, self._now())  # Segments move to it.

    def ended(self, consumer: str) -> None:
        """The consumer left or crashed. What it has received and not acknowledged comes again."""
        self._troubles_of(consumer).shaken(consumer, self._now())

    def cut_off(self, consumers: Iterable[str], *, begins: bool) -> None:
        """A connection of these consumers is broken from now on, or was until now."""
        for consumer in consumers:
            if consumer in self._members:
                troubles = self._troubles_of(consumer)
                (troubles.began if begins else troubles.ended)(consumer, self._now())

    def all_cut_off(self, *, begins: bool) -> None:
        self.cut_off(list(self._members), begins=begins)

    def all_shaken(self) -> None:
        """Topics have joined or left the set that they read."""
        for consumer in self._members:
            self._troubles_of(consumer).shaken(consumer, self._now())

    def _troubles_of(self, consumer: str) -> Troubles:
        return self._scopes[self._members[consumer]].troubles

    def took(self, consumer: str, message: Sent, key: str, place: HistoryPlace, how: str = "") -> None:
        """A member of a subscription received a message; `how` is for people."""
        name = self._members[consumer]
        scope = self._scopes[name]
        if self._is_copy(scope, message, place):
            self.repeats[f"{name}, copies"] += 1
            return
        if message in scope.held:
            self._check_repeat(name, scope, consumer, message, place, how)
        scope.held[message] = Held(consumer, self._now(), place, how)
        known = len(self.violations)
        self.received(name, consumer, message, key, place, keeps_order=scope.keeps_order)
        for at in range(known, len(self.violations)):
            self.violations[at] += f"; {self.story(name, message)}"

    def _is_single(self, producer: str) -> bool:
        return not self._may_double(producer)

    def _is_copy(self, scope: Scope, message: Sent, place: HistoryPlace) -> bool:
        """Whether it was stored twice, which this producer may cause."""
        held = scope.held.get(message)
        if held is not None and held.place != place and self._may_double(message.producer):
            scope.copied.add(message)
        # From then on it is unknown which copy was acknowledged.
        return message in scope.copied

    def _check_repeat(
        self, name: str, scope: Scope, consumer: str, message: Sent, place: HistoryPlace, how: str
    ) -> None:
        self.repeats[name] += 1
        holder = scope.held[message].consumer
        trail = scope.trail(message, self._now(), f"{consumer} {how}")
        answered = scope.answered.get(message, inf)
        given_back = scope.disturbed_entries.get(entry_of(place), [])
        if message in scope.given_back:
            scope.given_back.discard(message)
        elif any(at <= answered and self._now() < at + BACK_AFTER_S for at in given_back):
            pass
        elif scope.has_moves and consumer != holder and answered == inf:
            # Its segment was given to another member, perhaps for a new layout.
            self.repeats[f"{name}, moved"] += 1
        elif not self._has_reason(scope, consumer, message, answered):
            since = "" if answered == inf else f", its ack answered at {answered:.3f}"
            self._fail(f"{name}: {message} came again to {consumer} without a reason: {trail}{since}")

    def _has_reason(self, scope: Scope, consumer: str, message: Sent, answered: float) -> bool:
        """Whether a member was in trouble: not after its acknowledgement was stored for good."""
        holder, since, _, _ = scope.held[message]
        whose = None if scope.has_moves else [holder]
        if scope.troubles.since(since, whose, begun_by=answered):
            return True
        # A member that was cut off may return what the broker has sent to others since.
        return scope.troubles.since(since, [consumer], begun_by=since)

    def gave_back(self, consumer: str, message: Sent, place: HistoryPlace) -> None:
        """A negative acknowledgement."""
        scope = self._scopes[self._members[consumer]]
        scope.given_back.add(message)
        scope.disturbed_entries.setdefault(entry_of(place), []).append(self._now())
        scope.trail(message, self._now(), f"given back by {consumer}")

    def acking(self, consumer: str, messages: Iterable[Sent]) -> None:
        """Their acknowledgement was requested; it may be stored or not."""
        scope = self._scopes[self._members[consumer]]
        for message in messages:
            scope.acked.add(message)
            scope.waiting.pop(message, None)

    def check_progress(self, name: str, within_s: float) -> None:
        """To be called repeatedly: a stream that stalls in one segment is noticed by its oldest message."""
        scope, now = self._scopes[name], self._now()
        oldest = next(iter(scope.waiting), None)
        if oldest is None:
            scope.oldest = None
        elif scope.oldest is None or scope.oldest[0] != oldest:
            scope.oldest = oldest, now
        elif now - scope.oldest[1] > within_s:
            stood_s, waited_s = now - scope.oldest[1], now - scope.waiting[oldest]
            self._fail(
                f"{name} stalls: {self.story(name, oldest)} has waited for {waited_s:.0f} s, and nothing that is "
                f"older was acknowledged for {stood_s:.0f} s"
            )

    def acknowledged(self, subscription: str, messages: Iterable[Sent]) -> None:
        messages = list(messages)
        super().acknowledged(subscription, messages)
        answered = self._scopes[subscription].answered
        for message in messages:
            answered.setdefault(message, self._now())

    def acks_forgotten(self) -> None:
        """Messages acknowledged by now may come again: Pulsar's answers do not mean that acks are stored."""
        for scope in self._scopes.values():
            scope.answered.clear()
        for life in self._lives.values():
            life.acked.clear()

    def owed(self, name: str) -> set[Sent]:
        scope = self._scopes[name]
        return {m for m in self._receipts if m not in scope.acked and scope.producers(m.producer)}

    def story(self, name: str, message: Sent) -> str:
        """What is known about a message: its place, and what happened to it in that subscription."""
        scope = self._scopes.get(name)
        trail = scope.trails.get(message, []) if scope is not None else []
        held = scope.held.get(message, "nobody") if scope is not None else ""
        return f"{message} at {self.places.get(message)}, last with {held}; {', '.join(trail)}"

    # -- checkpoints

    def reads(self, reader: str, progress: Progress, group: str | None = None) -> None:
        """A life of a checkpoint consumer begins at a checkpoint, alone or as a member of a group."""
        self._readers[reader] = dict(progress)
        # A lone one is a group of its own.
        self._groups[reader] = self._furthest.setdefault(group or reader, dict(progress))

    def read(self, reader: str, message: Sent, key: str) -> None:
        lane = (message.producer, key)
        if self._keys.get(message) != key:
            self._fail(f"{reader}: {message} with key {key!r} came and was never sent")
            return
        own, furthest = self._readers[reader], self._groups[reader]
        last, numbers = own.get(lane, -1), self._numbers[lane]
        at = bisect(numbers, furthest.get(lane, -1))
        if message.number <= last:
            if not self._may_double(message.producer):
                self._fail(f"{reader}: {message} of key {key!r} came again, or behind {last}")
        elif at < len(numbers) and message.number > numbers[at]:
            missing = Sent(message.producer, numbers[at])
            where = self.places.get(missing)
            self._fail(f"{reader}: {message} of key {key!r} came, and {missing.number} never did: {where}")
        own[lane] = max(last, message.number)
        furthest[lane] = max(furthest.get(lane, -1), message.number)

    def progress(self, reader: str) -> Progress:
        """The progress of a checkpoint taken now."""
        return dict(self._readers[reader])

    def unread(self, reader: str, producers: Callable[[str], bool]) -> set[Sent]:
        """Messages with a receipt that neither the reader nor its group has reached."""
        furthest = self._groups.get(reader, {})
        return {
            m
            for m in self._receipts
            if producers(m.producer) and furthest.get((m.producer, self._keys[m]), -1) < m.number
        }


def merged(progress: Iterable[Progress]) -> Progress:
    """The progress of the merged checkpoints of a group's members."""
    found: Progress = {}
    for one in progress:
        for lane, number in one.items():
            found[lane] = max(number, found.get(lane, -1))
    return found
