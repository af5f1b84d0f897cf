"""Single slices, read as tasks read them. No session: only a broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from anabranch import blocking
from anabranch.model.cut import MessagePosition
from anabranch.model.segments import WHOLE, SegmentId
from anabranch.spark.plan.plan import SegmentSlice
from anabranch.spark.task.read_slice import Task, read
from spark.conftest import River, assert_in_order


def task(river: River, start: MessagePosition | None, end: MessagePosition | None) -> Task:
    segment = f"segment://public/default/{river.topic.rpartition('/')[2]}/0000-ffff-0"
    return Task(river.broker.url, river.topic, segment, WHOLE, SegmentSlice(SegmentId(0), start, end))


def rows(batches: Iterable[Any]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def after(row: dict[str, Any]) -> MessagePosition:
    at = row["position"]
    return (at["ledger"], at["entry"], max(0, at["index"]) + 1)


def before(row: dict[str, Any]) -> MessagePosition:
    at = row["position"]
    return (at["ledger"], at["entry"], max(0, at["index"]))


def test_slices_may_be_cut_at_any_message(river: River) -> None:
    river.publish(60)
    river.publish(60)
    river.split(0)
    whole = rows(read(task(river, None, None)))
    assert_in_order([(row["key"].decode(), int(row["value"])) for row in whole], 120)
    for n in (0, 1, 17, 59, 60, 61, 119):
        at = before(whole[n])
        assert rows(read(task(river, None, at))) == whole[:n]
        assert rows(read(task(river, at, None))) == whole[n:]
        assert rows(read(task(river, at, after(whole[n])))) == whole[n : n + 1]


def test_a_message_in_chunks_belongs_to_the_slice_that_has_its_last_chunk(river: River) -> None:
    large = bytes(12 << 20)
    river.publish(5)
    with blocking.connect(river.broker.url) as client:
        producer = client.producer(river.topic, chunking=True, batching=False)
        producer.send(large, key="large")
        producer.send(b"5", key="small")
        producer.flush()
    river.split(0)
    whole = rows(read(task(river, None, None)))
    assert [len(row["value"]) for row in whole] == [1, 1, 1, 1, 1, len(large), 1]
    ledger, last, _ = before(whole[5])
    first = before(whole[4])[1] + 1
    assert last - first >= 2
    for entry in range(first, last + 2):
        at = (ledger, entry, 0)
        one, two = rows(read(task(river, None, at))), rows(read(task(river, at, None)))
        assert one + two == whole
        assert len(one) == (5 if entry <= last else 6)


def test_a_slice_whose_segment_is_gone_fails(river: River) -> None:
    from anabranch.client import DataLost

    river.publish(5)
    river.split(0)
    (one, *_) = rows(read(task(river, None, None)))
    river.broker.rest("DELETE", f"{river.path}?force=true")
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        rows(read(task(river, before(one), None)))
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        rows(read(task(river, before(one), after(one))))
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        rows(read(task(river, None, after(one))))


def test_a_stream_says_what_holds_messages_for_it_unless_it_has_a_subscription(
    river: River, caplog: pytest.LogCaptureFixture
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from anabranch.spark.options.source import parse
    from anabranch.spark.source import StreamReader

    for more, says in (({}, True), ({"subscription": "table"}, False)):
        caplog.clear()
        reader = StreamReader(parse(river.options(**more), "stream"), None)
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        reader.stop()
        assert ("held by the retention of its topics alone" in caplog.text) is says
