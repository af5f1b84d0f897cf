"""Reads one slice of a segment as record batches for Spark: from the log's files where that is possible, else through
its broker. Runs in a task.

Where files do not suffice, the broker is asked from exactly that position on. If only some entries need a client
(encrypted ones, and chunks of messages), the files are tried again some distance behind them, and the distance grows: a
topic full of such entries is read by the client, a topic with a few of them from files.

Damaged or missing data in files fails the task: the broker has the same files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from anabranch.client.reading.failures import FilesUnreachableError, NeedsClientError, PlanOutdatedError
from anabranch.client.reading.plans import NoPlanError, PlanRefusedError
from anabranch.errors import AnabranchError, OversizePayload
from anabranch.model.cut import MessagePosition
from anabranch.spark.plan.task import Task
from anabranch.spark.task.read_files import DirectReader

__all__ = ["NotDirect", "Task", "messages", "read"]

log = logging.getLogger(__name__)

# How many entries a client reads before files are tried again, and the factor by which that grows each time.
FIRST_STRETCH: Final = 64
GROWTH: Final = 8
_OTHERWISE: Final = (PlanRefusedError, NoPlanError, FilesUnreachableError, PlanOutdatedError)


class NotDirect(AnabranchError):
    """Messages are to be read from files only, and that is impossible."""


class MessageTooLarge(AnabranchError):
    """A message unpacks to more than the query allows."""


def read(task: Task) -> Iterator[Any]:
    """The record batches of a slice, with the columns that the task wants."""
    from anabranch.spark.columns.row_filter import wanted
    from anabranch.spark.columns.rows import for_spark

    try:
        for batch in messages(task):
            rows = wanted(batch, task.ranges)
            if rows.num_rows:
                yield for_spark(rows, task.topic, task.slice.segment, task.columns)
    except OversizePayload as error:
        raise MessageTooLarge(
            f"{task.segment_topic} has a message, or a batch of them, that is too large: {error}. The option "
            "maxMessageBytes allows more, up to 1073741824"
        ) from error


def messages(task: Task) -> Iterator[Any]:
    """The record batches of a slice, as `anabranch.columns.SCHEMA` has them; with the versions of the schema, if the
    task wants them."""
    if task.read_mode == "broker" or (task.read_mode == "auto" and not task.admin_url):
        yield from _through_broker(task)
        return
    if not task.admin_url:
        raise _not_direct(task, "no broker has announced where it answers admin requests: set adminUrl")
    start, stretch = task.slice.start, FIRST_STRETCH
    chunks_from = task.slice.chunks_from
    while True:
        files = DirectReader(task, start)
        until: MessagePosition | None = None
        try:
            yield from files.batches()
            return
        except NeedsClientError as error:
            if task.read_mode == "direct":
                raise _not_direct(task, str(error)) from error
            ledger, entry = error.position
            until, stretch = (ledger, entry + stretch, 0), stretch * GROWTH
        except _OTHERWISE as error:
            if task.read_mode == "direct" and not _is_gone(task):
                raise _not_direct(task, str(error)) from error
            log.info("%s is read through its broker: %s", task.segment_topic, error)
        end = _first(until, task.slice.end)
        rest = replace(task.slice, start=files.at, end=end, chunks_from=chunks_from)
        yield from _through_broker(replace(task, slice=rest))
        if end == task.slice.end:
            return
        start, chunks_from = end, None


def _through_broker(task: Task) -> Iterator[Any]:
    # Most tasks need no client, and start sooner without it.
    from anabranch.spark.task import read_broker as broker_reader

    return broker_reader.read(task)


def _is_gone(task: Task) -> bool:
    from anabranch.spark.task import read_broker as broker_reader

    return broker_reader.is_gone(task)


def _first(one: MessagePosition | None, other: MessagePosition | None) -> MessagePosition | None:
    return one if other is None else other if one is None else min(one, other)


def _not_direct(task: Task, why: str) -> NotDirect:
    return NotDirect(
        f"readMode=direct: {task.segment_topic} cannot be read from files: {why}. Or set readMode=auto"
    )
