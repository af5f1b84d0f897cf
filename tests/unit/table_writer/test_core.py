"""Where commits end, when they are due, and which columns decoded tables have, as values."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.cut import BEGINNING, Cut, Place
from anabranch.model.segments import HashRange, SegmentId
from anabranch.spark.plan.plan import SegmentSlice
from anabranch.table_writer.core.due import PAUSE_MAX_S, NextCommit
from anabranch.table_writer.core.reached import cut_short, position_behind
from anabranch.table_writer.core.widening import widened
from anabranch.tables.core.schema import FIRST_DECODED_ID, RAW, number_of

LOW, HIGH = HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF)


def test_a_commit_that_ends_early_says_how_far_each_segment_was_read() -> None:
    end = Cut(
        (
            Place(SegmentId(1), LOW, epoch=1, at=((5, 9, 0),)),
            Place(SegmentId(2), HIGH, epoch=1, at=(), sealed_epoch=4),
        ),
        "id",
    )
    slices = [
        SegmentSlice(SegmentId(1), (5, 2, 0), (5, 9, 0)),
        SegmentSlice(SegmentId(2), None, None, chunks_from=(3, 1)),
    ]
    nothing = cut_short(end, slices, frozenset(), {})
    assert [place.at for place in nothing.places] == [((5, 2, 0),), (BEGINNING,)]
    assert nothing.places[1].chunks_from == (3, 1)
    some = cut_short(
        end, slices, frozenset({SegmentId(1)}), {SegmentId(1): (5, 8, 0), SegmentId(2): (7, 1, 3)}
    )
    assert some.places[0] == end.places[0]
    assert (some.places[1].at, some.places[1].sealed_epoch) == (((7, 1, 3),), 0)
    assert cut_short(end, slices, frozenset({SegmentId(1), SegmentId(2)}), {}) == end


def test_the_position_behind_a_row_is_in_its_batch_or_behind_its_entry() -> None:
    assert position_behind(1, 2, -1) == (1, 3, 0)
    assert position_behind(1, 2, 4) == (1, 2, 5)


@given(st.floats(0, 1e6), st.floats(0.05, 600), st.floats(0, 1), st.integers(1, 40))
def test_a_topic_that_fails_is_tried_later_and_later_but_always_again(
    now_s: float, every_s: float, chance: float, failures: int
) -> None:
    due = NextCommit(now_s)
    pauses = []
    for _ in range(failures):
        due = due.failed(now_s, every_s)
        pauses.append(due.at_s - now_s)
    assert pauses == sorted(pauses)
    assert 0 < pauses[-1] <= PAUSE_MAX_S + 1e-6
    assert due.committed(now_s, every_s, has_more=False) == NextCommit(now_s + every_s)
    assert due.committed(now_s, every_s, has_more=True) == NextCommit(now_s)
    assert every_s <= due.lost_race(now_s, every_s, chance).at_s - now_s + 1e-6


KINDS = st.recursive(
    st.sampled_from(
        [pa.int32(), pa.int64(), pa.float32(), pa.string(), pa.binary(), pa.bool_(), pa.date32()]
    ),
    lambda inner: (
        inner.map(pa.list_)
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(
            lambda d: pa.struct(list(d.items()))
        )
        | inner.map(lambda kind: pa.map_(pa.string(), kind))
    ),
    max_leaves=4,
)
FIELDS = st.dictionaries(st.sampled_from(["a", "b", "key", "value", "Day"]), KINDS, max_size=4).map(
    lambda found: [pa.field(name, kind) for name, kind in found.items()]
)


def ids_of(field: pa.Field) -> list[int]:
    kind = field.type
    parts = list(kind) if pa.types.is_struct(kind) else []
    parts += [kind.key_field, kind.item_field] if pa.types.is_map(kind) else []
    parts += [kind.value_field] if pa.types.is_list(kind) else []
    return [number_of(field), *(number for part in parts for number in ids_of(part))]


@given(st.lists(FIELDS, max_size=5))
def test_columns_come_and_never_go_and_keep_their_ids(versions: list[list[pa.Field]]) -> None:
    table = RAW
    for fields in versions:
        found = widened(table, fields)
        assert found.schema.names[: len(table.names)] == table.names
        for field in table:
            assert number_of(found.schema.field(field.name)) == number_of(field)
            assert set(ids_of(field)) <= set(ids_of(found.schema.field(field.name)))
        every = [number for field in found.schema for number in ids_of(field)]
        assert len(every) == len(set(every))
        assert all(
            number >= FIRST_DECODED_ID for field in list(found.schema)[len(RAW) :] for number in ids_of(field)
        )
        assert widened(found.schema, fields) == found
        assert len({name.lower() for name in found.schema.names}) == len(found.schema.names)
        table = found.schema


def test_wider_numbers_change_nothing_and_other_types_do_not_fit() -> None:
    first = widened(RAW, [pa.field("n", pa.int32()), pa.field("x", pa.float32()), pa.field("s", pa.string())])
    assert [first.schema.field(name).type for name in ("n", "x", "s")] == [
        pa.int64(),
        pa.float64(),
        pa.string(),
    ]
    second = widened(
        first.schema, [pa.field("n", pa.int64()), pa.field("x", pa.float64()), pa.field("s", pa.int32())]
    )
    assert second.schema == first.schema
    assert second.columns == ("n", "x", None)
    third = widened(RAW, [pa.field("value", pa.int64()), pa.field("day", pa.string())])
    assert third.columns == ("value_value", "value_day")
