"""Judges histories: what a correct broker could never have let its clients see. Pure: events in, violations out.

* A receipted message is received by every durable subscription, and lies in the log where its receipt said.
* Messages of one producer (in one partition) appear in the order they were sent. A message may appear again, but the
  first appearances are in order; the same holds for each key of a Key_Shared subscription.
* Where deduplication is on, no message lies in the log twice.
* A subscription's cursor is never beyond what was acknowledged: what was received and not acknowledged comes again.
* What the broker said was acknowledged never comes back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from soak.history import Fields, Place, place

# A run that fails usually fails everywhere; the first violations are enough.
VIOLATIONS_MAX = 40
# Per subscription, producer or topic, so that one does not hide the others.
VIOLATIONS_OF_ONE_MAX = 6


@dataclass(slots=True)
class Violations:
    found: list[str] = field(default_factory=list)
    count: int = 0
    _of: Counter[str] = field(default_factory=Counter)

    def add(self, what: str) -> None:
        """`what` begins with its subscription, producer or topic, and a colon."""
        self.count += 1
        whose = what.partition(": ")[0]
        self._of[whose] += 1
        if len(self.found) < VIOLATIONS_MAX and self._of[whose] <= VIOLATIONS_OF_ONE_MAX:
            self.found.append(what)


class ProducerHistory:
    """What one producer sent, and the answers it got."""

    def __init__(
        self, name: str, violations: Violations, lane_of: Callable[[int], str] = lambda _: ""
    ) -> None:
        self.name = name
        self.sent_end = 0
        # A client that makes a batch of each key keeps the order of a key only; then a lane is a key.
        self._lane_of = lane_of
        # None: the broker answered that it is stored, but not where (a duplicate, or the answer to opening).
        self.receipts: dict[int, Place | None] = {}
        self.failures = 0
        self._violations = violations

    def feed(self, event: Fields) -> None:
        kind, index = event[0], int(event[2])
        if kind == "s":
            self.sent_end = max(self.sent_end, index + 1)
        elif kind == "r":
            where = place(event, 3)
            if index >= self.sent_end:
                self._violations.add(f"{self.name}: receipt for message {index}, which was never sent")
            self.receipts[index] = where if where.ledger >= 0 else self.receipts.get(index)
        elif kind == "l":
            for known in range(index + 1):
                self.receipts.setdefault(known, None)
        elif kind == "x":
            self.failures += 1
        else:
            raise ValueError(f"not an event of a producer: {event}")

    def finish(self) -> None:
        """Checks that receipts place a producer's messages in the order they were sent."""
        last: dict[tuple[int, str], tuple[int, Place]] = {}
        for index in sorted(self.receipts):
            where = self.receipts[index]
            if where is None:
                continue
            lane = (where.partition, self._lane_of(index))
            before = last.get(lane)
            if before is not None and where <= before[1]:
                self._violations.add(
                    f"{self.name}: message {index} has its receipt at {tuple(where)}, not behind message "
                    f"{before[0]} at {tuple(before[1])}"
                )
            last[lane] = (index, where)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a subscription promises."""

    # "producer": first appearances in order per producer; "key": per key; "none": Shared.
    order: str = "producer"
    # Every message must be acknowledged in the end: those that were not came again.
    acks: bool = True
    # Nothing may come a second time at all (a reader, see `_is_begun_again`), or not twice on one connection.
    once: bool = False
    once_per_connection: bool = False
    # Each message lies at one place only: deduplication is on.
    single_place: bool = False


class SubscriptionHistory:
    """What the consumers of one subscription saw and acknowledged."""

    def __init__(self, name: str, rules: Rules, violations: Violations) -> None:
        self.name = name
        self.rules = rules
        self.received = 0
        # Where each message was first seen, and what lies at each place.
        self.places: dict[tuple[str, int], Place] = {}
        self.contents: dict[Place, tuple[str, int]] = {}
        self.answered = 0
        self._acked: set[Place] = set()
        self._answered: set[Place] = set()
        self._acked_to: dict[int, Place] = {}
        self._answered_to: dict[int, Place] = {}
        self._newest: dict[tuple[str, ...], int] = {}
        self._reached: dict[str, dict[int, Place]] = {}
        self._expected: dict[int, Place] = {}
        # By partition, the message that came last of those that had not come before.
        self._newest_place: dict[int, Place] = {}
        self._violations = violations

    def feed(self, event: Fields) -> None:
        kind = event[0]
        if kind == "m":
            self._message(event[1], event[2], int(event[3]), event[4], place(event, 5))
        elif kind == "a":
            self._acked.add(place(event, 2))
        elif kind == "A":
            self.answered += 1
            self._answered.add(place(event, 2))
        elif kind in "cC":
            where = place(event, 2)
            reached = self._acked_to if kind == "c" else self._answered_to
            self.answered += kind == "C"
            reached[where.partition] = max(where, reached.get(where.partition, where))
        elif kind == "o":
            self._opened(event[1])
        else:
            raise ValueError(f"not an event of a subscription: {event}")

    def _opened(self, consumer: str) -> None:
        self._reached[consumer] = {}
        if self.rules.once_per_connection and self._acked_to:
            # One consumer that acknowledges cumulatively: it starts again at the first message after its last ack.
            self._expected = {}
            for where in self.contents:
                done = self._acked_to.get(where.partition)
                if done is None or _covers(done, where):
                    continue
                first = self._expected.get(where.partition, where)
                self._expected[where.partition] = min(first, where)

    def _message(self, consumer: str, producer: str, index: int, key: str, where: Place) -> None:
        self.received += 1
        what = (producer, index)
        known = self.contents.setdefault(where, what)
        if known != what:
            self._fail(f"{what} lies at {tuple(where)}, where {known} was before")
        if self._is_answered(where):
            self._fail(f"{what} at {tuple(where)} came back after its ack was answered")
        self._check_connection(consumer, what, where)
        if what not in self.places:
            self.places[what] = where
            self._newest_place[where.partition] = where
            self._check_order(producer, index, key, where.partition)
        elif self.rules.once and not self._is_begun_again(what, where):
            self._fail(f"{what} came twice, at {tuple(self.places[what])} and {tuple(where)}")
        elif self.rules.single_place and self.places[what] != where:
            self._fail(f"{what} is stored twice, at {tuple(self.places[what])} and {tuple(where)}")

    def _is_begun_again(self, what: tuple[str, int], where: Place) -> bool:
        """Whether it is a message of the batch that was read last.

        A reader of Pulsar's C++ client that has read all of a batch, and whose queue begins with a message that is in
        none, asks after a reconnect to go on behind the batch's entry, without an index. Brokers send the entry that a
        reader names, Pulsar's too, and that client drops no message of it then."""
        newest = self._newest_place.get(where.partition)
        is_last_entry = newest is not None and newest.whole == where.whole
        return is_last_entry and where.batch >= 0 and self.places[what] == where

    def _check_connection(self, consumer: str, what: tuple[str, int], where: Place) -> None:
        if not self.rules.once_per_connection:
            return
        reached = self._reached.setdefault(consumer, {})
        last = reached.get(where.partition)
        if last is not None and where <= last:
            self._fail(f"{what} at {tuple(where)} came behind {tuple(last)} on one connection")
        reached[where.partition] = where
        first = self._expected.pop(where.partition, None)
        if first is not None and where > first:
            self._fail(f"the cursor skipped {tuple(first)}, never acknowledged: it went on at {tuple(where)}")

    def _check_order(self, producer: str, index: int, key: str, partition: int) -> None:
        if self.rules.order == "none":
            return
        lane: tuple[str, ...] = (producer, str(partition))
        if self.rules.order == "key":
            lane = (*lane, key)
        newest = self._newest.get(lane, -1)
        if index < newest:
            self._fail(f"{producer} message {index} first came after message {newest} (key {key!r})")
        self._newest[lane] = max(newest, index)

    def _is_answered(self, where: Place) -> bool:
        if where in self._answered or where.whole in self._answered:
            return True
        done = self._answered_to.get(where.partition)
        return done is not None and _covers(done, where)

    def _is_acked(self, where: Place) -> bool:
        if where in self._acked or where.whole in self._acked:
            return True
        done = self._acked_to.get(where.partition)
        return done is not None and _covers(done, where)

    def _fail(self, what: str) -> None:
        self._violations.add(f"{self.name}: {what}")

    # -- in the end

    def missing(self, producers: list[ProducerHistory]) -> Iterator[tuple[str, int]]:
        """Receipted messages that were never received."""
        for producer in producers:
            for index in producer.receipts:
                if (producer.name, index) not in self.places:
                    yield producer.name, index

    def unacked(self) -> Iterator[tuple[Place, tuple[str, int]]]:
        """Places that were received, never acknowledged, and did not come again to be acknowledged."""
        if self.rules.acks:
            for where, what in self.contents.items():
                if not self._is_acked(where):
                    yield where, what

    def finish(self, producers: list[ProducerHistory]) -> None:
        for name, index in self.missing(producers):
            self._fail(f"{name} message {index} has a receipt and never came")
        for where, what in self.unacked():
            self._fail(f"{what} at {tuple(where)} was not acknowledged, and did not come again")
        ends = {producer.name: producer.sent_end for producer in producers}
        for name, index in self.places:
            if index >= ends.get(name, 0):
                self._fail(f"{name} message {index} came and was never sent")


def _covers(done: Place, where: Place) -> bool:
    """Whether a cumulative ack of `done` acknowledges `where`; one of a whole entry has no batch index."""
    entry = (where.ledger, where.entry)
    upto = (done.ledger, done.entry)
    return entry < upto or (entry == upto and (done.batch < 0 or where.batch <= done.batch))


def audit(
    name: str, stored: SubscriptionHistory, producers: list[ProducerHistory], violations: Violations
) -> None:
    """Checks that the log, read from its beginning, holds each receipted message where the receipt said."""
    for producer in producers:
        for index, where in producer.receipts.items():
            if where is None:
                continue
            found = stored.contents.get(where)
            if found is None:
                violations.add(f"{name}: nothing at {tuple(where)}, the receipt of {producer.name} {index}")
            elif found != (producer.name, index):
                violations.add(f"{name}: {found} at {tuple(where)}, the receipt of {producer.name} {index}")
