"""Puts a topic's table together: finds its snapshot, sees that it is of this topic, reads the tail.

The snapshot comes first and the tail begins at its cut, so nothing is between them. What is published while the tail is
read may be in it or not; the cut says which.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anabranch.client.errors import BadArgument, TopicMadeAgain, Unsupported
from anabranch.client.tables.asked import TableAsked
from anabranch.client.tables.finding import FoundTable
from anabranch.client.tables.tail import TailReader
from anabranch.client.tables.topic_rows import TopicRows
from anabranch.client.transport.layout_watch import LayoutWatch
from anabranch.model.cut import Cut
from anabranch.model.rows_before import RowsBefore, rows_before
from anabranch.tables.core.names import NoTable

if TYPE_CHECKING:
    from anabranch.tables.snapshot import TableSnapshot


# Opens a reader of the tail from a cut on.
TailOpener = Callable[[LayoutWatch, Cut], Awaitable[TailReader]]


async def open_table(
    asked: TableAsked,
    topic: str,
    watched: Callable[[], Awaitable[LayoutWatch]],
    find: Callable[[LayoutWatch], Awaitable[FoundTable]],
    read_from: TailOpener,
    silence_max_s: float,
) -> TopicRows:
    """`watched` opens a watch on the topic, which is closed here, or by the reader of the tail."""
    if asked.url is not None and not asked.needs_log:
        snapshot = await asyncio.to_thread(snapshot_of_topic, asked, topic)
        assert snapshot is not None
        check_name(snapshot, topic)
        return _of_files(asked, snapshot)
    watch = await watched()
    reader: TailReader | None = None
    try:
        name = watch.shown_topic
        if asked.url is None:
            asked = found_in(asked, name, await find(watch))
        snapshot = await asyncio.to_thread(snapshot_of_topic, asked, name)
        if snapshot is not None:
            check_is_of(snapshot, name, watch.layout.topic_id)
            if not asked.needs_log:
                return _of_files(asked, snapshot)
            if snapshot.mode == "decoded":
                raise Unsupported(
                    f"the table of {name} has decoded columns, which the client does not make of what is in the log "
                    "only: read its history (part='history'), or both with anabranch.spark.table"
                )
        before = None if asked.until is None else rows_before(asked.until, watch.layout, name)
        reader = await read_from(watch, Cut() if snapshot is None else Cut.decode(snapshot.cut))
        batches = await reader.read_all(silence_max_s)
        cut = reader.checkpoint()
    finally:
        await (watch if reader is None else reader).close()
    tail = await asyncio.to_thread(_rows, batches)
    return _stitched(asked, name, snapshot, tail, cut, before)


def found_in(asked: TableAsked, topic: str, found: FoundTable) -> TableAsked:
    """What is asked for, at the place that a broker told."""
    options = {**found.storage_options, **asked.storage_options}
    return replace(asked, url=found.url, storage_options=options, may_be_missing=found.is_kept)


def snapshot_of_topic(asked: TableAsked, topic: str) -> TableSnapshot | None:
    """The version of the table that is asked for. None if the topic is kept as a table and nothing is written yet.

    Raises NoTable where there has to be one. Blocking.
    """
    assert asked.url is not None
    try:
        from anabranch.tables.snapshot import open_snapshot

        found = open_snapshot(asked.url, asked.storage_options, version=asked.version, at=asked.at)
    except ImportError as error:
        raise Unsupported(f"reading tables needs {error.name}: pip install anabranch[tables]") from None
    if found is not None:
        return found
    if not asked.may_be_missing:
        raise NoTable(
            f"{asked.url}: there is no table. `anabranch tables enable {topic}` makes brokers keep one; if it is "
            "elsewhere, give its URL"
        )
    if not asked.needs_log:
        raise NoTable(f"{topic}: its table at {asked.url} has no version yet, so there is no history")
    return None


def check_is_of(snapshot: TableSnapshot, topic: str, topic_id: str) -> None:
    """Raises TopicMadeAgain for the table of an earlier topic of that name, BadArgument for one of another name."""
    if snapshot.topic_id and topic_id and snapshot.topic_id != topic_id:
        if snapshot.topic != topic:
            raise _of_another(snapshot, topic)
        raise TopicMadeAgain(
            f"{topic} was deleted and made again: the table at {snapshot.url} is of the one with the id "
            f"{snapshot.topic_id}, and the present one has the id {topic_id}. What the table has is not of the present "
            "topic. Its rows can be read without the topic (part 'history', or a version of it); the present topic "
            "needs a table of its own"
        )


def check_name(snapshot: TableSnapshot, topic: str) -> None:
    """Raises BadArgument for the table of a topic of another name, where the topic itself is not asked."""
    # A name without a domain may be of either kind of topic.
    if "://" in topic and snapshot.topic.partition("://")[2] != topic.partition("://")[2]:
        raise _of_another(snapshot, topic)


def _of_another(snapshot: TableSnapshot, topic: str) -> BadArgument:
    return BadArgument(f"the table at {snapshot.url} is of {snapshot.topic}, and not of {topic}")


def _of_files(asked: TableAsked, snapshot: TableSnapshot) -> TopicRows:
    schema = _columns(snapshot)
    return TopicRows(
        snapshot.topic,
        snapshot.cut.encode(),
        schema,
        schema.empty_table(),
        snapshot,
        asked.storage_options,
    )


def _columns(snapshot: TableSnapshot) -> Any:
    """The table's columns without the one that is in folders' names only."""
    import pyarrow as pa

    from anabranch.tables.core.schema import DAY

    return pa.schema([field for field in snapshot.schema if field.name != DAY])


def _rows(batches: list[Any]) -> Any:
    from anabranch.client.tables.rows import raw_rows

    return raw_rows(batches)


def _stitched(
    asked: TableAsked,
    topic: str,
    snapshot: TableSnapshot | None,
    tail: Any,
    cut: bytes,
    before: RowsBefore | None,
) -> TopicRows:
    wanted = snapshot if asked.part == "all" else None
    schema = tail.schema if snapshot is None else _columns(snapshot)
    if asked.until is not None:
        cut = asked.until.encode()
    return TopicRows(
        topic, cut, schema, tail.select(schema.names).cast(schema), wanted, asked.storage_options, before
    )
