"""Rows of some entry buckets: each row is in exactly one of the ranges that make the ring, whatever entries say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.columns import Entry, Pool, decode
from anabranch.model import buckets
from anabranch.model.cut import BEGINNING, MessagePosition
from anabranch.model.keyhash import bucket_hash
from anabranch.model.segments import HASH_MAX, WHOLE, HashRange
from anabranch.model.wanted import Part, Wanted, hash_within
from anabranch.wire import batch
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.stamps import span_of

POOL = Pool()
HASHES = st.integers(0, HASH_MAX)
SPLITS = st.sets(st.integers(1, HASH_MAX), max_size=6).map(lambda found: tuple(sorted(found)))
KEYS = st.none() | st.text(max_size=4)
# Sound stamps, unsound ones, half ones and none.
STAMPS = st.tuples(st.none() | HASHES | st.integers(0, 1 << 17), st.none() | HASHES)
ENTRIES = st.lists(
    st.tuples(STAMPS, st.lists(KEYS, max_size=5), st.booleans(), st.sampled_from("abc")), max_size=6
)
LEDGER = 4


def entry(number: int, stamp: tuple[int | None, int | None], keys: list[str | None], name: str) -> bytes:
    """A batch; or one message, if there is one key."""
    head = pb.MessageMetadata(producer_name=name, sequence_id=number, publish_time=1)
    low, high = stamp
    if low is not None:
        head.entry_hash_min = low
    if high is not None:
        head.entry_hash_max = high
    payloads = [b"%d.%d" % (number, index) for index in range(len(keys))]
    if len(keys) == 1:
        if keys[0] is not None:
            head.partition_key = keys[0]
        return batch.build_entry(head, payloads[0])
    singles = []
    for key, payload in zip(keys, payloads, strict=True):
        single = (
            pb.SingleMessageMetadata(partition_key=key) if key is not None else pb.SingleMessageMetadata()
        )
        singles.append((single, payload))
    return batch.build_batch(head, singles)


def of(*ends: tuple[int, int], start: MessagePosition = BEGINNING) -> Wanted:
    return Wanted(tuple(Part(HashRange(*one), start) for one in ends))


def rows(entries: list[Any], wanted: Wanted | None = None) -> list[tuple[int, int, bytes]]:
    given = [
        Entry(LEDGER, number, entry(number, stamp, keys, name))
        for number, (stamp, keys, _, name) in enumerate(entries)
    ]
    found = decode(POOL, given, wanted=wanted)
    assert int(found.counts.sum()) == found.batch.num_rows
    table = found.batch.to_pydict()
    at = [number for number, count in enumerate(found.counts.tolist()) for _ in range(count)]
    assert table["entry_id"] == at
    return list(zip(at, np.clip(table["batch_index"], 0, None), table["value"], strict=True))


@given(ENTRIES, SPLITS)
def test_each_row_is_in_one_range_of_the_ring(entries: list[Any], splits: tuple[int, ...]) -> None:
    parts = [rows(entries, Wanted.all_of(span)) for span in buckets.ranges(splits)]
    assert sorted(row for part in parts for row in part) == rows(entries)
    assert all(part == sorted(part) for part in parts)


@given(ENTRIES, SPLITS, st.data())
def test_rows_are_those_that_the_scalar_rule_takes(
    entries: list[Any], splits: tuple[int, ...], data: st.DataObject
) -> None:
    places = st.tuples(st.sampled_from([LEDGER - 1, LEDGER]), st.integers(0, 6), st.integers(0, 3))
    parts = [Part(span, data.draw(places)) for span in buckets.ranges(splits)]
    wanted = Wanted.joined(data.draw(st.lists(st.sampled_from(parts), min_size=1, unique=True).map(sorted)))
    expected = []
    for number, (stamp, keys, _, name) in enumerate(entries):
        span = span_of(pb.MessageMetadata(entry_hash_min=stamp[0], entry_hash_max=stamp[1]))
        for index, key in enumerate(keys):
            own = bucket_hash((name if key is None else key).encode())
            if wanted.has(hash_within(span, own), (LEDGER, number, index)):
                expected.append((number, index, b"%d.%d" % (number, index)))
    assert rows(entries, wanted) == expected


def test_a_stamped_entry_is_taken_whole_though_its_keys_have_other_hashes() -> None:
    """An ordering key chose the bucket, and it is in no column."""
    key = "a"
    other = bucket_hash(b"a") ^ 0x8000
    entries = [((other, other), [key, key], False, "p")]
    assert len(rows(entries, Wanted.all_of(HashRange(other, other)))) == 2
    assert rows(entries, Wanted.all_of(HashRange(bucket_hash(b"a"), bucket_hash(b"a")))) == []


def test_rows_without_a_key_are_where_their_producers_name_is() -> None:
    at = bucket_hash(b"a")
    entries = [((None, None), [None, None], False, "a"), ((None, None), [None], False, "a")]
    assert len(rows(entries, of((at, at)))) == 3
    assert rows(entries, Wanted.joined([Part(HashRange(0, at - 1)), Part(HashRange(at + 1, HASH_MAX))])) == []


def test_messages_behind_each_ranges_position_are_taken() -> None:
    low, high = HashRange(0, 0x7FFF), HashRange(0x8000, HASH_MAX)
    entries = [((0, HASH_MAX), ["a", "b", "c", "d", "e"], False, "p")]
    there = {index: bucket_hash(key.encode()) <= low.end for index, key in enumerate("abcde")}
    assert len(set(there.values())) == 2
    wanted = Wanted((Part(low, (LEDGER, 0, 3)), Part(high, (LEDGER, 1, 0))))
    assert [index for _, index, _ in rows(entries, wanted)] == [n for n in (3, 4) if there[n]]


def test_neighbours_with_one_position_are_one_part() -> None:
    spans = buckets.ranges(buckets.even(4))
    at = (1, 2, 3)
    assert Wanted.joined([Part(spans[0]), Part(spans[1]), Part(spans[2], at), Part(spans[3], at)]) == Wanted(
        (Part(HashRange(0, 0x7FFF)), Part(HashRange(0x8000, HASH_MAX), at))
    )
    assert Wanted.joined(Part(span) for span in spans) == Wanted.all_of(WHOLE)
    assert len(Wanted.joined([Part(spans[0]), Part(spans[2])]).parts) == 2


@pytest.mark.parametrize(
    ("stamp", "meets", "has_all"),
    [((3, 7), True, True), ((0, 4), True, False), ((8, 9), False, False), ((0, 9), True, False)],
)
def test_an_entrys_stamp_decides_alone_where_it_can(
    stamp: tuple[int, int], meets: bool, has_all: bool
) -> None:
    wanted = of((3, 7), start=(1, 5, 0))
    span = HashRange(*stamp)
    assert wanted.meets(span) is meets
    assert wanted.has_all(span, (1, 5)) is has_all
    assert not wanted.has_all(span, (1, 4))
