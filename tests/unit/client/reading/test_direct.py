"""Entries read from files are those that were written, and whatever is missing or damaged is an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.client.reading import direct
from anabranch.client.reading.direct import entries, record_batches
from anabranch.client.reading.failures import (
    DataLostError,
    FilesUnreachableError,
    NeedsClientError,
    PlanOutdatedError,
)
from anabranch.columns import SCHEMA, Entry, Pool, decode, records
from anabranch.errors import AnabranchError, MalformedFrame, OversizePayload
from anabranch.model.position import LedgerId, Position
from anabranch.model.segments import HashRange
from anabranch.model.wanted import Wanted
from anabranch.storage.core.format import (
    CHECKPOINT,
    DELTA,
    ENTRY,
    TRAILER_BYTES,
    FooterRow,
    encode_footer,
    encode_record,
)
from anabranch.storage.core.read_plan import INDEXED, PlannedRun, TopicPlan, runs_of
from anabranch.storage.on_disk.file_store import FileLogStore
from anabranch.storage.port import LogDamagedError, LogMissingError
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, build_entry, compress, open_entry
from unit.storage.owners import Owner

POOL = Pool()
LEDGER = 9


def single(number: int, size: int = 20, **fields: Any) -> bytes:
    head = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1000 + number, **fields)
    return build_entry(head, b"%d " % number + b"x" * size)


def batch(number: int, rows: int, size: int = 20, compression: pb.CompressionType = pb.NONE) -> bytes:
    head = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1000 + number)
    singles = [
        (pb.SingleMessageMetadata(partition_key=f"k{i}"), b"%d.%d " % (number, i) + b"y" * size)
        for i in range(rows)
    ]
    made = build_batch(head, singles)
    if not compression:
        return made
    head, payload = open_entry(made)
    head.compression, head.uncompressed_size = compression, len(payload)
    return build_entry(head, compress(compression, bytes(payload)))


class Log:
    """A file of records with others between them, and plans of it."""

    def __init__(
        self,
        folder: Path,
        data: Sequence[bytes],
        gaps: Sequence[int] = (),
        cuts: int = 1,
        *,
        has_index: bool = False,
    ) -> None:
        self.folder = folder
        self.data = list(data)
        self.asked: list[tuple[Position | None, Position | None]] = []
        self.places: list[tuple[int, int, int]] = []
        names = [f"{i}.wal" for i in range(cuts)]
        each = -(-len(data) // cuts) if data else 1
        for file, name in enumerate(names):
            made = bytearray(b"header of the file")
            for number in range(file * each, min(len(data), (file + 1) * each)):
                for _ in range(gaps[number % len(gaps)] if gaps else 0):
                    made += encode_record(LEDGER + 1, number, 1, ENTRY, b"somebody else's")
                    made += encode_record(LEDGER, number, 0, DELTA, b"state")
                record = encode_record(LEDGER, number, 1, ENTRY, data[number])
                self.places.append((file, len(made), len(record)))
                made += record
            if has_index:
                here = [(at, size) for one, at, size in self.places if one == file]
                row = FooterRow(LEDGER, file * each, [at for at, _ in here], [size for _, size in here])
                end = len(made)
                made += bytes(-end % 8)
                made += encode_footer(1, file, [row], end, 0, len(made))
            (folder / name).write_bytes(bytes(made))
        self.has_index = has_index
        self.files = tuple(names)
        self.entries_max = len(self.data)

    def plan(self, start: Position | None, end: Position | None) -> TopicPlan:
        self.asked.append((start, end))
        log_end = (LEDGER, len(self.data))
        start, end = start or (LEDGER, 0), end or log_end
        first = start[1] if start[0] == LEDGER else 0
        stop = min(end, log_end)[1] if end[0] == LEDGER else len(self.data)
        stop = min(stop, first + self.entries_max)
        runs: list[PlannedRun] = []
        for file in range(len(self.files)):
            here = [i for i in range(first, stop) if self.places[i][0] == file]
            if here:
                offsets, lengths = [self.places[i][1] for i in here], [self.places[i][2] for i in here]
                if self.has_index:
                    runs.append(PlannedRun(LEDGER, here[0], here[-1], file, INDEXED, sum(lengths)))
                    continue
                runs += runs_of(LEDGER, here[0], file, offsets, lengths)
        return TopicPlan(
            topic="t",
            start=start,
            end=(LEDGER, stop),
            log_end=log_end,
            has_lost=False,
            root=str(self.folder),
            files=self.files,
            runs=tuple(runs),
            expires_in_ms=1,
            message_bytes_max=5 << 20,
        )

    def overwrite(self, number: int, offset: int, value: bytes) -> None:
        file, at, _ = self.places[number]
        with (self.folder / self.files[file]).open("r+b") as opened:
            opened.seek(at + offset)
            opened.write(value)

    @property
    def end(self) -> Position:
        return LEDGER, len(self.data)

    def expected(self, first: int = 0, stop: int | None = None) -> Any:
        chosen = [Entry(LEDGER, i, one) for i, one in enumerate(self.data)][first:stop]
        return pa.Table.from_batches([decode(POOL, chosen).batch])

    def table(self, start: int = 0, stop: int | None = None, **limits: Any) -> Any:
        end = (LEDGER, len(self.data) if stop is None else stop)
        pieces = list(record_batches(self.plan, (LEDGER, start), end, pool=POOL, **limits))
        for one, other in pairwise(pieces):
            assert one.end == other.start
        return pa.Table.from_batches([piece.batch for piece in pieces], SCHEMA)

    def raw(self, start: int = 0, stop: int | None = None) -> list[tuple[Position, int, bytes]]:
        end = (LEDGER, len(self.data) if stop is None else stop)
        return [(at, count, bytes(data)) for at, count, data in entries(self.plan, (LEDGER, start), end)]


def mixed(count: int) -> list[bytes]:
    kinds: list[Callable[[int], bytes]] = [
        single,
        lambda n: batch(n, 5),
        lambda n: batch(n, 3, compression=pb.ZLIB),
        lambda n: batch(n, 4, compression=pb.LZ4),
        lambda n: batch(n, 6, compression=pb.ZSTD),
        lambda n: batch(n, 2, compression=pb.SNAPPY),
        lambda n: single(n, 3000),
        lambda n: batch(n, 1),
    ]
    return [kinds[n % len(kinds)](n) for n in range(count)]


# -- what is read


def test_all_entries_come_whatever_their_kind_and_whatever_lies_between_them(tmp_path: Path) -> None:
    log = Log(tmp_path, mixed(80), gaps=[0, 0, 1, 0, 3], cuts=3)
    assert log.table().equals(log.expected())
    assert log.raw() == [((LEDGER, i), 1, one) for i, one in enumerate(log.data)]


def test_a_range_is_read_and_nothing_beside_it(tmp_path: Path) -> None:
    log = Log(tmp_path, mixed(40), gaps=[0, 2], cuts=2)
    assert log.table(7, 31).equals(log.expected(7, 31))
    assert [at for at, _, _ in log.raw(7, 31)] == [(LEDGER, i) for i in range(7, 31)]


def test_an_empty_range_asks_for_no_plan(tmp_path: Path) -> None:
    log = Log(tmp_path, mixed(3))
    assert log.raw(2, 2) == []
    assert log.table(2, 2).num_rows == 0
    assert log.asked == []


def test_all_there_is_needs_no_positions(tmp_path: Path) -> None:
    log = Log(tmp_path, mixed(25))
    log.entries_max = 10
    assert [bytes(data) for _, _, data in entries(log.plan, None, None)] == log.data
    pieces = list(record_batches(log.plan, (LEDGER, 5), None))
    assert pa.Table.from_batches([piece.batch for piece in pieces]).equals(log.expected(5))
    assert list(entries(log.plan, log.end, None)) == []


@pytest.mark.parametrize("bytes_max", [0, 1, 200, 1000, 10_000])
def test_records_longer_than_what_is_read_at_once_come_whole(tmp_path: Path, bytes_max: int) -> None:
    log = Log(tmp_path, [single(n, (n % 7) * 900) for n in range(30)], gaps=[0, 0, 1])
    assert log.table(bytes_max=bytes_max).equals(log.expected())


def test_an_entry_longer_than_a_window_is_read_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "WINDOW_BYTES", 1000)
    log = Log(tmp_path, [single(0, 10), single(1, 5000), single(2, 10), single(3, 2000)])
    assert [data for _, _, data in log.raw()] == log.data


def test_batches_are_no_larger_than_asked_even_once_unpacked(tmp_path: Path) -> None:
    log = Log(tmp_path, [batch(n, 50, size=1000, compression=pb.ZSTD) for n in range(10)])
    pieces = list(record_batches(log.plan, (LEDGER, 0), log.end, bytes_max=120_000))
    assert [piece.batch.num_rows for piece in pieces] == [100] * 5
    pieces = list(record_batches(log.plan, (LEDGER, 0), log.end, rows_max=150))
    assert [piece.batch.num_rows for piece in pieces] == [150, 150, 150, 50]
    pieces = list(record_batches(log.plan, (LEDGER, 0), log.end, rows_max=1))
    assert [piece.batch.num_rows for piece in pieces] == [50] * 10, "an entry is not taken apart"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=40),
    st.lists(st.integers(0, 2), min_size=1, max_size=5),
    st.integers(1, 3),
    st.integers(40, 5000),
    st.integers(1, 50),
    st.booleans(),
)
def test_any_records_in_any_order_of_files_and_any_window_come_the_same(
    tmp_path: Path,
    sizes: list[int],
    gaps: list[int],
    cuts: int,
    bytes_max: int,
    entries_max: int,
    has_index: bool,
) -> None:
    log = Log(tmp_path, [single(n, size) for n, size in enumerate(sizes)], gaps, cuts, has_index=has_index)
    log.entries_max = entries_max
    assert log.table(bytes_max=bytes_max).equals(log.expected())
    assert [data for _, _, data in log.raw()] == log.data


def test_entries_are_found_by_the_index_of_their_file(tmp_path: Path) -> None:
    log = Log(tmp_path, mixed(60), gaps=[0, 0, 1], cuts=3, has_index=True)
    assert log.table(5, 55).equals(log.expected(5, 55))
    assert [data for _, _, data in log.raw(5, 55)] == log.data[5:55]


def test_machines_without_an_instruction_for_checksums_read_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SUMMED_BELOW", 0)
    log = Log(tmp_path, mixed(30), gaps=[0, 0, 1])
    assert log.table().equals(log.expected())
    log.overwrite(11, 40, b"\xff")
    pieces, error = until_raised(record_batches(log.plan, (LEDGER, 0), log.end))
    assert isinstance(error, LogDamagedError)
    assert set(entry_ids(pieces)) == set(range(11))


def test_the_index_may_lie_beside_its_file(tmp_path: Path) -> None:
    log = Log(tmp_path, mixed(20), has_index=True)
    path = tmp_path / "0.wal"
    path.with_suffix(".idx").write_bytes(path.read_bytes())
    path.write_bytes(path.read_bytes()[:-TRAILER_BYTES])
    assert log.table().equals(log.expected())


# -- planning again


def test_a_plan_that_ends_early_is_followed_by_the_next(tmp_path: Path) -> None:
    log = Log(tmp_path, mixed(25))
    log.entries_max = 10
    assert log.table().equals(log.expected())
    assert log.asked == [((LEDGER, 0), log.end), ((LEDGER, 10), log.end), ((LEDGER, 20), log.end)]


def test_a_file_that_is_gone_is_planned_again_from_where_reading_was(tmp_path: Path) -> None:
    log = Log(tmp_path, mixed(20))
    log.entries_max = 10
    (tmp_path / "0.wal").rename(tmp_path / "0.led")

    def plan(start: Position | None, end: Position | None) -> TopicPlan:
        made = log.plan(start, end)
        # The first half was rewritten before it was read, the second while the first was being read.
        if len(log.asked) in (2, 4):
            log.files = ("0.led",)
            made = log.plan(start, end)
        elif len(log.asked) == 3:
            log.files = ("0.wal",)
        return made

    found = [at for at, _, _ in entries(plan, (LEDGER, 0), log.end)]
    assert found == [(LEDGER, i) for i in range(20)]


def test_a_file_that_is_named_again_and_is_not_here_is_another_brokers(tmp_path: Path) -> None:
    log = Log(tmp_path, mixed(3))
    (tmp_path / "0.wal").unlink()
    with pytest.raises(FilesUnreachableError, match="not the folder"):
        log.raw()
    assert len(log.asked) == 2


def test_files_that_are_gone_again_and_again_are_an_error(tmp_path: Path) -> None:
    log = Log(tmp_path, mixed(3))

    def plan(start: Position | None, end: Position | None) -> TopicPlan:
        log.files = (f"{len(log.asked)}.led",)
        return log.plan(start, end)

    with pytest.raises(PlanOutdatedError, match="plan again"):
        list(entries(plan, (LEDGER, 0), log.end))
    assert len(log.asked) == 5


def test_a_file_unlinked_while_it_is_read_is_read_to_its_end(tmp_path: Path) -> None:
    log = Log(tmp_path, mixed(40), cuts=2)
    found = 0
    for _ in entries(log.plan, (LEDGER, 0), log.end):
        if not found:
            for name in log.files:
                (tmp_path / name).unlink()
        found += 1
    assert found == 40
    assert len(log.asked) == 1


def test_a_folder_that_is_not_here_is_told_apart_from_a_file_that_is_gone(tmp_path: Path) -> None:
    log = Log(tmp_path, mixed(3))
    with pytest.raises(FilesUnreachableError, match="no folder"):
        list(entries(log.plan, (LEDGER, 0), log.end, root=str(tmp_path / "elsewhere")))


def test_the_log_may_be_found_under_another_path(tmp_path: Path) -> None:
    log = Log(tmp_path, mixed(3))
    log.folder = tmp_path / "as the broker sees it"
    found = list(entries(log.plan, (LEDGER, 0), log.end, root=str(tmp_path)))
    assert [bytes(data) for _, _, data in found] == log.data
    batches = list(record_batches(log.plan, (LEDGER, 0), log.end, root=str(tmp_path)))
    assert sum(piece.batch.num_rows for piece in batches) == log.expected().num_rows


# -- what must not be passed over


def until_raised(reading: Iterator[Any]) -> tuple[list[Any], Exception]:
    """What came before the error, and the error."""
    found: list[Any] = []
    try:
        for one in reading:
            found.append(one)  # noqa: PERF402 - kept although an error follows
    except AnabranchError as error:
        return found, error
    raise AssertionError("no error")


def entry_ids(pieces: list[Any]) -> list[int]:
    return [number for piece in pieces for number in piece.batch["entry_id"].to_pylist()]


def read_both(log: Log, error: type[Exception]) -> list[Any]:
    raised = []
    for read in (log.raw, log.table):
        with pytest.raises(error) as caught:
            read()
        raised.append(caught.value)
    return raised


@pytest.mark.parametrize("size", [30, 3000], ids=["summed by the kernel", "summed by the library"])
@pytest.mark.parametrize("offset", [0, 4, 8, 16, 24, 28, 40, -1])
def test_a_changed_byte_is_found_and_what_lies_before_it_comes(
    tmp_path: Path, size: int, offset: int
) -> None:
    log = Log(tmp_path, [single(n, size) for n in range(10)], gaps=[0, 0, 0, 1])
    _, at, length = log.places[6]
    log.overwrite(6, offset % length, bytes([(tmp_path / "0.wal").read_bytes()[at + offset % length] ^ 1]))
    for error in read_both(log, LogDamagedError):
        assert (error.ledger, error.first_bad, error.offset) == (LEDGER, 6, at)
    pieces, error = until_raised(record_batches(log.plan, (LEDGER, 0), log.end))
    assert isinstance(error, LogDamagedError)
    assert entry_ids(pieces) == list(range(6))


@pytest.mark.parametrize(
    "record",
    [
        encode_record(LEDGER + 1, 2, 1, ENTRY, single(2)),
        encode_record(LEDGER, 3, 1, ENTRY, single(2)),
        encode_record(LEDGER, 2, 1, DELTA, single(2)),
        encode_record(LEDGER, 2, 1, CHECKPOINT, single(2)),
    ],
    ids=["another ledger's", "another number", "a state record", "a checkpoint"],
)
def test_a_good_record_that_is_not_the_one_planned_is_an_error(tmp_path: Path, record: bytes) -> None:
    log = Log(tmp_path, [single(n) for n in range(5)])
    log.overwrite(2, 0, record)
    for error in read_both(log, LogDamagedError):
        assert error.first_bad == 2


def test_a_file_shorter_than_planned_is_an_error(tmp_path: Path) -> None:
    log = Log(tmp_path, [single(n) for n in range(5)])
    data = (tmp_path / "0.wal").read_bytes()
    (tmp_path / "0.wal").write_bytes(data[:-1])
    read_both(log, LogMissingError)


def test_a_file_without_the_index_that_was_planned_by_is_an_error(tmp_path: Path) -> None:
    log = Log(tmp_path, mixed(5), has_index=True)
    path = tmp_path / "0.wal"
    path.write_bytes(path.read_bytes()[:-1])
    read_both(log, LogMissingError)


def test_an_index_that_lacks_entries_is_an_error(tmp_path: Path) -> None:
    log = Log(tmp_path, mixed(5), has_index=True)
    whole = log.plan((LEDGER, 0), log.end)

    def plan(start: Position | None, end: Position | None) -> TopicPlan:
        return msgspec.structs.replace(
            whole, runs=(PlannedRun(LEDGER, 0, 5, 0, INDEXED, 1),), end=(LEDGER, 6)
        )

    with pytest.raises(LogMissingError, match="lacks entries"):
        list(entries(plan, (LEDGER, 0), (LEDGER, 6)))
    with pytest.raises(LogMissingError, match="lacks entries"):
        list(record_batches(plan, (LEDGER, 0), (LEDGER, 6)))


def test_a_place_that_the_index_has_wrong_is_an_error(tmp_path: Path) -> None:
    log = Log(tmp_path, [single(n) for n in range(5)], has_index=True)
    path = tmp_path / "0.wal"
    data = bytearray(path.read_bytes())
    # Offsets come before lengths, at the end of all but the trailer.
    data[-TRAILER_BYTES - 8 * 5 + 4 * 2] ^= 8
    path.write_bytes(data)
    for error in read_both(log, LogDamagedError):
        assert error.first_bad in (1, 2)


def test_a_run_that_is_longer_than_its_entries_is_an_error(tmp_path: Path) -> None:
    log = Log(tmp_path, [single(n) for n in range(5)])
    whole = log.plan((LEDGER, 0), log.end)
    (run,) = whole.runs

    def plan(start: Position | None, end: Position | None) -> TopicPlan:
        return msgspec.structs.replace(
            whole, runs=(PlannedRun(LEDGER, 0, 3, 0, run.offset, run.length),), end=(LEDGER, 4)
        )

    with pytest.raises(LogDamagedError):
        list(entries(plan, (LEDGER, 0), (LEDGER, 4)))
    with pytest.raises(LogDamagedError):
        list(record_batches(plan, (LEDGER, 0), (LEDGER, 4)))


@pytest.mark.parametrize("length", [0, 1, 31, 32, 40])
def test_a_run_without_room_for_its_record_is_an_error(tmp_path: Path, length: int) -> None:
    log = Log(tmp_path, [single(n) for n in range(5)])
    whole = log.plan((LEDGER, 0), log.end)

    def plan(start: Position | None, end: Position | None) -> TopicPlan:
        run = PlannedRun(LEDGER, 0, 0, 0, whole.runs[0].offset, length)
        return msgspec.structs.replace(whole, runs=(run,), end=(LEDGER, 1))

    for read in (entries, record_batches):
        with pytest.raises(LogDamagedError):
            list(read(plan, (LEDGER, 0), (LEDGER, 1)))


def test_batches_are_made_of_runs_that_lie_far_apart(tmp_path: Path) -> None:
    log = Log(tmp_path, mixed(64), gaps=[0, 0, 0, 400], cuts=4)
    (piece,) = record_batches(log.plan, (LEDGER, 0), log.end)
    assert pa.Table.from_batches([piece.batch]).equals(log.expected())


def test_what_is_not_confirmed_cannot_be_asked_for(tmp_path: Path) -> None:
    log = Log(tmp_path, mixed(5))
    found, error = until_raised(entries(log.plan, (LEDGER, 0), (LEDGER, 6)))
    assert isinstance(error, LogMissingError)
    assert "confirmed up to 9:5" in str(error)
    assert [at[1] for at, _, _ in found] == list(range(5))


def test_entries_that_were_trimmed_are_an_error_unless_they_may_be_lost(tmp_path: Path) -> None:
    log = Log(tmp_path, mixed(5))

    def plan(start: Position | None, end: Position | None) -> TopicPlan:
        assert start is not None
        made = log.plan(max(start, (LEDGER, 2)), end)
        return msgspec.structs.replace(made, start=start, has_lost=start < (LEDGER, 2))

    with pytest.raises(DataLostError, match="the first left is 9:2"):
        list(entries(plan, (LEDGER, 0), log.end))
    found = list(entries(plan, (LEDGER, 0), log.end, may_lose=True))
    assert [at[1] for at, _, _ in found] == [2, 3, 4]


@pytest.mark.parametrize(
    "fields",
    [
        {"encryption_keys": [pb.EncryptionKeys(key="k", value=b"v")]},
        {"num_chunks_from_msg": 2, "chunk_id": 0, "uuid": "u", "total_chunk_msg_size": 100},
    ],
    ids=["encrypted", "chunk"],
)
def test_entries_that_need_a_client_are_named_and_what_lies_before_them_comes(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    log = Log(tmp_path, [single(0), batch(1, 3), single(2, **fields), single(3)])
    pieces, error = until_raised(record_batches(log.plan, (LEDGER, 0), log.end))
    assert isinstance(error, NeedsClientError)
    assert error.position == (LEDGER, 2)
    assert entry_ids(pieces) == [0, 1, 1, 1]
    assert len(log.raw()) == 4, "as they are, they can be read"


def test_a_batch_that_cannot_be_taken_apart_is_an_error(tmp_path: Path) -> None:
    head = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=2)
    log = Log(tmp_path, [single(0), build_entry(head, b"\0\0\0\7nothing like a message")])
    with pytest.raises(MalformedFrame, match="entry 9:1"):
        log.table()


def test_a_message_that_unpacks_to_more_than_its_broker_stores_is_read_up_to_a_limit_of_its_own(
    tmp_path: Path,
) -> None:
    log = Log(tmp_path, [single(0), batch(1, 3, size=7 << 20, compression=pb.ZSTD), single(2)])
    assert log.table().equals(log.expected())
    with pytest.raises(OversizePayload):
        log.table(unpacked_bytes_max=20 << 20)
    small = Log(tmp_path, [batch(0, 1, size=4 << 20, compression=pb.ZSTD)])
    assert small.table(unpacked_bytes_max=1024).num_rows == 1, "what its broker stores is always read"


# -- the real log


async def test_a_log_of_the_file_store_is_read_while_it_is_written(tmp_path: Path) -> None:
    store = FileLogStore(tmp_path, clock_ms=lambda: 1, file_bytes=64 << 10)
    await store.start()
    owners = [Owner(), Owner()]
    writers = [store.open_ledger(LedgerId(LEDGER + i), owners[i], "public/default") for i in range(2)]
    data = [single(n, n % 500) for n in range(600)]
    for n, one in enumerate(data):
        for writer in writers:
            writer.append(one, 1)
        if n % 7 == 0:
            await owners[1].until(n + 1)
    await owners[0].until(len(data))
    loop = asyncio.get_running_loop()

    def planner(start: Position | None, end: Position | None) -> TopicPlan:
        assert start is not None
        assert end is not None
        plan = asyncio.run_coroutine_threadsafe(
            store.plan(LedgerId(LEDGER), store.incarnation, start[1], end[1]), loop
        ).result(10)
        files = list(dict.fromkeys(run.path for run in plan.runs))
        runs = [
            part
            for run in plan.runs
            for part in runs_of(LEDGER, run.first, files.index(run.path), run.offsets, run.lengths)
        ]
        return TopicPlan(
            topic="t",
            start=start,
            end=(LEDGER, plan.end),
            log_end=(LEDGER, plan.end),
            has_lost=False,
            root=str(tmp_path),
            files=tuple(files),
            runs=tuple(runs),
            expires_in_ms=1,
            message_bytes_max=5 << 20,
        )

    def read() -> tuple[list[bytes], Any]:
        end = (LEDGER, len(data))
        raw = [bytes(one) for _, _, one in entries(planner, (LEDGER, 0), end)]
        return raw, pa.Table.from_batches([p.batch for p in record_batches(planner, (LEDGER, 0), end)])

    raw, table = await asyncio.to_thread(read)
    assert raw == data
    assert table.equals(
        pa.Table.from_batches([decode(POOL, [Entry(LEDGER, i, one) for i, one in enumerate(data)]).batch])
    )
    await store.close()


# -- readers of some entry buckets


def stamped(number: int, low: int, high: int, size: int = 20) -> bytes:
    return single(number, size, entry_hash_min=low, entry_hash_max=high)


def slices_of(log: Log, spans: Sequence[tuple[int, int]], **options: Any) -> list[list[int]]:
    """The numbers of the messages of each slice."""
    found = []
    for span in spans:
        wanted = Wanted.all_of(HashRange(*span))
        pieces = list(record_batches(log.plan, None, None, root=str(log.folder), wanted=wanted, **options))
        assert [piece.end for piece in pieces] == sorted({piece.end for piece in pieces})
        if len(log.data[0]) < LONG:
            assert pieces[-1].end == (LEDGER, len(log.data)), "it says how far it has come"
        found.append([n for piece in pieces for n in piece.batch.column("sequence_id").to_pylist()])
    return found


LONG = 20_000  # Records of which the first bytes are looked at before the rest.
HALVES = ((0, 0x7FFF), (0x8000, 0xFFFF))


@pytest.mark.parametrize("bytes_max", [200, 1 << 20])
@pytest.mark.parametrize("size", [20, LONG])
@pytest.mark.parametrize("has_index", [False, True])
def test_entries_of_other_buckets_are_passed_over(
    tmp_path: Path, bytes_max: int, size: int, has_index: bool
) -> None:
    data = [stamped(n, (n % 3 == 0) * 0x8000 + 5, (n % 3 == 0) * 0x8000 + 9, size) for n in range(40)]
    upper = [n for n in range(40) if n % 3 == 0]
    log = Log(tmp_path, data, [0, 0, 0, 2], cuts=3, has_index=has_index)
    assert slices_of(log, HALVES, bytes_max=bytes_max) == [[n for n in range(40) if n not in upper], upper]
    assert slices_of(log, [(0x8100, 0xFFFF)], bytes_max=bytes_max) == [[]]


@pytest.mark.parametrize("reach", [200, 5_000])
def test_entries_whose_metadata_are_longer_than_the_first_bytes_are_passed_over_too(
    tmp_path: Path, reach: int
) -> None:
    properties = [pb.KeyValue(key="k", value="v" * reach)]
    data = [
        single(n, LONG, properties=properties, entry_hash_min=at, entry_hash_max=at)
        for n, at in enumerate([1, 0x9000, 2, 0x9000])
    ]
    assert slices_of(Log(tmp_path, data), HALVES) == [[0, 2], [1, 3]]


def test_entries_of_other_buckets_need_no_client_and_are_not_unpacked(tmp_path: Path) -> None:
    chunk = single(
        1, entry_hash_min=0x9000, entry_hash_max=0x9000, num_chunks_from_msg=2, chunk_id=0, uuid="u"
    )
    broken = single(
        2, entry_hash_min=0x9000, entry_hash_max=0x9000, compression=pb.ZSTD, uncompressed_size=50
    )
    log = Log(tmp_path, [stamped(0, 1, 2), chunk, broken, stamped(3, 3, 4)])
    assert slices_of(log, HALVES[:1]) == [[0, 3]]
    with pytest.raises(NeedsClientError):
        slices_of(log, HALVES[1:])


@pytest.mark.parametrize("size", [4000, LONG])
@pytest.mark.parametrize("spoilt", range(4))
def test_a_damaged_entry_is_found_by_one_slice_at_least_whatever_its_stamp_says(
    tmp_path: Path, spoilt: int, size: int
) -> None:
    """Long records are only summed, or even read, by the slices that they seem to belong to."""
    log = Log(tmp_path, [stamped(n, n * 0x3000, n * 0x3000 + 1, size) for n in range(4)])
    file, at, _ = log.places[spoilt]
    path = tmp_path / log.files[file]
    original = path.read_bytes()
    head = original.index(b"\x88\x02", at) if spoilt else at + 40  # The field of the least hash.
    for change in range(1, 256, 50):
        made = bytearray(original)
        made[head + (2 if spoilt else 0)] ^= change
        path.write_bytes(bytes(made))
        assert any(is_damaged(log, span) for span in HALVES)


@pytest.mark.parametrize("at", [8, 16, 28])
def test_a_record_that_is_not_as_planned_is_found_by_all_slices(tmp_path: Path, at: int) -> None:
    """Its ledger, its number, its kind."""
    log = Log(tmp_path, [stamped(n, n * 0x3000, n * 0x3000 + 1, LONG) for n in range(4)])
    file, place, _ = log.places[1]
    path = tmp_path / log.files[file]
    made = bytearray(path.read_bytes())
    made[place + at] ^= 3
    path.write_bytes(bytes(made))
    assert all(is_damaged(log, span) for span in HALVES)


def is_damaged(log: Log, span: tuple[int, int]) -> bool:
    try:
        slices_of(log, [span])
    except (LogDamagedError, MalformedFrame):
        return True
    return False
