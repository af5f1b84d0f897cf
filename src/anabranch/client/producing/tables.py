"""Data plane. Turns Arrow tables into runs: hashed, routed and encoded column by column, by `anabranch.columns`.

A large table is sent piece by piece. The sequence ids of a piece have no gap, so that any other message lies before or
behind all of it. Its runs share its memory; after a seal they are cut again without being encoded again. This module is
imported with the first table: it needs `numba` and `pyarrow`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from anabranch.client.errors import BadArgument
from anabranch.client.message_id import BatchReceipt
from anabranch.client.producing.core.lanes import Lanes, Placed, Routing, is_synthetic
from anabranch.client.producing.core.runs import BatchLimits, BlockRun
from anabranch.columns import Pool, Router, Singles, bucket_span, cut, encode, hash_keys, partition, recut
from anabranch.model.layout import SegmentLayout

# The size of one piece of a table: enough to fill so many batches for each entry bucket, as the last one of each is not
# full, and small enough to leave other tasks their turn.
PIECE_BYTES: Final = 2 << 20
PIECE_BATCHES: Final = 8
PIECE_ROWS_MAX: Final = 64 * 1024
# What a row costs besides its columns' bytes while it has no receipt: its metadata, offset, number and hash.
ROW_OVERHEAD_BYTES: Final = 48
# The memory that is kept for later tables.
POOL_BYTES: Final = 64 << 20


class TableColumns(NamedTuple):
    """The names of a table's columns by their role."""

    value: str
    key: str | None
    event_time: str | None
    properties: str | None

    def of(self, table: Any) -> Any:
        """The columns that are sent, of a table or record batch."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if not isinstance(table, pa.Table):
            raise BadArgument(f"a {type(table).__name__}: send an Arrow table or record batch")
        names = [name for name in self if name is not None]
        for name in names:
            if name not in table.column_names:
                raise BadArgument(
                    f"there is no column {name!r}; the table has {', '.join(table.column_names)}"
                )
        return table.select(list(dict.fromkeys(names)))


class TableSending:
    """A table that is being sent: its receipt is set when no row is left, or when the first row fails."""

    __slots__ = ("_first", "_last", "_left", "_rows", "columns", "receipt", "table")

    def __init__(self, table: Any, columns: TableColumns, receipt: asyncio.Future[BatchReceipt]) -> None:
        self.columns = columns
        self.table = columns.of(table)
        self._rows = self._left = self.table.num_rows
        self._first = self._last = -1
        self.receipt = receipt
        self.stored(0)

    def numbered(self, first: int, last: int) -> None:
        """Notes the numbers of its next piece."""
        self._first = first if self._first < 0 else self._first
        self._last = last

    def stored(self, count: int) -> None:
        self._left -= count
        if self._left == 0 and not self.receipt.done():
            self.receipt.set_result(BatchReceipt(self._rows, self._first, self._last))

    def failed(self, error: Exception) -> None:
        if not self.receipt.done():
            self.receipt.set_exception(error)
            self.receipt.exception()  # `flush` raises it too.


class Block(NamedTuple):
    """A piece of a table, whose numbers have no gap."""

    first: int
    sending: TableSending


class TableRun(BlockRun):
    """A batch of a table's rows."""

    __slots__ = ("block", "singles")

    def __init__(self, singles: Singles, block: Block, since: float) -> None:
        self.singles = singles
        self.block = block
        self.count = len(singles)
        self.first = int(singles.sequence_ids[0])
        self.last = int(singles.sequence_ids[-1])
        self.cost = _cost(singles)
        self.since = since

    def parted(self, upto: int) -> tuple[TableRun, TableRun]:
        at = int(np.searchsorted(self.singles.sequence_ids, upto, "right"))
        first, second = self.singles.part(0, at), self.singles.part(at, self.count)
        return TableRun(first, self.block, self.since), TableRun(second, self.block, self.since)

    def bucket_span(self) -> tuple[int, int]:
        return bucket_span(self.singles.hashes)

    def payload(self) -> memoryview:
        return self.singles.payload(0, self.count)

    def sample(self) -> bytes | None:
        hashes = self.singles.hashes
        if hashes[0] != hashes[-1] or np.any(hashes != hashes[0]):
            return None
        return bytes(self.singles.payload(0, 1))

    def stored(self) -> None:
        self.block.sending.stored(self.count)

    def failed(self, error: Exception) -> None:
        self.block.sending.failed(error)


class TablePiece(NamedTuple):
    """Some rows of a table, and an estimate of their bytes."""

    batch: Any
    estimate: int


class TableRuns:
    """How one producer makes runs of tables."""

    def __init__(
        self, routing: Routing, limits: BatchLimits, keyless_low: int = 0, *, is_encrypted: bool = False
    ) -> None:
        """`keyless_low` is the entry-bucket hash of rows without a key."""
        self._routing = routing
        self._limits = limits
        self._keyless_low = keyless_low
        self._is_encrypted = is_encrypted
        self._pool = Pool(POOL_BYTES)
        self._router: tuple[SegmentLayout, Router] | None = None
        self._turn = 0

    def start(
        self, table: Any, names: Mapping[str, str | None], receipt: asyncio.Future[BatchReceipt]
    ) -> TableSending:
        """A table that is about to be sent; `names` are the names of its columns."""
        return TableSending(table, TableColumns(**names), receipt)  # type: ignore[arg-type]  # `value` has a name.

    def pieces(self, sending: TableSending, bytes_max: int, places: int) -> Iterator[TablePiece]:
        """Cuts a table into pieces that fill batches for so many entry buckets, and take no more than `bytes_max`."""
        table = sending.table
        row_bytes = table.nbytes / max(1, table.num_rows) + ROW_OVERHEAD_BYTES
        wanted = min(bytes_max, max(PIECE_BYTES, places * PIECE_BATCHES * self._limits.bytes_max))
        rows = max(1, min(PIECE_ROWS_MAX, int(wanted / row_bytes)))
        for batch in table.to_batches(max_chunksize=rows):
            yield TablePiece(batch, batch.nbytes + ROW_OVERHEAD_BYTES * batch.num_rows)

    def runs(self, lanes: Lanes, sending: TableSending, batch: Any, first: int, since: float) -> list[Placed]:
        """Turns a piece's rows, numbered from `first`, into runs, each with its present lane."""
        columns = sending.columns
        router = self._router_of(lanes.layout)
        key = batch[columns.key] if columns.key is not None else None
        try:
            if key is None:
                hashes = router.keyless(batch.num_rows, self._turn, run=self._limits.messages_max)
                self._turn += -(-batch.num_rows // self._limits.messages_max)
            else:
                hashes = hash_keys(key)
                self._turn += router.fill_keyless(hashes, key, self._turn)
            groups = partition(router.route(hashes), len(router))
            singles = encode(
                self._pool,
                value=batch[columns.value],
                key=key,
                event_time=batch[columns.event_time] if columns.event_time is not None else None,
                properties=batch[columns.properties] if columns.properties is not None else None,
                first_sequence_id=first,
                order=groups.order,
                bounds=groups.bounds,
                hashes=hashes,
            )
        except (TypeError, ValueError) as error:
            raise BadArgument(str(error)) from None
        sending.numbered(first, first + batch.num_rows - 1)
        return self._cut(lanes, singles, Block(first, sending), since)

    def _cut(self, lanes: Lanes, singles: Singles, block: Block, since: float) -> list[Placed]:
        rows_max, bytes_max = self._limits
        if self._is_encrypted and not is_synthetic(lanes.layout):
            rows_max = 1  # As for messages that come one by one.
        bounds = singles.bounds
        found: list[Placed] = []
        for place in np.flatnonzero(bounds[1:] > bounds[:-1]).tolist():
            lane = lanes.at(place)
            start, end = int(bounds[place]), int(bounds[place + 1])
            found += [
                (lane, TableRun(singles.part(i, j), block, since))
                for i, j in cut(singles.offsets, start, end, bytes_max, rows_max)
            ]
        return found

    def regroup(self, lanes: Lanes, runs: list[BlockRun]) -> list[Placed]:
        """Cuts refused runs again for the segments that follow; block by block, since their numbers do not mix."""
        found: list[Placed] = []
        by_block: dict[int, list[TableRun]] = {}
        for run in runs:
            assert isinstance(run, TableRun)
            by_block.setdefault(run.block.first, []).append(run)
        for parts in by_block.values():
            singles = recut(self._pool, [run.singles for run in parts], self._router_of(lanes.layout))
            # None of them may time out early.
            since = max(run.since for run in parts)
            found += self._cut(lanes, singles, parts[0].block, since)
        return found

    def _router_of(self, layout: SegmentLayout) -> Router:
        if self._router is None or self._router[0] is not layout:
            high = self._routing is Routing.HIGH
            if is_synthetic(layout):
                router = Router.classic(len(layout.active), self._keyless_low, high=high)
            else:
                router = Router(
                    [segment.range.start for segment in layout.active],
                    high=high,
                    splits=[segment.bucket_splits for segment in layout.active],
                    keyless_low=self._keyless_low,
                )
            self._router = (layout, router)
        return self._router[1]


def _cost(singles: Singles) -> int:
    return int(singles.offsets[-1] - singles.offsets[0]) + ROW_OVERHEAD_BYTES * len(singles)
