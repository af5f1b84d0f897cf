"""Reading a compacted channel gives what reading all of it gives, wherever its leaders died."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from anabranch.balance.core.channel import (
    ChannelEvent,
    ChannelReader,
    TermBegan,
    snapshot_events,
)
from anabranch.balance.core.fold import Fold
from anabranch.balance.core.states import BundleAction, BundleChange, BundleState
from anabranch.balance.core.transfer import owned
from unit.balance.core.changes import A, B, C, X, Y, folded, state
from unit.balance.core.test_fold import Move, made_by, moves


def read(events: list[ChannelEvent]) -> ChannelReader:
    reader = ChannelReader()
    for event in events:
        reader.read(event)
    return reader


def same(one: Fold, other: Fold) -> bool:
    return one.snapshot() == other.snapshot() and one.term == other.term


@given(moves, st.lists(st.integers(0, 40), max_size=12))
def test_what_is_left_after_a_trim_says_the_same_as_everything(moves: list[Move], steps: list[int]) -> None:
    """Leaders write changes, begin snapshots, die in the middle of them, and write changes in the middle of them."""
    everything: list[ChannelEvent] = []
    complete: list[int] = []  # Where complete snapshots begin.
    reader = ChannelReader()

    def write(event: ChannelEvent) -> None:
        everything.append(event)
        reader.read(event)

    kinds = iter(steps)
    for number, move in enumerate(moves):
        kind = next(kinds, 0)
        if kind > 30:
            write(TermBegan(move[3]))
        elif kind > 15:
            # As many events of the snapshot as its leader lived for, with one change between them.
            begun = len(everything)
            events = list(snapshot_events(f"s{number}", reader.fold))
            lived = events if kind % 3 else events[: kind % len(events)]
            half = len(lived) // 2
            for event in lived[:half]:
                write(event)
            if kind % 2 and half:
                write(made_by(reader.fold, move))
            for event in lived[half:]:
                write(event)
            if len(lived) == len(events):
                complete.append(begun)
        write(made_by(reader.fold, move))
    plain = Fold()
    for event in everything:
        if isinstance(event, TermBegan):
            plain.lead(event.term)
        elif isinstance(event, BundleChange):
            plain.apply(event)
    assert same(reader.fold, plain)
    assert reader.restored == 0
    for first in complete:
        after = read(everything[first:])
        assert same(after.fold, plain)
        assert after.restored <= 1


def test_a_snapshot_without_its_end_is_nothing() -> None:
    fold = folded(state(X, BundleState.ASSIGNED, to=A), state(Y, BundleState.ASSIGNED, to=B))
    events = list(snapshot_events("one", fold))
    for length in range(len(events)):
        reader = read(events[:length])
        assert reader.fold.snapshot() == []
        assert reader.restored == 0
    whole = read(events)
    assert same(whole.fold, fold)
    assert whole.restored == 1


def test_a_snapshot_with_a_missing_part_or_a_foreign_end_is_nothing() -> None:
    fold = folded(state(X, BundleState.ASSIGNED, to=A), state(Y, BundleState.ASSIGNED, to=B))
    one, other = list(snapshot_events("one", fold)), list(snapshot_events("other", fold))
    assert read([*one[:2], one[-1]]).fold.snapshot() == []
    assert read([*one[:-1], other[-1]]).fold.snapshot() == []
    assert read([*one[:2], *other[1:]]).fold.snapshot() == []
    # A leader died, and the next one wrote a snapshot of its own.
    assert same(read([*one[:2], *other]).fold, fold)


def test_a_snapshot_tells_of_the_term() -> None:
    fold = folded(term=5)
    assert read(list(snapshot_events("one", fold))).fold.term == 5


def test_a_reader_counts_the_changes_since_the_last_complete_snapshot() -> None:
    reader = ChannelReader()
    assert reader.read(TermBegan(1)) is None
    own = owned(X, 1, A, A, 0, "")
    assert reader.read(own) == own
    assert reader.read(own) is None
    assert reader.changes == 2
    for event in islice(snapshot_events("cut off", reader.fold), 2):
        reader.read(event)
    assert reader.changes == 2
    events = snapshot_events("whole", reader.fold)
    reader.read(next(events))
    assert reader.read(owned(Y, 1, B, B, 0, "")) is not None
    for event in events:
        reader.read(event)
    assert reader.changes == 1
    assert set(reader.fold.bundles) == {X, Y}
    assert reader.restored == 0


def test_a_fold_that_becomes_another_tells_what_is_different() -> None:
    old = folded(state(X, BundleState.ASSIGNED, to=A), state(Y, BundleState.ASSIGNED, to=B), term=3)
    kept = state(Y, BundleState.ASSIGNED, to=B)
    assert old.become(folded(state(X, BundleState.ASSIGNED, to=C, version=9), kept, term=5)) == [
        state(X, BundleState.ASSIGNED, to=C, version=9)
    ]
    assert old.term == 5
    (gone,) = old.become(folded(kept, term=4))
    assert (gone.bundle, gone.action, gone.state, gone.version) == (X, BundleAction.TOMBSTONE, None, 10)
    assert gone == replace(gone, source=None, to=None)
    assert (old.snapshot(), old.term) == ([kept], 5)
    assert old.become(folded(kept)) == []
