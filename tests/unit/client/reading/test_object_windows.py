"""Entries read from objects are those that were written, and whatever is missing or damaged is an error."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.client.reading.direct import entries, facts, record_batches
from anabranch.client.reading.failures import FilesUnreachableError, NeedsClientError, PlanOutdatedError
from anabranch.columns import SCHEMA, Entry, decode
from anabranch.model.position import Position
from anabranch.model.segments import HashRange
from anabranch.model.wanted import Wanted
from anabranch.storage.core.format import DELTA, ENTRY, SNAPSHOT, encode_record
from anabranch.storage.core.read_plan import PlannedRun, TopicPlan
from anabranch.storage.port import LogDamagedError, LogMissingError
from unit.client.reading.test_direct import LEDGER, POOL, mixed, single, stamped, until_raised


class Objects:
    """Objects in a folder, each with a run of entries among state records, and plans of them."""

    def __init__(
        self, folder: Path, data: Sequence[bytes], *, each: int = 10, gaps: Sequence[int] = (0,)
    ) -> None:
        self.folder = folder
        self.data = list(data)
        self.entries_max = len(self.data)
        # Ranges that are not in plans.
        self.dropped: list[tuple[int, int]] = []
        self.asked: list[Position | None] = []
        self.places: list[tuple[int, int, int]] = []
        self.files: list[str] = []
        # By object: its first entry, one past its last, and where its run is.
        self.runs: list[tuple[int, int, int, int]] = []
        (folder / "wal").mkdir()
        for first in range(0, len(self.data), each):
            made = bytearray(b"the table, and somebody else's run")
            start, end = len(made), min(len(self.data), first + each)
            for number in range(first, end):
                for state in range(gaps[number % len(gaps)]):
                    made += encode_record(LEDGER, state, 0, DELTA if state else SNAPSHOT, b"state" * state)
                record = encode_record(LEDGER, number, 1, ENTRY, self.data[number])
                self.places.append((len(self.files), len(made), len(record)))
                made += record
            self.runs.append((first, end, start, len(made) - start))
            self.files.append(f"wal/{len(self.files):012d}")
            (folder / self.files[-1]).write_bytes(bytes(made) + b"and what follows")

    def plan(self, start: Position | None, end: Position | None) -> TopicPlan:
        self.asked.append(start)
        log_end = (LEDGER, len(self.data))
        start, end = start or (LEDGER, 0), end or log_end
        first, stop = start[1], min(end[1], len(self.data), start[1] + self.entries_max)
        runs = []
        for file, (run_first, run_end, offset, length) in enumerate(self.runs):
            at = max(first, run_first)
            for a, b in (*self.dropped, (run_end, run_end)):
                last = min(a, run_end, stop)
                if at < last:
                    runs.append(PlannedRun(LEDGER, at, last - 1, file, offset, length))
                at = max(at, b)
        return TopicPlan(
            topic="t",
            start=start,
            end=(LEDGER, stop),
            log_end=log_end,
            has_lost=False,
            root=f"objects://{self.folder}",
            files=tuple(self.files),
            runs=tuple(runs),
            expires_in_ms=60_000,
            message_bytes_max=5 << 20,
            in_objects=True,
        )

    def overwrite(self, number: int, offset: int, value: bytes) -> None:
        file, at, _ = self.places[number]
        with (self.folder / self.files[file]).open("r+b") as opened:
            opened.seek(at + offset)
            opened.write(value)

    def expected(self, first: int = 0, stop: int | None = None) -> Any:
        chosen = [Entry(LEDGER, i, one) for i, one in enumerate(self.data)][first:stop]
        chosen = [one for one in chosen if not any(a <= one.entry_id < b for a, b in self.dropped)]
        return pa.Table.from_batches([decode(POOL, chosen).batch])

    def table(self, first: int = 0, stop: int | None = None, **limits: Any) -> Any:
        end = (LEDGER, len(self.data) if stop is None else stop)
        pieces = list(record_batches(self.plan, (LEDGER, first), end, pool=POOL, **limits))
        if not self.dropped:
            for one, other in pairwise(pieces):
                assert one.end == other.start
        return pa.Table.from_batches([piece.batch for piece in pieces], SCHEMA)

    def raw(self, first: int = 0, stop: int | None = None) -> list[tuple[int, bytes]]:
        end = (LEDGER, len(self.data) if stop is None else stop)
        return [(at[1], bytes(data)) for at, _, data in entries(self.plan, (LEDGER, first), end)]

    @property
    def numbered(self) -> list[tuple[int, bytes]]:
        return list(enumerate(self.data))


def read_both(log: Objects, error: type[Exception]) -> list[Any]:
    raised = []
    for read in (log.raw, log.table):
        with pytest.raises(error) as caught:
            read()
        raised.append(caught.value)
    return raised


# -- what is read


def test_all_entries_come_whatever_their_kind_and_whatever_lies_among_them(tmp_path: Path) -> None:
    log = Objects(tmp_path, mixed(80), each=13, gaps=[0, 0, 1, 0, 3])
    assert log.table().equals(log.expected())
    assert log.raw() == log.numbered


def test_a_range_is_read_and_nothing_beside_it(tmp_path: Path) -> None:
    log = Objects(tmp_path, mixed(40), gaps=[0, 2])
    assert log.table(7, 31).equals(log.expected(7, 31))
    assert log.raw(7, 31) == log.numbered[7:31]
    assert log.raw(12, 13) == log.numbered[12:13]


@pytest.mark.parametrize("bytes_max", [0, 40, 200, 5000, 4 << 20])
def test_entries_that_were_dropped_are_stepped_over(tmp_path: Path, bytes_max: int) -> None:
    log = Objects(tmp_path, mixed(60), each=20, gaps=[0, 1])
    log.dropped = [(0, 2), (5, 9), (9, 10), (18, 23), (35, 40), (59, 60)]
    assert log.table(bytes_max=bytes_max).equals(log.expected())
    kept = [one for one in log.numbered if not any(a <= one[0] < b for a, b in log.dropped)]
    assert log.raw() == kept


def test_what_entries_say_of_themselves_needs_no_decoding(tmp_path: Path) -> None:
    log = Objects(tmp_path, [single(n) for n in range(30)], gaps=[1, 0])
    found = list(facts(log.plan, (LEDGER, 0), None, window_bytes=300))
    assert [at for some in found for at in some.positions] == [(LEDGER, n) for n in range(30)]
    assert sum(sum(some.messages) for some in found) == 30


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=40),
    st.lists(st.integers(0, 2), min_size=1, max_size=5),
    st.integers(1, 15),
    st.integers(0, 5000),
    st.integers(1, 50),
)
def test_any_records_in_any_objects_and_any_window_come_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    gaps: list[int],
    each: int,
    bytes_max: int,
    entries_max: int,
) -> None:
    data = [single(n, size) for n, size in enumerate(sizes)]
    log = Objects(tmp_path_factory.mktemp("objects"), data, each=each, gaps=gaps)
    log.entries_max = entries_max
    assert log.table(bytes_max=bytes_max).equals(log.expected())
    assert log.raw() == log.numbered


def test_a_run_that_takes_several_requests_comes_whole(tmp_path: Path) -> None:
    """A record lies across every border between two requests."""
    log = Objects(tmp_path, [single(n, 300_000) for n in range(50)], each=50, gaps=[0, 1])
    assert log.table().equals(log.expected())
    assert log.raw() == log.numbered


def test_entries_of_other_buckets_are_passed_over(tmp_path: Path) -> None:
    low, high = HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF)
    data = [stamped(n, *((0, 0x7FFF) if n % 3 else (0x8000, 0xFFFF))) for n in range(30)]
    log = Objects(tmp_path, data, gaps=[0, 1])
    read = [
        [
            int(bytes(value).split()[0])
            for piece in record_batches(log.plan, None, None, wanted=Wanted.all_of(half))
            for value in piece.batch.column("value").to_pylist()
        ]
        for half in (low, high)
    ]
    assert sorted(read[0] + read[1]) == list(range(30))
    assert read[1] == list(range(0, 30, 3))


# -- what is missing, damaged, or not for this reader


@pytest.mark.parametrize("size", [30, 3000], ids=["summed by the kernel", "summed by the library"])
@pytest.mark.parametrize("offset", [0, 4, 5, 8, 16, 24, 28, 40, -1])
def test_a_changed_byte_is_found_and_what_lies_before_it_comes(
    tmp_path: Path, size: int, offset: int
) -> None:
    log = Objects(tmp_path, [single(n, size) for n in range(10)], gaps=[0, 0, 0, 1])
    file, at, length = log.places[6]
    whole = (tmp_path / log.files[file]).read_bytes()
    log.overwrite(6, offset % length, bytes([whole[at + offset % length] ^ 1]))
    for error in read_both(log, LogDamagedError):
        assert (error.ledger, error.first_bad, error.offset) == (LEDGER, 6, at)
        assert error.where.endswith(log.files[file])
    pieces, error = until_raised(record_batches(log.plan, (LEDGER, 0), (LEDGER, 10)))
    assert isinstance(error, LogDamagedError)
    assert sum(piece.batch.num_rows for piece in pieces) == 6


@pytest.mark.parametrize("number", [0, 4, 9], ids=["first", "middle", "last"])
@pytest.mark.parametrize(
    "kind", [lambda n: (LEDGER, n, DELTA), lambda n: (LEDGER, n + 1, ENTRY), lambda n: (LEDGER + 1, n, ENTRY)]
)
def test_a_good_record_that_is_not_the_one_planned_is_an_error(
    tmp_path: Path, kind: Any, number: int
) -> None:
    log = Objects(tmp_path, [single(n) for n in range(10)])
    ledger, has_number, of_kind = kind(number)
    log.overwrite(number, 0, encode_record(ledger, has_number, 1, of_kind, log.data[number]))
    for error in read_both(log, LogDamagedError):
        assert error.first_bad == number


def test_what_an_operator_has_skipped_does_not_hide_what_follows(tmp_path: Path) -> None:
    log = Objects(tmp_path, [single(n) for n in range(10)])
    log.overwrite(3, 8, b"\xff" * 8)
    log.overwrite(4, 28, b"\xff" * 4)
    log.dropped = [(3, 5)]
    assert [number for number, _ in log.raw()] == [0, 1, 2, 5, 6, 7, 8, 9]
    assert log.table().equals(log.expected())


def test_an_object_shorter_than_planned_is_an_error(tmp_path: Path) -> None:
    log = Objects(tmp_path, [single(n) for n in range(25)])
    path = tmp_path / log.files[1]
    path.write_bytes(path.read_bytes()[: log.places[15][1]])
    for read in (log.raw, log.table):
        with pytest.raises((LogMissingError, FilesUnreachableError)):
            read()


def test_a_run_that_ends_before_its_last_entry_is_an_error(tmp_path: Path) -> None:
    log = Objects(tmp_path, [single(n) for n in range(10)])
    first, end, offset, length = log.runs[0]
    log.runs[0] = (first, end, offset, length - log.places[9][2])
    for error in read_both(log, LogDamagedError):
        assert error.first_bad == 9


def test_an_object_that_is_gone_is_planned_again_from_where_reading_was(tmp_path: Path) -> None:
    log = Objects(tmp_path, [single(n) for n in range(40)])
    moved = tmp_path / log.files[2]
    kept = moved.read_bytes()
    moved.unlink()
    was = log.plan

    def plan(start: Position | None, end: Position | None) -> TopicPlan:
        if len(log.asked) == 1:
            # Rewritten under another name.
            log.files[2] = "wal/elsewhere"
            (tmp_path / "wal/elsewhere").write_bytes(kept)
        return was(start, end)

    found = [(at[1], bytes(data)) for at, _, data in entries(plan, (LEDGER, 0), (LEDGER, 40))]
    assert found == log.numbered
    assert log.asked == [(LEDGER, 0), (LEDGER, 20)]


def test_an_object_that_is_named_again_and_is_not_there_is_another_stores(tmp_path: Path) -> None:
    log = Objects(tmp_path, [single(n) for n in range(40)])
    (tmp_path / log.files[0]).unlink()
    for error in read_both(log, FilesUnreachableError):
        assert "not the object store of t's broker" in str(error)


def test_a_store_that_is_not_here_is_told_apart_from_an_object_that_is_gone(tmp_path: Path) -> None:
    log = Objects(tmp_path, [single(1)])
    elsewhere = f"objects://{tmp_path}/nowhere"
    with pytest.raises(FilesUnreachableError, match="nowhere"):
        list(record_batches(log.plan, None, None, root=elsewhere))
    with pytest.raises(FilesUnreachableError, match="expected s3"):
        list(entries(log.plan, None, None, root="gopher://x"))


def test_entries_that_need_a_client_are_named(tmp_path: Path) -> None:
    data = [single(n) for n in range(10)]
    data[7] = single(7, uuid="u", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=9)
    log = Objects(tmp_path, data)
    pieces, error = until_raised(record_batches(log.plan, None, None))
    assert isinstance(error, NeedsClientError)
    assert error.position == (LEDGER, 7)
    assert sum(piece.batch.num_rows for piece in pieces) == 7


def test_a_plan_with_objects_gone_all_the_time_is_given_up(tmp_path: Path) -> None:
    log = Objects(tmp_path, [single(n) for n in range(10)])
    (tmp_path / log.files[0]).unlink()
    names = iter(range(100))

    def plan(start: Position | None, end: Position | None) -> TopicPlan:
        made = log.plan(start, end)
        return msgspec.structs.replace(made, files=(f"wal/gone-{next(names)}",))

    with pytest.raises(PlanOutdatedError):
        list(entries(plan, None, None))
