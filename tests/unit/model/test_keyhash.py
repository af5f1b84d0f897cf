"""Key hashes are those of Pulsar's clients and brokers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model import keyhash


@pytest.mark.parametrize(
    ("key", "value"),
    # The public test values of murmur3-32 with seed 0.
    [(b"", 0), (b"\0\0\0\0", 0x2362F9DE), (b"Hello, world!", 0xC0363E43)],
)
def test_murmur3_gives_the_published_values(key: bytes, value: int) -> None:
    assert keyhash.murmur3_raw(key) == value
    assert keyhash.murmur3(key) == value & 0x7FFFFFFF
    assert keyhash.segment_hash(key) << 16 | keyhash.bucket_hash(key) == value


@pytest.mark.parametrize(
    ("key", "value"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", 0), ("ü", 252), ("😀", 1772899)],
)
def test_java_string_hash_is_hash_code_without_its_sign(key: str, value: int) -> None:
    assert keyhash.java_string_hash(key) == value


@given(st.binary(), st.sampled_from([1 << 16, 1 << 10, 7]))
def test_no_sticky_key_hashes_to_slot_zero(key: bytes, slots: int) -> None:
    slot = keyhash.sticky_slot(key, slots)
    assert 1 <= slot < slots
    assert slot in (keyhash.murmur3(key) % slots, 1)


def test_the_empty_key_moves_to_slot_one() -> None:
    assert keyhash.sticky_slot(b"") == 1


@given(st.text(), st.integers(1, 64))
def test_a_key_has_one_partition(key: str, partitions: int) -> None:
    assert 0 <= keyhash.partition_of(key, partitions) < partitions
    assert 0 <= keyhash.partition_of(key, partitions, by_murmur=True) < partitions
