"""Rows as Spark gets them: times that are none to SQL are null, whatever a producer says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.columns import Entry, Pool, decode
from anabranch.spark.columns.rows import for_spark
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_message

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
POOL = Pool()


def expected(millis: int) -> datetime | None:
    return EPOCH + timedelta(milliseconds=millis) if FIRST_MS <= millis <= LAST_MS else None


@given(st.lists(st.integers(1, (1 << 64) - 1) | st.integers(LAST_MS - 2, LAST_MS + 2), max_size=5))
def test_a_time_that_fits_is_kept_and_any_other_is_null(times: list[int]) -> None:
    """64 bits without a sign are what the wire has; to Java, and here, half of them are times before 1970."""
    entries = [
        Entry(
            1,
            n,
            build_message(
                pb.MessageMetadata(producer_name="p", sequence_id=n, publish_time=one, event_time=one), b""
            ),
        )
        for n, one in enumerate(times)
    ]
    rows = for_spark(decode(POOL, entries).batch, "t", 0, ["publish_time", "event_time"]).to_pylist()
    wanted = [expected(one if one < 1 << 63 else one - (1 << 64)) for one in times]
    assert [row["publish_time"] for row in rows] == wanted
    assert [row["event_time"] for row in rows] == wanted


@pytest.mark.parametrize("millis", [FIRST_MS, LAST_MS])
def test_the_first_and_the_last_time_of_sql_are_kept(millis: int) -> None:
    batch = decode(POOL, []).batch
    columns = {
        name: pa.array([millis] * 2 if pa.types.is_timestamp(kind) else [None] * 2, kind)
        for name, kind in zip(batch.schema.names, batch.schema.types, strict=True)
    }
    beyond = millis + (1 if millis > 0 else -1)
    columns["event_time"] = pa.array([beyond, None], columns["event_time"].type)
    rows = for_spark(pa.RecordBatch.from_pydict(columns), "t", 0, ["publish_time", "event_time"])
    assert rows.column("publish_time").null_count == 0
    assert rows.column("event_time").null_count == 2
