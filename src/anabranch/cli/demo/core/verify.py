"""Compares the tables that Spark wrote with the events that were sent. Pure.

Raw rows come with the micro-batch that wrote them, which is read from the file sink's own log: only files that the log
names count. A finding says what was checked, with figures, whether it holds or not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anabranch.cli.demo.core.clickstream import CLOSING_KEY, Clickstream

if TYPE_CHECKING:
    import pyarrow as pa

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim with its figures, and whether it holds."""

    claim: str
    is_true: bool


@dataclass(frozen=True, slots=True)
class RawRows:
    """Raw rows in any order. `visitor` is -1 where the key is not one of the stream's."""

    batch: Numbers
    visitor: Numbers
    number: Numbers
    step: Numbers
    position: tuple[Numbers, ...]  # Segment, ledger, entry, index.

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True, slots=True)
class Sessions:
    """Rows of the table of sessions, in any order."""

    visitor: Numbers
    start_ms: Numbers
    end_ms: Numbers
    clicks: Numbers

    def __len__(self) -> int:
        return len(self.visitor)


# -- reading


def batches_of_files(log: Mapping[int, str]) -> dict[str, int]:
    """The micro-batch that wrote each file, from the texts of the file sink's log by batch.

    Now and then Spark writes all earlier entries into one of them, so the first that names a file counts.
    """
    found: dict[str, int] = {}
    for batch in sorted(log):
        for line in log[batch].splitlines()[1:]:
            entry = json.loads(line)
            if entry["action"] == "add":
                found.setdefault(entry["path"].rpartition("/")[2], batch)
    return found


def raw_rows(table: pa.Table, batches: Numbers) -> RawRows:
    """Reads the columns `key`, `number`, `step` and `position`, which may hold nulls where a value is invalid."""
    position = table.column("position").combine_chunks()
    names = ("segment", "ledger", "entry", "index")
    return RawRows(
        batches,
        visitors_of(table.column("key")),
        _numbers(table.column("number")),
        _numbers(table.column("step")),
        tuple(_numbers(position.field(name)) for name in names),
    )


def without_closing(rows: RawRows, keys: Any) -> RawRows:
    """The rows without the closing event, which is not part of the stream."""
    import pyarrow.compute as pc

    compute: Any = pc
    kept = np.asarray(compute.not_equal(keys, CLOSING_KEY).combine_chunks().to_numpy(zero_copy_only=False))
    return RawRows(
        rows.batch[kept],
        rows.visitor[kept],
        rows.number[kept],
        rows.step[kept],
        tuple(part[kept] for part in rows.position),
    )


def sessions_of(table: pa.Table) -> Sessions:
    """Reads the columns `key`, `start` and `end` (timestamps) and `clicks`."""
    import pyarrow as pa

    def ms(name: str) -> Numbers:
        return _numbers(table.column(name).cast(pa.timestamp("ms"), safe=False).cast(pa.int64()))

    return Sessions(
        visitors_of(table.column("key")), ms("start"), ms("end"), _numbers(table.column("clicks"))
    )


def visitors_of(keys: Any) -> Numbers:
    """The numbers in `visitor-00042`; -1 for any other key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    compute: Any = pc
    found = compute.struct_field(compute.extract_regex(keys.cast(pa.string()), r"^visitor-(?P<n>\d+)$"), "n")
    return _numbers(found.cast(pa.int64()))


def _numbers(column: Any) -> Numbers:
    """The column's numbers, with -1 for null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    compute: Any = pc
    filled = compute.fill_null(column.cast(pa.int64()), -1)
    return np.asarray(filled.to_numpy(), dtype=np.int64)


# -- checks


def once_each(rows: RawRows, stream: Clickstream) -> Finding:
    """Whether every event is there once, under its key, and nothing else is."""
    is_ours = (rows.number >= 0) & (rows.number < stream.events)
    counts = np.bincount(rows.number[is_ours], minlength=stream.events)
    missing, doubled = int((counts == 0).sum()), int((counts > 1).sum())
    numbers = rows.number[is_ours]
    is_same = (rows.visitor[is_ours] == stream.visitor[numbers]) & (
        rows.step[is_ours] == stream.step[numbers]
    )
    foreign, changed = int((~is_ours).sum()), int((~is_same).sum())
    faults = {"missing": missing, "more than once": doubled, "not ours": foreign, "with another key": changed}
    told = ", ".join(f"{count:,} {name}" for name, count in faults.items() if count)
    claim = f"{len(rows):,} raw rows for {stream.events:,} events: " + (
        told or "each exactly once, under its key"
    )
    return Finding(claim, not any(faults.values()))


def in_order(rows: RawRows, batch: str = "micro-batch") -> Finding:
    """Whether each key's clicks come in the order they were sent, by batch, and by `position` within one."""
    segment, ledger, entry, index = rows.position
    # The last key of `lexsort` counts first.
    order = np.lexsort((index, entry, ledger, segment, rows.batch, rows.visitor))
    visitor, step = rows.visitor[order], rows.step[order]
    is_wrong = (visitor[1:] == visitor[:-1]) & (step[1:] <= step[:-1])
    wrong, keys = int(is_wrong.sum()), len(np.unique(rows.visitor))
    where = f"{len(np.unique(rows.batch)):,} {batch}es and {len(np.unique(segment)):,} segments"
    if wrong:
        at = int(is_wrong.argmax())
        first = f"visitor {visitor[at]}: click {step[at + 1]} comes behind click {step[at]}"
        return Finding(f"{wrong:,} rows are out of the order of their key, over {where}; {first}", False)
    return Finding(
        f"by {batch} and position, each of {keys:,} keys is in order, over {where}", bool(len(rows))
    )


def expected_sessions(stream: Clickstream, start_ms: int) -> Sessions:
    """The sessions of the stream, if it began at that moment."""
    order = np.argsort(stream.visitor, kind="stable")
    visitor, at = stream.visitor[order], stream.offsets_ms[order] + start_ms
    # As in Spark, a click at the very end of a session still belongs to it.
    is_new = np.concatenate(([True], (visitor[1:] != visitor[:-1]) | (at[1:] - at[:-1] > stream.gap_ms)))
    starts = np.flatnonzero(is_new)
    ends = np.append(starts[1:], len(at)) - 1
    return Sessions(visitor[starts], at[starts], at[ends] + stream.gap_ms, ends - starts + 1)


def same_sessions(found: Sessions, wanted: Sessions, events: int) -> list[Finding]:
    """Whether the clicks of the sessions add up to all events, and the sessions are those that the events make."""
    clicks = int(found.clicks.sum())
    wrong = len(_as_set(found) ^ _as_set(wanted))
    what = "the same visitor, start, end and clicks as computed from the events alone"
    return [
        Finding(
            f"{len(found):,} sessions with {clicks:,} clicks in all, of {events:,} events", clicks == events
        ),
        Finding(
            f"{len(wanted):,} sessions expected, each with {what}"
            if not wrong
            else f"{wrong:,} sessions differ",
            not wrong and len(found) == len(wanted),
        ),
    ]


def _as_set(sessions: Sessions) -> set[tuple[int, ...]]:
    columns = (sessions.visitor, sessions.start_ms, sessions.end_ms, sessions.clicks)
    return set(zip(*(column.tolist() for column in columns), strict=True))
