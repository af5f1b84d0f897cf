"""Data plane. Rows of a stretch with entries that cannot be opened here: encrypted ones, as the writer has no keys.

Such an entry is one row: its bytes are in `undecoded`, and key, properties and times are as its metadata says. So is a
chunk of a message in such a stretch, and an entry that cannot be read at all. All others are rows as ever. The entries
are read from the log's files or objects: a broker gives them to clients only, which refuse what they cannot open.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from anabranch.client.reading.direct import entries
from anabranch.client.reading.plans import Planner
from anabranch.columns import Entry, Pool, decode
from anabranch.errors import AnabranchError
from anabranch.model.cut import MessagePosition
from anabranch.model.keyhash import segment_hash
from anabranch.spark.columns.rows import between
from anabranch.spark.plan.task import Task
from anabranch.tables.core.rows import raw_rows
from anabranch.tables.core.schema import RAW
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import chunk, parse_metadata, payload

# How many bytes of entries are decoded at once.
BYTES_MAX: Final = 4 << 20
_LAST_MS: Final = 253_402_300_799_999

Rows = tuple[pa.RecordBatch, MessagePosition]


def sealed_rows(task: Task, start: MessagePosition | None) -> Iterator[Rows]:
    """The rows of the slice from a position on, each batch with the position behind it."""
    planner = Planner(
        task.admin_url,
        task.segment_topic,
        security=task.security,
        timeout_s=task.timeout_s,
        topic_id=task.topic_id,
        signed=task.object_access == "signed",
    )
    end, pool = task.slice.end, Pool(BYTES_MAX)
    held: list[Entry] = []
    size = 0
    for (ledger, entry), _, data in entries(
        planner, start and start[:2], None, may_lose=not task.fail_on_data_loss
    ):
        if end is not None and (ledger, entry, 0) >= end:
            break
        metadata = _metadata(data)
        if metadata is not None and not metadata.encryption_keys and chunk(metadata) is None:
            held.append(Entry(ledger, entry, bytes(data)))
            size += len(data)
            if size < BYTES_MAX:
                continue
        yield from _opened(held, pool, task, start)
        held, size = [], 0
        if metadata is None or metadata.encryption_keys or chunk(metadata) is not None:
            yield _closed(task, ledger, entry, metadata, data), (ledger, entry + 1, 0)
    yield from _opened(held, pool, task, start)


def _metadata(data: Any) -> pb.MessageMetadata | None:
    try:
        return parse_metadata(data)
    except AnabranchError:
        return None


def _opened(held: list[Entry], pool: Pool, task: Task, start: MessagePosition | None) -> Iterator[Rows]:
    """Entries that can be opened, and those of them that turn out to be unreadable."""
    at = 0
    while at < len(held):
        decoded = decode(pool, held[at:], strict=False)
        stop = at + decoded.bad[0][0] if decoded.bad else len(held)
        if stop > at:
            found = decode(pool, held[at:stop]).with_versions()
            rows = between(found, start, task.slice.end)
            last = held[stop - 1]
            if rows.num_rows:
                behind = (last.ledger_id, last.entry_id + 1, 0)
                yield raw_rows(rows, task.topic, task.slice.segment), behind
        if decoded.bad:
            bad = held[stop]
            row = _closed(task, bad.ledger_id, bad.entry_id, _metadata(bad.data), bad.data)
            yield row, (bad.ledger_id, bad.entry_id + 1, 0)
        at = stop + 1


def _closed(
    task: Task, ledger: int, entry: int, metadata: pb.MessageMetadata | None, data: Any
) -> pa.RecordBatch:
    """One row for an entry whose messages cannot be seen."""
    has_key = metadata is not None and metadata.HasField("partition_key")
    key = metadata.partition_key.encode() if metadata is not None and has_key else None
    row: dict[str, Any] = {
        "key": key,
        "value": None,
        "properties": [],
        "topic": task.topic,
        "segment": task.slice.segment,
        "ledger": ledger,
        "entry": entry,
        "index": -1,
        "key_hash": None if key is None else segment_hash(key),
        "schema_version": -1,
        "undecoded": bytes(data) if metadata is None else bytes(payload(data)),
    }
    if metadata is not None:
        row |= {
            "properties": [(one.key, one.value) for one in metadata.properties],
            "publish_time": _micros(metadata.publish_time),
            "event_time": _micros(metadata.event_time) if metadata.HasField("event_time") else None,
            "sequence_id": metadata.sequence_id - (1 << 64 if metadata.sequence_id >> 63 else 0),
        }
    return pa.RecordBatch.from_pylist([row], schema=RAW)


def _micros(time_ms: int) -> int | None:
    return time_ms * 1000 if time_ms <= _LAST_MS else None
