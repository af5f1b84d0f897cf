"""The figures of a write do not depend on the order of its rows, nor on how tasks divide them."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.spark.columns.sink_columns import SinkColumns
from anabranch.spark.task.tally import RowTally, tally_of

COLUMNS = SinkColumns("v", key="k")
Rows = list[tuple[bytes | None, bytes | None]]


def table(rows: Rows, kind: Any = None) -> Any:
    keys, values = ([row[at] for row in rows] for at in (0, 1))
    kind = pa.binary() if kind is None else kind
    return pa.table({"k": pa.array(keys, kind), "v": pa.array(values, kind)})


@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=4), st.none() | st.binary(max_size=9)), max_size=20),
    st.randoms(use_true_random=False),
    st.integers(0, 20),
)
def test_any_order_in_any_number_of_parts_gives_the_same_figures(rows: Rows, chance: Any, cut: int) -> None:
    other = list(rows)
    chance.shuffle(other)
    # Slices share the buffers of the whole.
    shuffled = table(other)
    parts = [tally_of(part, COLUMNS) for part in (shuffled.slice(0, cut), shuffled.slice(cut))]
    whole = tally_of(table(rows), COLUMNS)
    assert reduce(RowTally.plus, parts) == whole
    keys, values = ([row[at] or b"" for row in rows] for at in (0, 1))
    assert whole == RowTally(
        len(rows),
        *(figure for part in (values, keys) for figure in (len(b"".join(part)), sum(b"".join(part)))),
    )


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.binary_view()])
def test_text_and_every_layout_of_bytes_count_alike(kind: Any) -> None:
    rows: Rows = [(b"a", b"one"), (None, b"two"), (b"", None)]
    assert tally_of(table(rows, kind), COLUMNS) == tally_of(table(rows), COLUMNS)


def test_other_rows_have_another_digest() -> None:
    rows: Rows = [(b"a", b"1000"), (b"b", b"1001")]
    others: list[Rows] = [
        [(b"a", b"1002"), (b"b", b"1003")],
        [(b"a", b"1000"), (b"c", b"1001")],
        [(b"a", b"1000"), (b"b", b"01001")],
        rows[:1],
    ]
    found = {tally_of(table(one), COLUMNS).contents for one in (rows, *others)}
    assert len(found) == 5


def test_a_write_without_keys_has_figures_too() -> None:
    found = tally_of(pa.table({"value": ["a"]}), SinkColumns("value"))
    assert found == RowTally(1, 1, ord("a"))
    assert found.contents == (1, "1-61-0-0")
