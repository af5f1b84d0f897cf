"""Load history as a table: its columns, traces made from it, and synthetic history in its form. Pure.

A row describes the load of one segment in one sample: the rates since the sample before, the range of keys that the
segment had, and how many ordered consumers the topic's largest subscription had. A sample without a row had no load.
The optional column `seconds` is the time that the rates cover.

A row with `NO_SEGMENT` gives the time at which the number of consumers changed, to the millisecond; or, if the number
is `UNKNOWN`, only the end of the topic's record. Where there are such rows, the consumers of the other rows are
ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from anabranch.model.segments import HASH_MAX, HashRange
from anabranch.pipelines.replay.replay import Life
from anabranch.pipelines.replay.trace import (
    STEP_MS,
    BadTrace,
    Consumers,
    Floats,
    KeyShares,
    Trace,
    TraceStream,
)

RATE_COLUMNS: Final = ("msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")
# Each column with its type in Spark's SQL. `at` is the end of the sample.
COLUMNS: Final[Mapping[str, str]] = {
    "topic": "string",
    "segment": "bigint",
    "range_start": "int",
    "range_end": "int",
    "at": "timestamp",
    **dict.fromkeys(RATE_COLUMNS, "double"),
    "consumers": "int",
}
SECONDS: Final = "seconds"
NO_SEGMENT: Final = -1
UNKNOWN: Final = -1
# History names no subscription: there is one, as large as the largest.
SUBSCRIPTION: Final = "consumers"

Column = npt.NDArray[np.generic]


def missing_columns(found: Iterable[str]) -> list[str]:
    names = set(found)
    return [name for name in COLUMNS if name not in names]


def trace_of(columns: Mapping[str, Column], step_ms: int = STEP_MS) -> Trace:
    """Makes a trace from one topic's rows, in any order, with `at` in milliseconds. Keys are assumed to be even within
    a range."""
    is_load = columns["segment"].astype(np.int64) >= 0
    others = {name: columns[name][~is_load].astype(np.int64) for name in ("at", "consumers")}
    columns = {name: column[is_load] for name, column in columns.items()}
    at_ms = columns["at"].astype(np.int64)
    if not len(at_ms):
        raise BadTrace("a topic without a single row of a segment has no history")
    rates = np.array([columns[name].astype(np.float64) for name in RATE_COLUMNS])
    starts, ends = columns["range_start"].astype(np.int64), columns["range_end"].astype(np.int64)
    _check(rates, starts, ends)
    first_ms = int(at_ms.min()) - step_ms
    # Brokers' timers are a little late each time: a sample goes to the nearest step.
    at = np.round((at_ms - first_ms) / step_ms).astype(np.int64)
    seconds = columns.get(SECONDS)
    if seconds is None:
        seconds = _seconds(columns["segment"].astype(np.int64), at_ms, step_ms)
    amounts = np.round(rates * seconds.astype(np.float64))
    streams = []
    for start, end in sorted(set(zip(starts.tolist(), ends.tolist(), strict=True))):
        chosen = np.flatnonzero((starts == start) & (ends == end))
        before = int(at[chosen].min()) - 1
        flowed = np.zeros((4, int(at[chosen].max()) - before))
        for row in range(4):
            np.add.at(flowed[row], at[chosen] - before - 1, amounts[row, chosen])
        streams.append(TraceStream.of(flowed, KeyShares.even(HashRange(start, end)), before))
    streams += _until(others["at"], max(stream.last for stream in streams), first_ms, step_ms)
    is_told = others["consumers"] >= 0
    if is_told.any():
        consumers = _told_changes(others["at"][is_told], others["consumers"][is_told], first_ms)
    else:
        consumers = _changes(at, columns["consumers"].astype(np.int64), first_ms, step_ms)
    return Trace(first_ms, streams, consumers, step_ms, _first_segments(at, starts))


def _seconds(segments: npt.NDArray[np.int64], at_ms: npt.NDArray[np.int64], step_ms: int) -> Floats:
    """The time that each row's rates cover: since the segment's previous row, or one sample, if that row is too old."""
    order = np.lexsort((at_ms, segments))
    since = np.full(len(at_ms), step_ms, dtype=np.int64)
    gaps = np.diff(at_ms[order])
    is_next = (np.diff(segments[order]) == 0) & (gaps > 0) & (gaps <= 1.5 * step_ms)
    since[order[1:][is_next]] = gaps[is_next]
    return since / 1000


def _check(rates: Floats, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
    if not (np.isfinite(rates).all() and (rates >= 0).all()):
        raise BadTrace("load history holds a rate that is negative, or no number at all")
    if not ((starts >= 0) & (starts <= ends) & (ends <= HASH_MAX)).all():
        raise BadTrace(f"load history holds a range that is not within 0..{HASH_MAX}")


def _first_segments(at: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> int:
    """How many segments to begin with: as many as were recorded, in ranges of equal width."""
    return max(1, len(set(starts[at == at.min()].tolist())))


def _until(at_ms: npt.NDArray[np.int64], last: int, first_ms: int, step_ms: int) -> list[TraceStream]:
    """An empty stream that ends with the topic's record, if the other streams end before."""
    end = (int(at_ms.max()) - first_ms) // step_ms if len(at_ms) else 0
    return [TraceStream.of(np.zeros((4, 1)), None, end - 1)] if end > last else []


def _told_changes(
    at_ms: npt.NDArray[np.int64], consumers: npt.NDArray[np.int64], first_ms: int
) -> list[tuple[int, Consumers]]:
    """The changes that are recorded to the millisecond. A state from before the first sample holds at its beginning."""
    changes: list[tuple[int, Consumers]] = []
    last = 0
    for row in np.argsort(at_ms, kind="stable").tolist():
        when, count = max(int(at_ms[row]), first_ms), int(consumers[row])
        if changes and changes[-1][0] == when:
            changes.pop()
            last = max(changes[-1][1].values(), default=0) if changes else 0
        if count != last:
            changes.append((when, {SUBSCRIPTION: count}))
            last = count
    return changes


def _changes(
    at: npt.NDArray[np.int64], consumers: npt.NDArray[np.int64], first_ms: int, step_ms: int
) -> list[tuple[int, Consumers]]:
    """The changes of the largest subscription's size. A change happened during the sample that first shows it."""
    most = np.full(int(at.max()) + 1, -1, dtype=np.int64)
    np.maximum.at(most, at, consumers)
    known = np.flatnonzero(most >= 0)
    changes: list[tuple[int, Consumers]] = []
    last = 0
    for sample in known.tolist():
        if (count := int(most[sample])) != last:
            changes.append((first_ms + (sample - 1) * step_ms, {SUBSCRIPTION: count}))
            last = count
    return changes


def history_of(trace: Trace, lives: Iterable[Life]) -> dict[str, Column]:
    """The columns that brokers would have recorded for a trace while it had those segments; `at` in milliseconds."""
    parts: dict[str, list[Column]] = {name: [] for name in COLUMNS if name != "topic"}
    for number, life in enumerate(sorted(lives, key=lambda one: (one.from_ms, one.span))):
        first = (life.from_ms - trace.start_ms) // trace.step_ms + 1
        past = (life.until_ms - trace.start_ms) // trace.step_ms + 1
        counts = trace.counts(trace.shares(life.span), first - 1, past)
        rates = np.diff(counts, axis=1) / (trace.step_ms / 1000)
        at_ms = trace.start_ms + np.arange(first, past) * trace.step_ms
        parts["at"].append(at_ms)
        parts["consumers"].append(_consumers_at(trace, at_ms))
        for name, value in (
            ("segment", number),
            ("range_start", life.span.start),
            ("range_end", life.span.end),
        ):
            parts[name].append(np.full(past - first, value))
        for name, row in zip(RATE_COLUMNS, rates, strict=True):
            parts[name].append(row)
    return {name: np.concatenate(found) for name, found in parts.items()}


def _consumers_at(trace: Trace, at_ms: npt.NDArray[np.int64]) -> Column:
    times = np.array([at for at, _ in trace.consumers], dtype=np.int64)
    counts = np.array([0, *(max(found.values(), default=0) for _, found in trace.consumers)], dtype=np.int64)
    # A change at the very end of the sample is not recorded yet.
    found: Column = counts[np.searchsorted(times, at_ms, side="left")]
    return found
