"""Data plane. Received entries to Arrow columns.

    decoded = decode(pool, [Entry(ledger_id, entry_id, data, ack_set), …])
    decoded.batch       # pa.RecordBatch of SCHEMA, a row for each message, entries in the order given
    decoded.counts      # int64 array: how many rows came of each entry; np.repeat(x, counts) spreads x over the rows
    decoded.bad         # [(place in the list, error)] of entries that could not be read, if `strict` is false
    decoded.versions    # int64 array: the version of the schema that each entry names, -1 for none

`data` is the entry as it came behind the MESSAGE command: checksum and metadata are read here, batches and single
messages alike, and compressed payloads are unpacked. Chunks and encrypted entries need their client: give the joined,
decrypted and unpacked bytes as `payload`, with any chunk's entry as `data` for the metadata.

Messages that compaction emptied are left out and, where there is an `ack_set`, those whose bit in it is not set.
Returned memory is never overwritten: it goes back to the pool when its last column is gone.

With `wanted`, the rows are those of some entry buckets from some positions on, and `counts` counts these.

A key sent as base64 comes as the bytes it stands for (its text, if it is not base64 after all). A message without a
sequence id of its own has its entry's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from anabranch.columns import scan
from anabranch.columns.arrow import Column, address_of
from anabranch.columns.bucket_rows import rows_wanted
from anabranch.columns.decode_rows import (
    EVENTS,
    FOUND_PAIR_BYTES,
    FOUND_PAIRS,
    FOUND_WIDTH,
    MALFORMED,
    ROWS,
    Out,
    PairsOut,
    decode_pairs,
    decode_rows,
)
from anabranch.columns.memory import SLACK
from anabranch.columns.pool import Pool
from anabranch.errors import AnabranchError, ChecksumMismatch, MalformedFrame
from anabranch.model.wanted import Wanted
from anabranch.wire.batch import decompress
from anabranch.wire.frames import Buffer
from anabranch.wire.sizes import UNPACKED_BYTES_MAX

PROPERTIES: Final = pa.map_(pa.string(), pa.string())
TIME: Final = pa.timestamp("ms", "UTC")
SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("properties", PROPERTIES),
        ("event_time", TIME),
        pa.field("publish_time", TIME, nullable=False),
        pa.field("sequence_id", pa.int64(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("batch_index", pa.int32(), nullable=False),  # -1 outside of a batch.
    ]
)
# The name of an optional column.
SCHEMA_VERSION: Final = "schema_version"
# The most that 32-bit offsets can address.
BYTES_MAX: Final = (1 << 31) - 1
# An estimate of the size of keys, which are stored apart from the values. Longer keys cost a second pass.
_KEY_BYTES: Final = 32
# Bytes per row of the columns in `Out`, from `value_offsets` to `batch_index`.
_WIDTHS: Final = (4, 4, 8, 8, 8, 8, 8, 4)
_ODD: Final = scan.BAD | scan.ENCRYPTED | scan.CHUNK


class Entry(NamedTuple):
    """One received entry. `ack_set` is as the broker sent it: a set bit is a message not acknowledged yet."""

    ledger_id: int
    entry_id: int
    data: Buffer
    ack_set: Sequence[int] = ()
    payload: Buffer | None = None


class Decoded(NamedTuple):
    batch: pa.RecordBatch
    counts: npt.NDArray[np.int64]
    bad: list[tuple[int, AnabranchError]]
    versions: npt.NDArray[np.int64]

    def with_versions(self) -> pa.RecordBatch:
        """The batch with one more column: the version of the schema, -1 where an entry names none."""
        spread = pa.array(np.repeat(self.versions, self.counts))
        return self.batch.append_column(SCHEMA_VERSION, spread)


def decode(
    pool: Pool,
    entries: Sequence[Entry],
    *,
    verify: bool = True,
    strict: bool = True,
    unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
    wanted: Wanted | None = None,
) -> Decoded:
    """The messages of all entries. If `strict`, the first that cannot be read raises MalformedFrame or
    ChecksumMismatch; else it is left out and named in `bad`, and the others come."""
    return decode_opened(pool, _open(entries, verify, unpacked_bytes_max), strict=strict, wanted=wanted)


def decode_opened(
    pool: Pool, opened: OpenedMessages, *, strict: bool, wanted: Wanted | None = None
) -> Decoded:
    """The rest of `decode`, for entries whose payloads are in memory, unpacked."""
    facts = opened.facts
    counts = np.zeros(len(facts), np.int64)
    faults = np.zeros(len(facts), np.int64)
    found, before = np.zeros((2, FOUND_WIDTH), np.int64)
    room = int((facts[:, scan.PAYLOAD_END] - facts[:, scan.PAYLOAD]).sum())
    rows = int(np.where(facts[:, scan.COUNT] < 0, 1, facts[:, scan.COUNT]).sum())
    key_room_max = room + int(facts[:, scan.KEY_SIZE].clip(0).sum())
    for key_room in (min(key_room_max, max(rows, 32) * _KEY_BYTES), key_room_max):
        output = _Output(pool, rows, room, key_room)
        given = (facts, opened.ids, opened.words, opened.word_bounds, output.out)
        if decode_rows(*given, counts, faults, found, before):
            break
    for entry in np.flatnonzero(faults).tolist():
        opened.bad.append((entry, _fault(opened, entry, int(faults[entry]))))
    if opened.bad:
        opened.bad.sort(key=lambda one: one[0])
        if strict:
            raise opened.bad[0][1]
    columns = output.columns(found, _properties(output.out, found))
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    if wanted is not None:
        batch, counts = rows_wanted(batch, counts, facts, opened.ids, wanted)
    return Decoded(batch, counts, opened.bad, facts[:, scan.VERSION])


def without_rows(*, versions: bool = False) -> pa.RecordBatch:
    """A batch of no messages."""
    schema = SCHEMA.append(pa.field(SCHEMA_VERSION, pa.int64())) if versions else SCHEMA
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


class OpenedMessages(NamedTuple):
    facts: scan.Facts
    ids: npt.NDArray[np.int64]
    words: npt.NDArray[np.int64]
    word_bounds: npt.NDArray[np.int64]
    bad: list[tuple[int, AnabranchError]]
    held: list[Any]  # The memory that the facts' addresses lie in.


def _open(entries: Sequence[Entry], verify: bool, unpacked_bytes_max: int) -> OpenedMessages:
    """Reads the metadata of all entries, checks their sums and unpacks their payloads."""
    count = len(entries)
    held: list[Any] = [pa.py_buffer(entry.data) for entry in entries]
    addresses = np.array([one.address for one in held], np.int64)
    sizes = np.array([one.size for one in held], np.int64)
    facts = np.empty((count, scan.WIDTH), np.int64)
    scan.scan_entries(addresses, sizes, facts)
    ids = np.array([(one.ledger_id, one.entry_id) for one in entries], np.int64).reshape(count, 2)
    words = [word for entry in entries for word in entry.ack_set]
    word_bounds = np.zeros(count + 1, np.int64)
    if words:
        np.cumsum([len(entry.ack_set) for entry in entries], out=word_bounds[1:])
    opened = OpenedMessages(facts, ids, np.array(words, np.int64), word_bounds, [], held)
    odd = odd_entries(facts)
    odd |= np.fromiter((entry.payload is not None for entry in entries), np.bool_, count)
    damaged = _damaged(entries, facts, addresses) if verify else set()
    for place in sorted({*np.flatnonzero(odd).tolist(), *damaged}):
        try:
            if place in damaged and entries[place].payload is None:
                raise ChecksumMismatch(f"{_name(opened, place)} does not match its checksum")
            open_payload(opened, place, held[place], entries[place].payload, unpacked_bytes_max)
        except AnabranchError as error:
            leave_out(opened, place, error)
    total = sum(one.size for one in held)
    if total > BYTES_MAX:
        raise ValueError(f"{total} bytes of entries at once, the limit is {BYTES_MAX}: decode fewer of them")
    return opened


def _damaged(entries: Sequence[Entry], facts: scan.Facts, addresses: npt.NDArray[np.int64]) -> set[int]:
    """The places of entries whose bytes changed in transit."""
    sums = facts[:, scan.CRC].tolist()
    starts = (facts[:, scan.SUMMED] - addresses).tolist()
    return {
        place
        for place, (entry, crc, start) in enumerate(zip(entries, sums, starts, strict=True))
        if crc >= 0 and crc32c(memoryview(entry.data)[start:]) != crc
    }


def odd_entries(facts: scan.Facts) -> npt.NDArray[np.bool_]:
    """Which entries need a further check. Most do not, and its cost matters where each entry holds one message."""
    payload_bytes = facts[:, scan.PAYLOAD_END] - facts[:, scan.PAYLOAD]
    odd: npt.NDArray[np.bool_] = (facts[:, scan.FLAGS] & _ODD != 0) | (facts[:, scan.COMPRESSION] != 0)
    return odd | (facts[:, scan.COUNT] > payload_bytes >> 2)


def open_payload(
    opened: OpenedMessages, place: int, data: Any, payload: Buffer | None, bytes_max: int
) -> None:
    """Unpacks the payload of an entry, whose bytes are the Arrow buffer `data`, and records what is wrong with it."""
    facts = opened.facts[place]
    flags, compression, unpacked = facts[[scan.FLAGS, scan.COMPRESSION, scan.UNPACKED]].tolist()
    if flags & scan.BAD:
        raise MalformedFrame(f"{_name(opened, place)}: its metadata cannot be read")
    if payload is None and flags & (scan.ENCRYPTED | scan.CHUNK):
        raise MalformedFrame(
            f"{_name(opened, place)} is encrypted or a chunk: give its whole payload beside it"
        )
    if payload is None and compression:
        packed = memoryview(data)[facts[scan.PAYLOAD] - data.address :]
        payload = decompress(compression, packed, unpacked, size_max=bytes_max)
    if payload is not None:
        memory = pa.py_buffer(payload)
        opened.held.append(memory)
        facts[scan.PAYLOAD] = memory.address
        facts[scan.PAYLOAD_END] = memory.address + memory.size
    count, size = int(facts[scan.COUNT]), int(facts[scan.PAYLOAD_END] - facts[scan.PAYLOAD])
    # Each message has a size of four bytes before it; a larger count must be false, and would allocate its memory.
    if count > size >> 2:
        raise MalformedFrame(f"{_name(opened, place)}: {count} messages in {size} bytes")


def leave_out(opened: OpenedMessages, place: int, error: AnabranchError) -> None:
    """Excludes that entry from the rows."""
    opened.bad.append((place, error))
    row = opened.facts[place]
    row[:] = 0
    row[scan.KEY_SIZE] = -1


def _name(opened: OpenedMessages, place: int) -> str:
    ledger_id, entry_id = opened.ids[place].tolist()
    return f"entry {ledger_id}:{entry_id}"


def _fault(opened: OpenedMessages, place: int, fault: int) -> MalformedFrame:
    index, kind = fault >> 8, fault & 0xFF
    what = "its metadata cannot be read" if kind == MALFORMED else "the batch ends within it"
    count = int(opened.facts[place, scan.COUNT])
    return MalformedFrame(f"{_name(opened, place)}: message {index} of {count}: {what}")


class _Output:
    """Memory for the columns of up to `rows` rows: one lease for the values, one for all the rest."""

    def __init__(self, pool: Pool, rows: int, room: int, key_room: int) -> None:
        self._values = pool.lease(room)
        bits = (rows + 7) // 8
        sizes = [key_room, *((rows + 1) * width for width in _WIDTHS), bits, bits, bits, rows * 8]
        # Each starts on a cache line of its own, and has slack behind it.
        *self._places, total = np.cumsum([0, *(-(-size // SLACK) * SLACK + SLACK for size in sizes)]).tolist()
        self._rest = pool.lease(total)
        base = self._rest.address
        keys, *columns = (base + place for place in self._places)
        self.out = Out(self._values.address, keys, key_room, *columns)
        # Keys and values are assumed present and event times absent, until the kernel finds otherwise.
        at, _, none, stop = self._places[-4:]
        memory = self._rest.array(total)
        memory[at:none] = 0xFF
        memory[none:stop] = 0

    def columns(self, found: npt.NDArray[np.int64], properties: Column) -> list[Column]:
        """The columns of SCHEMA, as far as they are filled."""
        rows, value_bytes, key_bytes, keys, values, events = found[: EVENTS + 1].tolist()

        def part(address: int, size: int) -> pa.Buffer:
            return self._rest.buffer(address - self._rest.address, size)

        def valid(bits: int, count: int) -> pa.Buffer | None:
            return part(bits, (rows + 7) // 8) if count < rows else None

        def text(offsets: int, data: pa.Buffer, bits: int, count: int) -> Column:
            parts = [valid(bits, count), part(offsets, rows * 4 + 4), data]
            return pa.Array.from_buffers(pa.binary(), rows, parts, rows - count)

        def number(kind: pa.DataType, width: int, address: int) -> Column:
            return pa.Array.from_buffers(kind, rows, [None, part(address, rows * width)], 0)

        out = self.out
        times = [valid(out.event_bits, events), part(out.event, rows * 8)]
        return [
            text(out.key_offsets, part(out.keys, key_bytes), out.key_bits, keys),
            text(out.value_offsets, self._values.buffer(0, value_bytes), out.value_bits, values),
            properties,
            pa.Array.from_buffers(TIME, rows, times, rows - events),
            number(TIME, 8, out.publish),
            number(pa.int64(), 8, out.sequence),
            number(pa.int64(), 8, out.ledger),
            number(pa.int64(), 8, out.entry),
            number(pa.int32(), 4, out.batch_index),
        ]


def _properties(columns: Out, found: npt.NDArray[np.int64]) -> Column:
    """The properties of all rows. Memory of zeros that nothing touches costs nothing, and few rows have any."""
    rows, pairs, size = int(found[ROWS]), int(found[FOUND_PAIRS]), int(found[FOUND_PAIR_BYTES])
    offsets = np.zeros(rows + 1, np.int32)
    names, items = np.empty(size + SLACK, np.uint8), np.empty(size + SLACK, np.uint8)
    name_offsets, item_offsets = np.zeros(pairs + 1, np.int32), np.zeros(pairs + 1, np.int32)
    if pairs:
        memory: list[npt.NDArray[Any]] = [offsets, names, name_offsets, items, item_offsets]
        out = PairsOut(*map(address_of, memory))
        decode_pairs(rows, columns.heads, columns.batch_index, out)

    def text(offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> Column:
        parts = [None, pa.py_buffer(offsets), pa.py_buffer(data[: offsets[-1]])]
        return pa.Array.from_buffers(pa.string(), pairs, parts, 0)

    struct = pa.StructArray.from_arrays(
        [text(name_offsets, names), text(item_offsets, items)],
        fields=[PROPERTIES.key_field, PROPERTIES.item_field],
    )
    return pa.Array.from_buffers(PROPERTIES, rows, [None, pa.py_buffer(offsets)], 0, children=[struct])
