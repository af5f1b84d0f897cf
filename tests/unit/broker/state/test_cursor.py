"""Cursors against the plainest model there is: a set of acknowledged positions."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.broker.state.cursor import Cursor, bits_of_words, words_of_bits
from anabranch.model.position import Position
from unit.broker.rig import ListLog, make_entry

SIZES = {5: 30, 9: 3, 12: 40}


def small_log() -> ListLog:
    log = ListLog()
    log.ledgers = {ledger: [(1, make_entry())] * size for ledger, size in SIZES.items()}
    return log


LOG = small_log()
ALL = LOG.positions()
places = st.sampled_from(ALL)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["one", "below", "through", "reset", "settle"]), places)))
def test_any_steps_leave_the_cursor_equal_to_a_set_of_positions(steps: list[tuple[str, Position]]) -> None:
    cursor = Cursor(LOG.first)
    acked: set[Position] = set()
    for step, at in steps:
        if step == "one":
            assert cursor.ack(at) == (at not in acked)
            acked.add(at)
        elif step == "below":
            cursor.ack_below(at)
            acked |= {place for place in ALL if place < at}
        elif step == "through":
            cursor.ack_below((at[0], at[1] + 1))
            acked |= {place for place in ALL if place <= at}
        elif step == "reset":
            cursor.reset(at)
            acked = {place for place in ALL if place < at}
        else:
            cursor.settle(LOG)
    assert [place for place in ALL if cursor.is_acked(place)] == sorted(acked)
    assert cursor.settle(LOG) == min(set(ALL) - acked, default=LOG.end)
    assert cursor.backlog(LOG) == len(ALL) - len(acked)
    assert cursor.held == sum(1 for place in acked if place >= cursor.next)
    runs = [(ledger, n) for ledger, first, end in cursor.acked_runs() for n in range(first, end)]
    assert runs == sorted(place for place in acked if place >= cursor.next)
    assert cursor.ranges == sum(1 for _ in cursor.acked_runs())
    assert Cursor.of_image(cursor.image()) == cursor


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 5000), max_size=60), st.integers(0, 5000))
def test_runs_longer_than_a_chunk_are_passed_over_in_one_step(extra: list[int], start: int) -> None:
    cursor = Cursor((1, start))
    acked = {n for n in extra if n >= start} | set(range(start + 1, start + 3000))
    for n in sorted(acked - {start}):
        cursor.ack((1, n))
    assert cursor.next == (1, start)
    cursor.ack((1, start))
    end = start + 1
    while end in acked:
        end += 1
    assert cursor.next == (1, end)
    assert cursor.held == len([n for n in acked if n >= end])


@settings(deadline=None)
@given(st.permutations([("one", p) for p in ALL[3:20]] + [("below", ALL[7]), ("below", ALL[33])]))
def test_the_order_of_acknowledgements_does_not_matter(steps: list[tuple[str, Position]]) -> None:
    cursor = Cursor(LOG.first)
    for step, at in steps:
        if step == "one":
            cursor.ack(at)
        else:
            cursor.ack_below(at)
    cursor.settle(LOG)
    assert cursor.next == ALL[33]
    assert cursor.held == 0


@example([{1, 2, 3, 4, 5, 6, 7, 8, 9}, {0}], False)
@given(st.lists(st.sets(st.integers(0, 9)), max_size=8), st.booleans())
def test_a_batch_is_acknowledged_once_all_its_messages_are(
    steps: list[set[int]], is_size_known: bool
) -> None:
    cursor = Cursor((1, 0))
    left = set(range(10))
    counted = 0
    for step in steps:
        unacked = sum(1 << n for n in range(10) if n not in step)
        counted += cursor.ack_batch((1, 4), unacked, 10 if is_size_known else 0)
        left -= step
        assert cursor.is_acked((1, 4)) == (not left)
        if left and is_size_known:
            assert cursor.batches.get((1, 4), (1 << 10) - 1) == sum(1 << n for n in left)
    if is_size_known:
        assert counted == 10 - len(left)
    if not left:
        assert not cursor.batches


def test_acknowledging_the_whole_entry_forgets_the_parts() -> None:
    cursor = Cursor((1, 0))
    cursor.ack_batch((1, 2), 0b110, 3)
    cursor.ack((1, 2))
    assert not cursor.batches
    assert cursor.ack_batch((1, 2), 0b100, 3) == 0


def test_retention_carries_the_cursor_up() -> None:
    log = small_log()
    cursor = Cursor(log.first)
    cursor.ack((5, 9))
    cursor.ack((12, 1))
    log.trimmed = (12, 1)
    assert cursor.settle(log) == (12, 2)
    assert cursor.held == 0


def test_a_cursor_at_the_end_follows_the_log_into_its_next_ledger() -> None:
    log = ListLog()
    log.append(make_entry())
    cursor = Cursor(log.first)
    cursor.ack((5, 0))
    assert cursor.settle(log) == (5, 1)
    log.roll()
    log.append(make_entry())
    assert cursor.settle(log) == (8, 0)
    assert cursor.backlog(log) == 1


def test_hundreds_of_thousands_of_holes_stay_small_and_exact() -> None:
    cursor = Cursor((1, 0))
    for n in range(1, 400_001, 2):
        cursor.ack((1, n))
    assert cursor.held == 200_000
    assert cursor.ranges == 200_000
    assert sum(len(bits) for _, bits in cursor.image()[1][0][2]) < 60_000
    for n in range(0, 400_001, 2):
        cursor.ack((1, n))
    assert (cursor.next, cursor.held) == ((1, 400_001), 0)


@given(st.integers(0, 2**200 - 1))
def test_ack_sets_survive_the_wire_form(bits: int) -> None:
    assert bits_of_words(words_of_bits(bits)) == bits


def test_an_ack_set_of_a_whole_frame_is_read_and_written_in_linear_time() -> None:
    # Two minutes, if each word moved those before it.
    words = [-1] * 400_000
    started = time.perf_counter()
    bits = bits_of_words(words)
    assert bits == (1 << 64 * 400_000) - 1
    assert words_of_bits(bits) == words
    assert time.perf_counter() - started < 10


@pytest.mark.parametrize("size", [2**31 - 1, -1, -(2**31)])
def test_acknowledging_part_of_a_batch_costs_its_bits_and_not_its_claimed_size(size: int) -> None:
    cursor = Cursor((1, 0))
    tracemalloc.start()
    try:
        cursor.ack_batch((1, 4), 0b101, size)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert cursor.batches == {(1, 4): 0b101}


@settings(deadline=None)
@given(st.sets(st.integers(0, 5000)))
def test_ranges_are_counted_across_chunks(entries: set[int]) -> None:
    cursor = Cursor((5, -1))
    for entry in entries:
        cursor.ack((5, entry))
    assert cursor.ranges == sum(1 for _ in cursor.acked_runs())


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.sampled_from(["part", "ack", "below"])), max_size=300))
def test_the_parts_of_batches_are_those_beyond_the_cursor_and_their_size_is_known(
    taken: list[tuple[int, str]],
) -> None:
    cursor = Cursor((1, 0))
    parts: dict[Position, int] = {}
    for entry, what in taken:
        at = (1, entry)
        if what == "part" and not cursor.is_acked(at):
            cursor.ack_batch(at, 0b11 << entry, 300)
            parts[at] = 0b11 << entry
        elif what == "ack":
            cursor.ack(at)
        elif what == "below":
            cursor.ack_below((1, entry // 8))
        parts = {place: bits for place, bits in parts.items() if not cursor.is_acked(place)}
        assert cursor.batches == parts
        assert cursor.parts_bytes == sum((bits.bit_length() + 7) // 8 for bits in parts.values())
    assert Cursor.of_image(cursor.image()) == cursor


def test_moving_past_one_of_many_partly_acknowledged_batches_is_quick() -> None:
    cursor = Cursor((1, 0))
    for entry in range(50_000):
        cursor.ack_batch((1, entry), 0b10, 2)
    started = time.perf_counter()
    # A walk over all of them each time would be 2.5 thousand million steps.
    for entry in range(50_000):
        cursor.ack_below((1, entry + 1))
    assert not cursor.batches
    assert time.perf_counter() - started < 20


# -- messages


def uneven_log() -> ListLog:
    log = ListLog()
    log.ledgers = {
        ledger: [(1 + (ledger + n) % 7, make_entry()) for n in range(size)] for ledger, size in SIZES.items()
    }
    return log


UNEVEN = uneven_log()


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["one", "below", "part", "reset"]), places, st.integers(0, 127))))
def test_the_backlog_counts_messages_that_nobody_acknowledged(steps: list[tuple[str, Position, int]]) -> None:
    cursor = Cursor(UNEVEN.first)
    size = {at: UNEVEN.ledgers[at[0]][at[1]][0] for at in ALL}
    left = {at: (1 << size[at]) - 1 for at in ALL}
    for step, at, bits in steps:
        if step == "one":
            cursor.ack(at)
            left[at] = 0
        elif step == "below":
            cursor.ack_below(at)
            left |= {place: 0 for place in ALL if place < at}
        elif step == "part":
            cursor.ack_batch(at, bits, size[at])
            left[at] &= bits
        else:
            cursor.reset(at)
            left = {place: 0 if place < at else (1 << size[place]) - 1 for place in ALL}
    cursor.settle(UNEVEN)
    assert cursor.backlog_messages(UNEVEN) == sum(bits.bit_count() for bits in left.values())
    assert Cursor.of_image(cursor.image()).backlog_messages(UNEVEN) == cursor.backlog_messages(UNEVEN)


def test_very_many_holes_are_counted_by_the_mean() -> None:
    log = ListLog()
    log.ledgers = {5: [(10, make_entry())] * 4000}
    cursor = Cursor(log.first)
    for n in range(1, 4000, 2):
        cursor.ack((5, n))
    assert cursor.backlog_messages(log) == 10 * cursor.backlog(log) == 20_000
