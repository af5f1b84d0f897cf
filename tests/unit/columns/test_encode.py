"""Columns become the bytes that protobuf would write, message by message."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.columns import Pool, Router, Singles, cut, encode, hash_keys, partition
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import split_batch

PAIRS = pa.map_(pa.string(), pa.string())
POOL = Pool()

Row = dict[str, Any]
TEXT = st.text(max_size=20)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.none() | st.text(max_size=200),
            "raw": st.none() | st.binary(max_size=40),
            "value": st.none() | st.binary(max_size=300),
            "time": st.none() | st.integers(0, (1 << 63) - 1),
            "pairs": st.none() | st.lists(st.tuples(TEXT, TEXT), max_size=3, unique_by=lambda pair: pair[0]),
        }
    ),
    max_size=12,
)


def expected(row: Row, sequence_id: int, *, key: str | None) -> bytes:
    """The message as the scalar codec would write it."""
    single = pb.SingleMessageMetadata(payload_size=len(row["value"] or b""), sequence_id=sequence_id)
    if key is not None and row[key] is not None:
        single.partition_key = row[key] if key == "key" else b64encode(row[key]).decode()
        if key == "raw":
            single.partition_key_b64_encoded = True
    if row["time"] is not None:
        single.event_time = row["time"]
    for name, item in row["pairs"] or ():
        single.properties.add(key=name, value=item)
    if row["value"] is None:
        single.null_value = True
    head = single.SerializeToString()
    return len(head).to_bytes(4, "big") + head + (row["value"] or b"")


def column(rows: list[Row], name: str, kind: Any) -> Any:
    return pa.array([row[name] for row in rows], kind)


def message(singles: Singles, i: int) -> bytes:
    return bytes(singles.payload(i, i + 1))


@given(ROWS, st.sampled_from([None, "key", "raw"]), st.integers(0, 1 << 40), st.booleans(), st.integers(0, 3))
def test_every_row_is_written_as_protobuf_writes_it(
    rows: list[Row], key: str | None, first: int, wide: bool, skip: int
) -> None:
    text, raw = (pa.large_string(), pa.large_binary()) if wide else (pa.string(), pa.binary())
    keys = None if key is None else column(rows, key, text if key == "key" else raw).slice(skip)
    kept = rows[skip:]
    order = np.random.default_rng(1).permutation(len(kept)).astype(np.int32)
    singles = encode(
        POOL,
        value=column(rows, "value", raw).slice(skip),
        key=keys,
        event_time=column(rows, "time", pa.int64()).slice(skip),
        properties=column(rows, "pairs", PAIRS).slice(skip),
        first_sequence_id=first,
        order=order,
    )
    assert len(singles) == len(kept)
    assert singles.sequence_ids.tolist() == [first + row for row in order.tolist()]
    for place, row in enumerate(order.tolist()):
        assert message(singles, place) == expected(kept[row], first + row, key=key)


@pytest.mark.parametrize("size", [0, 40, 400])
@pytest.mark.parametrize("wide", [True, False])
def test_many_rows_from_all_over_a_column_are_each_their_own(size: int, wide: bool) -> None:
    """More than are fetched ahead, with values of a length that is, and of one that is not."""
    values = [None if row % 7 == 3 else b"%d:" % row + b"x" * (size + row % 5) for row in range(300)]
    found = pa.array(values, pa.large_binary() if wide else pa.binary()).slice(100)
    order = np.random.default_rng(2).permutation(200).astype(np.int32)
    singles = encode(POOL, value=found, first_sequence_id=0, order=order)
    payloads = [bytes(payload) for _, payload in split_batch(singles.payload(0, 200), 200)]
    assert payloads == [values[100 + row] or b"" for row in order.tolist()]


def test_without_an_order_rows_come_as_they_stand_and_the_scalar_codec_reads_them() -> None:
    values = [b"one", None, b"", b"x" * 1000]
    singles = encode(POOL, value=pa.array(values, pa.binary()), first_sequence_id=5)
    found = split_batch(singles.payload(0, 4), 4)
    assert [bytes(payload) for _, payload in found] == [b"one", b"", b"", b"x" * 1000]
    assert [single.sequence_id for single, _ in found] == singles.sequence_ids.tolist() == [5, 6, 7, 8]
    assert [single.null_value for single, _ in found] == [False, True, False, False]
    assert singles.bounds.tolist() == [0, 4]


def test_a_struct_of_properties_leaves_out_its_nulls() -> None:
    kind = pa.struct([("a", pa.string()), ("b", pa.string())])
    rows = [{"a": "1", "b": "2"}, None, {"a": None, "b": "3"}]
    values = pa.array([b"", b"", b""])
    singles = encode(POOL, value=values, properties=pa.array(rows, kind), first_sequence_id=0)
    found = split_batch(singles.payload(0, 3), 3)
    pairs = [[(one.key, one.value) for one in single.properties] for single, _ in found]
    assert pairs == [[("a", "1"), ("b", "2")], [], [("b", "3")]]
    empty = encode(POOL, value=values, properties=pa.array([{}] * 3, pa.struct([])), first_sequence_id=0)
    assert not any(single.properties for single, _ in split_batch(empty.payload(0, 3), 3))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_event_times_of_any_unit_are_sent_as_milliseconds(unit: str) -> None:
    times = pa.array([datetime(2024, 5, 1, tzinfo=UTC), None], pa.timestamp(unit, "UTC"))
    singles = encode(POOL, value=pa.array([b"a", b"b"]), event_time=times, first_sequence_id=0)
    (first, _), (second, _) = split_batch(singles.payload(0, 2), 2)
    assert first.event_time == 1714521600000
    assert not second.HasField("event_time")


def test_columns_that_cannot_be_sent_are_refused_with_the_fix() -> None:
    values = pa.array([b"a", b"b"])
    with pytest.raises(ValueError, match="give columns of one length"):
        encode(POOL, value=values, key=pa.array(["a"]), first_sequence_id=0)
    with pytest.raises(ValueError, match="give columns of one length"):
        encode(POOL, value=values, event_time=pa.array([1]), first_sequence_id=0)
    with pytest.raises(ValueError, match="give columns of one length"):
        encode(POOL, value=values, properties=pa.array([None], PAIRS), first_sequence_id=0)
    with pytest.raises(ValueError, match="before 1970"):
        encode(POOL, value=values, event_time=pa.array([-1, 1]), first_sequence_id=0)
    with pytest.raises(TypeError, match="value is of type double"):
        encode(POOL, value=pa.array([1.5, 2.5]), first_sequence_id=0)
    with pytest.raises(TypeError, match="properties are of type string"):
        encode(POOL, value=values, properties=pa.array(["a", "b"]), first_sequence_id=0)
    with pytest.raises(TypeError, match="event_time is of type string"):
        encode(POOL, value=values, event_time=pa.array(["a", "b"]), first_sequence_id=0)


def test_groups_and_hashes_come_along_in_the_order_of_the_messages() -> None:
    keys = pa.array([f"k{i}" for i in range(100)])
    router = Router([0, 0x4000, 0x9000])
    hashes = hash_keys(keys)
    groups = partition(router.route(hashes), len(router))
    singles = encode(
        POOL,
        value=keys,
        key=keys,
        order=groups.order,
        bounds=groups.bounds,
        hashes=hashes,
        first_sequence_id=0,
    )
    assert singles.hashes.tolist() == hashes[groups.order].tolist()
    for group in range(3):
        i, j = singles.bounds[group : group + 2].tolist()
        part = singles.part(i, j)
        found = [single.partition_key for single, _ in split_batch(singles.payload(i, j), j - i)]
        assert found == [f"k{row}" for row in part.sequence_ids.tolist()]
        assert {int(one) for one in router.route(part.hashes)} == {group}
        assert bytes(part.payload(0, 1)) == message(singles, i)


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120), st.integers(1, 10), st.integers(0, 5))
def test_batches_are_as_full_as_the_limits_allow(
    sizes: list[int], bytes_max: int, rows_max: int, start: int
) -> None:
    offsets = np.cumsum([0, *sizes]).astype(np.int64)
    start = min(start, len(sizes))
    batches = cut(offsets, start, len(sizes), bytes_max, rows_max)
    assert [row for i, j in batches for row in range(i, j)] == list(range(start, len(sizes)))
    for i, j in batches:
        size = offsets[j] - offsets[i]
        assert j - i == 1 or size <= bytes_max
        assert j - i <= rows_max
        if j < len(sizes) and j - i < rows_max:
            assert offsets[j + 1] - offsets[i] > bytes_max


def test_memory_of_messages_is_used_again_once_nothing_refers_to_them() -> None:
    pool = Pool()
    values = pa.array([b"x" * 100_000])
    first = encode(pool, value=values, first_sequence_id=0)
    view = first.payload(0, 1)
    address = first.buffer.ctypes.data
    del first
    assert pool.idle_bytes == 0  # The view still needs it.
    other = encode(pool, value=values, first_sequence_id=0)
    assert other.buffer.ctypes.data != address
    del view
    assert pool.idle_bytes > 100_000
    again = encode(pool, value=values, first_sequence_id=0)
    assert again.buffer.ctypes.data == address
    pool.clear()
    assert pool.idle_bytes == 0
