"""Data plane. Reads a slice of a segment as rows of a raw table. Blocking.

Files and objects are read by plans, as in Spark's tasks. What these cannot give comes through the broker, to the end of
the slice, except entries that no client here could open, whose bytes are kept (`sealed`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from anabranch.client.reading.failures import FilesUnreachableError, NeedsClientError, PlanOutdatedError
from anabranch.client.reading.plans import NoPlanError, PlanRefusedError
from anabranch.model.cut import MessagePosition
from anabranch.spark.plan.task import Task
from anabranch.spark.task.read_files import DirectReader
from anabranch.spark.task.read_slice import messages
from anabranch.table_writer.core.reached import position_behind
from anabranch.table_writer.sealed import sealed_rows
from anabranch.tables.core.rows import raw_rows

log = logging.getLogger(__name__)

Rows = tuple[pa.RecordBatch, MessagePosition | None]


def rows_of(task: Task, *, is_sealed: bool) -> Iterator[Rows]:
    """The rows of the slice, each batch with the position behind it; None where reading must go on to the end of the
    slice: a client may pass entries that it cannot open, and says so later."""
    if is_sealed:
        yield from sealed_rows(task, task.slice.start)
        return
    files = DirectReader(task, task.slice.start)
    if task.admin_url:
        try:
            for batch in files.batches():
                yield _raw(task, batch), _behind(batch)
            return
        except NeedsClientError as error:
            if "encrypted" in str(error):
                yield from sealed_rows(task, files.at)
                return
        except (PlanRefusedError, NoPlanError, FilesUnreachableError, PlanOutdatedError) as error:
            log.info("%s is read through its broker: %s", task.segment_topic, error)
    is_begun = files.at != task.slice.start
    rest = replace(task.slice, start=files.at, chunks_from=None if is_begun else task.slice.chunks_from)
    for batch in messages(replace(task, read_mode="broker", slice=rest)):
        yield _raw(task, batch), None


def _raw(task: Task, batch: Any) -> pa.RecordBatch:
    return raw_rows(batch, task.topic, task.slice.segment)


def _behind(batch: Any) -> MessagePosition:
    last = batch.num_rows - 1
    names = ("ledger_id", "entry_id", "batch_index")
    ledger, entry, index = (batch.column(name)[last].as_py() for name in names)
    return position_behind(ledger, entry, index)
