"""The demo's checks hold for what was sent, and fail for a row that is missing, doubled, changed or out of order."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from anabranch.cli.demo.core.clickstream import CLOSING_KEY, Clickstream
from anabranch.cli.demo.core.verify import (
    RawRows,
    Sessions,
    batches_of_files,
    expected_sessions,
    in_order,
    once_each,
    raw_rows,
    same_sessions,
    sessions_of,
    visitors_of,
    without_closing,
)

STREAM = Clickstream(5000, 20)
START_MS = 1_800_000_000_000


def as_written() -> RawRows:
    """Every event, over five batches and as many segments, as a correct run writes them; shuffled."""
    number = np.arange(STREAM.events)
    batch = number // 1000
    position = (batch, np.zeros_like(number), number // 10, number % 10)
    mixed = np.random.default_rng(1).permutation(STREAM.events)
    rows = RawRows(batch, STREAM.visitor, number, STREAM.step, position)
    return taken(rows, mixed)


def taken(rows: RawRows, which: np.ndarray[tuple[int], np.dtype[np.int64]]) -> RawRows:
    return RawRows(
        rows.batch[which],
        rows.visitor[which],
        rows.number[which],
        rows.step[which],
        tuple(part[which] for part in rows.position),
    )


def test_what_was_sent_holds() -> None:
    rows = as_written()
    once, ordered = once_each(rows, STREAM), in_order(rows)
    assert once.is_true, once
    assert ordered.is_true, ordered
    assert "5,000 raw rows for 5,000 events" in once.claim
    assert "5 micro-batches and 5 segments" in ordered.claim


def a_row_missing(rows: RawRows) -> RawRows:
    return taken(rows, np.arange(1, len(rows)))


def a_row_doubled(rows: RawRows) -> RawRows:
    return taken(rows, np.append(np.arange(len(rows)), 17))


def one_for_another(rows: RawRows) -> RawRows:
    return taken(rows, np.append(np.arange(1, len(rows)), 17))


def a_foreign_row(rows: RawRows) -> RawRows:
    number = rows.number.copy()
    number[0] = STREAM.events
    return replace(rows, number=number)


def an_unreadable_row(rows: RawRows) -> RawRows:
    number = rows.number.copy()
    number[0] = -1
    return replace(rows, number=number)


def another_key(rows: RawRows) -> RawRows:
    visitor = rows.visitor.copy()
    visitor[0] = (visitor[0] + 1) % STREAM.visitors
    return replace(rows, visitor=visitor)


@pytest.mark.parametrize(
    ("sabotage", "told"),
    [
        (a_row_missing, "1 missing"),
        (a_row_doubled, "1 more than once"),
        (one_for_another, "1 missing, 1 more than once"),
        (a_foreign_row, "1 missing, 1 not ours"),
        (an_unreadable_row, "1 missing, 1 not ours"),
        (another_key, "1 with another key"),
    ],
)
def test_a_table_with_one_wrong_row_does_not_hold(sabotage: Callable[[RawRows], RawRows], told: str) -> None:
    found = once_each(sabotage(as_written()), STREAM)
    assert not found.is_true
    assert told in found.claim


def two_clicks(rows: RawRows) -> tuple[int, int]:
    """The rows of two clicks of one visitor, of different batches, the earlier one first."""
    busiest = np.bincount(rows.visitor).argmax()
    own = np.flatnonzero(rows.visitor == busiest)
    own = own[np.argsort(rows.step[own])]
    return int(own[0]), int(own[-1])


def in_a_later_batch(rows: RawRows) -> RawRows:
    first, last = two_clicks(rows)
    batch = rows.batch.copy()
    batch[first] = batch[last] + 1
    return replace(rows, batch=batch)


def at_a_later_position(rows: RawRows) -> RawRows:
    """Both in one batch, and the positions of the two exchanged."""
    first, last = two_clicks(rows)
    position = [part.copy() for part in rows.position]
    for part in position:
        part[first], part[last] = part[last], part[first]
    return replace(rows, batch=np.zeros_like(rows.batch), position=tuple(position))


@pytest.mark.parametrize("sabotage", [in_a_later_batch, at_a_later_position])
def test_a_click_behind_a_later_one_is_out_of_order(sabotage: Callable[[RawRows], RawRows]) -> None:
    rows = sabotage(as_written())
    assert once_each(rows, STREAM).is_true
    found = in_order(rows)
    assert not found.is_true
    assert "out of the order" in found.claim


def test_no_rows_at_all_are_no_order() -> None:
    assert not in_order(taken(as_written(), np.arange(0))).is_true


# -- sessions


def sessions_by_hand(stream: Clickstream, start_ms: int) -> set[tuple[int, int, int, int]]:
    found = set()
    for visitor in np.unique(stream.visitor):
        times = (stream.offsets_ms[stream.visitor == visitor] + start_ms).tolist()
        start, last, clicks = times[0], times[0], 0
        for at in times:
            if at > last + stream.gap_ms:
                found.add((int(visitor), start, last + stream.gap_ms, clicks))
                start, clicks = at, 0
            last, clicks = at, clicks + 1
        found.add((int(visitor), start, last + stream.gap_ms, clicks))
    return found


def test_expected_sessions_are_those_found_click_by_click() -> None:
    wanted = expected_sessions(STREAM, START_MS)
    columns = (wanted.visitor, wanted.start_ms, wanted.end_ms, wanted.clicks)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    assert len(rows) > 100
    assert set(rows) == sessions_by_hand(STREAM, START_MS)
    assert wanted.clicks.sum() == STREAM.events


def test_the_right_sessions_hold_in_any_order() -> None:
    wanted = expected_sessions(STREAM, START_MS)
    mixed = np.random.default_rng(2).permutation(len(wanted))
    found = Sessions(
        wanted.visitor[mixed], wanted.start_ms[mixed], wanted.end_ms[mixed], wanted.clicks[mixed]
    )
    assert all(one.is_true for one in same_sessions(found, wanted, STREAM.events))


def test_a_session_that_is_missing_or_short_does_not_hold() -> None:
    wanted = expected_sessions(STREAM, START_MS)
    less = Sessions(wanted.visitor[1:], wanted.start_ms[1:], wanted.end_ms[1:], wanted.clicks[1:])
    assert [one.is_true for one in same_sessions(less, wanted, STREAM.events)] == [False, False]
    clicks = wanted.clicks.copy()
    clicks[0] -= 1
    clicks[1] += 1
    # The sum is right, and two sessions are not.
    moved = replace(wanted, clicks=clicks)
    assert [one.is_true for one in same_sessions(moved, wanted, STREAM.events)] == [True, False]
    twice = Sessions(
        *(
            np.append(part, part[:1])
            for part in (wanted.visitor, wanted.start_ms, wanted.end_ms, wanted.clicks)
        )
    )
    assert not any(one.is_true for one in same_sessions(twice, wanted, STREAM.events))


# -- reading


def test_the_batch_of_a_file_is_the_first_that_names_it() -> None:
    def entry(name: str, action: str = "add") -> str:
        return json.dumps({"path": f"file:///t/{name}", "action": action})

    log = {
        0: f"v1\n{entry('a')}",
        1: f"v1\n{entry('b')}\n{entry('c')}",
        2: "v1",
        # Spark writes all that came before into one of them now and then.
        3: "v1\n" + "\n".join(map(entry, "abcd")),
    }
    assert batches_of_files(log) == {"a": 0, "b": 1, "c": 1, "d": 3}


def test_rows_and_sessions_are_read_from_tables_and_the_closing_event_is_left_out() -> None:
    position = pa.array([{"segment": 3, "ledger": 1, "entry": 9, "index": i} for i in range(3)])
    table = pa.table(
        {
            "key": ["visitor-00007", CLOSING_KEY, "visitor-00012"],
            "number": [5, None, 6],
            "step": [0, None, 4],
            "position": position,
        }
    )
    rows = raw_rows(table, np.array([1, 2, 2]))
    assert rows.number.tolist() == [5, -1, 6]
    kept = without_closing(rows, table.column("key"))
    assert kept.visitor.tolist() == [7, 12]
    assert kept.batch.tolist() == [1, 2]
    assert [part.tolist() for part in kept.position] == [[3, 3], [1, 1], [9, 9], [0, 2]]
    stamps = pa.array([1_000_000, 2_500_000], pa.timestamp("us", "UTC"))
    found = sessions_of(
        pa.table({"key": ["visitor-00001", "x"], "start": stamps, "end": stamps, "clicks": [3, 4]})
    )
    assert found.start_ms.tolist() == [1000, 2500]
    assert found.visitor.tolist() == [1, -1]
    assert visitors_of(pa.chunked_array([["visitor-00001", None]])).tolist() == [1, -1]
