"""Recorded load as a table, and back into a trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from anabranch.autoscale.policy import DEFAULT
from anabranch.model.segments import WHOLE, HashRange
from anabranch.pipelines.replay.load_history_schema import (
    COLUMNS,
    Column,
    history_of,
    missing_columns,
    trace_of,
)
from anabranch.pipelines.replay.replay import replay
from anabranch.pipelines.replay.trace import BadTrace, KeyShares, Trace, TraceStream

START = 1_800_000_000_000


def busy_trace() -> Trace:
    rates = np.concatenate([np.full(240, level) for level in (25_600.0, 640.0)])
    messages = rates * 10
    stream = TraceStream.of(np.array([messages, 64 * messages, messages, 64 * messages]), KeyShares.even())
    return Trace(START, [stream], [(START, {"orders": 1}), (START + 900_000, {"orders": 6, "audit": 2})])


def rows(**changed: object) -> dict[str, Column]:
    given = {"segment": 0, "range_start": 0, "range_end": 65_535, "at": START, "consumers": 0}
    rates = dict.fromkeys(("msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out"), 1.0)
    return {name: np.array([value]) for name, value in {**given, **rates, **changed}.items()}


def test_recorded_history_leads_to_the_decisions_that_were_made_when_it_was_recorded() -> None:
    trace = busy_trace()
    live = replay(trace, DEFAULT)
    recorded = trace_of(history_of(trace, live.lives))
    assert [d.kind for d in live.decisions].count("split") >= 5
    assert (recorded.start_ms, recorded.samples, recorded.segments) == (trace.start_ms, trace.samples, 1)
    again = replay(recorded, DEFAULT)
    # Only the subscription's name is not recorded.
    named = [replace(d, because=d.because.replace("'orders'", "'consumers'")) for d in live.decisions]
    assert list(again.decisions) == named


def test_history_may_come_in_any_order() -> None:
    trace = busy_trace()
    columns = history_of(trace, replay(trace, DEFAULT).lives)
    order = np.random.default_rng(1).permutation(len(columns["at"]))
    mixed = trace_of({name: column[order] for name, column in columns.items()})
    straight = trace_of(columns)
    assert np.array_equal(mixed.whole, straight.whole)
    assert mixed.consumers == straight.consumers


def test_a_sample_without_a_row_is_one_of_nothing() -> None:
    trace = trace_of(joined(rows(), rows(at=START + 50_000, msg_rate_in=7.0)))
    assert trace.whole[0].tolist() == [1.0, 0, 0, 0, 0, 7.0]
    assert trace.rates(WHOLE)[0].tolist() == trace.whole[0].tolist()


def joined(*given: dict[str, Column]) -> dict[str, Column]:
    return {name: np.concatenate([one[name] for one in given]) for name in given[0]}


def test_samples_closer_than_a_step_add_up_and_late_ones_count_for_as_long_as_they_took() -> None:
    close = joined(*(rows(at=START + 5_000 * n, msg_rate_in=100.0) for n in range(9)))
    # The first row is taken for a whole step, as nobody knows when the one before it was.
    assert trace_of(close).whole[0].sum() * 10 == 1000 + 8 * 500
    late = joined(*(rows(at=START + 10_500 * n, msg_rate_in=100.0) for n in range(5)))
    assert trace_of(late).whole[0].sum() * 10 == 1000 + 4 * 1050


def test_each_range_is_kept_for_as_long_as_there_was_one() -> None:
    whole = rows(at=START)
    halves = [
        rows(segment=n, range_start=32_768 * n, range_end=32_768 * n + 32_767, at=START + at)
        for n in range(2)
        for at in (10_000, 20_000)
    ]
    trace = trace_of(joined(whole, *halves, rows(at=START + 30_000)))
    assert [(stream.first, stream.last) for stream in trace.streams] == [(1, 3), (0, 4), (1, 3)]
    assert trace.whole[0].tolist() == [1.0, 2.0, 2.0, 1.0]
    assert trace.rates(HashRange(0, 32_767))[0].tolist() == [0.5, 1.0, 1.0, 0.5]


def test_columns_that_are_missing_are_named() -> None:
    assert missing_columns(COLUMNS) == []
    assert missing_columns(["topic", "at"]) == [name for name in COLUMNS if name not in ("topic", "at")]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"msg_rate_in": -1.0}, "negative"),
        ({"msg_rate_out": float("nan")}, "no number"),
        ({"range_end": 70_000}, "within"),
    ],
)
def test_history_that_makes_no_sense_is_refused(changed: dict[str, object], why: str) -> None:
    with pytest.raises(BadTrace, match=why):
        trace_of(rows(**changed))


def test_no_history_at_all_is_refused() -> None:
    with pytest.raises(BadTrace, match="without a single row"):
        trace_of({name: column[:0] for name, column in rows().items()})
