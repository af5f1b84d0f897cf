"""Hashes of a column are the hashes of its keys, whatever the column is made of."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.columns import hash_keys
from anabranch.model.keyhash import murmur3_raw

TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int16(), pa.string())]
BINARIES = [pa.binary(), pa.large_binary(), pa.binary_view()]


def expected(keys: list[Any]) -> list[int]:
    raw = [key.encode() if isinstance(key, str) else key for key in keys]
    return [0 if key is None else murmur3_raw(key) for key in raw]


@given(st.lists(st.none() | st.binary(max_size=40)), st.sampled_from(BINARIES), st.integers(0, 5))
def test_hashes_are_those_of_each_key_alone(keys: list[bytes | None], kind: Any, skip: int) -> None:
    assert hash_keys(pa.array(keys, kind).slice(skip)).tolist() == expected(keys[skip:])


@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_text_is_hashed_as_utf8(kind: Any) -> None:
    keys = ["a", "", None, "schlüssel", "a longer key than the others", "日本語"]
    assert hash_keys(pa.array(keys, pa.string()).cast(kind)).tolist() == expected(keys)


def test_keys_of_one_size_and_columns_in_chunks_are_hashed_too() -> None:
    keys = [b"abc", b"def", None, b"xyz"]
    assert hash_keys(pa.array(keys, pa.binary(3))).tolist() == expected(keys)
    assert hash_keys(pa.chunked_array([keys[:1], keys[1:]], pa.binary())).tolist() == expected(keys)
    assert hash_keys(pa.chunked_array([], pa.binary())).tolist() == []
    assert hash_keys(pa.nulls(3)).tolist() == [0, 0, 0]


def test_keys_that_are_not_text_or_binary_are_refused_with_the_fix() -> None:
    with pytest.raises(TypeError, match=r"key is of type int64: cast it"):
        hash_keys(pa.array([1, 2]))
