"""What is hidden, against a plain list of entries: any order of appends, decisions, crashes and trims."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.state import topic_state as state
from anabranch.broker.state.hidden_entries import HiddenDecision, HiddenEntries
from anabranch.model.entry_runs import EntryRuns
from anabranch.model.hidden_writes import WriteBatch
from anabranch.model.position import Position
from anabranch.storage.core.spans import Spans
from anabranch.storage.core.topic_record import LedgerRecord, TopicRecord

BATCH = WriteBatch("w", 0)


@dataclass
class Entry:
    at: Position
    attempt: str | None
    # Whether readers may see it; None while that is open.
    is_visible: bool | None


@dataclass
class Topic:
    """The entries as they are, and beside them what the code under test makes of them."""

    hidden: HiddenEntries = field(default_factory=HiddenEntries)
    log: list[Entry] = field(default_factory=list)
    ledgers: list[tuple[int, int | None]] = field(default_factory=lambda: [(1, None)])
    next: int = 0
    trimmed: Position = (-1, -1)
    unsettled: list[tuple[HiddenDecision, dict[str, bool]]] = field(default_factory=list)
    over: set[str] = field(default_factory=set)
    # The journal: the last snapshot, how far it knows the log, and what came after it.
    snapshot: bytes = b""
    as_of: Position = (-1, -1)
    deltas: list[bytes] = field(default_factory=list)
    end_before: Position = (-1, -1)
    # Followed from step to step, where that can be done.
    followed: tuple[tuple[object, ...], Spans] | None = None

    def __post_init__(self) -> None:
        self.store()

    # -- what happens

    def store(self) -> None:
        self.snapshot = state.TopicState(hidden=self.hidden).encode()
        self.as_of, self.deltas = (self.ledgers[-1][0], self.next), []

    def append(self, attempt: str | None) -> None:
        if attempt in self.over:
            return
        if attempt is not None and attempt not in self.hidden.attempts:
            self.hidden.attach(attempt, BATCH)
            self.deltas.append(state.attempt_attached(attempt, BATCH))
        ledger = self.ledgers[-1][0]
        self.log.append(Entry((ledger, self.next), attempt, None if attempt else True))
        if attempt is not None:
            self.hidden.note(attempt, ledger, self.next, self.next + 1)
        self.next += 1

    def decide(self, fates: dict[str, bool]) -> None:
        fates = {name: won for name, won in fates.items() if name in self.hidden.attempts}
        won = [name for name, is_won in fates.items() if is_won]
        lost = [name for name, is_won in fates.items() if not is_won]
        decision = self.hidden.decide(won, lost)
        self.deltas.append(state.attempts_decided(decision))
        self.unsettled.append((decision, fates))
        self.over |= fates.keys()

    def settle(self) -> None:
        for decision, fates in self.unsettled:
            self.hidden.settle(decision)
            for entry in self.log:
                if entry.attempt in fates:
                    entry.is_visible = fates[entry.attempt]
        self.unsettled = []

    def open_again(self) -> None:
        """A crash, after everything was stored: the state is folded, and the log behind it looked at."""
        self.settle()
        folded = state.fold(self.snapshot, self.deltas).hidden
        for entry in self.log:
            if entry.at >= self.as_of and entry.attempt in folded.attempts:
                folded.note(entry.attempt, *entry.at, entry.at[1] + 1)
        folded.trim(self.trimmed)
        assert folded == self.hidden
        self.hidden = folded
        ledger, _ = self.ledgers[-1]
        self.ledgers[-1:] = [(ledger, self.next), (ledger + 2, None)]
        self.next = 0
        self.store()

    def trim(self) -> None:
        self.trimmed = self.spans().end
        self.log = [entry for entry in self.log if entry.at >= self.trimmed]
        self.hidden.trim(self.trimmed)

    # -- what readers see

    def spans(self) -> Spans:
        record = TopicRecord(
            ledgers=tuple(LedgerRecord(id, "i", end) for id, end in self.ledgers), trimmed=self.trimmed
        )
        return Spans(record, self.next, dropped=self.hidden.dropped, stop=self.hidden.stop)

    def check(self) -> None:
        first_open = next((entry.at for entry in self.log if entry.is_visible is None), None)
        expected = [e.at for e in self.log if e.is_visible and (first_open is None or e.at < first_open)]
        for spans in (self.spans(), self.follow()):
            self.compare(spans, expected, first_open)

    def follow(self) -> Spans:
        key = (self.hidden.dropped, self.trimmed, self.ledgers[-1])
        if self.followed is not None and all(a is b for a, b in zip(key, self.followed[0], strict=True)):
            spans = self.followed[1]
            if spans.stop_at(self.hidden.stop, self.next):
                return spans
        self.followed = (key, self.spans())
        return self.followed[1]

    def compare(self, spans: Spans, expected: list[Position], first_open: Position | None) -> None:
        seen, at = [], spans.first
        while at < spans.end:
            seen.append(at)
            at = spans.after(at)
        assert seen == expected
        assert spans.count(spans.first, spans.end) == len(expected)
        assert [spans.at_index(n) for n in range(len(expected))] == expected
        assert spans.last == (expected[-1] if expected else (-1, -1))
        assert spans.end == (first_open or (self.ledgers[-1][0], self.next))
        assert spans.end >= self.end_before, "the end fell back"
        self.end_before = spans.end


ATTEMPTS = st.sampled_from(["a", "b", "c", "d"])
STEPS = st.one_of(
    st.tuples(st.just("append"), st.none() | ATTEMPTS),
    st.tuples(st.just("append"), st.none() | ATTEMPTS),
    st.tuples(st.just("decide"), st.dictionaries(ATTEMPTS, st.booleans(), min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["settle", "store", "open_again", "trim"])),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_readers_see_what_is_decided_for_them_in_order_and_never_less(
    steps: list[tuple[object, ...]],
) -> None:
    topic = Topic()
    for name, *rest in steps:
        getattr(topic, str(name))(*rest)
        topic.check()


def test_state_without_anything_hidden_is_as_it_was() -> None:
    assert b"hidden" not in state.TopicState().encode()


def test_a_decision_that_is_not_stored_yet_keeps_readers_waiting() -> None:
    hidden = HiddenEntries()
    hidden.attach("a", BATCH)
    hidden.note("a", 1, 4, 6)
    decision = hidden.decide([], ["a"])
    assert (hidden.stop, list(hidden.dropped)) == ((1, 4), [])
    assert HiddenEntries.of_image(hidden.image()).stop is None, "what is stored has it decided"
    hidden.settle(decision)
    assert (hidden.stop, list(hidden.dropped)) == (None, [(1, 4, 6)])


def test_attempts_that_take_turns_are_stored_in_little_space_and_come_back() -> None:
    hidden = HiddenEntries()
    for name in "ab":
        hidden.attach(name * 32, BATCH)
    for entry in range(100_000):
        hidden.note("ab"[entry % 2] * 32, 7, entry, entry + 1)
    stored = state.TopicState(hidden=hidden).encode()
    assert len(stored) < 250_000, "two bytes for an entry that is a run of its own"
    assert state.fold(stored, []).hidden == hidden
    decision = hidden.decide(["a" * 32], ["b" * 32])
    delta = state.attempts_decided(decision)
    assert len(delta) < 125_000
    hidden.settle(decision)
    assert state.fold(stored, [delta]).hidden == hidden
    assert hidden.dropped.entries == 50_000


def test_what_earlier_releases_have_stored_is_read() -> None:
    image = {"attempts": [("a" * 32, "w", 0, [7, 0, 2, 7, 4, 5])], "dropped": [6, 0, 3]}
    hidden = HiddenEntries.of_image(image)
    assert hidden.attempts["a" * 32].entries == 3
    assert list(hidden.dropped) == [(6, 0, 3)]
    assert hidden.stop == (7, 0)


def test_an_attempt_is_packed_again_only_if_it_has_changed() -> None:
    """A batch may have a hundred thousand attempts, and all of them are in each stored state."""
    hidden = HiddenEntries()
    for number, name in enumerate("abc"):
        hidden.attach(name, BATCH)
        hidden.note(name, 1, number, number + 1)
    before = hidden.image()["attempts"]
    hidden.note("b", 1, 3, 4)
    after = hidden.image()["attempts"]
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, False, True]
    read = HiddenEntries.of_image(hidden.image())
    assert read == hidden
    assert read.stop == hidden.stop == (1, 0)
    read.decide(["a"], [])
    read.note("c", 1, 4, 5)
    assert read.image()["attempts"] == [("b", *BATCH, [1, 1, 2, 1, 3, 4]), ("c", *BATCH, [1, 2, 3, 1, 4, 5])]


def test_attempts_are_known_by_batch_until_they_are_decided() -> None:
    other = WriteBatch("w", 1)
    hidden = HiddenEntries()
    for name, batch in (("a", BATCH), ("b", other), ("c", BATCH), ("a", BATCH)):
        hidden.attach(name, batch)
    assert hidden.batches() == {BATCH: ["a", "c"], other: ["b"]}
    read = HiddenEntries.of_image(hidden.image())
    for one in (hidden, read):
        assert one.of_batch(BATCH) == ["a", "c"]
        one.decide(["a"], ["b"])
        assert one.of_batch(BATCH) == ["c"]
        assert one.of_batch(other) == []
        assert set(one.open_batches) == {BATCH}
        one.replay(["c", "unknown"], EntryRuns())
        assert not one.open_batches
        assert one.batches() == {}
    with pytest.raises(KeyError):
        hidden.decide(["a"], [])
