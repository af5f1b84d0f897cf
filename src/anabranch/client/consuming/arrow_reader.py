"""Data plane. Turns whole entries from an inbox into Arrow record batches, with the kernels of `anabranch.columns`.

There is a row for each message, in order; `COLUMNS` below lists its fields. No message becomes a Python object. The
entries of a batch are remembered under a number in its schema's metadata, so that the batch can be acknowledged like a
message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from anabranch import columns
from anabranch.client.acking.core.state import words_of
from anabranch.client.consuming.inbox import Inbox
from anabranch.client.errors import BadArgument, CryptoFailed
from anabranch.client.message import ReceivedEntry
from anabranch.errors import AnabranchError
from anabranch.model.wanted import Wanted
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_entry
from anabranch.wire.sizes import UNPACKED_BYTES_MAX

TAG: Final = b"anabranch.batch"
# The memory that is kept for later batches.
POOL_BYTES: Final = 64 << 20
COLUMNS: Final = pa.schema(
    [
        *columns.SCHEMA,
        pa.field("segment_id", pa.int64(), nullable=False),
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
    ]
)


class OnOpened(Protocol):
    """Called with the entries that are given out."""

    def __call__(self, entries: Sequence[ReceivedEntry]) -> None: ...


class ArrowReader:
    """Reads one inbox. With `keeps`, the entries given out are remembered until they are `settled`, and their bytes
    with `holds`.

    With `wanted`, only the messages of some entry buckets become rows, and a batch may be empty.
    With `versions` there is a column `columns.SCHEMA_VERSION`, -1 where an entry names none. An entry that unpacks to
    more than `unpacked_bytes_max` cannot be read.
    """

    def __init__(
        self,
        inbox: Inbox,
        *,
        keeps: bool,
        holds: bool = False,
        versions: bool = False,
        unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
        wanted: Wanted | None = None,
    ) -> None:
        self._inbox = inbox
        self._keeps = keeps
        self._holds = holds
        self._versions = versions
        self._unpacked_bytes_max = unpacked_bytes_max
        self._wanted = wanted
        self._pool = columns.Pool(POOL_BYTES)
        self._given: dict[int, list[ReceivedEntry]] = {}
        self._count = 0
        self._errors: list[AnabranchError] = []
        inbox.enlarge()

    async def read(
        self, rows_max: int, timeout_s: float | None
    ) -> tuple[pa.RecordBatch, list[ReceivedEntry]]:
        """The messages at hand, and their entries; TimedOut if no message comes in time."""
        if rows_max < 1:
            raise BadArgument(f"rows_max={rows_max!r}: give a number above 0")
        while True:
            self.check()
            await self._inbox.rows(rows_max, timeout_s)
            # There is no await from here on: a cancelled read has taken nothing.
            entries = self._inbox.take_whole(rows_max)
            batch, given = self._decode(entries)
            if given:
                return self._tagged(batch, given), given

    def check(self) -> None:
        """Raises the error that the next `read` would raise first: an entry behind the last batch could not be read."""
        if self._errors:
            raise self._errors.pop(0)

    def _decode(self, entries: list[ReceivedEntry]) -> tuple[Any, list[ReceivedEntry]]:
        sources: list[columns.Entry] = []
        given: list[ReceivedEntry] = []
        for entry in entries:
            source = self._source(entry)
            if source is not None:
                sources.append(source)
                given.append(entry)
        decoded = columns.decode(
            self._pool,
            sources,
            verify=False,
            strict=False,
            unpacked_bytes_max=self._unpacked_bytes_max,
            wanted=self._wanted,
        )
        for place, error in reversed(decoded.bad):
            self._errors.insert(0, error)
            del given[place]
        # An entry that was read may have no row either: all of its messages may be marked as compacted.
        counts = np.delete(decoded.counts, [place for place, _ in decoded.bad])
        batch = _with_origin(decoded.batch, given, counts)
        if self._versions:
            versions = np.array([_version_of(entry) for entry in given], np.int64)
            batch = batch.append_column(columns.SCHEMA_VERSION, pa.array(np.repeat(versions, counts)))
        return batch, given

    def _source(self, entry: ReceivedEntry) -> columns.Entry | None:
        """An entry in the form that the kernels need; None if it cannot be read, which the next batch reports."""
        words: Sequence[int] = words_of(entry.wanted) if entry.wanted >= 0 else ()
        try:
            if entry.fault is not None:
                raise entry.fault
            if entry.chooses is not None and self._wanted is None:
                words = words_of(entry.choose()) or (0,)
                return columns.Entry(entry.ledger, entry.entry, entry.raw, words, entry.unpacked())
            if not entry.metadata.encryption_keys and not entry.chunks:
                # An entry that was unpacked already, for messages read one by one, is unpacked again.
                return columns.Entry(entry.ledger, entry.entry, entry.raw, words)
            payload = entry.unpacked(self._unpacked_bytes_max)
            return columns.Entry(entry.ledger, entry.entry, entry.raw, words, payload)
        except CryptoFailed as error:
            decryption = entry.origin.decryption
            if entry.skips_failures:
                entry.owner.ack_entry(entry)
            elif decryption is not None and decryption.on_failure == "deliver":
                if entry.chooses is None or entry.choose():
                    return columns.Entry(entry.ledger, entry.entry, _as_it_is(entry))
            else:
                self._errors.append(error)
        except AnabranchError as error:
            self._errors.append(error)
        return None

    # -- batches given out

    def _tagged(self, batch: Any, given: list[ReceivedEntry]) -> Any:
        if not self._holds:
            for entry in given:
                entry.data = entry.raw = b""
        if not self._keeps:
            return batch
        self._count += 1
        self._given[self._count] = given
        return batch.replace_schema_metadata({TAG: b"%d" % self._count})

    def entries_of(self, batch: Any) -> list[ReceivedEntry]:
        """The entries of a batch."""
        return self._given.get(_tag_of(batch), [])

    def settled(self, batch: Any, *, and_earlier: bool = False) -> None:
        """Forgets the entries of that batch."""
        number = _tag_of(batch)
        self._given.pop(number, None)
        if and_earlier:
            self._given = {one: entries for one, entries in self._given.items() if one > number}


def _version_of(entry: ReceivedEntry) -> int:
    version = entry.metadata.schema_version
    return int.from_bytes(version, "big", signed=True) if len(version) == 8 else -1


def _tag_of(batch: Any) -> int:
    metadata = getattr(getattr(batch, "schema", None), "metadata", None) or {}
    if TAG not in metadata:
        raise BadArgument("acknowledge a message, or a record batch as receive_arrow gave it")
    return int(metadata[TAG])


def _with_origin(batch: Any, given: Sequence[ReceivedEntry], counts: Any) -> Any:
    """Adds the columns that say where rows come from."""
    names: dict[str, int] = {}
    segments = np.array([entry.origin.segment for entry in given], np.int64)
    topics = np.array([names.setdefault(entry.origin.topic, len(names)) for entry in given], np.int32)
    indices = pa.array(np.repeat(topics, counts))
    return pa.RecordBatch.from_arrays(
        [
            *batch.columns,
            pa.array(np.repeat(segments, counts)),
            pa.DictionaryArray.from_arrays(indices, pa.array(list(names), pa.string())),
        ],
        schema=COLUMNS,
    )


def _as_it_is(entry: ReceivedEntry) -> bytes:
    """An entry whose payload cannot be decrypted, as one message."""
    metadata = pb.MessageMetadata()
    metadata.CopyFrom(entry.metadata)
    for name in ("num_messages_in_batch", "encryption_keys", "compression"):
        metadata.ClearField(name)
    return build_entry(metadata, memoryview(entry.raw)[entry.start :])
